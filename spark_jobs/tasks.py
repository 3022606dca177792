"""One task of a round, in a Python worker of an executor: reads its partitions, and writes to the store.

A worker process runs many tasks, one after the other, and keeps its Kafka consumer and its connection to the store. All
records of a key are in one partition, and a partition is read by one task, so order and reduction need no other task.
Everything that a task does may be done again, or by two tasks at once (a retried task, speculative execution, a job
whose driver died): every write is guarded by its change's version.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Final, Protocol

from confluent_kafka import KafkaException

from cdc.config.settings import KafkaConfig
from cdc.config.stores import StoreConfig
from cdc.kafka.client import broker_error
from cdc.model.errors import WatershedError
from spark_jobs.pieces import ChangeWriter, PieceWriter
from spark_jobs.reading import Partition, PartitionReader, Piece
from spark_jobs.rejections import Rejections
from spark_jobs.reports import Address, open_reporter
from spark_jobs.task_report import SchemaCatalog, TaskFailure, TaskReport

WAIT_S_MAX: Final = 0.2  # for records, before a task checks the time again
REPORT_S: Final = 0.1  # between two reports of a running task
# For records that follow a piece, before the task waits for the store instead. A consumer may have none for a moment in
# the middle of a backlog.
SETTLE_S: Final = 0.002
IDLE_REPORT_S: Final = 0.4  # without news to report: only to learn whether to continue
# a task that reports at its end only ends when it has so many: a letter may have 16 KiB
DEAD_LETTERS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class SinkTaskConfig:
    """One sink, in the form that a task needs; small enough to be sent with each task."""

    sink: str
    kafka: KafkaConfig
    section: StoreConfig
    prefix: str
    generation: int
    staging: str = ""  # the URI of the folder for files that the driver merges
    slot: str | None = None  # of the generation, see sinks.slots

    @property
    def name(self) -> str:
        """The name of the sink and the generation: a worker process may serve two generations of one sink."""
        return f"{self.sink}/{self.slot or ''}"


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a round that one task reads."""

    starts: Mapping[Partition, int]  # offset of the first record
    ends: Mapping[Partition, int] | None  # offset after the last one; None: as far as time allows
    # dead_letter_key → version, of the sink's dead letters
    open_dead_letters: Mapping[str, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # as the driver has found them


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a task, after which it ends."""

    duration_s: float  # after its first record
    idle_s: float  # without any record
    piece_bytes: int  # written at once, unless a single record is larger
    task_bytes: int | None = None  # read in all, roughly; None: no limit
    # Of a task that reports to the driver while it runs, for which duration_s, idle_s and task_bytes have no meaning;
    # 0: tasks report at their end only.
    reporting_duration_s: float = 0.0


class Reader(Protocol):
    """The interface of spark_jobs.reading.PartitionReader."""

    def seek(self, starts: Mapping[Partition, int]) -> None: ...

    def read(self, timeout_s: float, bytes_max: int) -> Piece: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...


OpenWriter = Callable[[SinkTaskConfig, SchemaCatalog], ChangeWriter]
Report = Callable[[TaskReport], bool | None]  # to the driver; says whether to continue; None: no answer came


class TaskRunner:
    """Keeps a worker process's consumers and connections to stores from task to task."""

    def __init__(self, open_target: OpenWriter, open_reader: Callable[[KafkaConfig, str], Reader]) -> None:
        self._open_target = open_target
        self._open_reader = open_reader
        self._executor = ThreadPoolExecutor(1, "store")
        self._readers: dict[str, Reader] = {}  # by Job.name
        self._topic_ids: dict[str, dict[str, str]] = {}  # by Job.name: of the topics that its consumer knows
        # By Job.name: opened for a job, with a catalog's name.
        self._targets: dict[str, tuple[SinkTaskConfig, str, ChangeWriter]] = {}

    def run(
        self, share: Share, job: SinkTaskConfig, catalog: SchemaCatalog, limits: Limits, report_to: Report | None = None
    ) -> TaskReport:
        """Reads and writes until a limit is reached, or until `report_to` says so, which is called now and then with
        the work since the last call. Returns the work that was not reported yet, with failures."""
        report = TaskReport()
        target: ChangeWriter | None = None
        try:
            reader = self._reader(job, share.topic_ids)
            target = self._target(job, catalog)
            reader.seek(share.starts)
            rejections = Rejections(job.section, job.generation, share.open_dead_letters)
            writer = PieceWriter(target, catalog, report, rejections, self._executor)
            with _finished(writer):
                if report_to is None:
                    _write_all(reader, writer, share, limits, report)
                else:
                    _write_and_report(reader, writer, limits, report, report_to)
            reader.rest()
        except WatershedError as error:
            report.failure = TaskFailure.of(error)
        except KafkaException as error:
            report.failure = TaskFailure.of(broker_error("can't read the tables' topics", error))
        if target is not None:
            report.staged = target.finish()  # also the work before a failure: the offsets say that it was done
        if report.failure is not None:
            self._forget(job.name)
        return report

    def _reader(self, job: SinkTaskConfig, topic_ids: Mapping[str, str]) -> Reader:
        known = self._topic_ids.get(job.name, {})
        if any(known.get(topic, found) != found for topic, found in topic_ids.items()):
            # Its client keeps the highest leader epoch of each topic name. A topic that was created again may have a
            # lower one, at which brokers refuse the client's requests, and it repeats them for ever.
            self._forget(job.name)
        self._topic_ids.setdefault(job.name, {}).update(topic_ids)
        if job.name not in self._readers:
            # Of a sink two generations are written at once, at most.
            for former in [name for name in self._readers if name.startswith(f"{job.sink}/")][:-1]:
                self._forget(former)
            self._readers[job.name] = self._open_reader(job.kafka, f"watershed-{job.sink}")
        return self._readers[job.name]

    def _target(self, job: SinkTaskConfig, catalog: SchemaCatalog) -> ChangeWriter:
        held = self._targets.get(job.name)
        if held is not None and held[:2] == (job, catalog.name):
            return held[2]
        if held is not None:
            held[2].close()
            del self._targets[job.name]
        target = self._open_target(job, catalog)
        self._targets[job.name] = (job, catalog.name, target)
        return target

    def _forget(self, name: str) -> None:
        """Drops connections, which may be in any state after a failure."""
        if (held := self._targets.pop(name, None)) is not None:
            held[2].close()
        self._topic_ids.pop(name, None)
        if (reader := self._readers.pop(name, None)) is not None:
            reader.close()


@cache
def _task_runner(open_target: OpenWriter) -> TaskRunner:
    return TaskRunner(open_target, PartitionReader)


def run_task(
    open_target: OpenWriter,
    share: Share,
    job: SinkTaskConfig,
    catalog: SchemaCatalog,
    limits: Limits,
    address: Address | None,
) -> TaskReport:
    """Runs the task, in a worker process of an executor, and reports to the driver if there is an address and it
    answers there."""
    reporter = None if address is None else open_reporter(address)
    runner = _task_runner(open_target)
    if reporter is None:
        return runner.run(share, job, catalog, limits)
    try:
        return runner.run(share, job, catalog, limits, reporter.send)
    finally:
        reporter.close()


def import_modules(names: Sequence[str], _: int) -> None:
    """Imports what tasks need, in a worker process that has nothing else to do yet."""
    for name in names:
        with suppress(ImportError):  # the first task says what is missing
            import_module(name)


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


def _write_all(reader: Reader, writer: PieceWriter, share: Share, limits: Limits, report: TaskReport) -> None:
    begun = first = time.monotonic()
    read_bytes, has_begun = 0, False
    while True:
        now = time.monotonic()
        left_s = limits.duration_s - (now - first) if has_begun else limits.idle_s - (now - begun)
        if left_s <= 0:
            return
        piece = reader.read(min(left_s, WAIT_S_MAX), limits.piece_bytes)
        report.lost |= piece.lost
        report.is_behind = piece.is_full
        if not has_begun:
            first, has_begun = time.monotonic(), bool(piece.records)
        if not writer.write(piece):
            return
        if share.ends is not None and _has_reached(writer.positions, share, report.lost):
            return
        read_bytes += sum(map(len, piece.records))
        is_full = limits.task_bytes is not None and read_bytes >= limits.task_bytes
        if is_full or len(report.dead_letters) >= DEAD_LETTERS_MAX:
            report.is_behind = True
            return


def _write_and_report(
    reader: Reader, writer: PieceWriter, limits: Limits, report: TaskReport, report_to: Report
) -> None:
    begun = reported = time.monotonic()
    while True:
        now = time.monotonic()
        if now - begun >= limits.reporting_duration_s:
            return
        if now - reported >= (REPORT_S if report.has_progress else IDLE_REPORT_S):
            continues = report_to(report)
            if continues is not None:
                report.clear()
            if not continues:
                return
            reported = now
        piece = reader.read(SETTLE_S if writer.is_busy else REPORT_S, limits.piece_bytes)
        report.lost |= piece.lost
        report.is_behind = piece.is_full
        if not writer.write(piece):
            return


def _has_reached(offsets: Mapping[Partition, int], share: Share, lost: Collection[Partition]) -> bool:
    ends = {partition: end for partition, end in (share.ends or {}).items() if partition not in lost}
    return all(offsets.get(partition, share.starts.get(partition, 0)) >= end for partition, end in ends.items())
