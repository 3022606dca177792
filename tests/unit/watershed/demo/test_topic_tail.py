"""A plain consumer reads what arrives, to the end, and again from the beginning."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.config.settings import KafkaConfig
from cdc.model.errors import WatershedError
from watershed.demo import topic_tail
from watershed.demo.topic_tail import TopicTail

EOF = KafkaError._PARTITION_EOF


def message(partition: int, offset: int, error: Any = None) -> Any:
    return SimpleNamespace(error=lambda: error, partition=lambda: partition, offset=lambda: offset)


class Broker:
    """A topic of two partitions, and the client that reads it."""

    def __init__(self) -> None:
        self.partitions: dict[int, list[Any]] = {}
        self.queue: deque[Any] = deque()

    def list_topics(self, name: str, _timeout: float) -> Any:
        return SimpleNamespace(topics={name: SimpleNamespace(partitions=self.partitions)})

    def assign(self, wanted: list[Any]) -> None:
        self.queue.clear()
        for one in wanted:
            records = self.partitions[one.partition]
            self.queue.extend(records[one.offset :])
            self.queue.append(message(one.partition, len(records), KafkaError(EOF)))

    def consume(self, count: int, _timeout: float) -> list[Any]:
        return [self.queue.popleft() for _ in range(min(count, 2, len(self.queue)))]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(topic_tail, "Consumer", lambda _: made)
    return made


@pytest.fixture
def tail(broker: Broker) -> TopicTail:
    assert broker
    return TopicTail(KafkaConfig(bootstrap_servers="127.0.0.1:1"), "events")


def test_a_topic_that_does_not_exist_has_no_records_until_it_does(broker: Broker, tail: TopicTail) -> None:
    assert tail.read(0.0) == list(tail.read_to_end()) == []
    broker.partitions = {0: [message(0, 0)], 1: []}
    assert tail.read(0.0) == broker.partitions[0]


def test_the_end_is_that_of_every_partition_and_nothing_is_read_twice(broker: Broker, tail: TopicTail) -> None:
    broker.partitions = {0: [message(0, at) for at in range(3)], 1: [message(1, 0)]}
    first = tail.read(0.0)
    assert first == broker.partitions[0][:2]
    assert list(tail.read_to_end()) == [broker.partitions[0][2], *broker.partitions[1]]
    assert list(tail.read_to_end()) == []
    broker.partitions[1].append(message(1, 1))
    assert list(tail.read_to_end()) == broker.partitions[1][1:]


def test_starting_over_reads_everything_again(broker: Broker, tail: TopicTail) -> None:
    broker.partitions = {0: [message(0, 0), message(0, 1)], 1: []}
    assert len(list(tail.read_to_end())) == 2
    tail.start_over()
    assert len(list(tail.read_to_end())) == 2


def test_an_end_that_is_not_reached_is_an_error(
    broker: Broker, tail: TopicTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.partitions = {0: [message(0, 0)]}
    tail.read(0.0)
    monkeypatch.setattr(topic_tail, "END_S_MAX", -1.0)
    with pytest.raises(WatershedError, match="topic events was not reached"):
        list(tail.read_to_end())


def test_temporary_errors_are_passed_over_and_others_are_raised(broker: Broker, tail: TopicTail) -> None:
    broker.partitions = {0: []}
    tail.read(0.0)
    broker.queue.append(message(0, 0, KafkaError(KafkaError._TRANSPORT)))
    assert tail.read(0.0) == []
    broker.queue.append(message(0, 0, KafkaError(KafkaError._FATAL, "lost", True)))
    with pytest.raises(KafkaException):
        tail.read(0.0)
