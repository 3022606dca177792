"""A `read_committed` consumer beside capture that detects a transaction of which it sees only a part.

When the consumer reaches a partition's end, it has each transaction that it has seen there whole: no record of it may
follow. Each partition has its own moment: Kafka makes a commit visible in one partition after the other."""

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

_XID: Final = re.compile(rb'"txId":(\d+)')


class Halves:
    """What was found."""

    def __init__(self) -> None:
        self.transactions = 0  # seen, of each partition
        self.moments = 0  # at which all was whole so far
        self.complaints: list[str] = []
        self._begun: dict[tuple[str, int], set[bytes]] = {}
        self._whole: dict[tuple[str, int], set[bytes]] = {}

    def take(self, place: tuple[str, int], value: bytes | None) -> None:
        """The partition's next record; a tombstone belongs to what stands before it."""
        found = _XID.search(value or b"")
        if found is None:
            return
        if found[1] in self._whole.setdefault(place, set()):
            self.complaints.append(f"more of transaction {found[1].decode()} in {place} behind a moment without it")
        self._begun.setdefault(place, set()).add(found[1])

    def end(self, place: tuple[str, int]) -> None:
        """There is no more now."""
        begun = self._begun.pop(place, set())
        self.transactions += len(begun)
        self.moments += bool(begun)
        self._whole.setdefault(place, set()).update(begun)


@contextmanager
def watched_for_halves(bootstrap_servers: str, topics: Sequence[str], partitions: int) -> Iterator[Halves]:
    """From the topics' beginning to where they end when the block does; they exist."""
    found = Halves()
    is_over = threading.Event()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "halves",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for topic in topics for partition in range(partitions)])

    def read() -> None:
        while True:
            was_over = is_over.is_set()
            messages = consumer.consume(1_000, 0.2)
            for message in messages:
                place = str(message.topic()), int(message.partition() or 0)
                error = message.error()
                if error is None:
                    found.take(place, message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    found.end(place)
            if was_over and not messages:
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()
        consumer.close()
