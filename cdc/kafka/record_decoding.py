"""Keys and values of tables' topics as JSON, in whatever encoding they are: for everyone who reads these topics.

A record says itself how to read it: a key or value that begins with a zero byte has the id of its schema, and anything
else is JSON. So a reader needs no option, and a topic may have both.
"""

from collections.abc import Callable
from typing import Final

from cdc.config.schema_registry import SchemaRegistryConfig
from cdc.config.settings import KafkaConfig
from cdc.formats.wire_format import HEAD_BYTES, MAGIC
from cdc.model.errors import ConfigError, WatershedError

_Read = Callable[[bytes], bytes]

NEXT_AFTER_OTHER_SCHEMA: Final = (
    "check that kafka.schema_registry is the registry with which the topic was written, and was not restored from an "
    "older copy: an id may have another schema since; otherwise something other than Watershed wrote to this topic"
)


class DamagedRecordError(WatershedError):
    """A key or value that is not of the schema whose id it has."""


class RecordReader:
    """Reads keys and values. Thread-safe."""

    def __init__(self, registry: SchemaRegistryConfig | None) -> None:
        self._registry = registry
        self._readers: dict[int, _Read] = {}

    def plain(self, content: bytes | None) -> bytes | None:
        """Returns the JSON of a key or value; None for None. Raises UnknownIdError for a schema that the registry does
        not have, DamagedRecordError, UnreachableError, ConfigError."""
        if content is None or content[:1] != MAGIC:
            return content
        schema_id = int.from_bytes(content[1:HEAD_BYTES])
        read = self._readers.get(schema_id) or self._open(schema_id)
        try:
            return read(content)
        except ValueError as error:
            raise DamagedRecordError(
                f"it does not have the schema {schema_id} that it names: {error}",
                NEXT_AFTER_OTHER_SCHEMA,
            ) from error

    def _open(self, schema_id: int) -> _Read:
        if self._registry is None:
            raise ConfigError(
                f"a record has schema {schema_id} of a schema registry, and kafka.schema_registry is not configured",
                "add the section kafka.schema_registry with which the topic is written",
            )
        # Only here: whoever has JSON topics needs neither library.
        from cdc.formats.encodings import reader_of
        from cdc.kafka.schema_registry import registry_of

        schema_type, schema = registry_of(self._registry).fetch(schema_id)
        try:
            read = self._readers[schema_id] = reader_of(schema_type, schema)
        except ValueError as error:
            raise DamagedRecordError(
                f"a record has schema {schema_id} of the schema registry, and {error}",
                NEXT_AFTER_OTHER_SCHEMA,
            ) from error
        return read


_readers: dict[str, RecordReader] = {}


def record_reader(kafka: KafkaConfig) -> RecordReader:
    """Returns the process's reader of these brokers' records."""
    registry = kafka.schema_registry
    name = "" if registry is None else repr((sorted(registry.client_options.items()), registry))
    return _readers.setdefault(name, RecordReader(registry))
