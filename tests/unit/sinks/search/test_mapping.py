"""Each PostgreSQL type has its field; columns that can't be fields are refused by name."""

import re
from typing import Any

import pytest

from cdc.config.store_shapes import SearchShape
from cdc.model.events import Column, TableId, TableSchema
from sinks.errors import RefusedError
from sinks.search.mapping import (
    LIVE,
    Capabilities,
    IndexForm,
    check_columns,
    clashes,
    field_of,
    index_body,
    mapping,
    owner,
    shape_digest,
)
from sinks.search.product import Product

TABLE = TableId("public", "t")


def column(name: str = "c", oid: int = 25, type_name: str = "text", base: int = 0, kind: str = "b") -> Column:
    return Column(name, oid, -1, type_name, True, kind, base)


def schema(*columns: Column) -> TableSchema:
    return TableSchema(TABLE, 4, 16_400, columns, (columns[0].name,), "shop.public.t")


KNN = Capabilities("flat_object", "knn_vector", 16_000)


def form(described: TableSchema, capabilities: Capabilities | None = None, **shape: Any) -> IndexForm:
    return IndexForm(described, SearchShape(**shape), capabilities or Capabilities(), "shop")


@pytest.mark.parametrize(
    ("oid", "type_name", "kind"),
    [
        (16, "boolean", "boolean"),
        (1000, "boolean[]", "keyword"),
        (17, "bytea", "object"),
        (20, "bigint", "long"),
        (1016, "bigint[]", "long"),
        (21, "smallint", "short"),
        (23, "integer", "integer"),
        (26, "oid", "long"),
        (700, "real", "float"),
        (701, "double precision", "double"),
        (1700, "numeric(10,2)", "double"),
        (1231, "numeric[]", "double"),
        (25, "text", "text"),
        (1043, "character varying(20)", "text"),
        (1042, "character(3)", "text"),
        (1009, "text[]", "text"),
        (114, "json", "text"),
        (3802, "jsonb", "text"),
        (1082, "date", "date"),
        (1114, "timestamp without time zone", "date"),
        (1184, "timestamp with time zone", "date"),
        (1083, "time without time zone", "keyword"),
        (1186, "interval", "keyword"),
        (2950, "uuid", "keyword"),
        (869, "inet", "keyword"),
        (790, "money", "keyword"),
        (50_000, "mood", "keyword"),
        (50_001, "mood[]", "keyword"),
        (50_002, "citext", "text"),
        (50_003, "extensions.citext[]", "text"),
    ],
)
def test_a_type_has_its_field(oid: int, type_name: str, kind: str) -> None:
    assert field_of(column(oid=oid, type_name=type_name))["type"] == kind


def test_a_domain_has_the_field_of_its_base_type() -> None:
    assert field_of(column(oid=60_000, type_name="price", base=1700))["type"] == "double"


def test_an_array_of_a_domain_has_the_field_of_its_elements() -> None:
    assert field_of(Column("c", 50_004, -1, "positive[]", True, "b", 50_004, element_oid=23))["type"] == "integer"


def test_arrays_of_booleans_are_keywords_as_capture_describes_them() -> None:
    """With the type of their elements. One with explicit bounds is a text."""
    assert field_of(Column("c", 1000, -1, "boolean[]", True, "b", 1000, element_oid=16))["type"] == "keyword"
    assert field_of(Column("c", 50_004, -1, "answers[]", True, "b", 50_004, element_oid=16))["type"] == "keyword"


def test_text_is_found_whole_too_as_far_as_lucene_takes_it() -> None:
    assert field_of(column())["fields"]["keyword"] == {"type": "keyword", "ignore_above": 8191}
    assert 8191 * 4 <= 32_766


def test_numbers_and_dates_that_can_not_be_indexed_stay_in_the_document() -> None:
    for oid in (20, 21, 23, 700, 701, 1700, 1082, 1114, 1184):
        assert field_of(column(oid=oid))["ignore_malformed"] is True


def test_the_mapping_is_explicit_and_names_its_table() -> None:
    made = mapping(form(schema(column("id", 20), column("name"))))
    assert made["dynamic"] is False
    assert set(made["properties"]) == {"id", "name", "ws_version", "ws_deleted", "ws_deleted_at", "ws_json"}
    assert made["properties"]["ws_version"] == {"type": "long"}
    described = {"prefix": "shop", "table_schema": "public", "table_name": "t", "schema_version": 4}
    assert made["_meta"] == {"watershed": described | {"shape": shape_digest(SearchShape(), Capabilities())}}
    assert made["_meta"]["watershed"].items() >= owner(TABLE, "shop").items()


def test_readers_see_live_documents_through_the_alias() -> None:
    body = index_body(form(schema(column("id", 20))), {"shop.public.t": {"filter": LIVE}})
    assert body["aliases"] == {"shop.public.t": {"filter": {"term": {"ws_deleted": False}}}}
    assert body["settings"]["auto_expand_replicas"] == "0-1"


def test_a_wide_table_gets_room_for_its_fields() -> None:
    wide = schema(*(column(f"c{number}") for number in range(1600)))
    properties = mapping(form(wide))["properties"]
    field_count = sum(1 + len(field.get("fields", {})) for field in properties.values())
    assert index_body(form(wide), {})["settings"]["mapping"]["total_fields"]["limit"] >= field_count
    assert index_body(form(schema(column())), {})["settings"]["mapping"]["total_fields"]["limit"] == 1000


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["ws_version"], "ws_version"),
        (["id", "ws_deleted"], "ws_deleted"),
        (["id", "ws_deleted.x"], "ws_deleted.x"),
        (["_id"], "_id"),
        (["_source"], "_source"),
        (["_routing.x"], "_routing.x"),
        (["_doc_count"], "_doc_count"),
        (["a..b"], "a..b"),
        ([".a"], ".a"),
        (["a."], "a."),
        (["a. .b"], "a. .b"),
        (["a", "a.b"], "a.b"),
        (["a.b", "a.b.c"], "a.b.c"),
    ],
)
def test_columns_that_can_not_be_fields_are_refused_by_name(names: list[str], refused: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(f"table public.t: column {refused!r} can't be a field")) as caught:
        check_columns(schema(*map(column, names)))
    assert caught.value.hint


@pytest.mark.parametrize(
    "names", [["a.b", "a.c"], ["version", "_version_", "_foo"], ["Ü ber", " ", "*", "a-b"], ["x_id"]]
)
def test_other_unusual_names_are_taken(names: list[str]) -> None:
    check_columns(schema(*map(column, names)))


def test_fields_clash_by_type_and_by_path() -> None:
    held = schema(
        column("id", 20), column("number", 23), column("name"), column("a.b", 23), column("c"), column("d", 17)
    )
    fields = mapping(form(held))["properties"]
    assert clashes(fields, form(held).fields) == frozenset()
    # OpenSearch gives dotted names back as paths.
    fields["a"] = {"properties": {"b": fields.pop("a.b")}}
    assert clashes(fields, form(held).fields) == frozenset()
    wider = schema(column("id", 20), column("name", 1043), column("d", 17), column("e"))
    assert clashes(fields, form(wider).fields) == frozenset(), "what is gone or new is in nobody's way"
    retyped = schema(
        column("id", 20), column("number", 20), column("name"), column("a.b"), column("c"), column("d", 25)
    )
    assert clashes(fields, form(retyped).fields) == {"number", "a.b", "d"}
    assert clashes(fields, form(schema(column("id", 20), column("a", 17), column("c.d"))).fields) == {"a.b", "c"}


def test_json_vectors_and_points_have_fields_of_their_own_where_the_server_has_them() -> None:
    table = schema(
        column("doc", 3802, "jsonb"), column("v", 90_001, "vector(3)"), column("at", 600, "point"), column("w", 90_001)
    )
    made = form(table, KNN)
    assert made.fields["doc"] == {"type": "flat_object"}
    assert made.fields["v"] == {"type": "knn_vector", "dimension": 3}
    assert made.fields["at"] == {"type": "geo_point", "ignore_malformed": True}
    assert made.fields["w"]["type"] == "keyword" or made.fields["w"]["type"] == "text"
    assert index_body(made, {})["settings"]["knn"] is True
    plain = form(table, Capabilities(flat=""))
    assert (plain.fields["doc"]["type"], plain.fields["v"]["type"]) == ("text", "keyword")
    assert form(table, json="object").fields["doc"] == {"type": "object", "dynamic": True}
    assert form(table, json="text").fields["doc"] == {"type": "text"}


def test_servers_are_known_by_version_and_plugins() -> None:
    def of(number: str, *plugins: str) -> Capabilities:
        return Capabilities.of(Product("OpenSearch", number), plugins)

    assert of("2.6.9") == Capabilities(flat="")
    assert of("2.7.0", "opensearch-knn") == KNN
    assert of("10.0.0-SNAPSHOT", "analysis-icu") == Capabilities()


def elasticsearch(number: str) -> Capabilities:
    return Capabilities.of(Product("Elasticsearch", number), [])


def test_elasticsearch_has_other_fields_for_json_and_vectors() -> None:
    table = schema(column("doc", 3802, "jsonb"), column("v", 90_001, "vector(3)"), column("at", 600, "point"))
    made = form(table, elasticsearch("8.11.0"))
    assert made.fields["doc"] == {"type": "flattened", "depth_limit": 100, "ignore_above": 8191}
    # Of two vectors whose default similarity is cosine, one may not be zero: the row would be refused.
    assert made.fields["v"] == {"type": "dense_vector", "dims": 3, "index": True, "similarity": "l2_norm"}
    assert made.fields["at"] == {"type": "geo_point", "ignore_malformed": True}
    assert "knn" not in index_body(made, {})["settings"]
    assert form(table, elasticsearch("9.0.0"), json="flat_object").fields["doc"]["type"] == "flattened"
    assert clashes(mapping(made)["properties"], made.fields) == frozenset()


@pytest.mark.parametrize(
    ("number", "dimensions", "field"),
    [("8.7.1", 1025, "keyword"), ("8.10.4", 2048, "dense_vector"), ("8.11.0", 4096, "dense_vector"),
     ("9.5.1", 4097, "keyword")],
)  # fmt: skip
def test_a_vector_that_elasticsearch_can_not_index_is_a_keyword(number: str, dimensions: int, field: str) -> None:
    made = form(schema(column("v", 90_001, f"vector({dimensions})")), elasticsearch(number))
    assert made.fields["v"]["type"] == field


def test_elasticsearch_is_asked_to_return_vectors_from_the_version_on_that_leaves_them_out() -> None:
    """An earlier one knows no such setting; and a cluster that is updated has no other shape."""
    setting = "index.mapping.exclude_source_vectors"
    before, after = elasticsearch("9.1.8"), elasticsearch("9.2.0")
    assert setting not in index_body(form(schema(column()), before), {})["settings"]
    assert index_body(form(schema(column()), after), {})["settings"][setting] is False
    assert shape_digest(SearchShape(), before) == shape_digest(SearchShape(), after)


def test_a_column_with_a_name_that_elasticsearch_reserves_is_refused_there_alone() -> None:
    table = schema(column("_tier"))
    with pytest.raises(RefusedError, match="Elasticsearch reserves this name"):
        check_columns(table, None, elasticsearch("9.5.1"))
    check_columns(table, None, KNN)


def test_a_mapping_goes_over_the_derived_one_and_another_type_replaces_it() -> None:
    table = schema(column("name"), column("price", 1700), column("doc", 3802))
    chosen = {
        "name": {"analyzer": "german"},
        "price": {"type": "scaled_float", "scaling_factor": 100},
        "doc": {"type": "nested", "properties": {"size": {"type": "integer"}}},
    }
    fields = form(table, mapping=chosen).fields
    assert fields["name"] == field_of(table.columns[0]) | {"analyzer": "german"}
    assert (fields["price"], fields["doc"]) == (chosen["price"], chosen["doc"])
    held = mapping(form(table, mapping=chosen))["properties"]
    held["doc"]["properties"]["colour"] = {"type": "text"}  # made by the server from a document
    assert clashes(held, fields) == frozenset()
    with pytest.raises(RefusedError, match="names column nmae"):
        check_columns(table, SearchShape(mapping={"nmae": {}}))


def test_only_what_an_index_can_not_change_counts_as_its_shape() -> None:
    def digest(capabilities: Capabilities | None = None, **shape: Any) -> str:
        return shape_digest(SearchShape(**shape), capabilities or Capabilities())

    assert digest(settings={"refresh_interval": "30s", "number_of_replicas": 2}) == digest()
    others = [
        digest(settings={"number_of_shards": 3}),
        digest(mapping={"name": {"analyzer": "german"}}),
        digest(json="text"),
        digest(id="{id}"),
        digest(routing="{id}"),
        digest(alias="other"),
        digest(Capabilities(flat="")),
        digest(elasticsearch("9.5.1")),
        digest(),
    ]
    assert len(set(others)) == len(others)
    body = index_body(form(schema(column()), settings={"number_of_replicas": 2}), {})
    assert body["settings"]["number_of_replicas"] == 2 and "auto_expand_replicas" not in body["settings"]
