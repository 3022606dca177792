"""Keys and values as JSON: each record says how to read it, and one that can't be read says why."""

import json
from typing import Any

import pytest

from cdc.config.format_options import FormatOptions
from cdc.config.schema_registry import SchemaRegistryConfig
from cdc.config.settings import KafkaConfig
from cdc.formats.connect import INT32, required, struct_of
from cdc.formats.encodings import form_of
from cdc.formats.wire_format import head
from cdc.kafka import schema_registry
from cdc.kafka.record_decoding import DamagedRecordError, RecordReader, record_reader
from cdc.model.errors import ConfigError, UnknownIdError
from tests.support.registries import FakeRegistry

FORM = form_of(
    {**required(struct_of([("id", required(INT32))])), "name": "shop.public.t.Key"},
    FormatOptions(encoding="avro"),
    "public.t",
)
CONFIG = SchemaRegistryConfig(url="http://registry:8081")


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> RecordReader:
    registry = FakeRegistry()
    assert registry.register("t", "key", FORM) == 1
    registry.schemas[2] = "XML", "<schema/>"
    registry.schemas[3] = "AVRO", "{"
    registry.schemas[4] = "PROTOBUF", "message T {"
    registry.schemas[5] = "PROTOBUF", 'syntax = "proto3"; message T { int32 id = 1; }'
    monkeypatch.setattr(schema_registry, "registry_of", lambda _: registry)
    return RecordReader(CONFIG)


def test_a_topic_may_have_both(reader: RecordReader) -> None:
    assert reader.plain(head(1) + FORM.encode(b'{"id":7}')) == b'{"id":7}'
    assert reader.plain(head(5) + b"\x00\x08\x07") == b'{"id":7}'
    assert [reader.plain(content) for content in (b'{"id":7}', b"", None)] == [b'{"id":7}', b"", None]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (head(9) + b"\x02", UnknownIdError, "no schema with id 9"),
        (head(1) + b"\x02\x02", DamagedRecordError, "does not have the schema 1 that it names: .*bytes are left"),
        (head(1), DamagedRecordError, "not Avro of this schema"),
        (head(2) + b"\x00", DamagedRecordError, "schema 2 .* is of type XML, which Watershed does not write"),
        (head(3) + b"\x00", DamagedRecordError, "schema 3 .*: .*its schema can't be read|its schema can't be read"),
        (head(4) + b"\x00", DamagedRecordError, "schema 4 .*its schema can't be read: .*it ends too early"),
        (head(5) + b"\x00\x08", DamagedRecordError, "does not have the schema 5 .*: not Protobuf of this schema"),
        (head(5) + b"\x02\x08\x07", DamagedRecordError, "not the first message of this Protobuf schema"),
        (b"\x00\x00", UnknownIdError, "no schema with id 0"),
    ],
)
def test_what_cant_be_read_says_why(reader: RecordReader, content: bytes, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as failure:
        reader.plain(content)
    assert failure.value.hint


def test_without_the_section_it_is_named() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.schema_registry is not configured"):
        RecordReader(None).plain(head(1) + b"\x02")


def test_a_process_has_one_reader_of_a_registry() -> None:
    kafka = KafkaConfig(bootstrap_servers="k:1", schema_registry=CONFIG)
    assert record_reader(kafka) is record_reader(kafka.model_copy())
    assert record_reader(kafka) is not record_reader(KafkaConfig(bootstrap_servers="k:1"))


def test_the_schema_is_what_confluents_clients_expect() -> None:
    assert json.loads(FORM.schema) == {
        "type": "record",
        "name": "Key",
        "namespace": "shop.public.t",
        "fields": [{"name": "id", "type": "int"}],
        "connect.name": "shop.public.t.Key",
    }
