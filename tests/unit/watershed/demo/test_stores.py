"""A plain consumer reads what arrives, to the end, and again from the beginning."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.settings import KafkaConfig
from watershed.demo import stores
from watershed.demo.stores import TopicTail


class Broker:
    """The records of a topic's partitions; {} while it does not exist. Each reader begins without positions."""

    def __init__(self) -> None:
        self.partitions: dict[int, list[Any]] = {}
        self.closed = 0

    def reader(self, *_: Any, **__: Any) -> "Reader":
        return Reader(self)


class Reader:
    """What a TopicReader does, of a broker in memory."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._next: dict[int, int] = {}

    def topics(self) -> frozenset[str]:
        return frozenset({"events"} if self._broker.partitions else ())

    def partitions(self, topic: str) -> list[int]:
        assert topic == "events"
        return list(self._broker.partitions)

    def follow(self, _topic: str, partition: int) -> None:
        assert partition not in self._next
        self._next[partition] = 0

    def poll(self, _timeout_s: float, records_max: int) -> list[Any]:
        return [record for partition in self._next for record in self._take(partition, records_max)]

    def end(self, _topic: str, partition: int) -> int:
        return len(self._broker.partitions[partition])

    def read_to(self, _topic: str, end: int, partition: int) -> Iterator[Any]:
        yield from self._take(partition, end)

    def close(self) -> None:
        self._broker.closed += 1

    def _take(self, partition: int, end: int) -> list[Any]:
        records = self._broker.partitions[partition][self._next[partition] : end]
        self._next[partition] += len(records)
        return records


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(stores, "TopicReader", made.reader)
    return made


@pytest.fixture
def tail(broker: Broker) -> TopicTail:
    assert broker
    return TopicTail(KafkaConfig(bootstrap_servers="127.0.0.1:1"), "events")


def records(count: int) -> list[Any]:
    return [SimpleNamespace(offset=number) for number in range(count)]


def test_a_topic_that_does_not_exist_has_no_records_until_it_does(broker: Broker, tail: TopicTail) -> None:
    assert tail.read(0.0) == list(tail.read_to_end()) == []
    broker.partitions = {0: records(1), 1: []}
    assert tail.read(0.0) == broker.partitions[0]


def test_the_end_is_that_of_every_partition_and_nothing_is_read_twice(broker: Broker, tail: TopicTail) -> None:
    broker.partitions = {0: records(1), 1: records(1)}
    assert tail.read(0.0) == [*broker.partitions[0], *broker.partitions[1]]
    broker.partitions[1] += records(1)
    assert list(tail.read_to_end()) == broker.partitions[1][1:]
    assert list(tail.read_to_end()) == []


def test_starting_over_reads_everything_again(broker: Broker, tail: TopicTail) -> None:
    broker.partitions = {0: records(2), 1: []}
    assert len(list(tail.read_to_end())) == 2
    tail.start_over()
    assert broker.closed == 1
    assert len(list(tail.read_to_end())) == 2
