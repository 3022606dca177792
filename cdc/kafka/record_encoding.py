"""Tables' records in another encoding than JSON, made where they leave capture.

Inside of capture every record is JSON: rows are encoded once, and keys are compared as JSON. So partitions, compaction
and sweeps see another encoding only in the bytes that are produced, and these are the same for the same key, always:
a key's schema is registered once for a topic, its id is recorded in state with the first record, and no other one is
ever used (docs/design/encodings.md). Schemas are registered with the first record that has them; the schema records of
the control topic, which precede these records, say what they are.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from cdc.config.format_options import Encoding, FormatOptions
from cdc.formats.encodings import Form, Part, forms_of, is_same_form
from cdc.formats.wire_format import head
from cdc.kafka.daemon_thread import call_in_thread
from cdc.kafka.schema_registry import Registry, SchemaRefusedError
from cdc.model.control import EncodingRecord, SchemaRecord
from cdc.model.errors import NEXT_AFTER_STOP, ConfigError, UnknownIdError, UnsupportedChangeError, WatershedError
from cdc.model.events import TableId, TableSchema
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.stream import WhileWaiting

log = structlog.get_logger(__name__)

_VERSION: Final = b',"schema_version":'  # of `source`, behind the user's columns; inside a text quotes are escaped


@dataclass(slots=True)
class _Table:
    """A captured table's topic."""

    table: TableId
    schemas: dict[int, TableSchema] = field(default_factory=dict)  # by version
    values: dict[int, tuple[bytes, Form]] = field(default_factory=dict)  # by version: head and form
    key: tuple[bytes, Form] | None = None
    key_id: int | None = None  # recorded
    value_schema: str | None = None  # recorded


class RecordEncoder:
    """Encodes the records of one session."""

    def __init__(
        self,
        registry: Registry,
        options: FormatOptions,
        prefix: str,
        schemas: Iterable[TableSchema],
        recorded: Mapping[TableId, EncodingRecord],
        found: Mapping[TableId, EncodingRecord] | None = None,
    ) -> None:
        """`schemas`, `recorded`: the newest of each captured table, and how its topic is encoded, as our topics have
        them. `found`: how topics are encoded of which state says nothing."""
        self._registry = registry
        self._options = options
        self._encoding: Encoding = options.encoding
        self._prefix = prefix
        self._topics = Topics(prefix)
        self._recorded = dict(recorded)
        self._found = dict(found or {})
        self._tables: dict[str, _Table] = {}
        for schema in schemas:
            self._learn(schema)

    def encoded(self, records: Iterable[TopicRecord], while_waiting: WhileWaiting) -> Iterator[TopicRecord]:
        """Yields the records, those of tables encoded, and what is recorded about them. Raises UnsupportedChangeError
        for a table whose schema the registry refuses, UnreachableError."""
        for record in records:
            table = self._tables.get(record.topic)
            if table is not None and record.destination is None:
                yield from self._row(table, record, while_waiting)
                continue
            yield record
            if record.topic == self._topics.control and record.key.startswith(SchemaRecord.KEY.encode()):
                schema = SchemaRecord.decode(record.value or b"", "a schema record").table_schema_of()
                self._learn(schema)
                yield from self._news(self._tables[schema.topic])

    def _learn(self, schema: TableSchema) -> None:
        table = self._tables.setdefault(schema.topic, _Table(schema.table))
        table.schemas[schema.version] = schema
        if (known := self._recorded.get(schema.table) or self._found.get(schema.table)) is not None:
            table.key_id, table.value_schema = known.key_schema_id, known.value_schema

    def _record(self, table: _Table) -> EncodingRecord:
        return EncodingRecord(
            table_schema=table.table.schema,
            table_name=table.table.name,
            encoding=self._encoding,
            key_schema_id=table.key_id,
            value_schema=table.value_schema,
        )

    def _news(self, table: _Table) -> Iterator[TopicRecord]:
        """Yields the record of how the topic is encoded, if it is another one than before."""
        made = self._record(table)
        if self._recorded.get(table.table) != made:
            self._recorded[table.table] = made
            yield made.to(self._topics.state)

    def _row(self, table: _Table, record: TopicRecord, while_waiting: WhileWaiting) -> Iterator[TopicRecord]:
        topic, key, value, headers, destination = record
        version = max(table.schemas) if value is None else _version_of(value)
        found = table.values.get(version)
        if found is None:
            try:
                found = call_in_thread(lambda: self._open(topic, table, version), while_waiting)
            except (SchemaRefusedError, UnknownIdError, ConfigError) as error:
                raise stopped(table.table, error) from error
            yield from self._news(table)
        if key and table.key is not None:
            key_head, key_form = table.key
            key = key_head + key_form.encode(key)
        if value is not None:
            value_head, value_form = found
            value = value_head + value_form.encode(value)
        yield TopicRecord(topic, key, value, headers, destination)

    def _open(self, topic: str, table: _Table, version: int) -> tuple[bytes, Form]:
        """Finds or registers the schemas of one version."""
        key, value = forms_of(
            table.schemas[version],
            self._options,
            self._prefix,
            lambda part, name: self._earlier(topic, table, part, name),
        )
        if key is not None:
            table.key_id = self._key_id(topic, table, key)
            table.key = head(table.key_id), key
        value_id = self._registry.register(topic, "value", value)
        log.info("schema of records", table=str(table.table), version=version, key_id=table.key_id, value_id=value_id)
        if value.schema_type == "PROTOBUF":
            table.value_schema = value.schema
        found = table.values[version] = head(value_id), value
        return found

    def _earlier(self, topic: str, table: _Table, part: Part, name: str) -> list[str]:
        """Returns the schemas whose field numbers are taken: those of the topic's records, and the newest of the
        subject, which an earlier topic of this name, an aborted transaction or somebody else may have left."""
        if part == "key" and table.key_id is not None:
            return [schema for kind, schema in [self._registry.fetch(table.key_id)] if kind == "PROTOBUF"]
        newest = self._registry.newest(topic, part, name)
        recorded = [table.value_schema] if part == "value" and table.value_schema is not None else []
        return recorded + ([newest[1]] if newest is not None and newest[0] == "PROTOBUF" else [])

    def _key_id(self, topic: str, table: _Table, key: Form) -> int:
        if table.key_id is None:
            return self._registry.register(topic, "key", key)
        schema_type, schema = self._registry.fetch(table.key_id)
        if schema_type != key.schema_type or not is_same_form(key.schema_type, schema, key.schema):
            raise SchemaRefusedError(
                f"the schema of its keys has changed: records of topic {topic} have schema {table.key_id}, and with "
                "another one the same rows would have other keys",
                "undo the change, or capture the table under another topics.prefix",
            )
        return table.key_id


def _version_of(value: bytes) -> int:
    begin = value.rindex(_VERSION) + len(_VERSION)
    end = begin
    while value[end : end + 1].isdigit():
        end += 1
    return int(value[begin:end])


def stopped(table: TableId, error: WatershedError) -> UnsupportedChangeError:
    """Returns the error that stops one table."""
    return UnsupportedChangeError(
        f"table {table}: {error.message}", f"{error.hint}; {NEXT_AFTER_STOP.format(table=table)}", table=table
    )
