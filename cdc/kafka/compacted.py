"""Topics as tables: the last committed value of each key, read once or followed."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from confluent_kafka import Message

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import missing_topic
from cdc.kafka.topic_reader import TopicReader, open_reader
from cdc.model.errors import UnreachableError
from cdc.model.topics import prefixes_of

_PARTITION: Final = 0  # these topics have one


def read_latest(kafka: KafkaConfig, topic: str) -> dict[str, bytes]:
    """Returns key → last committed value of a topic with one partition, up to the last stable offset at the time of the
    call: open transactions are neither read nor waited for. Empty for a topic that does not exist.

    Raises UnreachableError, BrokerError.
    """
    latest: dict[str, bytes] = {}
    with open_reader(kafka) as reader:
        if topic in reader.topics():
            for message in reader.read_to(topic, reader.end(topic)):
                _put(latest, message)
    return latest


class CompactedTail:
    """Follows topics of one partition each. Not thread-safe."""

    def __init__(self, kafka: KafkaConfig, topics: Sequence[str]) -> None:
        self._latest: dict[str, dict[str, bytes]] = {topic: {} for topic in topics}
        self._reader = TopicReader(kafka)
        self._is_begun = False

    @property
    def latest(self) -> Mapping[str, Mapping[str, bytes]]:
        return self._latest

    def reached(self, topic: str) -> int:
        """Returns the offset up to which the topic was read."""
        return self._reader.positions.get((topic, _PARTITION), 0)

    def read_to_end(self) -> set[tuple[str, str]]:
        """Reads everything that is committed by now; at first from the topics' beginnings. Returns the new records'
        (topic, key). Raises WatershedError if a topic does not exist, UnreachableError, BrokerError."""
        if not self._is_begun:
            existing = self._reader.topics()
            for topic in self._latest:
                if topic not in existing:
                    raise missing_topic(topic)
                self._reader.follow(topic)
            self._is_begun = True
        ends = {topic: self._reader.end(topic) for topic in self._latest}
        return self._take(message for topic, end in ends.items() for message in self._reader.read_to(topic, end))

    def exist(self) -> bool:
        """Returns whether all topics exist. Raises UnreachableError, BrokerError."""
        return self._reader.topics() >= self._latest.keys()

    def prefixes(self) -> tuple[str, ...]:
        """Returns the prefixes whose topics exist. Raises UnreachableError, BrokerError."""
        return prefixes_of(self._reader.topics())

    def require_answer(self) -> None:
        """Raises UnreachableError or BrokerError if the leader of a topic does not answer, which `poll` does not
        report."""
        for topic in self._latest:
            self._reader.require_leader(topic)

    def poll(self, timeout_s: float) -> set[tuple[str, str]]:
        """Reads new records for `timeout_s` seconds. Returns their (topic, key); nothing while brokers are unreachable.
        Raises BrokerError if they refuse."""
        with suppress(UnreachableError):
            return self._take(self._reader.poll(timeout_s))
        return set()

    def close(self) -> None:
        self._reader.close()

    def _take(self, messages: Iterable[Message]) -> set[tuple[str, str]]:
        changed = set()
        for message in messages:
            topic = message.topic() or ""
            changed.add((topic, _put(self._latest[topic], message)))
        return changed


def _put(latest: dict[str, bytes], message: Message) -> str:
    """Makes the record's value that of its key, which is returned."""
    key, value = (message.key() or b"").decode("utf-8", "replace"), message.value()
    if value is None:
        latest.pop(key, None)
    else:
        latest[key] = value
    return key
