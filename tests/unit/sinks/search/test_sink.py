"""What only the search index does. What it has in common with every sink is in tests/conformance."""

from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from msgspec import structs
from pydantic import SecretStr

from cdc.config.stores import SearchConfig
from cdc.model.events import Column, TableId, pack_version
from sinks.contract import Outcome
from sinks.errors import FullError, RefusedError, SinkError
from sinks.retries import Retries
from sinks.search import bulk
from sinks.search.sink import SearchSink
from tests.unit.sinks.search.conftest import QUICK, SCHEMA, TABLE, Place, delete, upsert
from tests.unit.sinks.search.scripted import Scripted, scripted_server

V = pack_version(1, 1)
OK: dict[str, Any] = {"index": {"status": 201}}
STALE: dict[str, Any] = {"index": {"status": 409, "error": {"type": "version_conflict_engine_exception"}}}
BUSY: dict[str, Any] = {"index": {"status": 429, "error": {"type": "rejected_execution_exception"}}}
TOO_LARGE: tuple[int, object] = (413, "too large")

# ---- what readers find


def test_readers_search_each_column_by_its_type(sink: SearchSink, place: Place) -> None:
    sink.apply(
        [
            upsert(1, V, name="A red bicycle", price="19.90", added_at="2024-01-31T12:00:00.5Z", is_active=True),
            upsert(2, V + 1, name="A blue car", price="20000.00", added_at="2025-06-01T00:00:00Z", is_active=False),
            upsert(
                3, V + 2, name="Bicycle bell", price="5", tags=["red", None, "small"], attributes='{"colour": "red"}'
            ),
            upsert(4, V + 3, token="123e4567-e89b-12d3-a456-426614174000"),
        ]
    )
    sink.make_readable({TABLE})
    assert place.find({"match": {"name": "bicycle"}}) == [1, 3]
    assert place.find({"term": {"name.keyword": "A blue car"}}) == [2]
    assert place.find({"range": {"price": {"gte": 10, "lt": 100}}}) == [1]
    assert place.find({"range": {"added_at": {"gte": "2025-01-01"}}}) == [2]
    assert place.find({"term": {"is_active": True}}) == [1]
    assert place.find({"match": {"tags": "small"}}) == [3]
    assert place.find({"term": {"attributes.colour": "red"}}) == [3]
    assert place.find({"term": {"token": "123e4567-e89b-12d3-a456-426614174000"}}) == [4]


def test_values_that_can_not_be_indexed_are_kept_and_found_by_others(sink: SearchSink, place: Place) -> None:
    results = sink.apply(
        [
            upsert(1, V, name="odd", price="NaN", added_at="infinity"),
            upsert(2, V + 1, name="odd", price="9" * 400, added_at="0044-03-15 00:00:00+00 BC"),
            upsert(3, V + 2, name="x" * 40_000),
        ]
    )
    assert {result.outcome for result in results} == {Outcome.WRITTEN}
    sink.make_readable({TABLE})
    assert place.find({"match": {"name": "odd"}}) == [1, 2]
    rows = {row.key["id"]: row.row for row in sink.rows(TABLE)}
    assert rows[1]["price"] == "NaN"
    assert rows[2]["price"] == "9" * 400
    assert rows[3]["name"] == "x" * 40_000


@pytest.mark.promise(2)
def test_readers_never_see_a_deleted_row_and_nothing_of_it_is_kept(sink: SearchSink, place: Place) -> None:
    sink.apply([upsert(1, V, name="secret of a customer"), upsert(2, V + 1)])
    sink.apply([delete(1, V + 2)])
    sink.sweep(TABLE, pack_version(1, 2))
    sink.make_readable({TABLE})
    assert place.find({"match_all": {}}) == [2]
    kept = place.client.get(index=f"{place.alias}.documents", id="1")
    assert kept["_source"] == {"ws_version": V + 2, "ws_deleted": True, "ws_deleted_at": ANY}
    assert kept["_version"] == V + 2


def test_a_get_by_id_finds_what_is_left_of_a_deleted_row_and_a_search_for_the_id_does_not(
    sink: SearchSink, place: Place
) -> None:
    """As docs/concepts/stores.md says. An alias's filter is for searches; deleting the document would delete the
    version that keeps a late write out."""
    sink.apply([upsert(1, V, name="secret of a customer"), upsert(2, V + 1)])
    sink.apply([delete(1, V + 2)])
    sink.make_readable({TABLE})
    client, alias, left = place.client, place.alias, {"ws_version": V + 2, "ws_deleted": True, "ws_deleted_at": ANY}
    assert client.get(index=alias, id="1")["_source"] == left
    assert client.get_source(index=alias, id="1") == left
    assert client.exists(index=alias, id="1")
    assert [found["_source"]["ws_deleted"] for found in client.mget(index=alias, body={"ids": ["1", "2"]})["docs"]] == [
        True,
        False,
    ]
    by_id = {"ids": {"values": ["1", "2"]}}
    assert [hit["_id"] for hit in client.search(index=alias, body={"query": by_id})["hits"]["hits"]] == ["2"]
    assert client.count(index=alias, body={"query": by_id})["count"] == 1


def test_unknown_columns_of_a_row_make_no_fields(sink: SearchSink, place: Place) -> None:
    change = upsert(1, V)
    assert change.row is not None
    sink.apply([structs.replace(change, row=change.row | {"later": {"deep": 1}})])
    properties = place.client.indices.get_mapping(index=place.alias)[f"{place.alias}.documents"]["mappings"][
        "properties"
    ]
    assert "later" not in properties


# ---- indexes


def test_a_new_schema_version_adds_its_fields(sink: SearchSink, place: Place) -> None:
    sink.apply([upsert(1, V)])
    wider = replace(SCHEMA, version=2, columns=(*SCHEMA.columns, Column("weight", 701, -1, "double precision", True)))
    sink.prepare(wider)
    change = upsert(2, V + 1)
    assert change.row is not None
    sink.apply([structs.replace(change, row=change.row | {"weight": 2.5}, schema_version=2)])
    sink.make_readable({TABLE})
    assert place.find({"range": {"weight": {"gt": 2}}}) == [2]
    assert sink.generation() == 1


def test_two_tables_of_one_name_are_refused(sink: SearchSink, place: Place) -> None:
    twin = replace(SCHEMA, table=TableId("public", "Products"), oid=2)
    with pytest.raises(RefusedError, match=r"table public\.Products and public\.products would share"):
        sink.prepare(twin)
    other_process = place.open()
    with pytest.raises(RefusedError, match=r"table public\.Products and table public\.products of prefix"):
        other_process.prepare(twin)
    other_process.close()


def test_a_table_named_like_anothers_index_is_refused(sink: SearchSink) -> None:
    with pytest.raises(RefusedError, match=r"would share the search index|refuses the index"):
        sink.prepare(replace(SCHEMA, table=TableId("public", "products.documents"), oid=2))


def test_an_index_that_is_not_ours_is_left_alone(place: Place) -> None:
    place.client.indices.create(index=f"{place.alias}.documents")
    sink = place.open()
    sink.begin_generation(1)
    with pytest.raises(RefusedError, match="another program would share"):
        sink.prepare(SCHEMA)
    sink.close()


def test_a_column_that_is_reserved_is_refused_before_anything_is_made(place: Place) -> None:
    sink = place.open()
    sink.begin_generation(1)
    with pytest.raises(RefusedError, match="column '_id'"):
        sink.prepare(replace(SCHEMA, columns=(*SCHEMA.columns, Column("_id", 25, -1, "text", True))))
    assert not place.client.indices.exists(index=f"{place.alias}.documents")
    sink.close()


def test_a_lost_alias_is_given_back(sink: SearchSink, place: Place) -> None:
    place.client.indices.delete_alias(index=f"{place.alias}.documents", name=place.alias)
    sink.apply([upsert(1, V)])
    with pytest.raises(SinkError, match="was deleted"):
        sink.make_readable({TABLE})
    restarted = place.open()
    restarted.prepare(SCHEMA)
    restarted.apply([upsert(1, V), delete(2, V + 1)])
    restarted.make_readable({TABLE})
    assert place.find({"match_all": {}}) == [1]
    restarted.close()


def test_a_write_never_makes_an_index(sink: SearchSink, place: Place) -> None:
    place.client.cluster.put_settings(body={"transient": {"action.auto_create_index": "true"}})
    try:
        place.client.indices.delete(index=f"{place.alias}.documents")
        with pytest.raises(SinkError, match=r"does not exist[^\0]*the sink restarts"):
            sink.apply([upsert(1, V)])
        assert not place.client.indices.exists(index=place.alias)
    finally:
        place.client.cluster.put_settings(body={"transient": {"action.auto_create_index": None}})


def test_an_index_that_was_made_anew_is_not_taken_for_the_old_one(sink: SearchSink, place: Place) -> None:
    sink.apply([upsert(1, V)])
    index = f"{place.alias}.documents"
    held = place.client.indices.get(index=index)[index]
    place.client.indices.delete(index=index)
    place.client.indices.create(index=index, body={"mappings": held["mappings"], "aliases": held["aliases"]})
    assert sink.generation() is None
    with pytest.raises(SinkError, match="created again by another program"):
        place.open().prepare(SCHEMA)


def test_a_block_for_writes_is_said_with_the_next_step(sink: SearchSink, place: Place) -> None:
    """As the flood-stage watermark of the disk sets it."""
    index = f"{place.alias}.documents"
    place.client.indices.put_settings(index=index, body={"index.blocks.write": True})
    with pytest.raises(SinkError, match="is blocked for writes") as caught:
        sink.apply([upsert(1, V)])
    assert "free disk space" in caught.value.hint
    place.client.indices.put_settings(index=index, body={"index.blocks.write": None})
    assert sink.apply([upsert(1, V)])[0].outcome is Outcome.WRITTEN


def test_a_block_for_new_indexes_is_a_full_disk(sink: SearchSink, place: Place) -> None:
    """As the high watermark of the disk sets it where all nodes are above it."""
    place.client.cluster.put_settings(body={"persistent": {"cluster.blocks.create_index": True}})
    try:
        with pytest.raises(FullError, match="index_create_block_exception") as caught:
            sink.begin_generation(2)
        assert "free disk space" in caught.value.hint
    finally:
        place.client.cluster.put_settings(body={"persistent": {"cluster.blocks.create_index": None}})
    sink.begin_generation(2)
    sink.prepare(SCHEMA)
    assert sink.apply([upsert(1, V)])[0].outcome is Outcome.WRITTEN


# ---- answers, on a scripted server


def scripted_sink(scripted: Scripted, retries: Retries = QUICK) -> SearchSink:
    """Opened and prepared without a server that knows anything."""
    scripted.answers[:0] = [(200, {"version": {"number": "3.8.0"}}), (200, []), (404, {})]
    sink = SearchSink.open(SearchConfig(url=SecretStr(scripted.url)), "shop", retries)
    sink.attach(SCHEMA)
    scripted.requests.clear()
    return sink


def test_busy_items_are_sent_again_alone_with_the_same_versions() -> None:
    answers: list[tuple[int, object]] = [
        (200, {"items": [OK, BUSY, STALE, BUSY]}),
        (200, {"items": [BUSY, OK]}),
        (200, {"items": [STALE]}),
    ]
    pauses: list[float] = []
    with scripted_server(answers) as scripted:
        sink = scripted_sink(scripted, Retries(sleep=pauses.append))
        results = sink.apply([upsert(number, V + number) for number in range(4)])
        sink.close()
        sent = [[action["version"] - V for action, _ in request.documents] for request in scripted.requests]
    assert sent == [[0, 1, 2, 3], [1, 3], [1]]
    written, stale = Outcome.WRITTEN, Outcome.STALE
    assert [result.outcome for result in results] == [written, stale, stale, written]
    assert len(pauses) == 2


@pytest.mark.parametrize("first", [(503, {}), (429, {}), (0, None)])
def test_a_request_that_failed_whole_is_sent_again(first: tuple[int, object]) -> None:
    with scripted_server([first, (200, {"items": [OK]})]) as scripted:
        sink = scripted_sink(scripted)
        assert sink.apply([upsert(1, V)])[0].outcome is Outcome.WRITTEN
        sink.close()
        assert len({request.body for request in scripted.requests}) == 1


def test_a_store_that_stays_busy_is_an_error() -> None:
    with scripted_server([(200, {"items": [BUSY]})]) as scripted:
        sink = scripted_sink(scripted)
        with pytest.raises(SinkError, match=r"accepts no requests \(status 429"):
            sink.apply([upsert(1, V)])
        sink.close()
        assert len(scripted.requests) == QUICK.attempt_count_max


def test_a_store_that_is_gone_is_an_error() -> None:
    with scripted_server([(0, None)]) as scripted:
        sink = scripted_sink(scripted)
        with pytest.raises(SinkError, match="does not answer"):
            sink.apply([upsert(1, V)])
        sink.close()


def test_a_request_that_is_too_large_is_halved_down_to_the_row_that_is() -> None:
    answers = [TOO_LARGE, TOO_LARGE, (200, {"items": [OK]}), TOO_LARGE, (200, {"items": [OK, STALE]})]
    with scripted_server(answers) as scripted:
        sink = scripted_sink(scripted)
        results = sink.apply([upsert(number, V + number) for number in range(4)])
        sink.close()
        sent = [[action["_id"] for action, _ in request.documents] for request in scripted.requests]
    assert sent == [["0", "1", "2", "3"], ["0", "1"], ["0"], ["1"], ["2", "3"]]
    outcomes = [Outcome.WRITTEN, Outcome.REJECTED, Outcome.WRITTEN, Outcome.STALE]
    assert [result.outcome for result in results] == outcomes
    assert "larger than" in results[1].reason


def pressed(size: int) -> dict[str, Any]:
    sizes = f"primary_operation_bytes={size}, max_coordinating_and_primary_bytes=99"
    reason = f"rejected execution of primary operation [coordinating_and_primary_bytes=0, {sizes}]"
    return {"index": {"status": 429, "error": {"type": "rejected_execution_exception", "reason": reason}}}


def test_a_document_that_no_node_has_room_for_is_alone_rejected() -> None:
    """By a shard, of which the coordinating node knows nothing."""
    answers = [(200, {"items": [OK, pressed(100)]}), (200, {"items": [STALE]}), (200, {"items": [pressed(100)]})]
    with scripted_server(answers) as scripted:
        sink = scripted_sink(scripted)
        results = sink.apply([upsert(number, V + number) for number in range(2)])
        sink.close()
    assert [result.outcome for result in results] == [Outcome.STALE, Outcome.REJECTED]


def test_a_document_for_which_there_is_no_room_at_the_moment_is_sent_again() -> None:
    with scripted_server([(200, {"items": [pressed(99)]}), (200, {"items": [OK]})]) as scripted:
        sink = scripted_sink(scripted)
        results = sink.apply([upsert(1, V)])
        sink.close()
    assert [result.outcome for result in results] == [Outcome.WRITTEN]


def test_a_row_above_the_nodes_indexing_pressure_is_rejected_and_others_are_taken(
    sink: SearchSink, place: Place
) -> None:
    """A tenth of its heap. It is refused as if the node were only busy."""
    results = sink.apply([upsert(1, V), upsert(2, V + 1, name="x" * 60_000_000), upsert(3, V + 2)])
    assert [result.outcome for result in results] == [Outcome.WRITTEN, Outcome.REJECTED, Outcome.WRITTEN]
    assert results[1].reason == "the row is larger than the search index takes in one request"
    sink.make_readable({TABLE})
    assert place.find({"match_all": {}}) == [1, 3]


def test_an_answer_in_part_is_an_error() -> None:
    with scripted_server([(200, {"items": [OK]})]) as scripted:
        sink = scripted_sink(scripted)
        with pytest.raises(SinkError, match="in part"):
            sink.apply([upsert(1, V), upsert(2, V)])
        sink.close()


def test_a_batch_is_several_requests_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BULK_DOCUMENTS_MAX", 2)
    with scripted_server([(200, {"items": [OK, OK]}), (200, {"items": [OK]})]) as scripted:
        sink = scripted_sink(scripted)
        assert len(sink.apply([upsert(number, V) for number in range(3)])) == 3
        sink.close()
        assert [len(request.documents) for request in scripted.requests] == [2, 1]


def test_opening_names_the_server_that_does_not_answer() -> None:
    with (
        scripted_server([(0, None)]) as scripted,
        pytest.raises(SinkError, match=r"cluster at 127\.0\.0\.1:\d+"),
    ):
        SearchSink.open(SearchConfig(url=SecretStr(scripted.url)), "shop", QUICK)


def test_the_configured_index_prefix_goes_before_the_topics(place: Place) -> None:
    section = SearchConfig(url=SecretStr(place.url), index_prefix=place.prefix)
    sink = SearchSink.open(section, "other", QUICK)
    sink.begin_generation(1)
    sink.prepare(SCHEMA)
    assert place.client.indices.exists_alias(name=place.alias)
    sink.close()
