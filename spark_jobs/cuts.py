"""The batches of a transactional SQL sink: tasks stage what they read in the store, as it is, and the driver merges it
in one transaction, with the sweeps that are due and with the position.

So that readers of the store see none of the source's transactions in part, a batch goes from one cut to the next
(ProgressRecord.is_cut), and is visible as a whole or not at all.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import structlog
from pyspark import TaskContext

from cdc.config.stores import SqlConfig
from cdc.kafka.record_decoding import record_reader
from cdc.model.control import Record
from cdc.model.errors import WatershedError
from sinks.contract import Sink
from sinks.schema_history import SchemaHistory
from sinks.slots import FIRST
from sinks.sql.sink import SqlSink
from sinks.sql.staged import StagedPieces
from spark_jobs.applied import FoundTopic, Offsets
from spark_jobs.batches import Batches, BatchReport, MicroBatch, SparkBatches, Take
from spark_jobs.kept import KeptClients
from spark_jobs.pieces import PieceWriter
from spark_jobs.rejections import Rejections
from spark_jobs.source.piece import Piece, to_pieces
from spark_jobs.stores import StoreTarget
from spark_jobs.task_errors import TaskError
from spark_jobs.task_report import SchemaCatalog, SinkTaskConfig, TaskReport
from spark_jobs.writer import StoreWriter, report_row

log = structlog.get_logger(__name__)


class CutBatches(Batches, Protocol):
    """Batches that are merged by the driver, in a transaction of the store."""

    def transaction(self) -> AbstractContextManager[None]:
        """Everything that the sink object does within this context is one transaction, of whatever thread."""

    def merge(self, report: BatchReport) -> BatchReport:
        """Writes what the tasks of `report` have staged. Returns the report of the written rows."""


class StagedBy(NamedTuple):
    """The pieces that an attempt of a task has staged."""

    task: int
    attempt: int
    piece_count: int


class _Store(NamedTuple):
    """A connection of a worker process."""

    job: SinkTaskConfig
    sink: SqlSink
    staged: StagedPieces

    def close(self) -> None:
        self.sink.close()


_stores: Final[KeptClients[_Store]] = KeptClients()


class PieceStager(StoreWriter):
    """Stages a task's pieces. Called by `mapInArrow`."""

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the report. Raises TaskError."""
        context = TaskContext.get()
        task, attempt = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
        report = TaskReport()
        try:
            report.staged = (stage_pieces(self, task, attempt, to_pieces(rows)),)
        except WatershedError as error:
            _stores.drop(self.job.sink, self.job.slot)
            raise TaskError(error) from error
        yield report_row(report)


def stage_pieces(writer: StoreWriter, task: int, attempt: int, pieces: Iterator[Piece]) -> StagedBy:
    """Stages all pieces that say something. Raises SinkError."""
    job = writer.job
    store = _stores.get(job.sink, job.slot)
    if store is None or store.job != job:
        _stores.drop(job.sink, job.slot)
        sink = open_sql(job)
        store = _stores.keep(job.sink, job.slot, _Store(job, sink, sink.staged))
    count = 0
    for piece in pieces:
        if piece.records or piece.places or piece.lost:
            store.staged.add(writer.batch, task, attempt, count, msgspec.msgpack.encode(piece))
            count += 1
    return StagedBy(task, attempt, count)


def open_sql(job: SinkTaskConfig) -> SqlSink:
    """Opens the database, without the mapping of rows. Raises SinkError."""
    assert isinstance(job.section, SqlConfig)
    return SqlSink.open(job.section, job.prefix, name=job.sink, slot=job.slot or FIRST)


class StagingBatches:
    """Implements CutBatches."""

    is_live = False

    def __init__(
        self,
        job: SinkTaskConfig,
        number: tuple[int, str],
        send: Callable[[Record], None],
        sql: SqlSink,
        sink: Sink,
    ) -> None:
        """`number`, `send`: see SparkBatches. `sql`: the generation in the database; `sink`: the same one behind the
        sink's mapping."""
        self._batches = SparkBatches(job, number, _opens_nothing, send, is_live=False, writer=self._stager)
        self._job = job
        self._server = sql.server
        self._staged = sql.staged
        self._sink = sink
        self._catalog = SchemaCatalog("", {})
        self._open_dead_letters: Mapping[str, int] = {}
        self._batch = ""

    def set_tables(self, schema_histories: Mapping[str, SchemaHistory]) -> None:
        self._catalog = SchemaCatalog("", dict(schema_histories))
        self._batches.set_tables(schema_histories)

    def set_open_dead_letters(self, open_dead_letters: Mapping[str, int]) -> None:
        self._open_dead_letters = dict(open_dead_letters)

    def find_topics(self) -> Mapping[str, FoundTopic]:
        return self._batches.find_topics()

    def run(self, micro_batch: MicroBatch, ends: Offsets, take: Take) -> BatchReport:
        return self._batches.run(micro_batch, ends, take)

    def _stager(self, job: SinkTaskConfig, *fields: Any) -> PieceStager:
        stager = PieceStager(job, *fields)
        self._batch = stager.batch
        self._staged.begin(self._batch)
        return stager

    def transaction(self) -> AbstractContextManager[None]:
        return self._server.one_transaction()

    def merge(self, report: BatchReport) -> BatchReport:
        begun, merged = time.monotonic(), TaskReport()
        self._staged.lock()
        writer = PieceWriter(
            StoreTarget(self._sink),
            self._catalog,
            merged,
            Rejections(self._job.section, self._job.generation, self._open_dead_letters),
            _Inline(),
            record_reader(self._job.kafka),
        )
        for part in report.staged:
            for number in range(part.piece_count):
                content = self._staged.piece(self._batch, part.task, part.attempt, number)
                writer.write(msgspec.msgpack.decode(content, type=Piece))
        writer.finish()
        self._staged.clear(self._batch)
        log.debug("merged", rows=merged.written, merging_s=round(time.monotonic() - begun, 2))
        return BatchReport.of([merged])


class _Inline(Executor):
    """Calls at once: a transaction has one connection, which one thread uses."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **options))
        except Exception as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)
        return future


def _opens_nothing(job: SinkTaskConfig, catalog: SchemaCatalog) -> StoreTarget:
    raise AssertionError(f"tasks of {job.sink} stage, with catalog {catalog.name}")
