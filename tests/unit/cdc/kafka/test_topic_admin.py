"""Answers of brokers that are on their way."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from cdc.kafka.topic_admin import EndOffsets
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
