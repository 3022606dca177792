"""Answers of brokers that are on their way."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from cdc.kafka.topic_admin import EndOffsets, TopicDescription
from cdc.model.errors import ConnectionLost


def answered(*offsets: int) -> dict[TopicPartition, "Future[Any]"]:
    futures: dict[TopicPartition, Future[Any]] = {}
    for partition, offset in enumerate(offsets):
        future: Future[Any] = Future()
        futures[TopicPartition("t", partition)] = future
        future.set_result(SimpleNamespace(offset=offset))
    return futures


def test_offsets_are_in_the_order_of_partitions() -> None:
    assert EndOffsets(dict(reversed(answered(3, 0, 12).items()))).result() == {"t": (3, 0, 12)}


def test_nothing_is_said_until_all_have_answered() -> None:
    assert EndOffsets(answered(3) | {TopicPartition("t", 1): Future()}).result() is None


def test_a_partition_without_an_offset_is_no_answer() -> None:
    """Seen after the broker was killed: published, it would have told every sink that it had applied all."""
    with pytest.raises(ConnectionLost, match="a partition of t has no leader"):
        EndOffsets(answered(3, OFFSET_INVALID)).result()


def described(topic_id: str, partitions: int) -> "tuple[TopicDescription, Future[Any]]":
    """A topic that had one partition, and the answer that says what it is now."""
    answer: Future[Any] = Future()
    answer.set_result(SimpleNamespace(topic_id=topic_id, partitions=[None] * partitions))
    return TopicDescription("t", "id", 1, "compact"), answer


@pytest.mark.parametrize(("topic_id", "partitions"), [("id", 2), ("another", 1)])
def test_offsets_of_a_topic_that_is_another_now_are_no_answer(topic_id: str, partitions: int) -> None:
    """Seen after partitions were added: progress did not count the new one's records, and a wait was answered early."""
    assert EndOffsets(answered(3), [described("id", 1)]).result() == {"t": (3,)}
    with pytest.raises(ConnectionLost, match="topic t was recreated or repartitioned"):
        EndOffsets(answered(3), [described(topic_id, partitions)]).result()


def test_nothing_is_said_until_the_topic_is_described() -> None:
    then, _ = described("id", 1)
    assert EndOffsets(answered(3), [(then, Future())]).result() is None
