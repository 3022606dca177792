"""A plain consumer of one topic, as an application's: from its beginning, and then what arrives. It commits nothing."""

import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import new_client, tail_settings
from cdc.model.errors import WatershedError

RECORDS_MAX: Final = 1_000  # of one read
ANSWER_S_MAX: Final = 10.0
END_S_MAX: Final = 60.0


class TopicTail:
    """For one thread. Methods raise KafkaException for an error from which the client does not recover."""

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        self._topic = topic
        self._consumer = new_client(
            Consumer, tail_settings(kafka, "watershed-demo", **{"auto.offset.reset": "earliest"})
        )
        self._next: dict[int, int] = {}  # partition → offset to read next; empty while the topic does not exist
        self._at_end: set[int] = set()

    def read(self, wait_s: float) -> list[Message]:
        """Returns records that arrive within this time; none while the topic does not exist."""
        if not self._next:
            self.start_over()
        if not self._next:
            time.sleep(wait_s)
            return []
        found: list[Message] = []
        for message in self._consumer.consume(RECORDS_MAX, wait_s):
            error, partition, offset = message.error(), message.partition(), message.offset()
            assert partition is not None
            if error is None:
                self._next[partition] = (offset or 0) + 1
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(partition)
            elif error.fatal():
                raise KafkaException(error)
        return found

    def read_to_end(self) -> Iterator[Message]:
        """Yields every record up to the present end. Raises WatershedError if it is not reached."""
        deadline = time.monotonic() + END_S_MAX
        if self._next:
            self._assign()  # which has the end of each partition reported again
        else:
            self.start_over()
        while self._at_end != self._next.keys():
            if time.monotonic() > deadline:
                raise WatershedError(f"the end of topic {self._topic} was not reached in {END_S_MAX:.0f} s")
            yield from self.read(0.2)

    def start_over(self) -> None:
        """Reads from the beginning again, as after a crash in which a consumer loses its offsets."""
        topic = self._consumer.list_topics(self._topic, ANSWER_S_MAX).topics[self._topic]
        self._next = dict.fromkeys(topic.partitions, 0)
        self._assign()

    def close(self) -> None:
        self._consumer.close()

    def _assign(self) -> None:
        self._at_end.clear()
        self._consumer.assign([TopicPartition(self._topic, number, at) for number, at in self._next.items()])
