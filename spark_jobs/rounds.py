"""Rounds: Spark jobs whose tasks read records and write them to the store. This is the driver's side.

A micro-batch consists of one or several rounds. Between two rounds the driver processes the tasks' reports: how far
they came, and what they could not do.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.sql import SparkSession

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import broker_error, client_settings, kafka_error, new_client
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import FoundTopic, Offsets
from spark_jobs.reading import ABSENT, Partition
from spark_jobs.rejections import DeadLetterUpdates
from spark_jobs.reports import Address, ReportServer, report_server
from spark_jobs.task_report import SchemaCatalog, TaskReport
from spark_jobs.tasks import Limits, OpenWriter, Share, SinkTaskConfig, run_task

ANSWER_S_MAX: Final = 10.0
# One task for this many waiting records: fewer records do not justify the cost of starting another task.
TASK_RECORDS_MIN: Final = 2_000
# With a backlog the work is divided among the tasks again after this time.
BACKLOG_ROUND_S: Final = 15.0


@dataclass(slots=True)
class RoundReport:
    """The reports of all tasks of a round together."""

    offsets: dict[str, dict[int, int]] = field(default_factory=dict)  # topic → partition → offset after the last one
    records: int = 0
    written: int = 0
    stale: int = 0
    write_s: float = 0.0  # of all tasks together
    tables: set[TableId] = field(default_factory=set)
    is_behind: bool = False
    unknown_schema: str = ""
    failure: WatershedError | None = None
    staged: list[Any] = field(default_factory=list)
    dead_letters: DeadLetterUpdates = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)  # topic → why its records can't be read from where they begin

    @classmethod
    def of(cls, reports: Sequence[TaskReport]) -> "RoundReport":
        merged = cls()
        for report in reports:
            for partition, offset in report.offsets.items():
                merged.offsets.setdefault(partition.topic, {})[partition.number] = offset
            merged.records += report.records
            merged.written += report.written
            merged.stale += report.stale
            merged.write_s += report.write_s
            merged.tables |= report.tables
            merged.is_behind = merged.is_behind or report.is_behind
            merged.unknown_schema = merged.unknown_schema or report.unknown_schema
            merged.failure = merged.failure or (report.failure and report.failure.error())
            merged.staged += report.staged
            merged.dead_letters |= report.dead_letters
            merged.lost |= {partition.topic: reason for partition, reason in report.lost.items()}
        return merged


Take = Callable[[RoundReport], bool]


class Rounds(Protocol):
    """A sink loop's access to Spark and the brokers."""

    def set_tables(self, schema_histories: Mapping[str, SchemaHistory]) -> None:
        """Sets the tables, by topic."""

    def set_open_dead_letters(self, open_dead_letters: Mapping[str, int]) -> None:
        """Sets the open dead letters: dead_letter_key → version."""

    def find_topics(self) -> Mapping[str, FoundTopic]:
        """Returns those of the tables' topics that exist, with the ends of their partitions for readers of committed
        records. Raises BrokerError.
        """

    def run(self, starts: Offsets, ends: Offsets, take: Take) -> RoundReport:
        """Reads from `starts` on and writes. `ends`: recent end offsets, which decide about the number of tasks. `take`
        may be called meanwhile, by other threads, with the work done so far; it says whether to continue. Returns the
        work that was not passed to `take`. Raises Spark's errors."""


def lag(starts: Offsets, ends: Offsets) -> int:
    """Returns the number of offsets between. Transaction markers have offsets too."""
    return sum(_lags(starts, ends).values())


def shares(starts: Offsets, ends: Offsets, task_count_max: int, *, with_ends: bool) -> list[Share]:
    """Divides the partitions of a round among tasks, so that each has about the same number of records. Pure."""
    lags = _lags(starts, ends)
    if with_ends:
        lags = {partition: waiting for partition, waiting in lags.items() if waiting}
    count = max(1, min(task_count_max, len(lags), sum(lags.values()) // TASK_RECORDS_MIN))
    parts: list[dict[Partition, int]] = [{} for _ in range(count)]
    loads = [(0, 0, number) for number in range(count)]  # records, partitions, which part
    for partition, waiting in sorted(lags.items(), key=lambda entry: (-entry[1], entry[0])):
        records, partitions, number = min(loads)
        loads[number] = (records + waiting, partitions + 1, number)
        parts[number][partition] = _offset(starts, partition.topic, partition.number)
    return [
        Share(part, {partition: ends[partition.topic][partition.number] for partition in part} if with_ends else None)
        for part in parts
        if part
    ]


def _lags(starts: Offsets, ends: Offsets) -> dict[Partition, int]:
    return {
        Partition(topic, number): max(0, end - _offset(starts, topic, number))
        for topic, offsets in ends.items()
        for number, end in enumerate(offsets)
    }


def _offset(offsets: Offsets, topic: str, number: int) -> int:
    held = offsets.get(topic, ())
    return held[number] if number < len(held) else 0


class TopicEnds:
    """Reads ids, partitions and end offsets of the tables' topics."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._admin = new_client(AdminClient, client_settings(kafka))
        self._topics: Sequence[str] = ()

    def set_topics(self, topics: Sequence[str]) -> None:
        """Sets the topics."""
        self._topics = topics

    def ask(self) -> Mapping[str, FoundTopic]:
        """Returns the topics that exist. Raises BrokerError."""
        try:
            found = self._described()
            counts = {topic: count for topic, (_, count) in found.items()}
            ends = self._offsets(counts, OffsetSpec.latest())  # type: ignore[no-untyped-call]
            starts = self._offsets(counts, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        except KafkaException as error:
            raise broker_error("can't read the end offsets of the tables' topics", error) from error
        return {
            topic: FoundTopic(found[topic][0], offsets, starts[topic])
            for topic, offsets in ends.items()
            if topic in starts
        }

    def _described(self) -> dict[str, tuple[str, int]]:
        """Returns topic → id and number of partitions."""
        if not self._topics:
            return {}
        futures = self._admin.describe_topics(TopicCollection(list(self._topics)), request_timeout=ANSWER_S_MAX)
        found = {}
        for topic, future in futures.items():
            try:
                described = future.result()
            except KafkaException as error:
                if not _is_absent(error):
                    raise
            else:
                found[topic] = str(described.topic_id), len(described.partitions)
        return found

    def _offsets(self, counts: Mapping[str, int], spec: OffsetSpec) -> dict[str, tuple[int, ...]]:
        wanted = {TopicPartition(topic, number): spec for topic, count in counts.items() for number in range(count)}
        if not wanted:
            return {}
        ends = {topic: [0] * count for topic, count in counts.items()}
        answers = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_S_MAX
        )
        for partition, answer in answers.items():
            try:
                offset = answer.result().offset
            except KafkaException as error:
                if not _is_absent(error):
                    raise
                ends.pop(partition.topic, None)
            else:
                if partition.topic in ends:
                    ends[partition.topic][partition.partition] = offset
        return {topic: tuple(offsets) for topic, offsets in ends.items()}


def _is_absent(error: KafkaException) -> bool:
    """Says whether a topic was deleted, or is being created: the others are read on."""
    return kafka_error(error).code() in ABSENT


class SparkRounds:
    """Implements Rounds with jobs of a Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        job: SinkTaskConfig,
        limits: Limits,
        task_count_max: int,
        open_target: OpenWriter,
        *,
        with_ends: bool = False,
    ) -> None:
        """`with_ends`: tasks end where the topics ended when the round began, instead of when their time is over."""
        self._context = spark.sparkContext
        self._reports = driver_reports(spark)
        self._job = job
        self._limits = limits
        self._task_count_max = task_count_max
        self._open_target = open_target
        self._with_ends = with_ends
        self._topic_ends = TopicEnds(job.kafka)
        self._catalog: Any = None  # a broadcast variable
        self._open_dead_letters: dict[str, int] = {}
        self._topic_ids: dict[str, str] = {}

    def set_tables(self, schema_histories: Mapping[str, SchemaHistory]) -> None:
        self._topic_ends.set_topics(sorted(schema_histories))
        if self._catalog is not None:
            self._catalog.unpersist()
        self._catalog = self._context.broadcast(SchemaCatalog(uuid.uuid4().hex, dict(schema_histories)))

    def set_open_dead_letters(self, open_dead_letters: Mapping[str, int]) -> None:
        self._open_dead_letters = dict(open_dead_letters)

    def find_topics(self) -> Mapping[str, FoundTopic]:
        found = self._topic_ends.ask()
        self._topic_ids = {topic: there.topic_id for topic, there in found.items()}
        return found

    def run(self, starts: Offsets, ends: Offsets, take: Take) -> RoundReport:
        parts = [
            replace(part, open_dead_letters=self._open_dead_letters, topic_ids=self._ids_of(part))
            for part in shares(starts, ends, self._task_count_max, with_ends=self._with_ends)
        ]
        if not parts:
            return RoundReport()
        if not self._limits.reporting_duration_s:
            return self._run(parts, self._limits, None)
        has_backlog = lag(starts, ends) > TASK_RECORDS_MIN
        limits = replace(self._limits, reporting_duration_s=BACKLOG_ROUND_S) if has_backlog else self._limits

        def take_in(report: TaskReport) -> bool:
            # Records that arrive faster than one task works are divided again.
            return take(RoundReport.of([report])) and (has_backlog or not report.is_behind)

        with self._reports.receiving(take_in) as address:
            return self._run(parts, limits, address)

    def _ids_of(self, part: Share) -> dict[str, str]:
        topics = {partition.topic for partition in part.starts}
        return {topic: found for topic, found in self._topic_ids.items() if topic in topics}

    def _run(self, parts: Sequence[Share], limits: Limits, address: Address | None) -> RoundReport:
        job, catalog, open_target = self._job, self._catalog, self._open_target

        def work(share: Share) -> TaskReport:
            return run_task(open_target, share, job, catalog.value, limits, address)

        return RoundReport.of(self._context.parallelize(parts, len(parts)).map(work).collect())


def driver_reports(spark: SparkSession) -> ReportServer:
    """Returns the server of reports of this application, at the address by which executors know the driver."""
    settings = spark.sparkContext.getConf()
    host = settings.get("spark.driver.host") or "127.0.0.1"
    return report_server(settings.get("spark.driver.bindAddress") or host, host)
