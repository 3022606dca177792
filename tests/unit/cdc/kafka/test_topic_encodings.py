"""How a topic is encoded, found from one of its records."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.schema_registry import SchemaRegistryConfig
from cdc.config.settings import KafkaConfig
from cdc.formats.wire_format import head
from cdc.kafka import schema_registry, topic_encodings
from cdc.kafka.topic_encodings import encoding_of, read_topic_encodings
from cdc.model.control import EncodingRecord
from cdc.model.errors import ConfigError, UnknownIdError
from cdc.model.events import TableId
from tests.support.registries import FakeRegistry

THINGS, EMPTY, MISSING = (TableId("public", name) for name in ("things", "empty", "missing"))
KAFKA = KafkaConfig(bootstrap_servers="k:1", schema_registry=SchemaRegistryConfig(url="http://registry:8081"))


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    made = FakeRegistry()
    made.schemas |= {5: ("AVRO", "{}"), 6: ("JSON", "{}"), 7: ("THRIFT", "struct")}
    monkeypatch.setattr(schema_registry, "registry_of", lambda _: made)


def made(encoding: Any, key_schema_id: int | None) -> EncodingRecord:
    return EncodingRecord(table_schema="public", table_name="things", encoding=encoding, key_schema_id=key_schema_id)


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        (b'{"id":1}', b"{}", None),
        (b'{"id":1}', None, None),
        (head(5) + b"x", None, made("avro", 5)),
        (head(6) + b"{}", head(9) + b"{}", made("json_schema", 6)),
        (None, head(5) + b"x", made("avro", None)),
        (None, b"{}", None),
    ],
)
def test_the_key_says_it_and_for_rows_without_one_the_value(key: Any, value: Any, found: EncodingRecord | None) -> None:
    assert encoding_of(KAFKA, THINGS, "t", key, value) == found


def test_what_nobody_can_know_is_named() -> None:
    without = KafkaConfig(bootstrap_servers="k:1")
    with pytest.raises(ConfigError, match="topic t has records with schema 5 of a schema registry"):
        encoding_of(without, THINGS, "t", head(5), None)
    with pytest.raises(UnknownIdError, match="no schema with id 8"):
        encoding_of(KAFKA, THINGS, "t", head(8), None)
    with pytest.raises(ConfigError, match="schema 7 of type THRIFT, which Watershed does not write"):
        encoding_of(KAFKA, THINGS, "t", head(7), None)


def test_topics_without_records_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    record = SimpleNamespace(key=lambda: head(5), value=lambda: None)

    @contextmanager
    def opened(_: KafkaConfig) -> Iterator[Any]:
        yield SimpleNamespace(
            topics=lambda: frozenset({"things", "empty"}),
            partitions=lambda _: [0, 1],
            read=lambda topic, partition: [record, record] if (topic, partition) == ("things", 1) else [],
        )

    monkeypatch.setattr(topic_encodings, "open_reader", opened)
    topics = {THINGS: "things", EMPTY: "empty", MISSING: "missing"}
    assert read_topic_encodings(KAFKA, topics) == {THINGS: made("avro", 5)}
