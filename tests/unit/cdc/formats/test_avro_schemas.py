"""Schemas in Avro, as Debezium's connector with Confluent's converter registers them. The envelope's parts are as
published schemas have them, with the fields of Debezium 3.7; types are by AvroData's rules."""

from typing import Any

import pytest

from cdc.config.format_options import FormatOptions, NameAdjustment
from cdc.formats.avro_schemas import avro_schema
from cdc.formats.connect import INT16, Node, required, struct_of
from cdc.formats.profiles import column_formats, record_nodes
from cdc.formats.schema_names import adjusted_field_name, adjusted_schema_name
from cdc.model.errors import ConfigError
from cdc.model.events import Column, TableId, TableSchema

USERS = TableId("public", "users")


def nodes(*columns: Column, **options: Any) -> tuple[Node, Node]:
    chosen = FormatOptions(encoding="avro", profile="debezium", **options)
    schema = TableSchema(USERS, 1, 1, columns, ("id",), "demo.public.users")
    return record_nodes(schema, column_formats(schema, chosen), "demo")


ID = Column("id", 23, -1, "integer", False)


def types_of(*columns: Column, **options: Any) -> list[Any]:
    """Of the columns behind the key."""
    _, envelope = nodes(ID, *columns, **options)
    row = avro_schema(envelope, "public.users")["fields"][0]["type"][1]
    return [field["type"] for field in row["fields"][1:]]


def test_the_key_and_the_envelope_are_debeziums() -> None:
    key, envelope = (avro_schema(node, "t") for node in nodes(ID, Column("name", 25, -1, "text", True)))
    assert key == {
        "type": "record",
        "name": "Key",
        "namespace": "demo.public.users",
        "fields": [{"name": "id", "type": "int"}],
        "connect.name": "demo.public.users.Key",
    }
    fields = {field["name"]: field for field in envelope.pop("fields")}
    assert envelope == {
        "type": "record",
        "name": "Envelope",
        "namespace": "demo.public.users",
        "connect.version": 2,
        "connect.name": "demo.public.users.Envelope",
    }
    assert list(fields) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    optional_long = {"type": ["null", "long"], "default": None}
    assert fields["before"] == {
        "name": "before",
        "type": [
            "null",
            {
                "type": "record",
                "name": "Value",
                "fields": [
                    {"name": "id", "type": "int"},
                    {"name": "name", "type": ["null", "string"], "default": None},
                ],
                "connect.name": "demo.public.users.Value",
            },
        ],
        "default": None,
    }
    assert fields["after"] == {"name": "after", "type": ["null", "Value"], "default": None}
    assert fields["op"] == {"name": "op", "type": "string"}
    assert [fields[name] for name in ("ts_ms", "ts_us", "ts_ns")] == [
        {"name": name, **optional_long} for name in ("ts_ms", "ts_us", "ts_ns")
    ]
    assert fields["transaction"] == {
        "name": "transaction",
        "type": [
            "null",
            {
                "type": "record",
                "name": "block",
                "namespace": "event",
                "fields": [
                    {"name": "id", "type": "string"},
                    {"name": "total_order", "type": "long"},
                    {"name": "data_collection_order", "type": "long"},
                ],
                "connect.version": 1,
                "connect.name": "event.block",
            },
        ],
        "default": None,
    }
    source = fields["source"]["type"]
    assert (source["name"], source["namespace"]) == ("Source", "io.debezium.connector.postgresql")
    of_source = {field["name"]: field for field in source["fields"]}
    assert list(of_source)[:16] == [
        *("version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns", "schema", "table"),
        *("txId", "lsn", "xmin", "origin", "origin_lsn"),
    ]
    allowed = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    assert of_source["snapshot"] == {
        "name": "snapshot",
        "type": [
            {
                "type": "string",
                "connect.version": 1,
                "connect.parameters": {"allowed": allowed},
                "connect.default": "false",
                "connect.name": "io.debezium.data.Enum",
            },
            "null",
        ],
        "default": "false",
    }
    assert of_source["lsn"] == {"name": "lsn", **optional_long}


def semantic(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "connect.version": 1, "connect.name": name, **more}


@pytest.mark.parametrize(
    ("column", "options", "expected"),
    [
        (Column("c", 21, -1, "smallint", False), {}, {"type": "int", "connect.type": "int16"}),
        (Column("c", 20, -1, "bigint", False), {}, "long"),
        (Column("c", 700, -1, "real", False), {}, "float"),
        (Column("c", 17, -1, "bytea", False), {}, "bytes"),
        (
            Column("c", 1700, 786_438, "numeric(12,2)", False),
            {},
            {
                "type": "bytes",
                "scale": 2,
                "precision": 12,
                "connect.version": 1,
                "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"},
                "connect.name": "org.apache.kafka.connect.data.Decimal",
                "logicalType": "decimal",
            },
        ),
        (
            Column("c", 790, -1, "money", False),
            {},
            {
                "type": "bytes",
                "scale": 2,
                "precision": 64,
                "connect.version": 1,
                "connect.parameters": {"scale": "2"},
                "connect.name": "org.apache.kafka.connect.data.Decimal",
                "logicalType": "decimal",
            },
        ),
        (Column("c", 1700, 786_438, "numeric(12,2)", False), {"decimal_handling_mode": "double"}, "double"),
        (Column("c", 1082, -1, "date", False), {}, semantic("int", "io.debezium.time.Date")),
        (Column("c", 1114, -1, "timestamp", False), {}, semantic("long", "io.debezium.time.MicroTimestamp")),
        (
            Column("c", 1114, -1, "timestamp", False),
            {"time_precision_mode": "connect"},
            semantic("long", "org.apache.kafka.connect.data.Timestamp", logicalType="timestamp-millis"),
        ),
        (Column("c", 1184, -1, "timestamptz", False), {}, semantic("string", "io.debezium.time.ZonedTimestamp")),
        (Column("c", 2950, -1, "uuid", False), {}, semantic("string", "io.debezium.data.Uuid")),
        (
            Column("c", 1009, -1, "text[]", False, element_oid=25),
            {},
            {"type": "array", "items": ["null", "string"]},
        ),
        (
            Column("c", 16_500, -1, "hstore", False, base_type_oid=16_500),
            {"hstore_handling_mode": "map"},
            {"type": "map", "values": ["null", "string"]},
        ),
    ],
    ids=lambda value: getattr(value, "type_name", None),
)
def test_a_type_is_as_avro_data_makes_it(column: Column, options: dict[str, Any], expected: Any) -> None:
    assert types_of(column, **options) == [expected]


def test_a_type_that_two_columns_have_is_defined_once() -> None:
    [first, second] = types_of(Column("a", 600, -1, "point", False), Column("b", 600, -1, "point", True))
    assert (first["name"], first["namespace"]) == ("Point", "io.debezium.data.geometry")
    assert first["connect.doc"] == "Geometry (POINT)"
    assert second == ["null", "io.debezium.data.geometry.Point"]


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("order id", "avro", "order_id"),
        ("1st", "avro", "_1st"),
        ("größe", "avro", "gr__e"),
        ("a_b", "avro", "a_b"),
        ("a_b", "avro_unicode", "a_u005fb"),
        ("1st", "avro_unicode", "_u0031st"),
        ("größe", "avro_unicode", "gr_u00f6_u00dfe"),
        ("€", "avro_unicode", "_u20ac"),
        ("λ", "avro_unicode", "_u3bb"),  # Debezium's own way with three digits
        ("😀", "avro_unicode", "_ud83d_ude00"),
        ("größe", "none", "größe"),
    ],
)
def test_names_of_fields_are_adjusted_as_debezium_does(name: str, mode: NameAdjustment, expected: str) -> None:
    assert adjusted_field_name(name, mode) == expected


def test_names_of_schemas_are_always_adjusted() -> None:
    assert adjusted_schema_name("my-shop.public.gr__e_1.Value") == "my_shop.public.gr__e_1.Value"
    assert adjusted_schema_name("1shop.public.t.Key") == "_1shop.public.t.Key"


def test_a_name_that_avro_cant_hold_is_refused_with_the_option() -> None:
    node = {**required(struct_of([("order id", INT16)])), "name": "a.Value"}
    with pytest.raises(ConfigError, match=r"public\.t: Avro can't hold the name of column order id") as failure:
        avro_schema(node, "public.t")
    assert "field.name.adjustment.mode" in failure.value.hint
