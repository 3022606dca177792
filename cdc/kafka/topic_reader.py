"""Reads partitions that are assigned, without a group: to an end, or on and on.

What can happen to a reader of our topics is decided here, once:

- An end is the last stable offset at the time of a request: open transactions are neither read nor waited for. Markers
  of transactions have offsets too, and may be the last ones: the client reports the end behind them as an event.
- A topic that does not exist has no records, unless it was read before: then it was deleted, which is an error.
- A topic whose leader is not known is not an empty one. The leader is waited for, ANSWER_S_MAX seconds.
- Whatever the brokers refuse is a BrokerError, at once. What may pass by itself is an UnreachableError: at once where
  the client has given up, else when nothing has arrived for READ_S_MAX seconds.

- An offset that a partition has no more, or not yet, is an OutOfRangeError for those who ask for it
  (`auto.offset.reset` = `error`). By default the partition is read from its beginning.

Tasks of sinks have a reader of their own, for speed and with limits in bytes (`spark_jobs/source/reading.py`).
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import (
    ANSWER_S_MAX,
    LEADER_UNKNOWN,
    NEXT_REACHABLE,
    broker_error,
    kafka_error,
    new_client,
    tail_settings,
    topic_names,
    translated,
)
from cdc.kafka.daemon_thread import do_nothing
from cdc.model.errors import BrokerError, UnreachableError, WatershedError
from cdc.ports.stream import WhileWaiting

READ_S_MAX: Final = 60.0  # seconds without a record or an end
LEADER_S_MAX: Final = 3.0
FETCH_COUNT: Final = 5_000  # records that are taken from the client's queue at once
_STEP_S: Final = 0.1

PartitionId = tuple[str, int]
"""Topic and partition."""


class MissingTopicError(UnreachableError):
    """A topic does not exist, as far as the brokers know now."""


class OutOfRangeError(BrokerError):
    """A partition has no record at the offset that is to be read next."""


class TopicReader:
    """A consumer of committed records. Not thread-safe. All methods raise BrokerError and UnreachableError."""

    def __init__(
        self,
        kafka: KafkaConfig,
        what: str = "",
        settings: Mapping[str, Any] = MappingProxyType({}),
        name: str = "watershed-reader",
    ) -> None:
        """`what`: what can't be done, for errors; by default that a topic can't be read. `settings`: librdkafka's
        properties. `name`: of the consumer's group, to which nothing is ever committed. Raises ConfigError,
        BrokerError."""
        ours = {"auto.offset.reset": "earliest", **settings}
        self._consumer = new_client(Consumer, tail_settings(kafka, name, **ours))
        self._what = what
        self._positions: dict[PartitionId, int] = {}
        self._failure: WatershedError | None = None  # found behind records that the last poll returned

    @property
    def positions(self) -> Mapping[PartitionId, int]:
        """Returns the next offset of each partition that is read: behind the last record, and at an end also behind the
        markers that follow it."""
        return self._positions

    # ---- what there is

    def topics(self) -> frozenset[str]:
        """Returns the names of all topics."""
        return topic_names(self._consumer)

    def partitions(self, topic: str) -> list[int]:
        """Returns the partitions of a topic that exists."""
        with translated(self._what_of(topic)):
            described = self._consumer.list_topics(topic, timeout=ANSWER_S_MAX).topics[topic]
            if described.error is not None:
                raise KafkaException(described.error)
        return list(described.partitions)

    def end(self, topic: str, partition: int = 0) -> int:
        """Returns the offset up to which a read now would come; 0 for a topic that does not exist. Raises BrokerError
        if that lies before what was read."""
        position = self._positions.get((topic, partition))
        try:
            _, end = self._bounds(topic, partition)
        except MissingTopicError:
            if position is not None:
                raise
            return 0
        if end < (position or 0):
            raise BrokerError(
                f"Kafka: topic {topic} ends at {end}, but was read up to {position}: it was created again, or has lost "
                "records",
                "nothing to do: the next attempt reads it from the beginning",
            )
        return end

    def require_leader(self, topic: str, partition: int = 0) -> None:
        """Raises UnreachableError or BrokerError if the leader of a topic does not answer, which `poll` does not
        report."""
        with translated(f"the leader of topic {topic} does not answer"):
            self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=LEADER_S_MAX)

    # ---- reading

    def follow(self, topic: str, partition: int = 0, start: int | None = None) -> None:
        """Reads this partition too from now on, from `start` (None: from its beginning)."""
        if (topic, partition) not in self._positions:
            first = OFFSET_BEGINNING if start is None else start
            self._consumer.incremental_assign([TopicPartition(topic, partition, first)])
            self._positions[topic, partition] = start or 0

    def assign(self, starts: Mapping[PartitionId, int]) -> None:
        """Reads these partitions and no others from now on."""
        self._consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
        self._positions, self._failure = dict(starts), None

    def poll(self, timeout_s: float, records_max: int = FETCH_COUNT) -> list[Message]:
        """Returns the records that arrive within `timeout_s` seconds. An error is raised when the records before it
        have been returned."""
        self._raise_failure()
        with translated(self._what or "can't read topics"):
            return self._taken(self._consumer.consume(records_max, timeout_s))

    def arrivals(self, wait_s: float, records_max: int = FETCH_COUNT) -> list[Message]:
        """Returns what is there as soon as there is something: `poll` would wait for its whole timeout, or for the
        maximum number of records."""
        self._raise_failure()
        with translated(self._what or "can't read topics"):
            first = self._consumer.consume(1, wait_s)
            return self._taken([*first, *self._consumer.consume(records_max, 0)] if first else [])

    def read_to(
        self, topic: str, end: int, partition: int = 0, while_waiting: WhileWaiting = do_nothing
    ) -> Iterator[Message]:
        """Follows the partition, and yields records of all partitions that are followed until this one was read up to
        `end`. Calls `while_waiting` several times a second."""
        place = topic, partition
        if end > self._positions.get(place, 0):
            self.follow(topic, partition)
        deadline = time.monotonic() + READ_S_MAX
        while (position := self._positions.get(place, 0)) < end:
            yield from self.arrivals(_STEP_S)
            if self._positions[place] > position:
                deadline = time.monotonic() + READ_S_MAX
            elif time.monotonic() > deadline:
                raise UnreachableError(
                    f"Kafka: topic {topic} could not be read to its end: nothing arrived for {READ_S_MAX:.0f} s",
                    NEXT_REACHABLE,
                )
            while_waiting()

    def read(
        self,
        topic: str,
        partition: int = 0,
        start: int = 0,
        end: int | None = None,
        while_waiting: WhileWaiting = do_nothing,
    ) -> Iterator[Message]:
        """Reads no other partition from now on. Yields the records from `start` to `end` (None: what there is now), as
        `read_to`."""
        low, high = self._bounds(topic, partition)
        begin, end = max(low, start), high if end is None else end
        if begin < end:
            self.assign({(topic, partition): begin})
            yield from self.read_to(topic, end, partition, while_waiting)

    def close(self) -> None:
        self._consumer.close()

    def _taken(self, messages: list[Message]) -> list[Message]:
        """Returns the records among the messages. An error that came with records is raised by the next call."""
        records: list[Message] = []
        failure: WatershedError | None = None
        for message in messages:
            topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
            error = message.error()
            if error is None:
                self._positions[topic, partition] = offset + 1
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._positions[topic, partition] = max(offset, self._positions.get((topic, partition), 0))
            else:
                failure = failure or self._failed(topic, KafkaException(error))
        self._failure = failure
        if not records:
            self._raise_failure()
        return records

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the first offset and the end. Raises MissingTopicError."""
        deadline = time.monotonic() + ANSWER_S_MAX
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S_MAX)
                return int(low), int(high)
            except KafkaException as exception:
                failure = self._failed(topic, exception)
                if kafka_error(exception).code() not in LEADER_UNKNOWN:
                    raise failure from exception
                if topic not in self.topics():
                    raise MissingTopicError(failure.message, failure.hint) from exception
                if time.monotonic() > deadline:
                    raise failure from exception
            time.sleep(_STEP_S)

    def _failed(self, topic: str, exception: KafkaException) -> WatershedError:
        failure: WatershedError = broker_error(self._what_of(topic), exception)
        if kafka_error(exception).code() == KafkaError._AUTO_OFFSET_RESET:
            failure = OutOfRangeError(failure.message, failure.hint)
        failure.__cause__ = exception
        return failure

    def _what_of(self, topic: str) -> str:
        return self._what or f"can't read topic {topic}"


@contextmanager
def open_reader(
    kafka: KafkaConfig, what: str = "", settings: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[TopicReader]:
    """Opens a reader for reads to an end: the brokers don't wait for more records before they answer."""
    with closing(TopicReader(kafka, what, {"fetch.wait.max.ms": 5, **settings})) as reader:
        yield reader
