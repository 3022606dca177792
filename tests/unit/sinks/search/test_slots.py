"""Two generations of an index beside each other, of which readers see one, and all of it in one step."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from cdc.config.stores import SearchConfig
from cdc.model.events import Column, TableId
from sinks.contract import Change, Outcome
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


OTHER = replace(SCHEMA, table=TableId("public", "others"), topic="others")


def of_other(key: int, version: int) -> Change:
    return msgspec.structs.replace(upsert(key, version), table=OTHER.table)


def test_indexes_of_tables_that_were_not_built_go_over_to_the_new_generation(place: Place, slots: SearchSlots) -> None:
    alias = f"{place.prefix}.public.others"
    indices = place.client.indices
    with closing(built(place, "", 1)) as former, closing(built(place, "g2", 2)) as new:
        former.prepare(OTHER)
        former.apply([upsert(1, 10), of_other(5, 10)])
        new.apply([upsert(1, 10), upsert(2, 11)])
        for one in (former, new):
            one.make_readable({SCHEMA.table})
        former.make_readable({OTHER.table})
        new.save_position("of both", None)
        before = indices.get_settings(index=alias)
        # Killed when the new marker names the index that it adopts: what is begun again leaves that index.
        slots._generations("g2").adopt(slots._generations(""))
        assert slots.others() == {"g2": 2}
        slots.drop("g2")
        assert indices.get_settings(index=alias) == before
    with closing(built(place, "g2", 2)) as new:
        new.apply([upsert(1, 10), upsert(2, 11)])
        new.make_readable({SCHEMA.table})
        new.save_position("of both", None)
        for _ in range(2):  # idempotent
            slots.serve("g2", adopts=True)
            assert (slots.serving(), slots.generation("g2"), place.find({"match_all": {}})) == ("g2", 2, [1, 2])
        assert indices.get_settings(index=alias) == before, "it is the same index"
        assert not indices.exists_alias(name=f"{alias}.documents.own"), "nobody writes through the former name"
        slots.drop("")
        assert slots.others() == {}
    with closing(place.open()) as following:
        for schema in (SCHEMA, OTHER):
            following.prepare(schema)
        assert (following.generation(), following.saved_position()) == (2, "of both")
        assert [one.outcome for one in following.apply([of_other(5, 10), of_other(6, 11)])] == [
            Outcome.STALE,
            Outcome.WRITTEN,
        ]
        following.make_readable({OTHER.table})
        assert sorted(row.row["id"] for row in following.rows(OTHER.table)) == [5, 6]
        # A field of another type: the adopted index is copied to one of this generation, and deleted.
        wider = replace(
            OTHER, version=2, columns=(*OTHER.columns[:-1], Column(OTHER.columns[-1].name, 16, -1, "b", True))
        )
        following.prepare(wider, [OTHER])
        assert list(indices.get_alias(name=alias)) == [f"{alias}.documents.g2.v2"]
        assert sorted(indices.get(index=f"{alias}.documents*")) == [f"{alias}.documents.g2.v2"]
        assert following.generation() == 2
    with closing(built(place, "g3", 3)):
        slots.serve("g3", adopts=True)
        slots.drop("g2")
        assert list(indices.get_alias(name=alias)) == [f"{alias}.documents.g2.v2"]
    with closing(place.open()) as following:
        following.discard(OTHER.table)
        assert not indices.exists(index=alias), "an adopted index is discarded like one of its own"


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
