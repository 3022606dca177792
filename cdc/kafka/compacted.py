"""Reads a topic to its present end: its records, or the last value of each key."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import ANSWER_S_MAX, NEXT_REACHABLE, new_client, tail_settings, translated
from cdc.kafka.daemon_thread import do_nothing
from cdc.model.errors import UnreachableError
from cdc.ports.stream import WhileWaiting

READ_S_MAX: Final = 60.0  # seconds without a record
_STEP_S: Final = 0.1
_FETCH_COUNT: Final = 5_000


def read_latest(kafka: KafkaConfig, topic: str) -> dict[str, bytes]:
    """Returns key → last committed value of a topic with one partition, up to the last stable offset at the time of the
    call: open transactions are neither read nor waited for. Empty for a topic that does not exist.

    Raises UnreachableError, BrokerError.
    """
    latest: dict[str, bytes] = {}
    with reader(kafka, f"can't read topic {topic}") as consumer:
        if topic not in consumer.list_topics(timeout=ANSWER_S_MAX).topics:
            return latest
        for message in read_records(consumer, TopicPartition(topic, 0)):
            key, value = (message.key() or b"").decode("utf-8", "replace"), message.value()
            if value is None:
                latest.pop(key, None)
            else:
                latest[key] = value
    return latest


@contextmanager
def reader(kafka: KafkaConfig, what: str, **settings: Any) -> Iterator[Consumer]:
    """Opens a consumer for `read_records`. `what`: what can't be done, for errors. Raises UnreachableError,
    BrokerError."""
    # The broker must not wait for more records before it answers.
    ours = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 5}
    consumer = new_client(Consumer, tail_settings(kafka, "watershed-reader", **ours | settings))
    with translated(what), closing(consumer):
        yield consumer


def read_records(
    consumer: Consumer,
    partition: TopicPartition,
    end: int | None = None,
    while_waiting: WhileWaiting = do_nothing,
) -> Iterator[Message]:
    """Yields the records of an existing partition from its offset (none: the first one) to `end` (None: what the
    consumer's isolation level shows now). Calls `while_waiting` several times a second.

    Raises KafkaException, and UnreachableError if nothing arrives for READ_S_MAX.
    """
    low, high = consumer.get_watermark_offsets(partition, timeout=ANSWER_S_MAX)
    start, end = max(low, partition.offset), high if end is None else end
    if end <= start:
        return
    consumer.assign([TopicPartition(partition.topic, partition.partition, start)])
    reached, deadline = start, time.monotonic() + READ_S_MAX
    while time.monotonic() < deadline:
        # One call for both would wait for its whole timeout, or for the maximum number of messages.
        first = consumer.poll(_STEP_S)
        for message in [] if first is None else [first, *consumer.consume(_FETCH_COUNT, 0)]:
            error = message.error()
            if error is None:
                yield message
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
        # The position counts transaction markers, which may have the last offsets of the log.
        position = consumer.position([partition])[0].offset
        if position >= end:
            return
        if position > reached:
            reached, deadline = position, time.monotonic() + READ_S_MAX
        while_waiting()
    raise UnreachableError(
        f"Kafka: topic {partition.topic} could not be read to its end: nothing arrived for {READ_S_MAX:.0f} s",
        NEXT_REACHABLE,
    )
