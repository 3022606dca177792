"""Schemas in Protobuf: types as Confluent's converter has them, and numbers that belong to a column for ever."""

from typing import Any

import pytest

from cdc.config.format_options import FormatOptions, NameAdjustment
from cdc.formats.connect import INT32, STRING, Node, optional, required, struct_of
from cdc.formats.profiles import column_formats, record_nodes
from cdc.formats.proto_files import file_text
from cdc.formats.proto_schemas import parsed, proto_file, proto_schema_name
from cdc.model.errors import ConfigError
from cdc.model.events import Column, TableId, TableSchema
from tests.support.protoc import descriptors

USERS = TableId("public", "users")
ID = Column("id", 23, -1, "integer", False)
REPEATED = 3  # LABEL_REPEATED of a descriptor


def texts(*columns: Column, **options: Any) -> tuple[str, str]:
    """The schemas of keys and values, which the compiler accepts."""
    chosen = FormatOptions(encoding="protobuf", **{"profile": "debezium", **options})
    schema = TableSchema(USERS, 1, 1, columns, ("id",), "demo.public.users")
    key, value = (
        file_text(proto_file(node, "public.users", chosen.field_name_adjustment_mode))
        for node in record_nodes(schema, column_formats(schema, chosen), "demo")
    )
    descriptors(key)
    descriptors(value)
    return key, value


def lines(text: str, message: str) -> list[str]:
    """The lines of a message, stripped."""
    begin = text.index(f"message {message} {{")
    indent = " " * (begin - text.rindex("\n", 0, begin) - 1)
    inside = text[begin : text.index(f"\n{indent}}}", begin)].splitlines()[1:]
    return [line.strip() for line in inside]


def table(*columns: str, kind: Node = STRING) -> Node:
    return {**required(struct_of((column, optional(kind)) for column in columns)), "name": "demo.public.users.Value"}


def evolved(*tables: Node, mode: NameAdjustment = "none") -> list[str]:
    """The lines of each of the schemas, of which each one continues the last one."""
    found: list[str] = []
    for node in tables:
        earlier = [parsed(found[-1])] if found else []
        found.append(file_text(proto_file(node, "public.users", mode, earlier)))
        descriptors(found[-1])
        again = proto_file(node, "public.users", mode, [parsed(found[-1])])
        assert file_text(again) == found[-1], "a schema that continues itself is the same"
    return [" ".join(lines(text, "Value")) for text in found]


def test_the_key_and_the_envelope_are_as_confluents_converter_makes_them() -> None:
    key, value = texts(ID, Column("name", 25, -1, "text", True))
    assert key == 'syntax = "proto3";\npackage demo.public.users;\n\nmessage Key {\n  int32 id = 1;\n}\n'
    assert value.startswith('syntax = "proto3";\npackage demo.public.users;\n\nmessage Envelope {\n')
    assert lines(value, "Envelope")[:8] == [
        "optional .demo.public.users.Envelope.Value before = 1;",
        "optional .demo.public.users.Envelope.Value after = 2;",
        ".demo.public.users.Envelope.Source source = 3;",
        "optional .demo.public.users.Envelope.block transaction = 4;",
        "string op = 5;",
        'optional int64 ts_ms = 6 [json_name = "ts_ms"];',
        'optional int64 ts_us = 7 [json_name = "ts_us"];',
        'optional int64 ts_ns = 8 [json_name = "ts_ns"];',
    ]
    assert lines(value, "Value") == ["int32 id = 1;", "optional string name = 2;"]
    assert lines(value, "Source")[:5] == [
        "string version = 1;",
        "string connector = 2;",
        "string name = 3;",
        'int64 ts_ms = 4 [json_name = "ts_ms"];',
        "optional string snapshot = 5;  // io.debezium.data.Enum",
    ]


@pytest.mark.parametrize(
    ("column", "options", "expected"),
    [
        (Column("c", 16, -1, "boolean", False), {}, "bool c = 2;"),
        (Column("c", 21, -1, "smallint", False), {}, "int32 c = 2;"),
        (Column("c", 20, -1, "bigint", True), {}, "optional int64 c = 2;"),
        (Column("c", 700, -1, "real", False), {}, "float c = 2;"),
        (Column("c", 701, -1, "double precision", False), {}, "double c = 2;"),
        (Column("c", 17, -1, "bytea", False), {}, "bytes c = 2;"),
        (Column("c", 1700, 786_438, "numeric(12,2)", False), {}, ".confluent.type.Decimal c = 2;"),
        (Column("c", 1700, 786_438, "numeric(12,2)", False), {"decimal_handling_mode": "string"}, "string c = 2;"),
        (
            Column("c", 1700, -1, "numeric", True),
            {},
            "optional .demo.public.users.Envelope.VariableScaleDecimal c = 2;",
        ),
        (Column("c", 1082, -1, "date", False), {}, "int32 c = 2;  // io.debezium.time.Date"),
        (Column("c", 1082, -1, "date", False), {"time_precision_mode": "connect"}, ".google.type.Date c = 2;"),
        (Column("c", 1083, -1, "time", False), {"time_precision_mode": "connect"}, ".google.type.TimeOfDay c = 2;"),
        (Column("c", 1114, -1, "timestamp", False), {}, "int64 c = 2;  // io.debezium.time.MicroTimestamp"),
        (
            Column("c", 1114, -1, "timestamp", False),
            {"time_precision_mode": "connect"},
            ".google.protobuf.Timestamp c = 2;",
        ),
        (Column("c", 3802, -1, "jsonb", True), {}, "optional string c = 2;  // io.debezium.data.Json"),
        (Column("c", 2950, -1, "uuid", False), {}, "string c = 2;  // io.debezium.data.Uuid"),
        (
            Column("c", 1009, -1, "text[]", True, element_oid=25),
            {},
            "optional .demo.public.users.Envelope.StringArray c = 2;",
        ),
        (
            Column("c", 16_500, -1, "hstore", False, base_type_oid=16_500),
            {"hstore_handling_mode": "map"},
            ".demo.public.users.Envelope.StringStringMap c = 2;",
        ),
        (Column("c", 1700, 786_438, "numeric(12,2)", True), {"profile": "readable"}, "optional string c = 2;"),
    ],
    ids=lambda value: getattr(value, "type_name", None),
)
def test_a_type_is_as_confluents_converter_makes_it(column: Column, options: dict[str, Any], expected: str) -> None:
    _, value = texts(ID, column, **options)
    assert lines(value, "Value")[1] == expected


def test_arrays_and_maps_can_hold_null() -> None:
    """`repeated` could not: neither an item that is null, nor a list that is null instead of empty."""
    _, value = texts(ID, Column("c", 1009, -1, "text[]", True, element_oid=25))
    assert lines(value, "StringArray") == [
        "repeated .demo.public.users.Envelope.StringArray.Item items = 1;",
        "message Item {",
        "optional string value = 1;",
        "}",
    ]


def test_a_column_keeps_its_number_whatever_happens_to_others() -> None:
    assert evolved(table("a", "b"), table("c", "a", "b"), table("b", "c"), table("b", "c", "d")) == [
        "optional string a = 1; optional string b = 2;",
        "optional string c = 3; optional string a = 1; optional string b = 2;",
        'reserved 1; reserved "a"; optional string b = 2; optional string c = 3;',
        'reserved 1; reserved "a"; optional string b = 2; optional string c = 3; optional string d = 4;',
    ]


def test_a_renamed_column_is_another_field() -> None:
    assert evolved(table("a", "b"), table("a", "c"))[1] == (
        'reserved 2; reserved "b"; optional string a = 1; optional string c = 3;'
    )


def test_a_column_that_is_added_again_gets_a_new_number() -> None:
    """Nothing says that it has the same type and meaning, and records with the old number may still exist."""
    assert evolved(table("a", "b"), table("a"), table("a", "b")) == [
        "optional string a = 1; optional string b = 2;",
        'reserved 2; reserved "b"; optional string a = 1;',
        "reserved 2; optional string a = 1; optional string b = 3;",
    ]


def test_a_changed_type_keeps_its_number_and_the_registry_judges() -> None:
    assert evolved(table("a"), table("a", kind=INT32))[1] == "optional int32 a = 1;"


def test_another_mode_of_names_keeps_the_numbers() -> None:
    before = file_text(proto_file(table("b", "a_b"), "t", "none"))
    after = file_text(proto_file(table("a_b", "b"), "t", "avro_unicode", [parsed(before)]))
    assert lines(after, "Value") == [
        'reserved "a_b";',
        'optional string a_u005fb = 2 [json_name = "a_b"];',
        "optional string b = 1;",
    ]
    descriptors(after)


def test_numbers_of_the_newest_registered_schema_are_not_given_to_others() -> None:
    """An aborted transaction, or a registry or a state that was restored: both sides know numbers."""
    state, registry = (file_text(proto_file(table(*columns), "t")) for columns in (("a", "b"), ("a", "b", "c", "d")))
    earlier = [parsed(state), parsed(registry)]
    assert lines(file_text(proto_file(table("a", "b"), "t", "none", earlier)), "Value") == [
        "optional string a = 1;",
        "optional string b = 2;",
    ]
    [*_, added, other] = lines(file_text(proto_file(table("a", "b", "d", "e"), "t", "none", earlier)), "Value")
    assert (added, other) == ("optional string d = 4;", "optional string e = 5;")


def test_the_topics_own_numbers_count_more_than_the_registrys() -> None:
    state, registry = (file_text(proto_file(table(*columns), "t")) for columns in (("a", "b"), ("b", "c")))
    found = file_text(proto_file(table("a", "b", "c"), "t", "none", [parsed(state), parsed(registry)]))
    assert lines(found, "Value") == ["optional string a = 1;", "optional string b = 2;", "optional string c = 3;"]


def test_numbers_of_a_key_ascend() -> None:
    """A registry may sort fields by number: readers of the key would find its columns in another order."""

    def key(*columns: str) -> Node:
        return {**table(*columns), "name": "demo.public.users.Key"}

    before = parsed(file_text(proto_file(key("a", "b"), "t")))
    same, added, other = (
        proto_file(key(*names), "t", "none", [before]) for names in (("a", "b"), ("b", "c"), ("b", "a"))
    )
    assert same == before
    assert lines(file_text(added), "Key")[2:] == ["optional string b = 2;", "optional string c = 3;"]
    assert lines(file_text(other), "Key") == ["reserved 1, 2;", "optional string b = 3;", "optional string a = 4;"]


def test_numbers_that_protobuf_keeps_for_itself_are_left_out() -> None:
    before = file_text(proto_file(table("a"), "t")).replace("a = 1", "a = 18999")
    after = file_text(proto_file(table("a", "b"), "t", "none", [parsed(before)]))
    assert lines(after, "Value") == ["optional string a = 18999;", "optional string b = 20000;"]
    descriptors(after)


def test_names_in_json_are_those_of_the_columns() -> None:
    found = file_text(proto_file(table("a_b", "aC"), "t"))
    assert lines(found, "Value") == ['optional string a_b = 1 [json_name = "a_b"];', "optional string aC = 2;"]
    columns = "a_b", "aB"  # which the compiler refuses whatever json_name says
    descriptors(file_text(proto_file(table(*columns), "t", "avro_unicode")))


@pytest.mark.parametrize("column", ["größe in-cm", "2nd", 'quo"te\\', "a'b", "tab\there", "message", "reserved", "😀"])
def test_every_name_comes_back(column: str) -> None:
    text = file_text(proto_file(table("id", column), "t", "avro_unicode"))
    files = descriptors(text)
    assert [field.json_name for field in files.file[-1].message_type[0].field] == ["id", column]
    assert [field.original for field in parsed(text).messages[0].fields] == ["id", column]


@pytest.mark.parametrize(
    ("columns", "mode", "message"),
    [
        (("a b",), "none", "table t: Protobuf can't hold the name of column a b"),
        (("a b", "a-b"), "avro", "columns a b and a-b would both be field a_b in Protobuf"),
        (("a_b", "aB"), "none", "can't hold columns a_b and aB in one message"),
        (("[a]",), "avro", r"Protobuf can't hold the name of column \[a\]"),
    ],
)
def test_names_that_protobuf_cant_hold_are_refused(
    columns: tuple[str, ...], mode: NameAdjustment, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as failure:
        proto_file(table(*columns), "t", mode)
    assert "source.exclude_columns" in failure.value.hint


def test_names_of_schemas_are_always_adjusted() -> None:
    assert proto_schema_name("my-shop.2024.größe.Value") == "my_shop._2024.gr__e.Value"
    assert proto_schema_name("shop.public.a..b.Key") == "shop.public.a._.b.Key"
