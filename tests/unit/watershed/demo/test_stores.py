"""A plain consumer reads what has arrived, to the end."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.settings import KafkaConfig
from watershed.demo import stores
from watershed.demo.stores import TopicTail


class Broker:
    """The records of a topic's partitions; {} while it does not exist."""

    def __init__(self) -> None:
        self.partitions: dict[int, list[Any]] = {}

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

    def end(self, _topic: str, partition: int) -> int:
        return len(self._broker.partitions[partition])

    def read_to(self, _topic: str, end: int, partition: int) -> Iterator[Any]:
        yield from self._broker.partitions[partition][self._next.get(partition, 0) : end]
        self._next[partition] = end

    def close(self) -> None:
        pass


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
    assert list(tail.read()) == []
    broker.partitions = {0: records(1), 1: []}
    assert list(tail.read()) == broker.partitions[0]


def test_the_end_is_that_of_every_partition_and_nothing_is_read_twice(broker: Broker, tail: TopicTail) -> None:
    broker.partitions = {0: records(1), 1: records(1)}
    assert list(tail.read()) == [*broker.partitions[0], *broker.partitions[1]]
    broker.partitions[1] += records(1)
    assert list(tail.read()) == broker.partitions[1][1:]
    assert list(tail.read()) == []
