"""Reads committed records of some partitions, in a Python worker of an executor.

Spark's own Kafka source passes each record from the JVM to Python through Arrow, which costs several times what the
store's client takes, and reads small transactions at a quarter of the speed of a plain consumer. So the tasks read with
librdkafka; Spark plans the batches and keeps the checkpoint.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import broker_error, new_client, tail_settings

RECORDS_MAX: Final = 1000  # taken from the client's queue at once
# The limit of the client's queue, for all partitions of a task together.
QUEUE_KIB_MAX: Final = 16 * 1024
# The limit of a partition in each request: brokers send at least one batch of capture's, which is at most 1 MB.
FETCH_BYTES_MAX: Final = 512 * 1024


# Errors of a topic that was deleted, or is being created.
ABSENT: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)


class Partition(NamedTuple):
    """A partition of a table's topic."""

    topic: str
    number: int


class Fetched(NamedTuple):
    """Records that were read together."""

    records: list[Message]
    # For the partitions that were read: the offset after the last record; at a partition's end, the offset after the
    # transaction markers that follow.
    positions: dict[Partition, int]
    is_full: bool  # more records may follow
    # Partitions that are not read on, and why: the topic was deleted, or its records are not those at these offsets.
    lost: Mapping[Partition, str] = MappingProxyType({})


class PartitionReader:
    """A consumer that is kept from task to task. Not thread-safe."""

    def __init__(self, kafka: KafkaConfig, name: str) -> None:
        """`name`: of the consumer's group, to which nothing is ever committed. Raises ConfigError, BrokerError."""
        self._consumer = new_client(
            Consumer,
            tail_settings(
                kafka,
                name,
                **{
                    # A missing record is an event that the driver must know, not a reason to continue elsewhere.
                    "auto.offset.reset": "error",
                    "queued.max.messages.kbytes": QUEUE_KIB_MAX,
                    "fetch.message.max.bytes": FETCH_BYTES_MAX,
                    "fetch.wait.max.ms": 20,
                    # After the queue was full. With the client's 1,000 ms a task that works off a backlog has nothing
                    # to do for a third of each second.
                    "fetch.queue.backoff.ms": 10,
                    "check.crcs": True,
                },
            ),
        )
        self._is_reading = False

    def seek(self, start_offsets: Mapping[Partition, int]) -> None:
        """Starts to read these partitions from these offsets on. A partition that has no records there any more is
        lost: also at offset 0, where "from the beginning" would mean what is left."""
        self._is_reading = True
        self._consumer.assign(
            [TopicPartition(partition.topic, partition.number, offset) for partition, offset in start_offsets.items()]
        )

    def read(self, timeout_s: float, bytes_max: int) -> Fetched:
        """Returns the next records: waits up to `timeout_s` for the first, then takes those that are there, until their
        keys and values have `bytes_max` or more. A partition whose topic is gone, or no longer has the records at
        its offset, is not read on. Raises BrokerError."""
        taken, size = [], 0
        lost: dict[Partition, str] = {}
        positions: dict[tuple[str | None, int | None], int] = {}
        messages = self._consumer.consume(1, timeout_s)
        if messages:
            messages += self._consumer.consume(RECORDS_MAX - 1, 0)
        while messages:
            for message in messages:
                error = message.error()
                if error is None:
                    positions[message.topic(), message.partition()] = (message.offset() or 0) + 1
                    taken.append(message)
                    size += len(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    positions[message.topic(), message.partition()] = message.offset() or 0
                else:
                    partition = Partition(message.topic() or "", message.partition() or 0)
                    lost[partition] = _loss(partition, error)
                    self._consumer.incremental_unassign([TopicPartition(*partition)])
            if size >= bytes_max or len(messages) < RECORDS_MAX:
                break
            messages = self._consumer.consume(RECORDS_MAX, 0)
        reached = {Partition(topic or "", number or 0): offset for (topic, number), offset in positions.items()}
        return Fetched(taken, reached, len(messages) >= RECORDS_MAX, lost)

    def unassign(self) -> None:
        """Fetches nothing until the next `seek`: the next task may run in another process, and a consumer that goes on
        fetching costs the brokers as much as one that is used."""
        if self._is_reading:
            self._is_reading = False
            self._consumer.unassign()

    def close(self) -> None:
        """Idempotent."""
        self._consumer.close()


def _loss(partition: Partition, error: KafkaError) -> str:
    """Returns why the partition can't be read on. Raises BrokerError for an error of another kind."""
    where = f"topic {partition.topic}, partition {partition.number}"
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        return f"{where}: records that were not read yet are gone (deleted, lost, or the topic was created again)"
    if error.code() in ABSENT:
        return f"{where}: the topic was deleted"
    raise broker_error(f"can't read {where}", KafkaException(error))
