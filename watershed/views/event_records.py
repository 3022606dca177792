"""Topics of events for their readers: what they are, where they begin and end, and their committed records."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import (
    ANSWER_S_MAX,
    LEADER_UNKNOWN,
    broker_error,
    kafka_error,
    new_client,
    reading_settings,
    translated,
)
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import BrokerError
from sinks.errors import SinkError

END_MS: Final = 100  # within which the end of a partition is reported
_BUFFER_KB: Final = 16 * 1024  # of records that the client has fetched ahead

PartitionId = tuple[str, int]  # topic, partition


class EventRecord(NamedTuple):
    """A record as the brokers keep it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    at_ms: int | None  # since 1970

    @property
    def byte_count(self) -> int:
        return len(self.key or b"") + len(self.value or b"") + sum(len(value or b"") for _, value in self.headers)


class TopicIdentity(NamedTuple):
    """A topic that is deleted and created again has another id."""

    topic_id: str
    partition_count: int


class Bounds(NamedTuple):
    """The offsets of a partition between which a reader of committed records finds them."""

    start: int
    end: int


class OutOfRangeError(SinkError):
    """A partition has no record at the offset that is to be read next."""


class EventTopicReader:
    """The topics of one reader. Methods raise UnreachableError, ConnectionLost and BrokerError."""

    def __init__(self, kafka: KafkaConfig, names: Sequence[str]) -> None:
        self._admin = TopicAdmin(kafka)
        self.names = names

    def identities(self) -> dict[str, TopicIdentity]:
        """Returns those topics that exist."""
        found = {}
        for name, future in self._admin.request_descriptions(self.names).items():
            with translated(f"can't describe topic {name}", "grant Describe and Read on the topic"):
                try:
                    topic = future.result(ANSWER_S_MAX * 2)
                    found[name] = TopicIdentity(str(topic.topic_id), len(topic.partitions))
                except KafkaException as exception:
                    if kafka_error(exception).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
        return found

    def cleanup_policies(self) -> dict[str, str]:
        """Returns cleanup.policy of those topics that exist."""
        return {name: topic.cleanup_policy for name, topic in self._admin.describe(self.names).items()}

    def bounds(self, topics: Mapping[str, TopicIdentity]) -> dict[PartitionId, Bounds]:
        """Returns the bounds of each partition at this moment."""
        counts = {name: topic.partition_count for name, topic in topics.items()}
        starts = self._admin.request_end_offsets(counts, of_start=True)
        ends = self._admin.request_end_offsets(counts, IsolationLevel.READ_COMMITTED).wait()
        return {
            (name, partition): Bounds(start, ends[name][partition])
            for name, offsets in starts.wait().items()
            for partition, start in enumerate(offsets)
        }


class EventConsumer:
    """Reads partitions from given offsets on. It commits nothing to the brokers."""

    def __init__(self, kafka: KafkaConfig) -> None:
        # The end of a partition is reported, because only then the position counts markers of transactions.
        settings = {
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": END_MS,
            "queued.max.messages.kbytes": _BUFFER_KB,
        }
        self._consumer = new_client(Consumer, reading_settings(kafka, "watershed-event-log", **settings))
        self._places: Collection[PartitionId] = ()

    def assign(self, starts: Mapping[PartitionId, int]) -> None:
        self._places = list(starts)
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])

    def read(self, records_max: int, bytes_max: int, timeout_s: float) -> list[EventRecord]:
        """Returns the next records, as many as there are now; waits `timeout_s` for the first one. The last one may
        exceed `bytes_max`. Raises OutOfRangeError, BrokerError."""
        found: list[EventRecord] = []
        message = self._consumer.poll(timeout_s)
        while message is not None:
            if (error := message.error()) is not None:
                self._refuse(message, error)
            else:
                found.append(_record(message))
                bytes_max -= found[-1].byte_count
                if len(found) >= records_max or bytes_max <= 0:
                    break
            message = self._consumer.poll(0)
        return found

    def _refuse(self, message: Message, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            return
        where = f"topic {message.topic()}, partition {message.partition()}"
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise OutOfRangeError(
                f"Kafka: {where} has no offset {message.offset()}", "nothing to do: the offsets are compared again"
            )
        if error.code() in LEADER_UNKNOWN:
            return  # the descriptions of the topics say whether it was deleted
        refused = broker_error(f"can't read {where}", KafkaException(error), "grant Read on the topic")
        if isinstance(refused, BrokerError):
            raise refused

    def positions(self) -> dict[PartitionId, int]:
        """Returns the next offset of each partition that has been read from, behind the records that `read` has
        returned and the markers of transactions that follow them."""
        asked = [TopicPartition(*place) for place in self._places]
        found = self._consumer.position(asked) if asked else []
        return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}

    def close(self) -> None:
        with suppress(KafkaException):
            self._consumer.close()


def _record(message: Message) -> EventRecord:
    kind, at_ms = message.timestamp()
    headers = message.headers() or []
    assert isinstance(headers, list), "headers are read as pairs"
    pairs = [(name, value.encode() if isinstance(value, str) else value) for name, value in headers]
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None, "it was read from a partition"
    return EventRecord(
        topic,
        partition,
        offset,
        message.key(),
        message.value(),
        pairs,
        None if kind == TIMESTAMP_NOT_AVAILABLE else at_ms,
    )
