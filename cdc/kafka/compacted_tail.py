"""Compacted topics of ours, read to their end and followed from there: the last value of each key, as it is now."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import NEXT_REACHABLE, broker_error, new_client, tail_settings
from cdc.model.errors import BrokerError, UnreachableError, WatershedError

ANSWER_S_MAX: Final = 8.0
LEADER_S_MAX: Final = 3.0
READ_S_MAX: Final = 60.0
_STEP_S: Final = 0.05
_FETCH_COUNT: Final = 5_000


class CompactedTail:
    """Follows topics of one partition each. Not for use by two threads."""

    def __init__(self, kafka: KafkaConfig, topics: Sequence[str]) -> None:
        self._latest: dict[str, dict[str, bytes]] = {topic: {} for topic in topics}
        self._ended: set[str] = set()  # nothing came after their end
        self._ends_met: set[str] = set()
        self._consumer = new_client(
            Consumer, tail_settings(kafka, "watershed-reader", **{"auto.offset.reset": "earliest"})
        )

    @property
    def latest(self) -> Mapping[str, Mapping[str, bytes]]:
        """Topic → key → last committed value."""
        return self._latest

    @property
    def is_at_end(self) -> bool:
        """Whether each topic was read to its end since reading began, or since `forget_end`."""
        return len(self._ends_met) == len(self._latest)

    def forget_end(self) -> None:
        """What shares a Kafka transaction with records that were read has been read when the end is met again. (That
        the last poll met it would be too much to ask: of a busy topic it seldom does.)"""
        self._ends_met = set(self._ended)

    def read_to_end(self) -> None:
        """Begin. Raises WatershedError when a topic does not exist, UnreachableError, BrokerError."""
        require_topics(self._consumer, self._latest)
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in self._latest])
        deadline = time.monotonic() + READ_S_MAX
        while not self.is_at_end:
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(set(self._latest) - self._ends_met))
                raise UnreachableError(f"Kafka: the end of {missing} was not met in {READ_S_MAX:.0f} s", NEXT_REACHABLE)
            self.poll(_STEP_S)

    def exist(self) -> bool:
        """Whether all topics are there. Raises UnreachableError, BrokerError."""
        return not missing_topics(self._consumer, self._latest)

    def require_answer(self) -> None:
        """Raises UnreachableError or BrokerError when a topic's leader does not answer: `poll` says nothing of that."""
        for topic in self._latest:
            try:
                self._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=LEADER_S_MAX)
            except KafkaException as exception:
                raise broker_error(f"the leader of topic {topic} does not answer", exception) from exception

    def poll(self, timeout_s: float) -> set[tuple[str, str]]:
        """Gather for `timeout_s` what is new: (topic, key) of it. While brokers are away there is nothing new. Raises
        BrokerError when they refuse."""
        changed: set[tuple[str, str]] = set()
        for message in self._consumer.consume(_FETCH_COUNT, timeout_s):
            topic, error = message.topic() or "", message.error()
            if error is None:
                key, value = (message.key() or b"").decode("utf-8", "replace"), message.value()
                self._ended.discard(topic)
                changed.add((topic, key))
                if value is None:
                    self._latest[topic].pop(key, None)
                else:
                    self._latest[topic][key] = value
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(topic)
                self._ends_met.add(topic)
            elif isinstance(refused := broker_error(f"can't read topic {topic}", KafkaException(error)), BrokerError):
                raise refused
        return changed

    def close(self) -> None:
        self._consumer.close()


def missing_topics(client: Consumer | Producer, names: Iterable[str]) -> list[str]:
    """Topics that do not exist. Raises UnreachableError, BrokerError."""
    try:
        # All topics: a question about one would make brokers create it, where they are set so.
        existing = client.list_topics(timeout=ANSWER_S_MAX).topics
    except KafkaException as exception:
        raise broker_error("no broker answers", exception) from exception
    return [name for name in names if name not in existing]


def require_topics(client: Consumer | Producer, names: Iterable[str]) -> None:
    """Raises WatershedError for a topic that capture has not made yet, UnreachableError, BrokerError."""
    for name in missing_topics(client, names):
        raise WatershedError(
            f"there is no topic {name}: capture has never run on prefix {name.rpartition('.')[0]}",
            "start capture with `cdc run`, or correct topics.prefix",
        )
