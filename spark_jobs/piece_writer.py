"""Writes the pieces that a task gets, one after the other: while the store takes a piece, the next one is decoded."""

import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from msgspec.structs import replace

from cdc.formats.wire_format import MAGIC
from cdc.kafka.record_decoding import NEXT_AFTER_OTHER_SCHEMA, DamagedRecordError, RecordReader
from cdc.model.errors import ConfigError, UnknownIdError
from cdc.model.events import TableId
from sinks.contract import Change, Outcome, Result, SourceOperation
from sinks.errors import SinkError
from sinks.records import RecordCoordinates, UnknownSchemaError, ordinary_change, read_record
from sinks.row_errors import apply_each
from spark_jobs.rejections import Rejections
from spark_jobs.source.piece import Piece, PieceRecord
from spark_jobs.source.reading import Partition
from spark_jobs.task_report import Blocked, SchemaCatalog, TaskReport


class ChangeWriter(Protocol):
    """Takes a task's changes."""

    def reduced(self, changes: Sequence[Change]) -> list[Change]:
        """Returns the changes that the store needs, in order: the newest of each key, unless it keeps every change."""

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        """Applies changes as `sinks.contract.Sink.apply` does. Every call of a worker process comes from the same
        thread."""

    def finish(self) -> tuple[Any, ...]:
        """Returns what the driver needs to make the changes visible; nothing for stores that are written directly."""

    def close(self) -> None:
        """Releases connections. Idempotent."""


@runtime_checkable
class RecordTaker(Protocol):
    """A ChangeWriter that takes many rows at once, without a change for each. It waits for nothing meanwhile."""

    def take(self, table: TableId, records: Sequence[PieceRecord]) -> Sequence[PieceRecord]:
        """Takes records of a table, and returns those that it leaves to `apply`, in their order. It leaves all if one
        of them can't be read, or its row can't be written."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A piece that is being written to the store."""

    piece: Piece
    records: list[PieceRecord]  # those that were decoded
    changes: list[Change]  # one for each of them
    reduced: list[Change]
    positions: dict[Partition, int]


class PieceWriter:
    """Decodes, reduces and writes one task's pieces in their order, at most one of them at a time, and counts what
    became of them in the task's report.

    The store's client waits for most of the time that a write takes. Waiting for it before the next piece is decoded
    left two cores idle for a quarter of the time (a backlog into Redis: 21,500 rows a second).
    """

    def __init__(
        self,
        target: ChangeWriter,
        catalog: SchemaCatalog,
        report: TaskReport,
        rejections: Rejections,
        executor: Executor,
        reader: RecordReader,
    ) -> None:
        """`executor` has one thread."""
        self._reader = reader
        self._target = target
        self._catalog = catalog
        self._report = report
        self._rejections = rejections
        self._executor = executor
        self._pending: tuple[_Pending, Future[tuple[list[Result], float]]] | None = None

    def write(self, piece: Piece) -> None:
        """Begins to write a piece, after the one before is in the store. Of a partition with a record that can't be
        read (its schema is not known yet, or something other than capture wrote it), that record and all behind it are
        left out, and the report says so. Raises SinkError, also for an earlier piece."""
        piece = self._without_taken(piece)
        records, changes = self._decode(piece)
        ends = {partition: blocked.offset for partition, blocked in self._report.blocked.items()}
        pending = _Pending(piece, records, changes, self._target.reduced(changes), piece.positions | ends)
        self.finish()
        self._report.is_behind = piece.is_full
        for topic, number, reason in piece.lost:
            self._report.lost[Partition(topic, number)] = reason
        self._report.start_offsets.update(
            (Partition(read.topic, read.number), read.start_offset) for read in piece.partitions
        )
        if changes:
            self._pending = pending, self._executor.submit(self._apply, pending.reduced)
        else:
            self._report.end_offsets |= pending.positions

    def finish(self) -> None:
        """Waits for the piece that the store is taking. Raises its error."""
        if self._pending is None:
            return
        (pending, future), self._pending = self._pending, None
        results, took_s = future.result()
        report = self._report
        report.write_s += took_s
        report.dead_letters |= self._rejections.settle(
            pending.reduced, results, pending.changes, pending.records, pending.piece
        )
        written = sum(result.outcome is Outcome.WRITTEN for result in results)
        rejected = sum(result.outcome is Outcome.REJECTED for result in results)
        report.records += len(pending.changes)
        report.written += written
        report.stale += len(pending.changes) - written - rejected
        report.end_offsets |= pending.positions

    def _apply(self, changes: Sequence[Change]) -> tuple[list[Result], float]:
        begun = time.monotonic()
        return apply_each(self._target.apply, changes), time.monotonic() - begun

    def _without_taken(self, piece: Piece) -> Piece:
        """Lets the target take what it can take at once, and returns the piece with the other records."""
        # While a dead letter is open, each row may close one.
        if not isinstance(self._target, RecordTaker) or self._rejections.has_open or self._report.blocked:
            return piece
        self.finish()
        begun = time.monotonic()
        by_topic: dict[str, list[PieceRecord]] = {}
        for record in piece.records:
            by_topic.setdefault(piece.partitions[record.partition].topic, []).append(record)
        left: list[PieceRecord] = []
        for topic, records in by_topic.items():
            history = self._catalog.schema_histories.get(topic)
            left += records if history is None else self._target.take(history.newest.table, records)
        taken = len(piece.records) - len(left)
        self._report.records += taken
        self._report.written += taken
        self._report.write_s += time.monotonic() - begun
        return Piece(piece.partitions, left, piece.is_full, piece.lost)

    def _decode(self, piece: Piece) -> tuple[list[PieceRecord], list[Change]]:
        histories = self._catalog.schema_histories
        schemas = [
            history.newest if (history := histories.get(read.topic)) is not None else None for read in piece.partitions
        ]
        records, changes, all_blocked = [], [], self._report.blocked
        for record in piece.records:
            if all_blocked and piece.partition(record) in all_blocked:
                continue
            schema, plain = schemas[record.partition], record
            try:
                plain = self._plain(piece, record)
                change = None
                if schema is not None and plain is record:
                    change = ordinary_change(schema, plain.key, plain.value)
                changes.append(change or self._read(piece, plain))
                records.append(plain)
            except SinkError as error:
                may_follow = isinstance(error, UnknownSchemaError)
                hint = error.hint if may_follow or plain is record else NEXT_AFTER_OTHER_SCHEMA
                all_blocked[piece.partition(record)] = Blocked(record.offset, error.message, hint, may_follow)
        return records, changes

    def _plain(self, piece: Piece, record: PieceRecord) -> PieceRecord:
        """Returns the record with key and value as JSON. Raises UnknownSchemaError, SinkError, UnreachableError."""
        if MAGIC not in ((record.key or b"")[:1], (record.value or b"")[:1]):
            return record
        try:
            plain = self._reader.plain
            return replace(record, key=plain(record.key), value=plain(record.value))
        except (UnknownIdError, DamagedRecordError, ConfigError) as error:
            kind = UnknownSchemaError if isinstance(error, UnknownIdError) else SinkError
            where = RecordCoordinates(*piece.partition(record), record.offset)
            raise kind(f"record at {where} can not be read: {error.message}", error.hint) from error

    def _read(self, piece: Piece, record: PieceRecord) -> Change:
        partition = piece.partition(record)
        # Only a tombstone's headers say something that its value does not.
        change = read_record(
            self._catalog.schema_histories,
            partition.topic,
            partition.number,
            record.offset,
            record.key,
            record.value,
            record.headers,
        )
        if record.value is not None:
            return change
        # Compaction may have removed the delete before it.
        return replace(change, origin=SourceOperation("d", record.time_ms * 1000))
