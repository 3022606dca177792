"""A sink's consumer group: what its running tasks have written, for the driver and for any tool that shows lag.

Tasks commit offsets while they run, without being members of the group: partitions are assigned by the driver's plan.
The text that Kafka keeps beside an offset names the job and the batch, so that nobody takes an offset of a former job,
or of a store that was restored since, for the position of the present one. The group is a report, not a position: a job
continues from the position that the store holds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import broker_error, kafka_error, new_client, reading_settings
from spark_jobs.source.reading import ABSENT, Partition

ANSWER_S_MAX: Final = 10.0
_FIELDS: Final = 10


def group_name(prefix: str, sink: str, generation: int) -> str:
    """The name of the group of one generation of a sink."""
    return f"watershed-{prefix}-{sink}-{generation}"


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """What a task has done since its batch began."""

    records: int = 0
    written: int = 0
    stale: int = 0
    write_ms: int = 0  # spent in the store's client

    def since(self, earlier: "TaskCounts") -> "TaskCounts":
        """Returns the difference."""
        return TaskCounts(
            self.records - earlier.records,
            self.written - earlier.written,
            self.stale - earlier.stale,
            self.write_ms - earlier.write_ms,
        )


class Reached(NamedTuple):
    """How far a task has written a partition."""

    execution: str  # of the batch: the job, and the number of its batch; see SparkBatches.run
    task: int
    start_offset: int  # the offset from which the task reads this partition
    offset: int  # everything between is in the store
    is_behind: bool  # there were more records than the task could take at once
    counts: TaskCounts  # of the task, not of the partition
    is_over: bool = False  # the task reads no more in this batch

    def text(self) -> str:
        """Returns what Kafka keeps beside the offset."""
        counts = self.counts
        fields = (self.task, self.start_offset, int(self.is_behind), int(self.is_over))
        return " ".join(
            [self.execution, *map(str, (*fields, counts.records, counts.written, counts.stale, counts.write_ms)), "."]
        )

    @classmethod
    def of(cls, offset: int, text: str | None) -> "Reached | None":
        """Returns None for a text of others."""
        words = (text or "").split()
        if len(words) != _FIELDS or not all(word.isdecimal() for word in words[1:-1]):
            return None
        task, start_offset, is_behind, is_over, *counts = map(int, words[1:-1])
        return cls(words[0], task, start_offset, offset, bool(is_behind), TaskCounts(*counts), bool(is_over))


class GroupOffsets:
    """One group, for a task that commits, or for the driver. Not thread-safe."""

    def __init__(self, kafka: KafkaConfig, group: str) -> None:
        """Raises ConfigError, BrokerError."""
        self._group = group
        self._consumer = new_client(Consumer, reading_settings(kafka, group))

    def commit(self, reached: Mapping[Partition, Reached]) -> None:
        """Returns when the brokers have the offsets. Raises BrokerError, UnreachableError."""
        offsets = [
            TopicPartition(partition.topic, partition.number, found.offset, found.text())
            for partition, found in reached.items()
        ]
        what = f"can't commit offsets of group {self._group}"
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False) or ()
        except KafkaException as error:
            if kafka_error(error).code() in ABSENT:
                return
            raise broker_error(what, error) from error
        for answer in answers:
            # A topic that was deleted meanwhile concerns its own table: the driver finds it missing.
            if answer.error is not None and answer.error.code() not in ABSENT:
                raise broker_error(what, KafkaException(answer.error))

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Reached]:
        """Returns what tasks have committed. Raises BrokerError, UnreachableError."""
        wanted = [TopicPartition(partition.topic, partition.number) for partition in partitions]
        try:
            answers = self._consumer.committed(wanted, ANSWER_S_MAX) if wanted else []
        except KafkaException as error:
            raise broker_error(f"can't read offsets of group {self._group}", error) from error
        found = {
            Partition(answer.topic, answer.partition): Reached.of(answer.offset, answer.metadata)
            for answer in answers
            if answer.error is None and answer.offset >= 0
        }
        return {partition: reached for partition, reached in found.items() if reached is not None}

    def close(self) -> None:
        """Idempotent."""
        self._consumer.close()
