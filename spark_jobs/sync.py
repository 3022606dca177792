"""Keeps one generation of one sink in step: what happens with a batch, and between batches. No Spark in here.

The order of a batch is what makes it safe to kill at any moment: written, readable, checked that the store is still
the one we know, then published. Whatever was not published is done again, and the store's guard makes that harmless.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import structlog

from cdc.control import SinkRecord
from cdc.errors import RefusedError, SinkError
from sinks.contract import Change, Outcome, Sink
from sinks.lineage import Lineage
from sinks.records import RecordCoordinates, read_record
from sinks.reduction import document_id, reduce_changes
from spark_jobs.applied import AppliedPosition, Offsets
from spark_jobs.control_reader import News

log = structlog.get_logger(__name__)

READ_RECORDS_MAX: Final = 1000
GENERATION_CHECK_S: Final = 3.0  # how soon it is noticed on an idle system that the store's data was deleted


class Control(Protocol):
    """What is read of the control and progress topics."""

    def read(self) -> News: ...


@dataclass(frozen=True, slots=True)
class World:
    """What a sink's job needs of the world besides its store."""

    control: Control
    publish: Callable[[SinkRecord], None]
    now_us: Callable[[], int]  # µs since 1970


class Ended(Exception):  # noqa: N818
    """The query was told to end; the batch was not begun."""


class SinkSync:
    """Calls for one sink come from two threads, the query's and the one that watches it: each holds the lock."""

    def __init__(
        self, sink: Sink, generation: int, position: AppliedPosition, world: World, maintain: Callable[[], None]
    ) -> None:
        """`maintain`: called between batches."""
        self.failure: Exception | None = None  # why the last batch failed
        self.batches = 0  # applied
        self._sink = sink
        self._generation = generation
        self._position = position
        self._world = world
        self._maintain = maintain
        self._lock = threading.Lock()
        self._admitted = 0  # the number of the query whose batches may begin; 0: none
        self._admissions = 0
        self._lineages: dict[str, Lineage] = {}  # by topic; prepared
        self._written = 0
        self._stale = 0
        self._published: SinkRecord | None = None
        self._checked_us = world.now_us()

    @property
    def topics(self) -> frozenset[str]:
        """Of the tables that are prepared."""
        return frozenset(self._lineages)

    def begin(self, lineages: Sequence[Lineage]) -> None:
        """Prepare what is known, and say where this generation stands: a waiter then waits for it, not for the last."""
        self._prepare(lineages)
        self._publish()

    def admit(self) -> int:
        """A number for a new query: its batches may begin, those of earlier ones may not any more."""
        self._admissions += 1
        self._admitted = self._admissions
        return self._admitted

    def dismiss(self) -> None:
        """A batch that has not begun by now never will."""
        self._admitted = 0

    # ---- a batch

    def apply_batch(self, admission: int, read: Callable[[], Iterable[pa.Table]], ends: Offsets) -> None:
        """Apply the records that `read` returns, piece by piece; `ends`: where the batch ends, transaction markers
        included. Raises Ended for a batch that may not begin."""
        with self._lock:
            if admission != self._admitted:
                raise Ended
            try:
                self._apply(read(), ends)
            except Exception as error:
                self.failure = error
                raise

    def _apply(self, pieces: Iterable[pa.Table], ends: Offsets) -> None:
        started_us = self._world.now_us()
        self._learn()  # after the batch's ends are known: every schema that its records name is in control by now
        count = 0
        for records in pieces:
            if len(records):  # compaction may have left nothing of a piece
                self._write(records)
                count += len(records)
        if count:
            self._sink.make_readable()
            self._check_generation()
        self._position.reach(ends)
        self._sweep()
        self._publish()
        self.batches += 1
        took_ms = (self._world.now_us() - started_us) // 1000
        log.debug("batch", sink=self._sink.name, records=count, took_ms=took_ms)

    def _write(self, records: pa.Table) -> None:
        changes = self._changes(records)
        reduced = reduce_changes(changes)
        results = self._sink.apply(reduced)
        for change, result in zip(reduced, results, strict=True):
            if result.outcome is Outcome.REJECTED:
                raise _rejected(self._sink.name, change, result.reason, _coordinates(records, changes, change))
        written = sum(result.outcome is Outcome.WRITTEN for result in results)
        self._written += written
        self._stale += len(changes) - written

    def _changes(self, records: pa.Table) -> list[Change]:
        # Not all at once, which would hold every record a second time.
        return [change for some in records.to_batches(READ_RECORDS_MAX) for change in self._read(some)]

    def _read(self, records: pa.RecordBatch) -> Iterator[Change]:
        columns = [records.column(name).to_pylist() for name in ("topic", "partition", "offset", "key", "value")]
        headers = records.column("headers")
        for index, (topic, partition, offset, key, value) in enumerate(zip(*columns, strict=True)):
            said = None
            if value is None:  # only a tombstone says something there, and a list of structs is dear to convert
                said = [(header["key"], header["value"]) for header in headers[index].as_py() or ()]
            try:
                yield read_record(self._lineages, topic, partition, offset, key, value, said)
            except SinkError as error:
                raise RefusedError(f"{self._sink.name}: {error.message}", error.hint) from error

    # ---- between batches

    def tend(self, timeout_s: float) -> bool:
        """Look for what was published, apply sweeps that are due, say how far the store is. Returns False when a batch
        has the store for longer than `timeout_s`."""
        if not self._lock.acquire(timeout=timeout_s):
            return False
        try:
            if self._world.now_us() - self._checked_us > GENERATION_CHECK_S * 1_000_000:
                self._check_generation()
            self._learn()
            self._sweep()
            self._publish()
            self._maintain()
        finally:
            self._lock.release()
        return True

    def _learn(self) -> None:
        news = self._world.control.read()
        self._prepare(news.lineages)
        self._position.learn(news.progress, news.sweeps)

    def _prepare(self, lineages: Sequence[Lineage]) -> None:
        for lineage in lineages:
            schema = lineage.newest
            known = self._lineages.get(schema.topic)
            self._sink.prepare(schema, lineage.earlier)
            self._lineages[schema.topic] = lineage
            if known is not None:
                log.info("schema changed", sink=self._sink.name, table=str(schema.table), version=schema.version)

    def _sweep(self) -> None:
        for sweep in self._position.due_sweeps():
            swept = self._sink.sweep(sweep.table, sweep.floor)
            self._sink.make_readable()
            self._position.finish(sweep)
            log.info("swept", sink=self._sink.name, table=str(sweep.table), rows=swept)

    def _check_generation(self) -> None:
        self._checked_us = self._world.now_us()
        if self._sink.generation() != self._generation:
            raise SinkError(
                f"{self._sink.name}: the store no longer holds generation {self._generation}: its data was deleted",
                "nothing: it is filled anew from the topics",
            )

    def _publish(self) -> None:
        applied = self._position.applied
        record = SinkRecord(
            sink=self._sink.name,
            generation=self._generation,
            end_offsets=self._position.offsets,
            applied_lsn=applied.lsn,
            epoch=applied.epoch,
            commit_ts_us=applied.commit_ts_us,
            applied_ts_us=self._world.now_us(),
            sweeps=self._position.sweeps,
            written=self._written,
            stale=self._stale,
        )
        last = self._published
        if last is None or record.model_copy(update={"applied_ts_us": last.applied_ts_us}) != last:
            self._world.publish(record)
            self._published = record


def _coordinates(records: pa.Table, changes: Sequence[Change], wanted: Change) -> RecordCoordinates:
    index = next(number for number, change in enumerate(changes) if change is wanted)
    topic, partition, offset = (records.column(name)[index].as_py() for name in ("topic", "partition", "offset"))
    return RecordCoordinates(topic, partition, offset)


def _rejected(sink: str, change: Change, reason: str, where: RecordCoordinates) -> RefusedError:
    # The key may be somebody's name: its digest is enough to find the row with.
    digest = hashlib.sha256(document_id(change.key).encode()).hexdigest()[:16]
    return RefusedError(
        f"{sink}: a row of {change.table} can't be stored: {reason}; record at {where}, key digest {digest}",
        f"correct the row in the source, or add the table to sinks.{sink}.exclude_tables, and start the sink again; "
        "nothing after it is applied",
    )
