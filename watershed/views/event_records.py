"""Topics of events for their readers: what they are, where they begin and end, and their committed records."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, IsolationLevel, KafkaError, KafkaException, Message

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import ANSWER_S_MAX, kafka_error, translated
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_reader import PartitionId, TopicReader

BUFFER_KB: Final = 8 * 1024  # of records that the client has fetched ahead, and so of a batch


class EventRecord(NamedTuple):
    """A record as the brokers keep it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    at_ms: int | None  # since 1970


class TopicIdentity(NamedTuple):
    """A topic that is deleted and created again has another id."""

    topic_id: str
    partition_count: int


class Bounds(NamedTuple):
    """The offsets of a partition between which a reader of committed records finds them."""

    start: int
    end: int


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


def event_reader(kafka: KafkaConfig) -> TopicReader:
    """Opens a reader that raises OutOfRangeError instead of passing over events, and that holds BUFFER_KB of records
    at most."""
    settings = {"auto.offset.reset": "error", "queued.max.messages.kbytes": BUFFER_KB}
    return TopicReader(kafka, settings=settings, name="watershed-event-log")


def event_record(message: Message) -> EventRecord:
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
