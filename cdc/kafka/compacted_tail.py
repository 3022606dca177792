"""Follows compacted topics from their beginning: the present last value of each key."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import (
    NEXT_REACHABLE,
    broker_error,
    missing_topics,
    new_client,
    require_topics,
    tail_settings,
    topic_names,
    translated,
)
from cdc.model.errors import BrokerError, UnreachableError
from cdc.model.topics import prefixes_of

LEADER_S_MAX: Final = 3.0
READ_S_MAX: Final = 60.0
_STEP_S: Final = 0.05
_FETCH_COUNT: Final = 5_000


class CompactedTail:
    """Follows topics of one partition each. Not thread-safe."""

    def __init__(self, kafka: KafkaConfig, topics: Sequence[str]) -> None:
        self._latest: dict[str, dict[str, bytes]] = {topic: {} for topic in topics}
        self._reached = dict.fromkeys(topics, 0)
        self._ended: set[str] = set()  # topics whose present end was reached
        self._ends_reached: set[str] = set()
        self._consumer = new_client(
            Consumer, tail_settings(kafka, "watershed-reader", **{"auto.offset.reset": "earliest"})
        )

    @property
    def latest(self) -> Mapping[str, Mapping[str, bytes]]:
        return self._latest

    @property
    def reached(self) -> Mapping[str, int]:
        """topic → the offset after the last record that was read."""
        return self._reached

    @property
    def is_at_end(self) -> bool:
        """True if each topic was read to its end since the beginning, or since `forget_end`."""
        return len(self._ends_reached) == len(self._latest)

    def forget_end(self) -> None:
        """Resets `is_at_end`. When it is True again, everything in the Kafka transactions of earlier records has been
        read. (That the last poll reached the end is too strict: in a busy topic it rarely does.)"""
        self._ends_reached = set(self._ended)

    def read_to_end(self) -> None:
        """Reads the topics to their ends. Raises WatershedError if a topic does not exist, UnreachableError,
        BrokerError."""
        require_topics(self._consumer, self._latest)
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in self._latest])
        deadline = time.monotonic() + READ_S_MAX
        while not self.is_at_end:
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(set(self._latest) - self._ends_reached))
                raise UnreachableError(
                    f"Kafka: the end of {missing} was not reached in {READ_S_MAX:.0f} s", NEXT_REACHABLE
                )
            self.poll(_STEP_S)

    def exist(self) -> bool:
        """Returns whether all topics exist. Raises UnreachableError, BrokerError."""
        return not missing_topics(self._consumer, self._latest)

    def prefixes(self) -> tuple[str, ...]:
        """Returns the prefixes whose topics exist. Raises UnreachableError, BrokerError."""
        return prefixes_of(topic_names(self._consumer))

    def require_answer(self) -> None:
        """Raises UnreachableError or BrokerError if the leader of a topic does not answer, which `poll` does not
        report."""
        for topic in self._latest:
            with translated(f"the leader of topic {topic} does not answer"):
                self._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=LEADER_S_MAX)

    def poll(self, timeout_s: float) -> set[tuple[str, str]]:
        """Reads new records for `timeout_s` seconds. Returns their (topic, key); nothing while brokers are unreachable.
        Raises BrokerError if they refuse."""
        changed: set[tuple[str, str]] = set()
        for message in self._consumer.consume(_FETCH_COUNT, timeout_s):
            topic, error = message.topic() or "", message.error()
            if error is None:
                key, value = (message.key() or b"").decode("utf-8", "replace"), message.value()
                self._ended.discard(topic)
                self._reached[topic] = (message.offset() or 0) + 1
                changed.add((topic, key))
                if value is None:
                    self._latest[topic].pop(key, None)
                else:
                    self._latest[topic][key] = value
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(topic)
                self._ends_reached.add(topic)
            elif isinstance(refused := broker_error(f"can't read topic {topic}", KafkaException(error)), BrokerError):
                raise refused
        return changed

    def close(self) -> None:
        self._consumer.close()
