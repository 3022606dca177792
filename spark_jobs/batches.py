"""Batches of a sink's query: Spark runs the writer over the rows of the data source. This is the driver's side.

A task's report comes back as the row of `mapInArrow`, when the task has ended. The tasks of a live batch last for half
a minute; what they have written meanwhile is in the sink's consumer group, which the driver reads several times a
second. If the driver wants the batch to end, it says so in the progress topic, which the tasks read beside the tables'.
"""

import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from cdc.kafka.daemon_thread import start_thread
from cdc.model.control import Record
from cdc.model.errors import WatershedError
from cdc.model.job_records import BatchEndRecord
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import FoundTopic, Offsets
from spark_jobs.rejections import DeadLetterUpdates
from spark_jobs.source.group import GroupOffsets, Reached, TaskCounts, group_name
from spark_jobs.source.reading import Partition
from spark_jobs.source.topic_ends import TopicEnds
from spark_jobs.task_errors import error_of_task
from spark_jobs.task_report import SchemaCatalog, SinkTaskConfig, TaskReport
from spark_jobs.writer import REPORT_DDL, OpenWriter, StoreWriter

log = structlog.get_logger(__name__)

LOOK_S: Final = 0.05  # between two looks at the group, at least
REPORT_TIMES: Final = 20  # of a look's own duration, at least: many partitions take their time
LOOK_S_MAX: Final = 1.0  # between two looks: one of them may have waited for a broker
IDLE_LOOK_S: Final = 0.25  # between two looks while they find nothing new
IDLE_GROWTH: Final = 1.25  # of the pause after each look that finds nothing
END_REQUEST_S: Final = 1.0  # until a request to end is repeated: the tasks may not have begun


class MicroBatch(NamedTuple):
    """What Spark gives to `foreachBatch`."""

    frame: DataFrame
    number: int  # rises by one in each checkpoint


@dataclass(slots=True)
class BatchReport:
    """The reports of all tasks of a batch together."""

    offsets: dict[str, dict[int, int]] = field(default_factory=dict)  # topic → partition → offset after the last one
    begins: dict[str, dict[int, int]] = field(default_factory=dict)  # topic → partition → where its task began
    records: int = 0
    written: int = 0
    stale: int = 0
    write_s: float = 0.0  # of all tasks together
    is_behind: bool = False
    is_over: bool = False  # a task reads no more
    unknown_schema: str = ""
    staged: list[Any] = field(default_factory=list)
    dead_letters: DeadLetterUpdates = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)  # topic → why its records can't be read from where they begin

    @property
    def topics(self) -> frozenset[str]:
        """The topics of which something was read."""
        return frozenset(
            topic
            for topic, offsets in self.offsets.items()
            if any(offset > self.begins.get(topic, {}).get(number, 0) for number, offset in offsets.items())
        )

    @classmethod
    def of(cls, reports: Sequence[TaskReport], counts: "TotalCounts | None" = None) -> "BatchReport":
        """`reports`: in the order of the tasks' numbers. `counts`: what was taken of them before; None: nothing."""
        merged, counts = cls(), counts or TotalCounts()
        for number, report in enumerate(reports):
            for partition, offset in report.offsets.items():
                merged.offsets.setdefault(partition.topic, {})[partition.number] = offset
                begin = report.begins.get(partition, 0)
                merged.begins.setdefault(partition.topic, {})[partition.number] = begin
            merged.add(counts.fresh(number, report.counts))
            merged.is_behind = merged.is_behind or report.is_behind
            merged.unknown_schema = merged.unknown_schema or report.unknown_schema
            merged.staged += report.staged
            merged.dead_letters |= report.dead_letters
            merged.lost |= {partition.topic: reason for partition, reason in report.lost.items()}
        return merged

    def add(self, counts: TaskCounts) -> None:
        """Adds a task's counts."""
        self.records += counts.records
        self.written += counts.written
        self.stale += counts.stale
        self.write_s += counts.write_ms / 1000


Take = Callable[[BatchReport], bool]


class Batches(Protocol):
    """SinkSync's access to Spark and the brokers."""

    is_live: bool
    """Whether tasks report while they run, and publish their dead letters themselves."""

    def set_tables(self, schema_histories: Mapping[str, SchemaHistory]) -> None:
        """Sets the tables, by topic."""

    def set_open_dead_letters(self, open_dead_letters: Mapping[str, int]) -> None:
        """Sets the open dead letters: dead_letter_key → version."""

    def find_topics(self) -> Mapping[str, FoundTopic]:
        """Returns those of the tables' topics that exist, with the ends of their partitions for readers of committed
        records. Raises BrokerError.
        """

    def run(self, micro_batch: Any, ends: Offsets, take: Take) -> BatchReport:
        """Writes a MicroBatch. `ends`: recent end offsets of the topics that may be read. `take` may be called
        meanwhile, by another thread, with the work done so far; it says whether to continue. Returns the work that was
        not passed to `take`. Raises the tasks' and Spark's errors."""


class TotalCounts:
    """The counts of a batch's tasks, of which the driver has taken a part."""

    def __init__(self) -> None:
        self._taken: dict[int, TaskCounts] = {}  # by task
        self._lock = threading.Lock()

    def fresh(self, task: int, counts: TaskCounts) -> TaskCounts:
        """Returns what was not taken yet."""
        with self._lock:
            taken = self._taken.get(task, TaskCounts())
            if counts.records < taken.records:  # a report that was overtaken, or a task that was repeated
                return TaskCounts()
            self._taken[task] = counts
            return counts.since(taken)


class SparkBatches:
    """Implements Batches."""

    def __init__(
        self,
        job: SinkTaskConfig,
        number: tuple[int, str],
        open_target: OpenWriter,
        send: Callable[[Record], None],
        *,
        is_live: bool,
        writer: Callable[..., StoreWriter] = StoreWriter,
    ) -> None:
        """`number`: of the job, see SinkRecord.job. `send`: publishes a record in the progress topic. `writer`: makes
        the function of a batch's tasks; its parameters are the fields of StoreWriter."""
        self.is_live = is_live
        self._writer = writer
        self._job = job
        self._name = f"{number[0]}-{number[1]}"
        self._open_target = open_target
        self._send = send
        self._topic_ends = TopicEnds(job.kafka)
        self._catalog = SchemaCatalog("", {})
        self._open_dead_letters: dict[str, int] = {}
        self._begun = 0

    def set_tables(self, schema_histories: Mapping[str, SchemaHistory]) -> None:
        self._topic_ends.set_topics(sorted(schema_histories))
        self._catalog = SchemaCatalog(uuid.uuid4().hex, dict(schema_histories))

    def set_open_dead_letters(self, open_dead_letters: Mapping[str, int]) -> None:
        self._open_dead_letters = dict(open_dead_letters)

    def find_topics(self) -> Mapping[str, FoundTopic]:
        return self._topic_ends.ask()

    def run(self, micro_batch: MicroBatch, ends: Offsets, take: Take) -> BatchReport:
        self._begun += 1
        batch = f"{self._name}-{self._begun}"
        writer = self._writer(self._job, self._catalog, self._open_target, batch, self.is_live, self._open_dead_letters)
        counts = TotalCounts()
        with self._following(batch, ends, take, counts):
            reports = _collect(micro_batch.frame, writer)
        return BatchReport.of(reports, counts)

    @contextmanager
    def _following(self, batch: str, ends: Offsets, take: Take, counts: TotalCounts) -> Iterator[None]:
        """Takes reports of running tasks within this context."""
        if not self.is_live:
            yield
            return
        partitions = [Partition(topic, number) for topic, offsets in ends.items() for number in range(len(offsets))]
        name = group_name(self._job.prefix, self._job.sink, self._job.generation)
        with closing(GroupOffsets(self._job.kafka, name)) as group:
            watch = GroupWatch(group, batch, partitions, counts)
            must_end, asked_at = False, -END_REQUEST_S  # monotonic seconds, when the batch was asked to end last

            def look() -> bool:
                nonlocal must_end, asked_at
                try:
                    report = watch.report()
                    # When one task has ended, its partitions wait for the next batch: all others are to end, too.
                    must_end = must_end or report.is_over
                    if (not take(report) or must_end) and time.monotonic() - asked_at >= END_REQUEST_S:
                        self._ask_for_end()
                        asked_at = time.monotonic()
                    return bool(report.offsets)
                except WatershedError as error:  # the tasks have it too, if it lasts
                    log.debug("reports of tasks can't be read", sink=self._job.sink, because=error.message)
                    return False

            with called_regularly(look):
                yield

    def _ask_for_end(self) -> None:
        job, now_us = self._job, time.time_ns() // 1000
        self._send(BatchEndRecord(sink=job.sink, generation=job.generation, at_us=now_us))


@contextmanager
def called_regularly(call: Callable[[], bool]) -> Iterator[None]:
    """Calls it several times a second within this context, in a thread; less often while it says that there was nothing
    new."""
    over = threading.Event()

    def run() -> None:
        pause_s = LOOK_S
        while not over.wait(pause_s):
            begun = time.monotonic()
            usual_s = LOOK_S if call() else min(pause_s * IDLE_GROWTH, IDLE_LOOK_S)
            pause_s = min(max(usual_s, REPORT_TIMES * (time.monotonic() - begun)), LOOK_S_MAX)

    thread = start_thread(run)
    try:
        yield
    finally:
        over.set()
        thread.result()


class GroupWatch:
    """What the tasks of a batch have committed."""

    def __init__(self, group: GroupOffsets, batch: str, partitions: Sequence[Partition], counts: TotalCounts) -> None:
        self._group = group
        self._batch = batch
        self._partitions = partitions
        self._counts = counts
        self._seen: dict[Partition, Reached] = {}

    def report(self) -> BatchReport:
        """Returns what is new. Raises BrokerError, UnreachableError."""
        found = {
            partition: reached
            for partition, reached in self._group.committed(self._partitions).items()
            if reached.batch == self._batch and self._seen.get(partition) != reached
        }
        self._seen |= found
        return report_of(found, self._counts)


def report_of(found: Mapping[Partition, Reached], counts: TotalCounts) -> BatchReport:
    """Returns the report of what tasks have committed, without what was taken before."""
    report = BatchReport()
    newest: dict[int, TaskCounts] = {}
    for partition, reached in found.items():
        report.offsets.setdefault(partition.topic, {})[partition.number] = reached.offset
        report.begins.setdefault(partition.topic, {})[partition.number] = reached.begin
        report.is_behind = report.is_behind or reached.is_behind
        report.is_over = report.is_over or reached.is_over
        if reached.counts.records >= newest.get(reached.task, TaskCounts()).records:
            newest[reached.task] = reached.counts
    for task, done in newest.items():
        report.add(counts.fresh(task, done))
    return report


def _collect(frame: DataFrame, writer: StoreWriter) -> list[TaskReport]:
    """Runs the tasks. Returns their reports in the order of their numbers. Raises their errors, and Spark's."""
    try:
        rows = frame.mapInArrow(writer, REPORT_DDL).collect()  # type: ignore[arg-type]
    except (PySparkException, Py4JError) as error:
        own = error_of_task(error)
        if own is None:
            raise
        raise own from error
    return [pickle.loads(row.report) for row in rows]  # noqa: S301 - our own tasks wrote it
