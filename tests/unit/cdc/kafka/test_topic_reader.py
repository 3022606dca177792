"""What a reader of topics does about ends, missing topics, unknown leaders, refusals and silence. On a real broker:
tests/integration/test_topics.py and test_signals.py."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.config.settings import KafkaConfig
from cdc.kafka import topic_reader
from cdc.kafka.topic_reader import OutOfRangeError, TopicReader
from cdc.model.errors import BrokerError, UnreachableError


class Message:
    """confluent_kafka's, as far as it is asked."""

    def __init__(self, offset: int, error: int | None = None, partition: int = 0) -> None:
        self._offset, self._partition = offset, partition
        self._error = None if error is None else KafkaError(error)

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error


END = KafkaError._PARTITION_EOF


class Broker:
    """A consumer of a topic "t" with these bounds, and what each request brings."""

    def __init__(self) -> None:
        self.topics = {"t"}
        self.bounds: list[tuple[int, int] | int] = [(0, 0)]  # or an error; the last one stays
        self.batches: list[list[Message]] = []
        self.assigned: list[tuple[int, int]] = []

    def get_watermark_offsets(self, _: object, timeout: float) -> tuple[int, int]:  # noqa: ARG002
        found = self.bounds[0] if len(self.bounds) == 1 else self.bounds.pop(0)
        if isinstance(found, int):
            raise KafkaException(KafkaError(found))
        return found

    def list_topics(self, timeout: float) -> Any:  # noqa: ARG002
        return SimpleNamespace(topics=dict.fromkeys(self.topics))

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.assigned += [(one.partition, one.offset) for one in partitions]

    def assign(self, partitions: list[Any]) -> None:
        self.assigned = []
        self.incremental_assign(partitions)

    def consume(self, count: int, timeout: float) -> list[Message]:  # noqa: ARG002
        return self.batches.pop(0) if self.batches else []


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(topic_reader, "new_client", lambda *_: made)
    monkeypatch.setattr(topic_reader, "_STEP_S", 0.0)
    return made


@pytest.fixture
def reader(broker: Broker) -> TopicReader:
    return TopicReader(KafkaConfig(bootstrap_servers="127.0.0.1:1"))


def test_an_end_is_reached_behind_markers_too(broker: Broker, reader: TopicReader) -> None:
    broker.bounds, broker.batches = [(0, 5)], [[Message(0)], [Message(2)], [Message(5, END)], []]
    assert [message.offset() for message in reader.read_to("t", reader.end("t"))] == [0, 2]
    assert reader.positions == {("t", 0): 5}


def test_a_given_range_is_read_from_the_first_record_that_is_left(broker: Broker, reader: TopicReader) -> None:
    broker.bounds, broker.batches = [(4, 9)], [[Message(4, partition=3)], [Message(6, partition=3)]]
    assert [message.offset() for message in reader.read("t", 3, start=2, end=7)] == [4, 6]
    assert broker.assigned == [(3, 4)]


def test_a_topic_that_does_not_exist_is_empty_unless_it_was_read(broker: Broker, reader: TopicReader) -> None:
    broker.topics, broker.bounds = set(), [KafkaError._UNKNOWN_TOPIC]
    assert reader.end("t") == 0
    assert list(reader.read_to("t", 0)) == [] and broker.assigned == []
    with pytest.raises(UnreachableError, match="can't read topic t"):
        list(reader.read("t"))
    reader.follow("t")
    with pytest.raises(UnreachableError, match="can't read topic t"):
        reader.end("t")


def test_a_leader_that_is_not_known_is_waited_for(
    broker: Broker, reader: TopicReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.bounds = [KafkaError.LEADER_NOT_AVAILABLE, KafkaError._UNKNOWN_PARTITION, (0, 3)]
    assert reader.end("t") == 3
    broker.bounds = [KafkaError._UNKNOWN_PARTITION]
    monkeypatch.setattr(topic_reader, "ANSWER_S_MAX", 0.05)
    with pytest.raises(UnreachableError, match="can't read topic t"):
        reader.end("t")


def test_a_refusal_is_not_waited_for(broker: Broker, reader: TopicReader) -> None:
    broker.bounds = [KafkaError.TOPIC_AUTHORIZATION_FAILED, (0, 3)]
    with pytest.raises(BrokerError, match="can't read topic t"):
        reader.end("t")


def test_a_topic_that_ends_before_what_was_read_is_another_one(broker: Broker, reader: TopicReader) -> None:
    broker.bounds, broker.batches = [(0, 3), (0, 1)], [[Message(2)]]
    assert len(list(reader.read_to("t", reader.end("t")))) == 1
    with pytest.raises(BrokerError, match="topic t ends at 1, but was read up to 3"):
        reader.end("t")


@pytest.mark.parametrize(
    ("code", "kind"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerError), (KafkaError.UNKNOWN_TOPIC_OR_PART, UnreachableError)],
)
def test_an_error_comes_after_the_records_before_it(
    broker: Broker, reader: TopicReader, code: int, kind: type[Exception]
) -> None:
    broker.batches = [[Message(0), Message(0, code), Message(1)], [Message(2)]]
    reader.follow("t")
    assert [message.offset() for message in reader.poll(0)] == [0, 1]
    with pytest.raises(kind, match="can't read topic t"):
        reader.poll(0)  # although others go on arriving
    assert [message.offset() for message in reader.poll(0)] == [2]


def test_silence_before_an_end_is_an_error(
    broker: Broker, reader: TopicReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.batches = [[Message(0)]]
    monkeypatch.setattr(topic_reader, "READ_S_MAX", 0.05)
    waited: list[None] = []
    with pytest.raises(UnreachableError, match="topic t could not be read to its end: nothing arrived"):
        list(reader.read_to("t", 9, while_waiting=lambda: waited.append(None)))
    assert waited


def test_what_is_assigned_is_read_and_nothing_else(broker: Broker, reader: TopicReader) -> None:
    reader.follow("t", 2)
    reader.assign({("t", 0): 5, ("t", 1): 7})
    assert broker.assigned == [(0, 5), (1, 7)]
    assert reader.positions == {("t", 0): 5, ("t", 1): 7}
    broker.batches = [[Message(5)], [Message(6), Message(9, END, 1)]]
    assert [message.offset() for message in reader.arrivals(1.0)] == [5, 6]
    assert reader.positions == {("t", 0): 7, ("t", 1): 9}, "markers before an end are passed"
    assert reader.arrivals(0.0) == []


def test_an_offset_that_is_not_there_is_an_error_behind_the_records_before_it(
    broker: Broker, reader: TopicReader
) -> None:
    reader.assign({("t", 0): 5, ("t", 1): 7})
    broker.batches = [[Message(5)], [Message(7, KafkaError._AUTO_OFFSET_RESET, 1)]]
    assert len(reader.arrivals(1.0)) == 1
    with pytest.raises(OutOfRangeError, match="can't read topic t"):
        reader.arrivals(1.0)
    reader.assign({("t", 0): 6, ("t", 1): 0})
    assert reader.arrivals(0.0) == [], "the error is that of the former place"
