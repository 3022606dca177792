"""The encoding of topics where the state that says it is lost."""

from collections.abc import Mapping
from typing import Any

import pytest

from cdc.config.format_options import Encoding
from cdc.config.settings import PipelineConfig
from cdc.daemon import record_making
from cdc.daemon.record_making import record_encoding
from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.formats.wire_format import schema_id_of
from cdc.kafka import schema_registry
from cdc.kafka.daemon_thread import do_nothing
from cdc.kafka.state_reader import Captured
from cdc.model.control import EncodingRecord, SchemaRecord
from cdc.model.errors import ConfigError, GapError
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.relations import relation_of
from tests.support.registries import FakeRegistry

TOPICS = Topics("shop")
THINGS = TableId("public", "things")
SCHEMA = TableSchema(THINGS, 1, 16_385, (Column("id", 23, -1, "integer", False),), ("id",), TOPICS.table(THINGS))
CAPTURED = Captured({THINGS: SCHEMA}, {}, {})
KEY_ID = 7


def config(encoding: Encoding) -> PipelineConfig:
    registry = {"schema_registry": {"url": "http://registry:8081"}}
    return PipelineConfig.model_validate(
        {
            "source": {"dsn": "host=db", "slot": "shop", "publication": "shop", "tables": ["public.things"]},
            "kafka": {"bootstrap_servers": "k:1", **registry},
            "topics": {"prefix": "shop"},
            "format": {"encoding": encoding},
        }
    )


def encoding(key_schema_id: int | None = KEY_ID) -> EncodingRecord:
    return EncodingRecord(table_schema="public", table_name="things", encoding="avro", key_schema_id=key_schema_id)


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> dict[TableId, EncodingRecord | None]:
    """What topics say; capture's state is gone."""
    says: dict[TableId, EncodingRecord | None] = {}

    def read(_: object, asked: Mapping[TableId, str]) -> dict[TableId, EncodingRecord | None]:
        assert asked == {THINGS: "shop.public.things"}
        return says

    monkeypatch.setattr(record_making, "read_topic_encodings", read)
    monkeypatch.setattr(record_making, "read_captured", lambda _: CAPTURED)
    monkeypatch.setattr(record_making, "read_encodings", lambda _: {})
    monkeypatch.setattr(record_making, "read_position", lambda _: None)
    return says


def encoded(made: Any, *records: TopicRecord) -> list[TopicRecord]:
    return list(made(records, do_nothing))


def row() -> TopicRecord:
    encoder = TableEncoder(SCHEMA, relation_of(SCHEMA), EnvelopeContext("shop", "shop", 1, "0"))
    encoder.start_chunk(5, 6)
    return TopicRecord(SCHEMA.topic, *encoder.copy_row(b"1", 5, 0, 0, 7))


def test_a_heal_without_state_goes_on_with_the_encoding_and_the_key_schema_of_the_topics(
    topics: dict[TableId, EncodingRecord | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: a topic in Avro counted as one in JSON, so no start and no heal was possible, and the hint was to set
    format.encoding to json, which gives each row a second key."""
    registry = FakeRegistry()
    monkeypatch.setattr(schema_registry, "registry_of", lambda _: registry)
    topics[THINGS] = encoding()
    [control, noted] = encoded(record_encoding(config("avro")), SchemaRecord.of(SCHEMA).to(TOPICS.control))
    assert EncodingRecord.decode(noted.value or b"", "") == encoding()
    with pytest.raises(Exception, match="no schema with id 7"):
        encoded(record_encoding(config("avro")), row())
    assert registry.register(SCHEMA.topic, "key", key_form()) == 1
    registry.schemas[KEY_ID] = registry.schemas[1]
    [noted, made] = encoded(record_encoding(config("avro")), row())
    assert (EncodingRecord.decode(noted.value or b"", ""), schema_id_of(made.key)) == (encoding(), KEY_ID)
    assert control.topic == TOPICS.control


def key_form() -> Any:
    from cdc.formats.encodings import forms_of

    key, _ = forms_of(SCHEMA, config("avro").format_options, "shop")
    return key


def test_topics_with_records_in_another_encoding_are_refused(topics: dict[TableId, EncodingRecord | None]) -> None:
    topics[THINGS] = None
    with pytest.raises(ConfigError, match=r"topic of table public\.things has records in json"):
        record_encoding(config("avro"))
    assert record_encoding(config("json")) is None
    topics[THINGS] = encoding()
    with pytest.raises(ConfigError, match=r"topic of table public\.things has records in avro"):
        record_encoding(config("json"))


def test_topics_without_records_may_get_any(topics: dict[TableId, EncodingRecord | None]) -> None:
    topics.clear()
    assert record_encoding(config("avro")) is not None


def test_a_damaged_position_is_no_position_and_with_one_topics_are_not_asked(
    topics: dict[TableId, EncodingRecord | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    topics[THINGS] = encoding()

    def damaged(_: object) -> None:
        raise GapError("damaged", "heal")

    monkeypatch.setattr(record_making, "read_position", damaged)
    assert record_encoding(config("avro")) is not None
    monkeypatch.setattr(record_making, "read_position", lambda _: object())
    with pytest.raises(ConfigError, match="has records in json"):
        record_encoding(config("avro"))
    monkeypatch.setattr(record_making, "read_position", damaged)
    with pytest.raises(ConfigError, match="has records in json"):
        record_encoding(config("avro"), CAPTURED)
