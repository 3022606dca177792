"""Reading a topic of ours to its end; of a compacted one the last value of each key."""

import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import NEXT_REACHABLE, broker_error, new_client, tail_settings
from cdc.kafka.daemon_thread import nobody_waits
from cdc.model.errors import UnreachableError
from cdc.ports.stream import WhileWaiting

ANSWER_S_MAX: Final = 8.0
READ_S_MAX: Final = 60.0  # without anything that comes
_STEP_S: Final = 0.1
_FETCH_COUNT: Final = 5_000


def read_latest(kafka: KafkaConfig, topic: str) -> dict[str, bytes]:
    """Key → last committed value of a topic with one partition, up to the last stable offset at the time of the call:
    what is still open is neither read nor waited for. Nothing for a topic that does not exist. Raises UnreachableError,
    BrokerError.
    """
    # Who waits for nothing has nothing to gain from a broker that waits before it says that this was all.
    settings = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 5}
    consumer = new_client(Consumer, tail_settings(kafka, "watershed-reader", **settings))
    latest: dict[str, bytes] = {}
    try:
        if topic not in consumer.list_topics(timeout=ANSWER_S_MAX).topics:
            return latest
        for message in read_records(consumer, TopicPartition(topic, 0)):
            key, value = (message.key() or b"").decode("utf-8", "replace"), message.value()
            if value is None:
                latest.pop(key, None)
            else:
                latest[key] = value
    except KafkaException as exception:
        raise broker_error(f"can't read topic {topic}", exception) from exception
    finally:
        consumer.close()
    return latest


def read_records(
    consumer: Consumer,
    partition: TopicPartition,
    end: int | None = None,
    while_waiting: WhileWaiting = nobody_waits,
) -> Iterator[Message]:
    """Those of an existing partition from its offset (none: the first one) up to `end` (None: what the consumer's
    isolation level lets it see now). `while_waiting` is called several times a second.

    Raises KafkaException, and UnreachableError when nothing has come for READ_S_MAX.
    """
    low, high = consumer.get_watermark_offsets(partition, timeout=ANSWER_S_MAX)
    start, end = max(low, partition.offset), high if end is None else end
    if end <= start:
        return
    consumer.assign([TopicPartition(partition.topic, partition.partition, start)])
    reached, deadline = start, time.monotonic() + READ_S_MAX
    while time.monotonic() < deadline:
        # Not one call for both: it would wait for the whole of its time, or for as many messages as it may bring.
        first = consumer.poll(_STEP_S)
        for message in [] if first is None else [first, *consumer.consume(_FETCH_COUNT, 0)]:
            error = message.error()
            if error is None:
                yield message
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
        # The consumer's position passes transaction markers, which hold the last offsets of the log.
        position = consumer.position([partition])[0].offset
        if position >= end:
            return
        if position > reached:
            reached, deadline = position, time.monotonic() + READ_S_MAX
        while_waiting()
    raise UnreachableError(
        f"Kafka: nothing came from topic {partition.topic} for {READ_S_MAX:.0f} s, its end was not met", NEXT_REACHABLE
    )
