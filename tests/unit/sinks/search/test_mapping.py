"""Each PostgreSQL type has its field; columns that can't be fields are refused by name."""

import re

import pytest

from cdc.model.errors import RefusedError
from cdc.model.events import Column, TableId, TableSchema
from sinks.search.mapping import LIVE, check_columns, clashes, field_of, index_body, mapping, owner

TABLE = TableId("public", "t")


def column(name: str = "c", oid: int = 25, type_name: str = "text", base: int = 0, kind: str = "b") -> Column:
    return Column(name, oid, -1, type_name, True, kind, base)


def schema(*columns: Column) -> TableSchema:
    return TableSchema(TABLE, 4, 16_400, columns, (columns[0].name,), "shop.public.t")


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
    made = mapping(schema(column("id", 20), column("name")), "shop")
    assert made["dynamic"] is False
    assert set(made["properties"]) == {"id", "name", "ws_version", "ws_deleted"}
    assert made["properties"]["ws_version"] == {"type": "long"}
    assert made["_meta"] == {
        "watershed": {"prefix": "shop", "table_schema": "public", "table_name": "t", "schema_version": 4}
    }
    assert made["_meta"]["watershed"].items() >= owner(TABLE, "shop").items()


def test_readers_see_live_documents_through_the_alias() -> None:
    body = index_body(schema(column("id", 20)), "shop", {"shop.public.t": {"filter": LIVE}})
    assert body["aliases"] == {"shop.public.t": {"filter": {"term": {"ws_deleted": False}}}}
    assert body["settings"]["auto_expand_replicas"] == "0-1"


def test_a_wide_table_gets_room_for_its_fields() -> None:
    wide = schema(*(column(f"c{number}") for number in range(1600)))
    properties = mapping(wide, "shop")["properties"]
    field_count = sum(1 + len(field.get("fields", {})) for field in properties.values())
    assert index_body(wide, "shop", {})["settings"]["mapping"]["total_fields"]["limit"] >= field_count
    assert index_body(schema(column()), "shop", {})["settings"]["mapping"]["total_fields"]["limit"] == 1000


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
    fields = mapping(held, "shop")["properties"]
    assert clashes(fields, held) == frozenset()
    # OpenSearch gives dotted names back as paths.
    fields["a"] = {"properties": {"b": fields.pop("a.b")}}
    assert clashes(fields, held) == frozenset()
    wider = schema(column("id", 20), column("name", 1043), column("d", 17), column("e"))
    assert clashes(fields, wider) == frozenset(), "what is gone or new is in nobody's way"
    retyped = schema(
        column("id", 20), column("number", 20), column("name"), column("a.b"), column("c"), column("d", 25)
    )
    assert clashes(fields, retyped) == {"number", "a.b", "d"}
    assert clashes(fields, schema(column("id", 20), column("a", 17), column("c.d"))) == {"a.b", "c"}
