"""Two generations of an index beside each other, of which readers see one, and all of it in one step."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pydantic import SecretStr

from cdc.config.stores import SearchConfig
from sinks.errors import SinkError
from sinks.search import slots as module
from sinks.search.sink import SearchSink
from sinks.search.slots import SearchSlots
from tests.unit.sinks.search.conftest import QUICK, SCHEMA, Place, delete, upsert


@pytest.fixture
def slots(place: Place) -> Iterator[SearchSlots]:
    with closing(SearchSlots(SearchConfig(url=SecretStr(place.url)), place.prefix, QUICK)) as made:
        yield made


def built(place: Place, slot: str, generation: int) -> SearchSink:
    sink = SearchSink.open(SearchConfig(url=SecretStr(place.url)), place.prefix, QUICK, slot=slot)
    sink.begin_generation(generation)
    sink.prepare(SCHEMA)
    return sink


def test_a_generation_is_seen_when_it_serves_and_not_before(place: Place, sink: SearchSink, slots: SearchSlots) -> None:
    everything: dict[str, Any] = {"match_all": {}}
    sink.apply([upsert(1, 10), upsert(2, 11)])
    sink.make_readable({SCHEMA.table})
    with closing(built(place, "g2", 2)) as other:
        other.apply([upsert(1, 10), upsert(3, 12), delete(2, 13)])
        other.make_readable({SCHEMA.table})
        assert place.find(everything) == [1, 2]
        assert (slots.serving(), slots.others(), slots.generation("g2")) == ("", {"g2": 2}, 2)
        for _ in range(2):  # idempotent
            slots.serve("g2")
            assert place.find(everything) == [1, 3]
        assert (slots.serving(), slots.others()) == ("g2", {"": 1})
        # Who writes the former generation goes on writing that, and readers don't see it.
        sink.apply([upsert(9, 20)])
        other.apply([upsert(4, 21)])
        for one in (sink, other):
            one.make_readable({SCHEMA.table})
        assert place.find(everything) == [1, 3, 4]
        with closing(place.open()) as following:
            following.attach(SCHEMA)
            assert (following.generation(), sorted(row.row["id"] for row in following.rows(SCHEMA.table))) == (
                2,
                [1, 3, 4],
            )
        slots.serve("")
        assert place.find(everything) == [1, 2, 9]
        slots.drop("g2")
        slots.drop("g2")
        assert (slots.others(), place.find(everything)) == ({}, [1, 2, 9])


def test_tables_that_come_later_are_shown_in_the_serving_generation_only(place: Place, slots: SearchSlots) -> None:
    with closing(built(place, "", 1)), closing(built(place, "g2", 2)):
        assert list(place.client.indices.get_alias(name=place.alias)) == [f"{place.alias}.documents"]
        slots.serve("g2")
        assert list(place.client.indices.get_alias(name=place.alias)) == [f"{place.alias}.documents.g2"]


def test_a_serving_generation_that_begins_again_goes_on_serving(place: Place, slots: SearchSlots) -> None:
    with closing(built(place, "g2", 2)) as other:
        slots.serve("g2")
        other.begin_generation(3)
        assert (slots.serving(), slots.generation("g2")) == ("g2", 3)


def test_a_disk_without_room_is_said(
    place: Place, sink: SearchSink, slots: SearchSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.apply([upsert(1, 10)])
    place.client.indices.flush(index=f"{place.alias}.documents")
    slots.check_room()
    monkeypatch.setattr(module, "DISK_USED_MAX", 0.0)
    with pytest.raises(SinkError, match=r"a second generation needs about [0-9,]+ bytes, and its disks take"):
        slots.check_room()
