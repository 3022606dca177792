"""How the topics of tables are encoded, from a record of each: for a start that finds no state, which would say it."""

from collections.abc import Mapping
from typing import Final

from cdc.config.settings import KafkaConfig
from cdc.formats.wire_format import schema_id_of
from cdc.kafka.topic_reader import TopicReader, open_reader
from cdc.model.control import EncodingRecord
from cdc.model.errors import ConfigError
from cdc.model.events import TableId

NEXT_REGISTRY: Final = "add the section kafka.schema_registry with which the topic was written"


def read_topic_encodings(kafka: KafkaConfig, topics: Mapping[TableId, str]) -> dict[TableId, EncodingRecord | None]:
    """Returns the encodings of those of these topics that have records; None: their records are JSON. Raises
    ConfigError if no schema registry is configured and one is needed, UnknownIdError, BrokerError, UnreachableError."""
    found: dict[TableId, EncodingRecord | None] = {}
    with open_reader(kafka) as reader:
        existing = reader.topics()
        for table, topic in topics.items():
            first = _first(reader, topic) if topic in existing else None
            if first is not None:
                found[table] = encoding_of(kafka, table, topic, *first)
    return found


def _first(reader: TopicReader, topic: str) -> tuple[bytes | None, bytes | None] | None:
    """Returns key and value of a record; None if there is none."""
    for partition in reader.partitions(topic):
        for message in reader.read(topic, partition):
            return message.key(), message.value()
    return None


def encoding_of(
    kafka: KafkaConfig, table: TableId, topic: str, key: bytes | None, value: bytes | None
) -> EncodingRecord | None:
    """Returns the encoding of a topic with this record; None if it is JSON. Raises as `read_topic_encodings`."""
    key_id = None if key is None else schema_id_of(key)
    schema_id = key_id if key is not None else schema_id_of(value or b"")
    if schema_id is None:
        return None
    if kafka.schema_registry is None:
        raise ConfigError(f"topic {topic} has records with schema {schema_id} of a schema registry", NEXT_REGISTRY)
    # Only here: whoever has JSON topics needs neither library.
    from cdc.formats.encodings import SCHEMA_TYPES
    from cdc.kafka.schema_registry import registry_of

    schema_type, _ = registry_of(kafka.schema_registry).fetch(schema_id)
    encoding = next((encoding for encoding, of in SCHEMA_TYPES.items() if of == schema_type), None)
    if encoding is None:
        raise ConfigError(
            f"topic {topic} has records with schema {schema_id} of type {schema_type}, which Watershed does not write",
            "choose another topics.prefix",
        )
    return EncodingRecord(table_schema=table.schema, table_name=table.name, encoding=encoding, key_schema_id=key_id)
