"""Writes the pieces that a task reads, one after the other: while the store takes a piece, the next one is decoded."""

import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import Message
from msgspec.structs import replace

from sinks.contract import Change, Outcome, Result, SourceOperation
from sinks.errors import RefusedError, SinkError
from sinks.records import UnknownSchemaError, ordinary_change, read_record
from sinks.row_errors import apply_each
from spark_jobs.reading import Partition, Piece
from spark_jobs.rejections import Rejections
from spark_jobs.task_report import SchemaCatalog, TaskReport


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


@dataclass(frozen=True, slots=True)
class _Batch:
    """A piece that is being written to the store."""

    changes: list[Change]  # one for each record
    known: Sequence[Message]  # the records before the first one whose schema is not known yet
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
    ) -> None:
        """`executor` has one thread."""
        self._target = target
        self._catalog = catalog
        self._report = report
        self._rejections = rejections
        self._executor = executor
        self._pending: tuple[_Batch, Future[tuple[list[Result], float]]] | None = None
        self.positions: dict[Partition, int] = {}  # offsets behind what was written or is being written

    def write(self, piece: Piece) -> bool:
        """Begins to write a piece, after the one before is in the store; says whether the task may continue. Raises
        RefusedError for a record that capture did not write; SinkError, also for an earlier piece."""
        changes, known = self._decode(piece.records)
        is_whole = len(known) == len(piece.records)
        batch = _Batch(changes, known, self._target.reduced(changes), piece.positions if is_whole else _behind(known))
        self.finish()
        self.positions |= batch.positions
        if not changes:
            self._report.offsets |= batch.positions
            return is_whole
        self._pending = batch, self._executor.submit(self._apply, batch.reduced)
        if not is_whole:
            self.finish()
        return is_whole

    @property
    def is_busy(self) -> bool:
        """True while the store may still be taking a piece."""
        return self._pending is not None

    def finish(self) -> None:
        """Waits for the piece that the store is taking. Raises its error."""
        if self._pending is None:
            return
        (batch, future), self._pending = self._pending, None
        results, took_s = future.result()
        report = self._report
        report.write_s += took_s
        report.dead_letters |= self._rejections.settle(batch.reduced, results, batch.changes, batch.known)
        written = sum(result.outcome is Outcome.WRITTEN for result in results)
        rejected = sum(result.outcome is Outcome.REJECTED for result in results)
        report.records += len(batch.changes)
        report.written += written
        report.stale += len(batch.changes) - written - rejected
        report.tables.update(change.table for change in batch.reduced)
        report.offsets |= batch.positions

    def _apply(self, changes: Sequence[Change]) -> tuple[list[Result], float]:
        begun = time.monotonic()
        return apply_each(self._target.apply, changes), time.monotonic() - begun

    def _decode(self, messages: Sequence[Message]) -> tuple[list[Change], Sequence[Message]]:
        """The changes, and the records that they are of: those before the first record whose schema is not known."""
        schemas = {topic: schema_history.newest for topic, schema_history in self._catalog.schema_histories.items()}
        changes: list[Change] = []
        for index, message in enumerate(messages):
            schema = schemas.get(message.topic() or "")
            change = None if schema is None else ordinary_change(schema, message.key(), message.value())
            try:
                changes.append(change or self._read(message))
            except UnknownSchemaError as error:
                self._report.unknown_schema = error.message
                return changes, messages[:index]
            except SinkError as error:
                raise RefusedError(error.message, error.hint) from error
        return changes, messages

    def _read(self, message: Message) -> Change:
        value = message.value()
        # Only a tombstone's headers say something that its value does not.
        headers: Any = message.headers() if value is None else None
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
        change = read_record(self._catalog.schema_histories, topic, partition, offset, message.key(), value, headers)
        if value is not None:
            return change
        # Compaction may have removed the delete before it.
        return replace(change, origin=SourceOperation("d", message.timestamp()[1] * 1000))


def _behind(messages: Sequence[Message]) -> dict[Partition, int]:
    """Returns for each partition the offset after the last one of these records."""
    return {
        Partition(message.topic() or "", message.partition() or 0): (message.offset() or 0) + 1 for message in messages
    }
