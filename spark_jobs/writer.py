"""The writer of a sink's query: the function that `mapInArrow` runs in each task, between the pieces that the data
source yields and the task's report.

A task has two Python worker processes: one runs the data source's `read`, this one the writer, and rows pass through
the JVM between them. A worker runs many tasks, one after the other, and keeps its connection to the store. All records
of a key are in one partition, and a partition is read by one task, so order and reduction need no other task.
Everything that a task does may be done again, or by two tasks at once (a retried task, speculative execution, a job
whose driver died): every write is guarded by its change's version.
"""

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from cdc.kafka.record_decoding import record_reader
from cdc.model.errors import WatershedError
from sinks.shaping.functions.versions import require_versions
from spark_jobs.arrivals import arriving_pieces
from spark_jobs.kept import KeptClients
from spark_jobs.live_reports import LiveReports
from spark_jobs.piece_writer import ChangeWriter, PieceWriter
from spark_jobs.rejections import Rejections
from spark_jobs.source.piece import Piece, one_binary, to_pieces
from spark_jobs.task_errors import TaskError
from spark_jobs.task_report import SchemaCatalog, SinkTaskConfig, TaskReport

REPORT_DDL: Final = "report binary"
REPORT_S: Final = 0.1  # between two reports of a running task, unless no records follow
BLOCKED_S_MAX: Final = 5.0  # for which a batch goes on whose records lack a schema: its record ends the batch


OpenWriter = Callable[[SinkTaskConfig, SchemaCatalog], ChangeWriter]


@dataclass(frozen=True, slots=True)
class StoreWriter:
    """Writes a task's pieces to the store, or stages them for the driver. Called by `mapInArrow`."""

    task_config: SinkTaskConfig
    catalog: SchemaCatalog
    open_target: OpenWriter
    execution: str  # of the batch, see Reached.execution
    is_live: bool  # the task reports while it runs
    open_dead_letters: Mapping[str, int] = field(default_factory=dict)  # dead_letter_key → version

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the report. Raises TaskError."""
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        pieces = arriving_pieces(rows) if self.is_live else to_pieces(rows)
        yield report_row(write_pieces(self, pieces, number))


def report_row(report: TaskReport) -> pa.RecordBatch:
    """Returns the report as a row for the driver."""
    return pa.RecordBatch.from_arrays([one_binary(pickle.dumps(report))], names=["report"])


@dataclass(frozen=True, slots=True)
class _Target:
    """Opened for a job, with a catalog's name."""

    task_config: SinkTaskConfig
    catalog: str
    writer: ChangeWriter

    def close(self) -> None:
        self.writer.close()


class _Kept:
    """What a worker process keeps from task to task."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1, "store")
        self._targets: KeptClients[_Target] = KeptClients()

    def target(self, writer: StoreWriter) -> ChangeWriter:
        task_config, catalog = writer.task_config, writer.catalog
        held = self._targets.get(task_config.sink, task_config.slot)
        if held is not None and (held.task_config, held.catalog) == (task_config, catalog.name):
            return held.writer
        self.forget(task_config)
        require_versions(task_config.functions)
        opened = _Target(task_config, catalog.name, writer.open_target(task_config, catalog))
        return self._targets.keep(task_config.sink, task_config.slot, opened).writer

    def forget(self, task_config: SinkTaskConfig) -> None:
        """Drops a connection, which may be in any state after a failure."""
        self._targets.drop(task_config.sink, task_config.slot)


_kept = _Kept()


def write_pieces(writer: StoreWriter, pieces: Iterable[Piece], task: int) -> TaskReport:
    """Writes all pieces. Raises TaskError."""
    report = TaskReport()
    try:
        target = _kept.target(writer)
        rejections = Rejections(writer.task_config.section, writer.task_config.generation, writer.open_dead_letters)
        piece_writer = PieceWriter(
            target, writer.catalog, report, rejections, _kept.executor, record_reader(writer.task_config.kafka)
        )
        with _finished(piece_writer):
            if writer.is_live:
                with LiveReports.opened(writer.task_config, writer.execution, task) as reports:
                    _write_live(piece_writer, pieces, report, reports)
            else:
                for piece in pieces:
                    piece_writer.write(piece)
        report.staged = target.finish()
    except WatershedError as error:
        _kept.forget(writer.task_config)
        raise TaskError(error) from error
    return report


def _write_live(writer: PieceWriter, pieces: Iterable[Piece], report: TaskReport, reports: LiveReports) -> None:
    reported, blocked_since, is_ending = 0.0, 0.0, False
    for piece in pieces:
        writer.write(piece)  # an empty one waits for the store: none follow at once
        now = time.monotonic()
        if report.blocked and not is_ending:
            blocked_since = blocked_since or now
            is_known = any(not blocked.may_follow for blocked in report.blocked.values())
            is_ending = is_known or now - blocked_since >= BLOCKED_S_MAX
            if is_ending:  # the driver has all tasks end, and says in which position the other tables are
                writer.finish()
                reports.send(report, is_over=True)
        if now - reported >= REPORT_S or not piece.records:
            reports.send(report)
            reported = now
    writer.finish()
    reports.finish(report)


@contextmanager
def _finished(writer: PieceWriter) -> Iterator[None]:
    """Waits at the end of the block, however it ends, until the store has taken its piece or failed: only then may the
    connection be used for something else."""
    try:
        yield
    except BaseException:
        with suppress(WatershedError):  # the first error says what went wrong
            writer.finish()
        raise
    writer.finish()
