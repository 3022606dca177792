"""Indexes in the shape of the users' choice, on the real server."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from msgspec import structs
from pydantic import SecretStr

from cdc.config.store_shapes import SearchShape
from cdc.config.stores import SearchConfig
from cdc.model.events import pack_version
from sinks.contract import Outcome
from sinks.errors import RefusedError, SinkError
from sinks.search.sink import SearchSink
from tests.unit.sinks.search.conftest import QUICK, SCHEMA, TABLE, Place, delete, upsert

V = pack_version(1, 1)


def opened(place: Place, **shape: Any) -> SearchSink:
    """A sink that is prepared as the job does it."""
    shapes = {"public.*": SearchShape(**shape)}
    sink = SearchSink.open(SearchConfig(url=SecretStr(place.url), shapes=shapes), place.prefix, QUICK)
    held = sink.generation()
    if held is None:
        sink.begin_generation(1)
    sink.prepare(SCHEMA)
    return sink


@pytest.fixture
def sinks() -> Iterator[list[SearchSink]]:
    made: list[SearchSink] = []
    yield made
    for sink in made:
        sink.close()


def test_json_that_its_field_can_not_take_is_kept_as_text_and_the_row_stays_searchable(place: Place) -> None:
    texts = ('{"a": "%s"}' % ("w" * 40_000), "[1, 2]", '"text"', '{"ok": 1}')
    with closing(opened(place)) as sink:
        rows = [upsert(number, V + number, name="word", attributes=text) for number, text in enumerate(texts)]
        assert {result.outcome for result in sink.apply(rows)} == {Outcome.WRITTEN}
        sink.make_readable({TABLE})
        assert place.find({"match": {"name": "word"}}) == [0, 1, 2, 3]
        assert {row.key["id"]: row.row["attributes"] for row in sink.rows(TABLE)} == dict(enumerate(texts))
        kept = place.client.get(index=place.alias, id="0")["_source"]
        assert kept["ws_json"]["attributes"] == texts[0] and "attributes" not in kept


def test_large_json_that_an_update_left_alone_keeps_its_digits(place: Place) -> None:
    text = '{"a": 2.50, "b": 12345678901234567890123, "c": 1e400}'.replace("1e400", "1" + "0" * 400 + ".5")
    with closing(opened(place)) as sink:
        sink.apply([upsert(1, V, attributes=text)])
        lacking = upsert(1, V + 1, name="later")
        assert lacking.row is not None
        row = {name: value for name, value in lacking.row.items() if name != "attributes"}
        sink.apply([structs.replace(lacking, row=row, unchanged=frozenset({"attributes"}))])
        sink.make_readable({TABLE})
        assert [row.row["attributes"] for row in sink.rows(TABLE)] == [text]


def test_alias_index_ids_and_routing_are_the_users(place: Place) -> None:
    names = {"alias": "{prefix}-items", "index": "{prefix}-items-1"}
    with closing(opened(place, **names, id="item-{id}", routing="{id}", settings={"number_of_shards": 3})) as sink:
        sink.apply([upsert(number, V + number, name="word") for number in range(20)])
        sink.apply([delete(3, V + 30)])
        assert sink.sweep(TABLE, V + 10) == 9
        sink.make_readable({TABLE})
        alias = f"{place.prefix}-items"
        assert place.client.count(index=alias)["count"] == 10
        found = place.client.get(index=alias, id="item-12", params={"routing": "12"})
        assert found["_source"]["name"] == "word" and found["_routing"] == "12"
        assert list(place.client.indices.get_alias(name=alias)) == [f"{place.prefix}-items-1"]
        assert sink.apply([upsert(3, V)])[0].outcome is Outcome.STALE


def test_a_changed_shape_is_filled_again_and_a_job_with_the_old_one_ends(place: Place, sinks: list[SearchSink]) -> None:
    first = opened(place)
    sinks.append(first)
    first.apply([upsert(1, V, name="word")])
    assert first.generation() == 1
    second = opened(place, alias="{prefix}.items", mapping={"name": {"analyzer": "english"}})
    sinks.append(second)
    assert not place.client.indices.exists(index=f"{place.alias}.documents")
    second.apply([upsert(1, V, name="words")])
    second.make_readable({TABLE})
    alias = f"{place.prefix}.items"
    assert place.client.count(index=alias, body={"query": {"match": {"name": "word"}}})["count"] == 1
    assert second.generation() == 1
    with pytest.raises(SinkError):
        first.apply([upsert(2, V + 1)])
    third = opened(place, alias="{prefix}.items", mapping={"name": {"analyzer": "german"}})
    sinks.append(third)
    with pytest.raises(SinkError, match="another shape"):
        second.prepare(SCHEMA)
    assert third.generation() == 1 and list(third.rows(TABLE)) == []


def test_settings_that_an_index_takes_at_any_time_need_no_filling(place: Place) -> None:
    with closing(opened(place, settings={"refresh_interval": "30s"})) as sink:
        sink.apply([upsert(1, V)])
    with closing(opened(place, settings={"refresh_interval": "5s"})) as sink:
        assert sink.generation() == 1
        sink.make_readable({TABLE})
        assert len(list(sink.rows(TABLE))) == 1
    index = f"{place.alias}.documents"
    settings = place.client.indices.get_settings(index=index)[index]["settings"]["index"]
    assert settings["refresh_interval"] == "5s"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"mapping": {"name": {"analyzer": "nope"}}}, r"analyzer \[nope\] has not been configured"),
        ({"mapping": {"name": {"type": "txt"}}}, r"No handler for type \[txt\]"),
        ({"mapping": {"nmae": {"type": "text"}}}, "names column nmae"),
        ({"mapping": {"attributes": {"type": "knn_vector", "dimension": 3}}}, r"No handler for type \[knn_vector\]"),
        (
            {"settings": {"analysis": {"analyzer": {"own": {"type": "custom", "tokenizer": "nope"}}}}},
            r"failed to find tokenizer under name \[nope\]",
        ),
        ({"settings": {"number_of_shards": 0}}, "number_of_shards"),
        ({"alias": "-x"}, "can't be a name"),
        ({"alias": "{prefix}.watershed"}, "can't be a name"),
        ({"id": "{name}"}, "not part of the key"),
    ],
)
def test_what_the_server_refuses_is_said_by_name(place: Place, shape: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message) as caught:
        opened(place, **shape)
    assert "public.products" in caught.value.message and caught.value.hint
    assert not place.client.indices.exists(index=f"{place.alias}.documents")
