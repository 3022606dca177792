"""Row changes that can't be published: the record is larger than its topic allows, or its form can't represent a value.

The table stops before such a change, unless `capture.on_unpublishable` says that it is left out (`skip`), or is sent to
`<prefix>.dead-letter` instead (`dead_letter`). Then it takes no version, and its key's last record stays as it was. The
number of such changes is in state, in the Kafka transaction that would have had them. Sizes are compared before
compression, so that publishing a row does not depend on the other records of its batch. Pure.

A dead letter has the record's key, as much of its value as fits, and headers: `watershed.topic` (its destination),
`watershed.table`, `watershed.position` in the source, `watershed.reason`, and `watershed.size` of the value if it was
cut. If a value can't be encoded, the dead letter has neither value nor key.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import structlog

from cdc.config.settings import OnUnpublishable
from cdc.formats.records import Draft, FinishedRecord, OutRecord, TableEncoder
from cdc.model.control import UnpublishedRecord
from cdc.model.errors import NEXT_AFTER_STOP, DamagedTextError, UnpublishableError, UnsupportedChangeError
from cdc.model.events import Position, TableId, TableSchema
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.frames import XLOG_DATA_BYTES
from cdc.pgoutput.light_rows import SHRINKS_TO, LightRow

log = structlog.get_logger(__name__)

# Bytes that brokers and client count besides key, value and headers: the header of a batch, and lengths.
OVERHEAD_BYTES: Final = 128
HEADER_OVERHEAD_BYTES: Final = 10
AT_ONCE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of lines whose records are made at once: their text is there several times meanwhile."""


def record_bytes(record: FinishedRecord) -> int:
    """Returns the bytes of the topic's limit that a record uses, at most."""
    key, value, headers = record
    named = sum(len(name.encode()) + len(content or b"") + HEADER_OVERHEAD_BYTES for name, content in headers or ())
    return OVERHEAD_BYTES + len(key) + len(value or b"") + named


def _named(schema: TableSchema) -> str:
    columns = f" (key column{'s' * (len(schema.key) > 1)} {', '.join(schema.key)})" if schema.key else ""
    return f"{schema.table}{columns}"


class Unpublishable:
    """Handles such changes, and counts them."""

    def __init__(
        self,
        topics: Topics,
        policy: OnUnpublishable = "stop",
        record_bytes_max: Mapping[str, int] | None = None,
        before: Sequence[UnpublishedRecord] = (),
        leaving: Collection[TableId] = (),
    ) -> None:
        """`record_bytes_max`: of each topic, the dead letters' too; of others there is no limit. `before`: as state has
        them. `leaving`: tables that have stopped; the rest of a half published transaction is all that they get."""
        self.topics = topics
        self._policy = policy
        self._bytes_max = dict(record_bytes_max or {})
        self._records = {record.table: record for record in before}
        self._leaving = frozenset(leaving)
        self._warned: set[TableId] = set()
        # A value up to this size fits, whatever key and headers are: both consist of columns that the value has too.
        limits = self._bytes_max.values() or [1 << 62]
        self.value_bytes_safe = min(limits) // 4 - OVERHEAD_BYTES
        # A row's message is longer than this only if no record of it fits, or if records don't have all of its columns.
        self.row_bytes_usual = min(limits) * SHRINKS_TO

    @property
    def counts(self) -> dict[str, int]:
        """Returns the number of changes that were not published, and whose rows were not read again since, by table."""
        return {str(table): record.open for table, record in self._records.items()}

    def total(self, table: TableId) -> int:
        """Returns the number of changes of the table that were ever left out."""
        return self._records[table].total if table in self._records else 0

    def settled(self, table: TableId, total: int) -> list[TopicRecord]:
        """Takes that all rows were read again since so many changes were left out. Returns the records that say so."""
        record = self._records.get(table)
        if record is None or record.settled >= total:
            return []
        self._records[table] = record = record.model_copy(update={"settled": total})
        return [record.to(self.topics.state)]

    def accepts(self, record: TopicRecord) -> bool:
        """Says whether the record's topic accepts a record of this size."""
        return self._fits(record.topic, (record.key, record.value, record.headers))

    def _fits(self, topic: str, record: FinishedRecord) -> bool:
        return record_bytes(record) <= self._bytes_max.get(topic, 1 << 62)

    def without_unpublished_columns(self, encoder: TableEncoder, frame: bytes, position: Position) -> bytes:
        """Removes the columns that records don't have from a frame of more than `row_bytes_usual`. Raises
        UnpublishableError with the change's keys and no value, before a record is made, if no record can hold the row.
        """
        light = encoder.light.message(
            memoryview(frame)[XLOG_DATA_BYTES:], str(position), self._row_bytes_max(encoder.schema)
        )
        if light.column is None:
            return frame[:XLOG_DATA_BYTES] + light.row
        records = encoder.encode(light.row, 0, 0, position.tx_index, 0, 0)
        raise self._too_large(encoder.schema, position, light, [key for key, _, _ in records])

    def row_record(
        self, encoder: TableEncoder, line: bytes, commit_lsn: Lsn, index: int, seq: int, now_us: int
    ) -> FinishedRecord:
        """Returns the record of an existing row (see TableEncoder.copy_row). Raises UnsupportedChangeError if it can't
        be published."""
        if len(line) > self.row_bytes_usual:
            line = self._line_without_unpublished_columns(encoder, line, Position(commit_lsn, index))
        made = encoder.copy_row(line, commit_lsn, index, seq, now_us)
        if len(made[1] or b"") > self.value_bytes_safe:
            self.require_fits(encoder.schema, Position(commit_lsn, index), [made])
        return made

    def row_records(
        self, encoder: TableEncoder, lines: Sequence[bytes], commit_lsn: Lsn, index: int, seq: int, now_us: int
    ) -> list[TopicRecord] | None:
        """Returns the records of existing rows (see TableEncoder.copy_rows). None if one may not be publishable or is
        unusual: then `row_record` decides for each."""
        if sum(map(len, lines)) > AT_ONCE_BYTES_MAX or max(map(len, lines), default=0) > self.row_bytes_usual:
            return None
        made = encoder.copy_rows(lines, commit_lsn, index, seq, now_us)
        if made is None or max((len(record.value or b"") for record in made), default=0) > self.value_bytes_safe:
            return None
        return made

    def _line_without_unpublished_columns(self, encoder: TableEncoder, line: bytes, position: Position) -> bytes:
        """Does the same as `without_unpublished_columns` for a line of COPY."""
        light = encoder.light.line(line, self._row_bytes_max(encoder.schema))
        if light.column is None:
            return light.row
        key, _, _ = encoder.copy_row(light.row, 0, position.tx_index, 0, 0)
        raise self._too_large(encoder.schema, position, light, [key])

    def _row_bytes_max(self, schema: TableSchema) -> int:
        return self._bytes_max[schema.topic] * SHRINKS_TO

    def _too_large(
        self, schema: TableSchema, position: Position, light: LightRow, keys: Sequence[bytes]
    ) -> UnpublishableError:
        return UnpublishableError(
            f"{_named(schema)} at {position}: column {light.column} has {light.size} bytes, more than a record of "
            f"topic {schema.topic} can hold: {self._bytes_max[schema.topic]}",
            f"leave the column out of the publication, or name it in source.exclude_columns; or choose "
            f"capture.on_unpublishable: dead_letter; {NEXT_AFTER_STOP.format(table=schema.table)}",
            table=schema.table,
            key=keys[0],
            keys=tuple(keys),
            value=None,
        )

    def require_fits(self, schema: TableSchema, position: Position, records: Sequence[OutRecord]) -> None:
        """Checks the records of one change; a draft counts without the values that fill its holes. Raises
        UnpublishableError if one does not fit: then none of them can be published."""
        for key, value, headers in records:
            record = key, value.without_holes() if isinstance(value, Draft) else value, headers
            if not self._fits(schema.topic, record):
                raise UnpublishableError(
                    f"{_named(schema)} at {position}: a record of {record_bytes(record)} bytes is larger than "
                    f"topic {schema.topic} takes, {self._bytes_max[schema.topic]}",
                    f"raise max.message.bytes of {schema.topic} (above 16 MiB message.max.bytes in kafka.options too), "
                    "leave the large column out of the publication, or choose capture.on_unpublishable: dead_letter; "
                    + NEXT_AFTER_STOP.format(table=schema.table),
                    table=schema.table,
                    key=record[0],
                    keys=tuple(key for key, _, _ in records),
                    value=record[1],
                )

    def replacements(
        self, schema: TableSchema, position: Position, error: UnsupportedChangeError, now_us: int
    ) -> list[TopicRecord]:
        """Returns the records that are produced instead of the change that raised `error`. Raises it again if the table
        must stop, and if the change may be sound: damaged text is read again. `now_us`: our clock, µs since 1970."""
        if isinstance(error, DamagedTextError):
            raise error
        if self._policy == "stop":
            if schema.table in self._leaving:  # stopped, perhaps by this change: it is read again when it starts
                return []
            raise error
        is_letter = self._policy == "dead_letter"
        table = schema.table
        before = self._records.get(table) or UnpublishedRecord(table_schema=table.schema, table_name=table.name)
        counted = before.model_copy(
            update={
                "dead_letters": before.dead_letters + is_letter,
                "skipped": before.skipped + (not is_letter),
                "position": str(position),
                "reason": error.message,
                "updated_us": now_us,
            }
        )
        self._records[table] = counted
        if table not in self._warned:
            self._warned.add(table)
            log.warning("row change not published", table=str(table), reason=error.message, policy=self._policy)
        letters = [self._letter(schema, position, error)] if is_letter else []
        return [*letters, counted.to(self.topics.state)]

    def _letter(self, schema: TableSchema, position: Position, error: UnsupportedChangeError) -> TopicRecord:
        topic = self.topics.dead_letter
        key, value = (error.key, error.value) if isinstance(error, UnpublishableError) else (b"", None)
        headers = [
            ("watershed.topic", schema.topic.encode()),
            ("watershed.table", str(schema.table).encode()),
            ("watershed.position", str(position).encode()),
            ("watershed.reason", error.message.encode()),
        ]
        room = self._bytes_max.get(topic, 1 << 62) - record_bytes((b"", None, headers)) - 64
        if len(key) > room:
            key = b""
        if value is not None and len(value) > room - len(key):
            headers.append(("watershed.size", b"%d" % len(value)))
            value = value[: room - len(key)]
        return TopicRecord(topic, key, value, headers)
