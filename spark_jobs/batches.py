"""Batches of a sink's query: Spark runs the writer over the rows of the data source. This is the driver's side.

A task's report comes back as the row of `mapInArrow`, when the task has ended. The tasks of a live batch last for half
a minute; what they have written meanwhile is in the sink's consumer group, which the driver reads several times a
second. If the driver wants the batch to end, it says so in the progress topic, which the tasks read beside the tables'.

A batch has Spark's batch id, which a repeated batch keeps, and an execution, which is new whenever a job runs a batch:
the job's id and a count. Offsets of another execution are not those of the running batch. The data source counts the
offsets that it has planned with in the checkpoint (BatchPlan.encoded), where a repeated batch keeps its number, too.
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
from cdc.model.sink_records import JobId
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import FoundTopic, Offsets
from spark_jobs.rejections import DeadLetterUpdates
from spark_jobs.source.group import GroupOffsets, Reached, TaskCounts, group_name
from spark_jobs.source.reading import Partition
from spark_jobs.source.topic_ends import TopicEnds
from spark_jobs.task_errors import error_of_task
from spark_jobs.task_report import Blocked, SchemaCatalog, SinkTaskConfig, TaskReport
from spark_jobs.writer import REPORT_DDL, OpenWriter, StoreWriter

log = structlog.get_logger(__name__)

POLL_S: Final = 0.05  # between two requests for the offsets of the group, at least
REPORT_TIMES: Final = 20  # of a request's own duration, at least: many partitions take their time
POLL_S_MAX: Final = 1.0  # one request may have waited for a broker
IDLE_POLL_S: Final = 0.25  # while nothing is new
IDLE_GROWTH: Final = 1.25  # of the pause after each request that finds nothing
END_REQUEST_S: Final = 1.0  # until a request to end is repeated: the tasks may not have begun


class MicroBatch(NamedTuple):
    """What Spark gives to `foreachBatch`."""

    frame: DataFrame
    batch_id: int  # Spark's: rises by one in each checkpoint


@dataclass(slots=True)
class BatchReport:
    """The reports of all tasks of a batch together."""

    end_offsets: dict[str, dict[int, int]] = field(default_factory=dict)  # topic → partition → after the last record
    start_offsets: dict[str, dict[int, int]] = field(default_factory=dict)  # topic → partition → where its task began
    records: int = 0
    written: int = 0
    stale: int = 0
    write_s: float = 0.0  # of all tasks together
    is_behind: bool = False
    is_over: bool = False  # a task reads no more
    blocked: dict[Partition, Blocked] = field(default_factory=dict)
    staged: list[Any] = field(default_factory=list)
    dead_letters: DeadLetterUpdates = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)  # topic → why its records can't be read from where they begin

    @property
    def topics(self) -> frozenset[str]:
        """The topics of which something was read."""
        return frozenset(
            topic
            for topic, offsets in self.end_offsets.items()
            if any(offset > self.start_offsets.get(topic, {}).get(number, 0) for number, offset in offsets.items())
        )

    @classmethod
    def of(cls, reports: Sequence[TaskReport], counts: "TotalCounts | None" = None) -> "BatchReport":
        """`reports`: in the order of the tasks' numbers. `counts`: what was reported of them before; None: nothing."""
        merged, counts = cls(), counts or TotalCounts()
        for number, report in enumerate(reports):
            for partition, offset in report.end_offsets.items():
                merged.end_offsets.setdefault(partition.topic, {})[partition.number] = offset
                begin = report.start_offsets.get(partition, 0)
                merged.start_offsets.setdefault(partition.topic, {})[partition.number] = begin
            merged.add(counts.unreported(number, report.counts))
            merged.is_behind = merged.is_behind or report.is_behind
            merged.blocked |= report.blocked
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


OnReport = Callable[[BatchReport], bool]


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

    def run(self, micro_batch: Any, end_offsets: Offsets, on_report: OnReport) -> BatchReport:
        """Writes a MicroBatch. `end_offsets`: recent ones of the topics that may be read. `on_report` may be called
        meanwhile, by another thread, with the work done so far; it says whether to continue. Returns the work that was
        not passed to it. Raises the tasks' and Spark's errors."""


class TotalCounts:
    """The counts of a batch's tasks, of which the driver has reported a part."""

    def __init__(self) -> None:
        self._reported: dict[int, TaskCounts] = {}  # by task
        self._lock = threading.Lock()

    def unreported(self, task: int, counts: TaskCounts) -> TaskCounts:
        """Returns what was not reported yet, and marks it as reported."""
        with self._lock:
            reported = self._reported.get(task, TaskCounts())
            if counts.records < reported.records:  # a report that was overtaken, or a task that was repeated
                return TaskCounts()
            self._reported[task] = counts
            return counts.since(reported)


class SparkBatches:
    """Implements Batches."""

    def __init__(
        self,
        task_config: SinkTaskConfig,
        job_id: JobId,
        open_target: OpenWriter,
        send: Callable[[Record], None],
        *,
        is_live: bool,
        writer: Callable[..., StoreWriter] = StoreWriter,
    ) -> None:
        """`send`: publishes a record in the progress topic. `writer`: makes the function of a batch's tasks; its
        parameters are the fields of StoreWriter."""
        self.is_live = is_live
        self._writer = writer
        self._task_config = task_config
        self._job_text = f"{job_id[0]}-{job_id[1]}"
        self._open_target = open_target
        self._send = send
        self._topic_ends = TopicEnds(task_config.kafka)
        self._catalog = SchemaCatalog("", {})
        self._open_dead_letters: dict[str, int] = {}
        self._executions = 0

    def set_tables(self, schema_histories: Mapping[str, SchemaHistory]) -> None:
        self._topic_ends.set_topics(sorted(schema_histories))
        self._catalog = SchemaCatalog(uuid.uuid4().hex, dict(schema_histories))

    def set_open_dead_letters(self, open_dead_letters: Mapping[str, int]) -> None:
        self._open_dead_letters = dict(open_dead_letters)

    def find_topics(self) -> Mapping[str, FoundTopic]:
        return self._topic_ends.ask()

    def run(self, micro_batch: MicroBatch, end_offsets: Offsets, on_report: OnReport) -> BatchReport:
        self._executions += 1
        execution = f"{self._job_text}-{self._executions}"
        writer = self._writer(
            self._task_config, self._catalog, self._open_target, execution, self.is_live, self._open_dead_letters
        )
        counts = TotalCounts()
        with self._following(execution, end_offsets, on_report, counts):
            reports = _collect(micro_batch.frame, writer)
        return BatchReport.of(reports, counts)

    @contextmanager
    def _following(
        self, execution: str, end_offsets: Offsets, on_report: OnReport, counts: TotalCounts
    ) -> Iterator[None]:
        """Passes on reports of running tasks within this context."""
        if not self.is_live:
            yield
            return
        partitions = [
            Partition(topic, number) for topic, offsets in end_offsets.items() for number in range(len(offsets))
        ]
        name = group_name(self._task_config.prefix, self._task_config.sink, self._task_config.generation)
        with closing(GroupOffsets(self._task_config.kafka, name)) as group:
            watch = GroupWatch(group, execution, partitions, counts)
            must_end, asked_at = False, -END_REQUEST_S  # monotonic seconds, when the batch was asked to end last

            def poll() -> bool:
                nonlocal must_end, asked_at
                try:
                    report = watch.report()
                    # When one task has ended, its partitions wait for the next batch: all others are to end, too.
                    must_end = must_end or report.is_over
                    if (not on_report(report) or must_end) and time.monotonic() - asked_at >= END_REQUEST_S:
                        self._ask_for_end()
                        asked_at = time.monotonic()
                    return bool(report.end_offsets)
                except WatershedError as error:  # the tasks have it too, if it lasts
                    log.debug("reports of tasks can't be read", sink=self._task_config.sink, because=error.message)
                    return False

            with called_regularly(poll):
                yield

    def _ask_for_end(self) -> None:
        task_config, now_us = self._task_config, time.time_ns() // 1000
        self._send(BatchEndRecord(sink=task_config.sink, generation=task_config.generation, at_us=now_us))


@contextmanager
def called_regularly(call: Callable[[], bool]) -> Iterator[None]:
    """Calls it several times a second within this context, in a thread; less often while it says that there was nothing
    new."""
    over = threading.Event()

    def run() -> None:
        pause_s = POLL_S
        while not over.wait(pause_s):
            begun = time.monotonic()
            usual_s = POLL_S if call() else min(pause_s * IDLE_GROWTH, IDLE_POLL_S)
            pause_s = min(max(usual_s, REPORT_TIMES * (time.monotonic() - begun)), POLL_S_MAX)

    thread = start_thread(run)
    try:
        yield
    finally:
        over.set()
        thread.result()


class GroupWatch:
    """What the tasks of a batch have committed."""

    def __init__(
        self, group: GroupOffsets, execution: str, partitions: Sequence[Partition], counts: TotalCounts
    ) -> None:
        self._group = group
        self._execution = execution
        self._partitions = partitions
        self._counts = counts
        self._seen: dict[Partition, Reached] = {}

    def report(self) -> BatchReport:
        """Returns what is new. Raises BrokerError, UnreachableError."""
        found = {
            partition: reached
            for partition, reached in self._group.committed(self._partitions).items()
            if reached.execution == self._execution and self._seen.get(partition) != reached
        }
        self._seen |= found
        return report_of(found, self._counts)


def report_of(found: Mapping[Partition, Reached], counts: TotalCounts) -> BatchReport:
    """Returns the report of what tasks have committed, without what was reported before."""
    report = BatchReport()
    newest: dict[int, TaskCounts] = {}
    for partition, reached in found.items():
        report.end_offsets.setdefault(partition.topic, {})[partition.number] = reached.offset
        report.start_offsets.setdefault(partition.topic, {})[partition.number] = reached.start_offset
        report.is_behind = report.is_behind or reached.is_behind
        report.is_over = report.is_over or reached.is_over
        if reached.counts.records >= newest.get(reached.task, TaskCounts()).records:
            newest[reached.task] = reached.counts
    for task, done in newest.items():
        report.add(counts.unreported(task, done))
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
