"""The sink's requests, against Elasticsearch's REST specification. Not run against an Elasticsearch server: see
tests/support/elasticsearch.py. The conformance suite has the same front as store `search-elasticsearch`.
"""

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from opensearchpy import OpenSearch
from pydantic import SecretStr

from cdc.config.stores import SearchConfig
from cdc.model.events import Column, pack_version
from sinks.contract import Change, Outcome
from sinks.errors import RefusedError, SinkError
from sinks.search import mapping
from sinks.search.check import search_findings
from sinks.search.contents import SearchContents
from sinks.search.removal import search_contents
from sinks.search.sink import SearchSink
from sinks.search.slots import SearchSlots
from tests.support.elasticsearch import Face, elasticsearch_face
from tests.unit.sinks.search.conftest import QUICK, SCHEMA, TABLE, Place, delete

V = pack_version(1, 1)
WITH_VECTOR = replace(SCHEMA, columns=(*SCHEMA.columns, Column("v", 90_001, -1, "vector(3)", True)))


def upsert(key: int, version: int, **values: object) -> Change:
    row = {column.name: values.get(column.name) for column in WITH_VECTOR.columns} | {"id": key}
    return Change(TABLE, {"id": key}, version, row, 1)


def section(face: Face) -> SearchConfig:
    return SearchConfig(url=SecretStr(face.url))


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(
            "8.19.3",
            marks=pytest.mark.combination(
                "search",
                "Elasticsearch 8",
                "none",
                instead="OpenSearch behind a front that takes only what Elasticsearch's REST specification has",
            ),
        ),
        pytest.param(
            "9.5.1",
            marks=pytest.mark.combination(
                "search",
                "Elasticsearch 9",
                "none",
                instead="OpenSearch behind a front that takes only what Elasticsearch's REST specification has",
            ),
        ),
    ],
)
def test_every_request_of_a_sink_is_one_that_elasticsearch_specifies(place: Place, version: str) -> None:
    """Write, delete, read, compare, repair, sweep, move, rebuild, check, remove."""
    with elasticsearch_face(place.url, version) as face:
        with closing(SearchSink.open(section(face), place.prefix, QUICK)) as sink:
            sink.begin_generation(1)
            sink.prepare(WITH_VECTOR)
            row = {"v": "[0,0.10,3]", "attributes": '{"a": {"b": [1.50, 2]}}', "price": "1.5"}
            written = [upsert(1, V, **row), upsert(2, V, name="two"), upsert(3, V), delete(3, V + 1)]
            assert [result.outcome for result in sink.apply(written)] == [Outcome.WRITTEN] * 4
            assert sink.apply([upsert(1, V - 1)])[0].outcome is Outcome.STALE
            sink.save_position("here", None)
            assert sink.saved_position() == "here"
            sink.make_readable([TABLE])
            held = {stored.key["id"]: stored.row for stored in sink.rows(TABLE)}
            assert sorted(held) == [1, 2]
            assert {name: held[1][name] for name in row} == row, "also the vector, with its digits"
            refused = sink.apply([upsert(4, V, is_active="sesame")])[0]
            assert refused.outcome is Outcome.REJECTED and "column is_active" in str(refused.reason)
            retyped = tuple(replace(c, type_oid=25, type_name="text") if c.name == "price" else c
                            for c in WITH_VECTOR.columns)  # fmt: skip
            later = replace(WITH_VECTOR, version=2, columns=retyped)
            sink.prepare(later, [WITH_VECTOR])
            assert sink.apply([upsert(2, V + 2, name="2")])[0].outcome is Outcome.WRITTEN
            assert sink.sweep(TABLE, V + 1) == 1
            sink.make_readable([TABLE])
            sink._tombstones.purge([f"{place.prefix}.public.products.documents.own"], 4e9)
        with closing(SearchContents.open(section(face), place.prefix, "search")) as contents:
            contents.attach(later)
            ((key, found),) = list(contents.rows(TABLE))
            assert key == {"id": 2} and not found.is_edited
            contents.remove(TABLE, [(key, found.version)])
            assert contents.held(TABLE, [key]) == [None]
        _rebuild(face, place)
        levels = {finding.level for finding in search_findings("search", section(face), place.prefix, [WITH_VECTOR])}
        assert levels == {"ok"}
        assert len(search_contents(section(face), place.prefix, [], removes=True)) == 4
        assert face.violations == []
        assert "cat.plugins" not in face.used
    # The fixture deletes what is left.


def _rebuild(face: Face, place: Place) -> None:
    """Builds a second generation, and shows it."""
    with closing(SearchSink.open(section(face), place.prefix, QUICK, slot="g2")) as sink:
        sink.begin_generation(2)
        sink.prepare(WITH_VECTOR)
        assert sink.apply([upsert(7, V)])[0].outcome is Outcome.WRITTEN
        sink.make_readable([TABLE])
    with closing(SearchSlots(section(face), place.prefix, QUICK)) as slots:
        slots.check_room()
        slots.serve("g2")
        assert slots.serving() == "g2" and list(slots.others()) == [""]
    assert place.find({"match_all": {}}) == [7]


def test_vectors_would_be_missing_without_the_setting(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the setting is for: Elasticsearch leaves vectors out of documents from 9.2 on."""
    monkeypatch.setattr(mapping, "_VECTORS_LEFT_OUT", (99, 0))
    with (
        elasticsearch_face(place.url, "9.2.0") as face,
        closing(SearchSink.open(section(face), place.prefix, QUICK)) as sink,
    ):
        sink.begin_generation(1)
        sink.prepare(WITH_VECTOR)
        sink.apply([upsert(1, V, v="[1,2,3]")])
        sink.make_readable([TABLE])
        assert ["v" in stored.row for stored in sink.rows(TABLE)] == [False]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/x/_search/point_in_time?keep_alive=1m", None),
        ("DELETE", "/_search/point_in_time", {"pit_id": ["x"]}),
        ("PUT", "/x", {"settings": {"knn": True}}),
        ("PUT", "/x", {"mappings": {"properties": {"a": {"type": "flat_object"}}}}),
        ("PUT", "/x", {"mappings": {"properties": {"a": {"type": "knn_vector", "dimension": 3}}}}),
        ("GET", "/_aliases/x?local=true", None),
        ("GET", "/_tasks/a:1?cancel_after_time_interval=1m", None),
    ],
)
def test_the_front_refuses_what_only_opensearch_has(
    place: Place, method: str, path: str, body: dict[str, Any] | None
) -> None:
    with elasticsearch_face(place.url) as face:
        client = OpenSearch(face.url, max_retries=0)
        with pytest.raises(Exception, match=r"40[05]"):
            client.transport.perform_request(method, path, body=body)
        client.close()
        assert len(face.violations) == 1


@pytest.mark.combination(
    "search", "a data stream", "any", refused="is a data stream, which takes no changes of documents"
)
def test_a_data_stream_is_refused_by_name(place: Place, expected_refusal: str) -> None:
    """Of a template that matches the sink's names, made for logs."""
    name = f"{place.prefix}.public.products"
    template = {"index_patterns": [f"{name}*"], "data_stream": {}, "priority": 500}
    place.client.indices.put_index_template(name=place.prefix, body=template)
    try:
        with closing(place.open()) as sink:
            sink.begin_generation(1)
            with pytest.raises(RefusedError, match="data streams only"):
                sink.prepare(SCHEMA)
            place.client.indices.create_data_stream(name=name)
            with pytest.raises(SinkError) as caught:
                sink.check(SCHEMA)
            assert f"{name} {expected_refusal}" in caught.value.message
    finally:
        place.client.transport.perform_request("DELETE", f"/_data_stream/{name}", params={"ignore": 404})
        place.client.indices.delete_index_template(name=place.prefix)
