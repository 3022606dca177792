"""What one task of a round does, in a Python worker of an executor: reads its partitions, and writes to the store.

A worker process serves many tasks, one after the other, and keeps its Kafka consumer and its connection to the store.
A key lies in one partition and a partition in one task, so that order and reduction need no other task. Whatever a task
does may be done again, or by two tasks at once (a task that is tried again, speculative execution, a job whose driver
died): every write is guarded by its change's version.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import KafkaException, Message

from cdc.config.settings import KafkaConfig
from cdc.config.sink_settings import StoreConfig
from cdc.kafka.client import broker_error
from cdc.model.errors import BrokerError, ConfigError, RefusedError, SinkError, UnreachableError, WatershedError
from cdc.model.events import TableId
from sinks.contract import Change, Outcome, Result
from sinks.lineage import Lineage
from sinks.records import UnknownSchemaError, read_record
from sinks.reduction import reduce_changes
from spark_jobs.reading import Partition, PartitionReader, Piece
from spark_jobs.rejections import Letters, Rejections
from spark_jobs.reports import Address, open_reporter

WAIT_S_MAX: Final = 0.2  # for records, before a task looks at the clock again
REPORT_S: Final = 0.1  # between two reports of a running task
IDLE_REPORT_S: Final = 0.4  # where there is nothing new to report: only to learn whether to go on


@dataclass(frozen=True, slots=True)
class Job:
    """One sink, as a task needs it: small enough to be sent with each task."""

    sink: str
    kafka: KafkaConfig
    section: StoreConfig
    prefix: str
    generation: int
    staging: str = ""  # the URI of the folder for files that the driver merges
    slot: str | None = None  # of the generation, see sinks.slots

    @property
    def name(self) -> str:
        """Of the sink and the generation: a worker process may serve two generations of one sink."""
        return f"{self.sink}/{self.slot or ''}"


@dataclass(frozen=True, slots=True)
class Catalog:
    """The schemas of the sink's tables."""

    name: str  # a different one for each catalog
    lineages: Mapping[str, Lineage]  # by topic


@dataclass(frozen=True, slots=True)
class Share:
    """What one task of a round reads."""

    starts: Mapping[Partition, int]  # offset of the first record
    ends: Mapping[Partition, int] | None  # offset behind the last one; None: as far as there is time
    open_letters: Mapping[str, int] = field(default_factory=dict)  # letter_key → version, of the sink's dead letters


@dataclass(frozen=True, slots=True)
class Limits:
    """When a task ends."""

    duration_s: float  # after its first record
    idle_s: float  # without any record
    piece_bytes: int  # written at once, unless a single record is larger
    task_bytes: int | None = None  # read in all, roughly; None: no limit
    # Of a task that reports to the driver while it runs, for which duration_s, idle_s and task_bytes have no meaning;
    # 0: tasks report at their end only.
    reporting_duration_s: float = 0.0


class Failure(NamedTuple):
    """An error that the driver raises again. Exceptions lose their hints on the way through Spark."""

    kind: str  # the name of a class in cdc.model.errors
    message: str
    hint: str

    @classmethod
    def of(cls, error: WatershedError) -> "Failure":
        return cls(type(error).__name__, error.message, error.hint)

    def error(self) -> WatershedError:
        for kind in (RefusedError, ConfigError, UnreachableError, BrokerError):
            if kind.__name__ == self.kind:
                return kind(self.message, self.hint)
        return SinkError(self.message, self.hint)


@dataclass(slots=True)
class TaskReport:
    """What a task did. Whatever lies below `offsets` is in the store, or was superseded there."""

    offsets: dict[Partition, int] = field(default_factory=dict)
    records: int = 0
    written: int = 0
    stale: int = 0
    write_s: float = 0.0  # spent in the store's client
    tables: set[TableId] = field(default_factory=set)  # of which there were records
    is_behind: bool = False  # it ended before it had read what was there
    unknown_schema: str = ""  # the record, whose schema is not in the catalog, that ended it
    failure: Failure | None = None
    staged: tuple[Any, ...] = ()  # what a store that is written by the driver has to take in
    letters: Letters = field(default_factory=dict)  # dead letters that were opened or closed

    @property
    def has_news(self) -> bool:
        return bool(self.offsets)

    def clear(self) -> None:
        """It was reported."""
        self.offsets, self.tables, self.letters = {}, set(), {}
        self.records = self.written = self.stale = 0
        self.write_s = 0.0


class Target(Protocol):
    """Takes a task's changes."""

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        """As `sinks.contract.Sink.apply`."""

    def finish(self) -> tuple[Any, ...]:
        """What the driver has to do to make them visible; nothing for stores that are written directly."""

    def close(self) -> None:
        """Release connections. Idempotent."""


class Reader(Protocol):
    """See spark_jobs.reading.PartitionReader."""

    def seek(self, starts: Mapping[Partition, int]) -> None: ...

    def read(self, timeout_s: float, bytes_max: int) -> Piece: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...


OpenTarget = Callable[[Job, Catalog], Target]
Report = Callable[[TaskReport], bool | None]  # to the driver; whether to go on; None: it may not have been taken


class TaskRunner:
    """What a worker process keeps from task to task: consumers and connections to stores."""

    def __init__(self, open_target: OpenTarget, open_reader: Callable[[KafkaConfig, str], Reader]) -> None:
        self._open_target = open_target
        self._open_reader = open_reader
        self._readers: dict[str, Reader] = {}  # by Job.name
        # By Job.name: opened for a job, with a catalog's name.
        self._targets: dict[str, tuple[Job, str, Target]] = {}

    def run(
        self, share: Share, job: Job, catalog: Catalog, limits: Limits, report_to: Report | None = None
    ) -> TaskReport:
        """Read and write until a limit is reached, or until `report_to`, which is called now and then with what was
        done since the last call, says so. Returns what was not reported yet; failures are in it."""
        report = TaskReport()
        target: Target | None = None
        try:
            reader = self._reader(job)
            target = store = self._target(job, catalog)
            reader.seek(share.starts)
            rejections = Rejections(job.section, share.open_letters)

            def apply(piece: Piece) -> bool:
                return _apply(piece, store, catalog, report, rejections)

            if report_to is None:
                _apply_all(reader, apply, share, limits, report)
            else:
                _apply_and_report(reader, apply, limits, report, report_to)
            reader.rest()
        except WatershedError as error:
            report.failure = Failure.of(error)
        except KafkaException as error:
            report.failure = Failure.of(broker_error("can't read the tables' topics", error))
        if target is not None:
            report.staged = target.finish()  # also what was applied before a failure: the offsets say that it was
        if report.failure is not None:
            self._forget(job.name)
        return report

    def _reader(self, job: Job) -> Reader:
        if job.name not in self._readers:
            # Of a sink two generations are written at once, at most.
            for former in [name for name in self._readers if name.startswith(f"{job.sink}/")][:-1]:
                self._forget(former)
            self._readers[job.name] = self._open_reader(job.kafka, f"watershed-{job.sink}")
        return self._readers[job.name]

    def _target(self, job: Job, catalog: Catalog) -> Target:
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
        """After a failure connections may be in any state."""
        if (held := self._targets.pop(name, None)) is not None:
            held[2].close()
        if (reader := self._readers.pop(name, None)) is not None:
            reader.close()


@cache
def _task_runner(open_target: OpenTarget) -> TaskRunner:
    """The one of this worker process."""
    return TaskRunner(open_target, PartitionReader)


def run_task(
    open_target: OpenTarget, share: Share, job: Job, catalog: Catalog, limits: Limits, address: Address | None
) -> TaskReport:
    """In a worker process of an executor: run the task, and report to the driver if there is an address and it answers
    there."""
    reporter = None if address is None else open_reporter(address)
    runner = _task_runner(open_target)
    if reporter is None:
        return runner.run(share, job, catalog, limits)
    try:
        return runner.run(share, job, catalog, limits, reporter.send)
    finally:
        reporter.close()


Apply = Callable[[Piece], bool]  # write a piece; whether the task may go on


def _apply_all(reader: Reader, apply: Apply, share: Share, limits: Limits, report: TaskReport) -> None:
    begun = first = time.monotonic()
    read_bytes = 0
    while True:
        now = time.monotonic()
        left_s = limits.idle_s - (now - begun) if not report.records else limits.duration_s - (now - first)
        if left_s <= 0:
            return
        piece = reader.read(min(left_s, WAIT_S_MAX), limits.piece_bytes)
        report.is_behind = piece.is_full
        if not report.records:
            first = time.monotonic()
        if not apply(piece):
            return
        if share.ends is not None and _has_reached(report.offsets, share.starts, share.ends):
            return
        read_bytes += sum(map(len, piece.records))
        if limits.task_bytes is not None and read_bytes >= limits.task_bytes:
            report.is_behind = True
            return


def _apply_and_report(reader: Reader, apply: Apply, limits: Limits, report: TaskReport, report_to: Report) -> None:
    begun = reported = time.monotonic()
    while True:
        now = time.monotonic()
        if now - begun >= limits.reporting_duration_s:
            return
        if now - reported >= (REPORT_S if report.has_news else IDLE_REPORT_S):
            goes_on = report_to(report)
            if goes_on is not None:
                report.clear()
            if not goes_on:
                return
            reported = now
        piece = reader.read(REPORT_S, limits.piece_bytes)
        report.is_behind = piece.is_full
        if not apply(piece):
            return


def _has_reached(
    offsets: Mapping[Partition, int], starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> bool:
    return all(offsets.get(partition, starts.get(partition, 0)) >= end for partition, end in ends.items())


def _apply(piece: Piece, target: Target, catalog: Catalog, report: TaskReport, rejections: Rejections) -> bool:
    """Write a piece; whether the task may go on."""
    changes, known = _changes(piece.records, catalog, report)
    if changes:
        reduced = reduce_changes(changes)
        begun = time.monotonic()
        results = target.apply(reduced)
        report.write_s += time.monotonic() - begun
        report.letters |= rejections.settle(reduced, results, changes, known)
        written = sum(result.outcome is Outcome.WRITTEN for result in results)
        rejected = sum(result.outcome is Outcome.REJECTED for result in results)
        report.records += len(changes)
        report.written += written
        report.stale += len(changes) - written - rejected
        report.tables.update(change.table for change in reduced)
    if len(known) < len(piece.records):
        for message in known:
            report.offsets[_partition(message)] = (message.offset() or 0) + 1
        return False
    report.offsets |= piece.positions
    return True


def _changes(
    messages: Sequence[Message], catalog: Catalog, report: TaskReport
) -> tuple[list[Change], Sequence[Message]]:
    """The changes, and the records that they are of: those before the first record whose schema is not known yet."""
    changes: list[Change] = []
    for index, message in enumerate(messages):
        value = message.value()
        # Only a tombstone's headers say something that its value does not.
        headers: Any = message.headers() if value is None else None
        try:
            changes.append(
                read_record(
                    catalog.lineages,
                    message.topic() or "",
                    message.partition() or 0,
                    message.offset() or 0,
                    message.key(),
                    value,
                    headers,
                )
            )
        except UnknownSchemaError as error:
            report.unknown_schema = error.message
            return changes, messages[:index]
        except SinkError as error:
            raise RefusedError(error.message, error.hint) from error
    return changes, messages


def _partition(message: Message) -> Partition:
    return Partition(message.topic() or "", message.partition() or 0)
