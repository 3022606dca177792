"""Connect's schemas, node by node."""

from cdc.formats import connect
from cdc.formats.connect import (
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    STRING,
    array_of,
    has_floats,
    map_of,
    named,
    optional,
    required,
    struct_of,
)


def test_optional_stands_between_the_type_and_its_name() -> None:
    assert list(optional(named(INT64, "io.debezium.time.MicroTime"))) == ["type", "optional", "name", "version"]
    assert connect.dumps(required(named(STRING, "n", {"length": "3"}, version=2))) == (
        '{"type":"string","optional":false,"name":"n","version":2,"parameters":{"length":"3"}}'
    )


def test_arrays_have_optional_elements_and_structs_name_their_fields() -> None:
    assert array_of(INT32) == {"type": "array", "items": {"type": "int32", "optional": True}}
    assert map_of(STRING, optional(STRING))["keys"] == {"type": "string", "optional": False}
    assert struct_of([("a", required(INT32))])["fields"] == [{"type": "int32", "optional": False, "field": "a"}]


def test_keys_and_envelopes_have_debeziums_names_and_versions() -> None:
    name = "shop.public.orders"
    key = connect.key_schema(name, [("id", optional(INT64))])
    assert key == {
        "type": "struct",
        "fields": [{"type": "int64", "optional": False, "field": "id"}],
        "optional": False,
        "name": "shop.public.orders.Key",
    }
    envelope = connect.envelope_schema(name, [("id", required(INT64))])
    assert (envelope["name"], envelope["version"], envelope["optional"]) == ("shop.public.orders.Envelope", 2, False)
    fields = {field["field"]: field for field in envelope["fields"]}
    assert list(fields) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    for row in (fields["before"], fields["after"]):
        assert (row["name"], row["optional"]) == ("shop.public.orders.Value", True)
        assert row["fields"] == [{"type": "int64", "optional": False, "field": "id"}]
    source = fields["source"]
    assert (source["name"], source["version"]) == ("io.debezium.connector.postgresql.Source", 1)
    assert [field["field"] for field in source["fields"]] == [
        *("version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns", "schema", "table"),
        *("txId", "lsn", "xmin", "origin", "origin_lsn", "epoch", "seq", "commit_lsn", "tx_index", "schema_version"),
        *("unchanged", "filled"),
    ]
    assert fields["transaction"]["name"] == "event.block"


def test_names_stay_utf_8() -> None:
    assert connect.dumps({"field": "Größe"}).encode("latin-1").decode() == '{"field":"Größe"}'


def test_floats_are_found_wherever_they_are() -> None:
    inner = struct_of([("x", required(FLOAT64))])
    for node in (FLOAT32, array_of(FLOAT64), inner, array_of(struct_of([("p", inner)])), map_of(STRING, FLOAT64)):
        assert has_floats(node)
    for node in (INT32, array_of(STRING), map_of(STRING, INT64), struct_of([("a", required(INT64))])):
        assert not has_floats(node)
