"""The batches of a transactional SQL sink: tasks stage what they read in the store, as it is, and the driver merges it
in one transaction, with the sweeps that are due and with the position.

So that readers of the store see none of the source's transactions in part, a batch goes from one cut to the next
(ProgressRecord.is_cut), and is visible as a whole or not at all.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import structlog
from pyspark import TaskContext

from cdc.config.stores import SqlConfig
from cdc.kafka.record_decoding import record_reader
from cdc.model.control import Record
from cdc.model.errors import WatershedError
from cdc.model.sink_records import JobId
from sinks.contract import Sink
from sinks.slots import FIRST
from sinks.sql.sink import SqlSink
from sinks.sql.staged import StagedPieces
from spark_jobs.batches import BatchReport, SparkBatches
from spark_jobs.kept import KeptClients
from spark_jobs.piece_writer import PieceWriter
from spark_jobs.rejections import Rejections
from spark_jobs.source.piece import Piece, to_pieces
from spark_jobs.stores import StoreTarget
from spark_jobs.task_errors import TaskError
from spark_jobs.task_report import SchemaCatalog, SinkTaskConfig, TaskReport
from spark_jobs.writer import StoreWriter, report_row

log = structlog.get_logger(__name__)


class StagedBy(NamedTuple):
    """The pieces that an attempt of a task has staged."""

    task: int
    attempt: int
    piece_count: int


class _Store(NamedTuple):
    """A connection of a worker process."""

    task_config: SinkTaskConfig
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
            _stores.drop(self.task_config.sink, self.task_config.slot)
            raise TaskError(error) from error
        yield report_row(report)


def stage_pieces(writer: StoreWriter, task: int, attempt: int, pieces: Iterator[Piece]) -> StagedBy:
    """Stages all pieces that say something. Raises SinkError."""
    task_config = writer.task_config
    store = _stores.get(task_config.sink, task_config.slot)
    if store is None or store.task_config != task_config:
        _stores.drop(task_config.sink, task_config.slot)
        sink = open_sql(task_config)
        store = _stores.keep(task_config.sink, task_config.slot, _Store(task_config, sink, sink.staged))
    count = 0
    for piece in pieces:
        if piece.records or piece.partitions or piece.lost:
            store.staged.add(writer.execution, task, attempt, count, msgspec.msgpack.encode(piece))
            count += 1
    return StagedBy(task, attempt, count)


def open_sql(task_config: SinkTaskConfig) -> SqlSink:
    """Opens the database, without the mapping of rows. Raises SinkError."""
    assert isinstance(task_config.section, SqlConfig)
    return SqlSink.open(task_config.section, task_config.prefix, name=task_config.sink, slot=task_config.slot or FIRST)


class TransactionalBatches(SparkBatches):
    """Batches that the driver merges, in a transaction of the store."""

    def __init__(
        self,
        task_config: SinkTaskConfig,
        job_id: JobId,
        send: Callable[[Record], None],
        sql: SqlSink,
        sink: Sink,
    ) -> None:
        """`send`: see SparkBatches. `sql`: the generation in the database; `sink`: the same one behind the
        sink's mapping."""
        super().__init__(task_config, job_id, _opens_nothing, send, is_live=False, writer=self._stager)
        self._server = sql.server
        self._staged = sql.staged
        self._sink = sink
        self._batch = ""

    def _stager(self, task_config: SinkTaskConfig, *fields: Any) -> PieceStager:
        stager = PieceStager(task_config, *fields)
        self._batch = stager.execution
        self._staged.begin(self._batch)
        return stager

    def transaction(self) -> AbstractContextManager[None]:
        """Everything that the sink object does within this context is one transaction, of whatever thread."""
        return self._server.one_transaction()

    def merge(self, report: BatchReport) -> BatchReport:
        """Writes what the tasks of `report` have staged. Returns the report of the written rows."""
        begun, merged = time.monotonic(), TaskReport()
        self._staged.lock()
        writer = PieceWriter(
            StoreTarget(self._sink),
            self._catalog,
            merged,
            Rejections(self._task_config.section, self._task_config.generation, self._open_dead_letters),
            _Inline(),
            record_reader(self._task_config.kafka),
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


def _opens_nothing(task_config: SinkTaskConfig, catalog: SchemaCatalog) -> StoreTarget:
    raise AssertionError(f"tasks of {task_config.sink} stage, with catalog {catalog.name}")
