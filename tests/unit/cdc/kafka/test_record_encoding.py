"""Records of tables in Avro, JSON Schema and Protobuf: which schemas are registered, when, and what stops one table."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cdc.config.format_options import FormatOptions
from cdc.formats.encodings import reader_of
from cdc.formats.proto_schemas import parsed
from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.formats.wire_format import HEAD_BYTES, schema_id_of
from cdc.kafka.daemon_thread import do_nothing
from cdc.kafka.record_encoding import RecordEncoder
from cdc.model.control import EncodingRecord, SchemaRecord
from cdc.model.errors import UnreachableError, UnsupportedChangeError
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.messages import NULL
from cdc.pgoutput.relations import relation_of
from tests.support import wire
from tests.support.holes import without_holes
from tests.support.protoc import message_class
from tests.support.registries import FakeRegistry

TOPICS: Final = Topics("shop")
THINGS, OTHER = TableId("public", "things"), TableId("public", "other")
ID = Column("id", 23, -1, "integer", False)
NAME = Column("name", 25, -1, "text", True)
AVRO, JSON_SCHEMA = FormatOptions(encoding="avro"), FormatOptions(encoding="json_schema")
PROTOBUF = FormatOptions(encoding="protobuf")
ALL: Final = [AVRO, JSON_SCHEMA, PROTOBUF]


def schema(*columns: Column, table: TableId = THINGS, version: int = 1, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(table, version, 16_385, columns, key, TOPICS.table(table))


def rows(of: TableSchema, *lines: bytes, options: FormatOptions = AVRO) -> list[TopicRecord]:
    """What capture would produce in JSON."""
    encoder = TableEncoder(of, relation_of(of), EnvelopeContext("shop", "shop", 1, "0", options))
    encoder.start_chunk(5, 6)
    return [TopicRecord(of.topic, *encoder.copy_row(line, 5, i, i, 7)) for i, line in enumerate(lines)]


def described(of: TableSchema) -> TopicRecord:
    return SchemaRecord.of(of).to(TOPICS.control)


def session(registry: FakeRegistry, options: FormatOptions = AVRO, *known: TableSchema, **recorded: Any) -> Any:
    """A function that encodes records."""
    encoder = RecordEncoder(registry, options, "shop", known, recorded.get("recorded", {}))

    def encoded(*records: TopicRecord) -> list[TopicRecord]:
        return list(encoder.encoded(records, do_nothing))

    return encoded


def read(registry: FakeRegistry, content: bytes | None) -> Any:
    """The JSON of a key or value, by the schema that it names."""
    assert content is not None
    schema_id = schema_id_of(content)
    assert schema_id is not None
    return json.loads(reader_of(*registry.fetch(schema_id))(content))


def encodings(records: Sequence[TopicRecord]) -> list[tuple[str, int | None]]:
    found = [record for record in records if record.topic == TOPICS.state]
    assert all(record.key.startswith(b"encoding/") for record in found)
    read = [EncodingRecord.decode(record.value or b"", "") for record in found]
    return [(record.encoding, record.key_schema_id) for record in read]


@pytest.mark.parametrize("options", ALL, ids=lambda options: options.encoding)
def test_rows_follow_their_schema_and_have_ids(options: FormatOptions) -> None:
    registry, table = FakeRegistry(), schema(ID, NAME)
    encoded = session(registry, options)
    [control, noted] = encoded(described(table))
    assert control == described(table), "our own topics stay as they are"
    assert encodings([noted]) == [(options.encoding, None)]
    assert registry.calls == 0, "nothing is registered before there is a record"
    [key_noted, first, second] = encoded(*rows(table, b"1\tx", b"2\t\\N", options=options))
    assert encodings([key_noted]) == [(options.encoding, 1)]
    assert (read(registry, first.key), read(registry, second.key)) == ({"id": 1}, {"id": 2})
    assert read(registry, second.value)["after"] == {"id": 2, "name": None}
    assert [schema_id_of(content or b"") for content in first[1:3]] == [1, 2]
    assert list(registry.subjects) == ["shop.public.things-key", "shop.public.things-value"]


@pytest.mark.parametrize("options", ALL, ids=lambda options: options.encoding)
def test_the_same_key_has_the_same_bytes_in_rows_deletes_and_tombstones(options: FormatOptions) -> None:
    registry, table = FakeRegistry(), schema(ID, NAME)
    encoder = TableEncoder(table, relation_of(table), EnvelopeContext("shop", "shop", 1, "0", options))
    encoder.start_transaction(5, 6, 7, None)
    gone = encoder.encode(wire.delete(16_385, [b"1", NULL]), 0, 1, 0, 2, 3)
    made = [TopicRecord(table.topic, *without_holes(record)) for record in gone]
    [_, delete, tombstone] = session(registry, options, table)(*made)
    [_, row] = session(registry, options, table)(*rows(table, b"1\tx", options=options))
    assert delete.key == tombstone.key == row.key
    assert (tombstone.value, tombstone.headers) == (None, gone[1][2])


@pytest.mark.parametrize("options", [AVRO, PROTOBUF], ids=lambda options: options.encoding)
def test_a_column_is_added_and_the_key_keeps_its_schema(options: FormatOptions) -> None:
    registry, first = FakeRegistry(), schema(ID, NAME)
    second = schema(replace(ID, type_oid=20, type_name="bigint"), NAME, replace(NAME, name="note"), version=2)
    encoded = session(registry, options)
    [_, _, _, before] = encoded(described(first), *rows(first, b"1\tx", options=options))
    registry.samples["shop.public.things-value"] = before.value[HEAD_BYTES:]
    made = encoded(described(second), *rows(second, b"1\tx\ty", options=options))
    assert {key_id for _, key_id in encodings(made)} <= {1}, "the key's id is recorded already"
    after = made[-1]
    assert after.key == before.key, "int became bigint: the same row, the same key"
    assert read(registry, after.value)["after"] == {"id": 1, "name": "x", "note": "y"}
    assert len(registry.subjects["shop.public.things-key"]) == 1
    assert len(registry.subjects["shop.public.things-value"]) == 2


def test_a_refused_schema_stops_its_table_with_the_answer() -> None:
    registry, first = FakeRegistry(), schema(ID, NAME)
    encoded = session(registry)
    [*_, before] = encoded(described(first), *rows(first, b"1\tx"))
    registry.samples["shop.public.things-value"] = before.value[HEAD_BYTES:]
    second = schema(ID, Column("name", 16, -1, "boolean", True), version=2)
    with pytest.raises(UnsupportedChangeError, match=r"refuses a schema for shop\.public\.things-value") as failure:
        encoded(described(second), *rows(second, b"1\tt"))
    assert failure.value.table == THINGS
    assert failure.value.is_held
    assert "cdc table start public.things" in failure.value.hint
    other = schema(ID, NAME, table=OTHER)
    assert len(encoded(described(other), *rows(other, b"1\tx"))) == 4, "the others continue"


def test_a_registry_that_is_away_stops_no_table() -> None:
    registry, table = FakeRegistry(), schema(ID, NAME)
    registry.failure = UnreachableError("away", "wait")
    with pytest.raises(UnreachableError):
        session(registry)(described(table), *rows(table, b"1\tx"))
    registry.failure = None
    encoded = session(registry)
    encoded(described(table), *rows(table, b"1\tx"))
    registry.failure = UnreachableError("away", "wait")
    [row] = encoded(*rows(table, b"2\tx"))
    assert row.key[HEAD_BYTES:] == b"\x04", "known schemas need no registry"


def test_the_recorded_schema_of_the_key_is_used_whatever_its_notes_say() -> None:
    registry, table = FakeRegistry(), schema(ID, NAME)
    [*_, row] = session(registry, AVRO, table)(*rows(table, b"1\tx"))
    kind, text = registry.schemas[1]
    noted = json.loads(text) | {"connect.doc": "somebody's"}
    registry.schemas = {9: (kind, json.dumps(noted)), 2: registry.schemas[2]}
    recorded = {THINGS: EncodingRecord(table_schema="public", table_name="things", encoding="avro", key_schema_id=9)}
    [again] = session(registry, AVRO, table, recorded=recorded)(*rows(table, b"1\tx"))
    assert (schema_id_of(again.key), again.key[HEAD_BYTES:]) == (9, row.key[HEAD_BYTES:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (AVRO, "the schema of its keys has changed: records of topic shop.public.things have schema 9"),
        (FormatOptions(encoding="avro", profile="debezium"), "have schema 9"),
    ],
    ids=["another column", "debezium"],
)
def test_another_schema_of_the_key_stops_the_table(options: FormatOptions, message: str) -> None:
    """In profile debezium the key of an int is an int, and of a bigint another one."""
    registry = FakeRegistry()
    was = schema(replace(ID, type_oid=25, type_name="text") if options is AVRO else ID, NAME)
    [*_, _] = session(registry, options, was)(*rows(was, b"1\tx", options=options))
    registry.schemas[9] = registry.schemas[1]
    recorded = {THINGS: EncodingRecord(table_schema="public", table_name="things", encoding="avro", key_schema_id=9)}
    now = schema(ID if options is AVRO else replace(ID, type_oid=20, type_name="bigint"), NAME, version=2)
    with pytest.raises(UnsupportedChangeError, match=message) as failure:
        session(registry, options, now, recorded=recorded)(*rows(now, b"1\tx", options=options))
    assert failure.value.table == THINGS


def test_a_key_whose_schema_the_registry_lost_stops_the_table() -> None:
    recorded = {THINGS: EncodingRecord(table_schema="public", table_name="things", encoding="avro", key_schema_id=9)}
    table = schema(ID, NAME)
    with pytest.raises(UnsupportedChangeError, match="no schema with id 9"):
        session(FakeRegistry(), AVRO, table, recorded=recorded)(*rows(table, b"1\tx"))


def test_names_that_avro_cant_hold_are_adjusted_or_stop_the_table() -> None:
    odd = schema(ID, replace(NAME, name="größe in-cm"), replace(NAME, name="2nd"))
    with pytest.raises(UnsupportedChangeError, match="Avro can't hold the name of column größe in-cm") as failure:
        session(FakeRegistry(), AVRO, odd)(*rows(odd, b"1\tx\ty"))
    assert "field.name.adjustment.mode" in failure.value.hint
    for mode, names in {"avro": ["id", "gr__e_in_cm", "_2nd"], "avro_unicode": None}.items():
        options = FormatOptions(encoding="avro", field_name_adjustment_mode=mode)
        registry = FakeRegistry()
        [*_, row] = session(registry, options, odd)(*rows(odd, b"1\tx\ty", options=options))
        value = json.loads(registry.schemas[2][1])
        fields = [field["name"] for field in value["fields"][0]["type"][1]["fields"]]
        assert fields == (names or ["id", "gr_u00f6_u00dfe_u0020in_u002dcm", "_u0032nd"])
        assert read(registry, row.value)["after"] == {"id": 1, "größe in-cm": "x", "2nd": "y"}


def test_columns_with_one_name_in_avro_stop_the_table() -> None:
    both = schema(ID, replace(NAME, name="a b"), replace(NAME, name="a-b"))
    options = FormatOptions(encoding="avro", field_name_adjustment_mode="avro")
    with pytest.raises(UnsupportedChangeError, match="columns a b and a-b would both be field a_b"):
        session(FakeRegistry(), options, both)(*rows(both, b"1\tx\ty", options=options))


def recorded_in(records: Sequence[TopicRecord]) -> dict[TableId, EncodingRecord]:
    """What state has after these records."""
    found = [record.value or b"" for record in records if record.topic == TOPICS.state]
    return {record.table: record for content in found if (record := EncodingRecord.decode(content, ""))}


def fields(registry: FakeRegistry, schema_id: int) -> dict[str, int]:
    """The numbers of the columns in a schema of values."""
    value = parsed(registry.fetch(schema_id)[1]).all_messages()["shop.public.things.Envelope.Value"]
    return {field.name: field.number for field in value.fields}


def test_field_numbers_outlive_a_restart_and_a_registry_without_the_newest_schema() -> None:
    """The topic's own state says what its records have. Who compiled the schema reads them by numbers alone."""
    note, remark = replace(NAME, name="note"), replace(NAME, name="remark")
    first, second = schema(ID, NAME, note), schema(ID, note, version=2)
    registry = FakeRegistry()
    session_1 = session(registry, PROTOBUF)
    made = session_1(described(first), *rows(first, b"1\tx\ty", options=PROTOBUF))
    restored = FakeRegistry()
    restored.subjects = {subject: list(versions) for subject, versions in registry.subjects.items()}
    restored.schemas = dict(registry.schemas)
    made += session_1(described(second), *rows(second, b"1\ty", options=PROTOBUF))
    assert fields(registry, 3) == {"id": 1, "note": 3}
    known = recorded_in(made)
    [again] = session(registry, PROTOBUF, second, recorded=known)(*rows(second, b"1\ty", options=PROTOBUF))
    assert schema_id_of(again.value or b"") == 3, "after a restart the schema is the same"
    third = schema(ID, note, NAME, remark, version=3)
    session(restored, PROTOBUF, third, recorded=known)(*rows(third, b"1\ty\tx\tz", options=PROTOBUF))
    assert fields(restored, 3) == {"id": 1, "note": 3, "name": 4, "remark": 5}


def test_field_numbers_of_an_earlier_topic_of_this_name_are_not_used_again() -> None:
    """`cdc teardown` deletes the topics with their state, and leaves the registry as it is."""
    registry, before = FakeRegistry(), schema(ID, NAME)
    session(registry, PROTOBUF, before)(*rows(before, b"1\tx", options=PROTOBUF))
    now = schema(replace(NAME, name="note"), ID)
    [noted, row] = session(registry, PROTOBUF, now)(*rows(now, b"y\t1", options=PROTOBUF))
    assert fields(registry, 3) == {"note": 3, "id": 1}
    assert 'reserved "name";' in registry.fetch(3)[1]
    assert recorded_in([noted])[THINGS].value_schema == registry.fetch(3)[1]
    assert read(registry, row.value)["after"] == {"note": "y", "id": 1}


def test_a_newest_schema_that_is_not_ours_stops_the_table() -> None:
    registry, table = FakeRegistry(), schema(ID, NAME)
    registry.schemas[1] = "PROTOBUF", 'syntax = "proto3"; message A { enum B { C = 0; } }'
    registry.subjects["shop.public.things-value"] = [(1, registry.schemas[1][1])]
    with pytest.raises(UnsupportedChangeError, match=r"field numbers can't continue .* with enum") as failure:
        session(registry, PROTOBUF, table)(*rows(table, b"1\tx", options=PROTOBUF))
    assert "remove that version" in failure.value.hint


def test_confluents_deserializer_reads_protobuf() -> None:
    registry, table = FakeRegistry(), schema(ID, NAME)
    [_, row] = session(registry, PROTOBUF, table)(*rows(table, b"1\tx", options=PROTOBUF))

    def deserialized(content: bytes | None, part: MessageField) -> Any:
        _, text = registry.fetch(schema_id_of(content or b"") or 0)
        read = ProtobufDeserializer(message_class(text), {"use.deprecated.format": False})
        return read(content, SerializationContext(row.topic, part))

    assert deserialized(row.key, MessageField.KEY).id == 1
    value = deserialized(row.value, MessageField.VALUE)
    assert (value.after.id, value.after.name, value.HasField("before"), value.source.table) == (1, "x", False, "things")


def test_another_key_in_protobuf_stops_the_table() -> None:
    registry, was = FakeRegistry(), schema(ID, NAME)
    known = recorded_in(session(registry, PROTOBUF, was)(*rows(was, b"1\tx", options=PROTOBUF)))
    now = schema(ID, NAME, version=2, key=("id", "name"))
    with pytest.raises(UnsupportedChangeError, match="the schema of its keys has changed"):
        session(registry, PROTOBUF, now, recorded=known)(*rows(now, b"1\tx", options=PROTOBUF))


def test_a_table_without_a_key_has_values_only() -> None:
    registry, log = FakeRegistry(), schema(ID, NAME, key=())
    [_, row] = session(registry, AVRO, log)(TopicRecord(log.topic, b"", rows(log, b"1\tx")[0].value))
    assert (row.key, list(registry.subjects)) == (b"", ["shop.public.things-value"])
    assert read(registry, row.value)["after"] == {"id": 1, "name": "x"}
