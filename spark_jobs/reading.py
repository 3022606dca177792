"""Reads committed records of some partitions, in a Python worker of an executor.

Spark's own Kafka source passes each record from the JVM to Python through Arrow, which costs several times what the
store's client takes, and reads small transactions at a quarter of the speed of a plain consumer. So the tasks read with
librdkafka; Spark plans the batches and keeps the checkpoint.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import broker_error, new_client, tail_settings
from sinks.errors import RefusedError

RECORDS_MAX: Final = 1000  # taken from the client's queue at once
# The limit of the client's queue, for all partitions of a task together.
QUEUE_KIB_MAX: Final = 16 * 1024
# The limit of a partition in each request: brokers send at least one batch of capture's, which is at most 1 MB.
FETCH_BYTES_MAX: Final = 512 * 1024


class Partition(NamedTuple):
    """A partition of a table's topic."""

    topic: str
    number: int


class Piece(NamedTuple):
    """Records that were read together."""

    records: list[Message]
    # For the partitions that were read: the offset after the last record; at a partition's end, the offset after the
    # transaction markers that follow.
    positions: dict[Partition, int]
    is_full: bool  # more records may follow


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
                    # A missing record is an error, not a reason to continue elsewhere.
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

    def seek(self, starts: Mapping[Partition, int]) -> None:
        """Starts to read these partitions from these offsets on."""
        self._is_reading = True
        self._consumer.assign(
            [
                TopicPartition(partition.topic, partition.number, offset or OFFSET_BEGINNING)
                for partition, offset in starts.items()
            ]
        )

    def read(self, timeout_s: float, bytes_max: int) -> Piece:
        """Returns the next records: waits up to `timeout_s` for the first, then takes those that are there, until their
        keys and values have `bytes_max` or more. Raises RefusedError for offsets that the topic no longer has;
        BrokerError."""
        taken, size = [], 0
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
                    raise _failed(Partition(message.topic() or "", message.partition() or 0), error)
            if size >= bytes_max or len(messages) < RECORDS_MAX:
                break
            messages = self._consumer.consume(RECORDS_MAX, 0)
        reached = {Partition(topic or "", number or 0): offset for (topic, number), offset in positions.items()}
        return Piece(taken, reached, len(messages) >= RECORDS_MAX)

    def rest(self) -> None:
        """Fetches nothing until the next `seek`: the next task may run in another process, and a consumer that goes on
        fetching costs the brokers as much as one that is used."""
        if self._is_reading:
            self._is_reading = False
            self._consumer.unassign()

    def close(self) -> None:
        """Idempotent."""
        self._consumer.close()


def _failed(partition: Partition, error: KafkaError) -> Exception:
    where = f"topic {partition.topic}, partition {partition.number}"
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        return RefusedError(
            f"{where}: records that were not read yet are gone (deleted, truncated, or the topic was created again)",
            "find out what removed them (a retention, a program, a restored broker); cdc snapshot heal then reads all "
            "rows of the source into the topics again",
        )
    return broker_error(f"can't read {where}", KafkaException(error))
