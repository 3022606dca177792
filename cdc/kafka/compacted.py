"""Reading a compacted topic of ours to its end: the last value of each key."""

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdc.config import KafkaConfig
from cdc.errors import UnreachableError
from cdc.kafka.client import NEXT_REACHABLE, broker_error, new_client, tail_settings

ANSWER_S_MAX = 8.0
READ_S_MAX = 60.0


def read_latest(kafka: KafkaConfig, topic: str, *, is_fenced: bool = False) -> dict[str, bytes]:
    """Key → last committed value of a topic with one partition, up to its end at the time of the call; nothing for a
    topic that does not exist.

    The end is the last stable offset: what is still open is neither read nor waited for. `is_fenced`: the topic's only
    writer is fenced. Then nothing is open for good, and the end is the high watermark: a commit that the brokers have
    decided on and not yet written behind its records is waited for, READ_S_MAX at most. Raises UnreachableError,
    BrokerError.
    """
    # Who waits for nothing has nothing to gain from a broker that waits before it says that this was all.
    settings = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 5}
    consumer = new_client(Consumer, tail_settings(kafka, "watershed-reader", **settings))
    try:
        partition = TopicPartition(topic, 0)
        return _read(consumer, partition, _high_watermark(kafka, partition) if is_fenced else None)
    except KafkaException as exception:
        raise broker_error(f"can't read topic {topic}", exception) from exception
    finally:
        consumer.close()


def _high_watermark(kafka: KafkaConfig, partition: TopicPartition) -> int:
    """0 for a topic that does not exist."""
    settings = tail_settings(kafka, "watershed-reader", **{"isolation.level": "read_uncommitted"})
    consumer = new_client(Consumer, settings)
    try:
        if partition.topic not in consumer.list_topics(timeout=ANSWER_S_MAX).topics:
            return 0
        _, high = consumer.get_watermark_offsets(partition, timeout=ANSWER_S_MAX)
        return high
    finally:
        consumer.close()


def _read(consumer: Consumer, partition: TopicPartition, end: int | None) -> dict[str, bytes]:
    latest: dict[str, bytes] = {}
    if partition.topic not in consumer.list_topics(timeout=ANSWER_S_MAX).topics:
        return latest
    low, high = consumer.get_watermark_offsets(partition, timeout=ANSWER_S_MAX)
    high = max(high, end or 0)
    if high <= low:
        return latest
    consumer.assign([TopicPartition(partition.topic, partition.partition, low)])
    deadline = time.monotonic() + READ_S_MAX
    while time.monotonic() < deadline:
        # Not one call for both: it would wait for the whole of its time, or for as many messages as it may bring.
        first = consumer.poll(0.1)
        for message in [] if first is None else [first, *consumer.consume(5_000, 0)]:
            error = message.error()
            if error is None:
                key, value = message.key(), message.value()
                if value is None:
                    latest.pop(_text(key), None)
                else:
                    latest[_text(key)] = value
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
        # The consumer's position passes transaction markers, which hold the last offsets of the log.
        if consumer.position([partition])[0].offset >= high:
            return latest
    raise UnreachableError(
        f"topic {partition.topic}: another producer's transaction stayed open for {READ_S_MAX:.0f} s",
        NEXT_REACHABLE,
    )


def _text(key: bytes | None) -> str:
    return (key or b"").decode("utf-8", "replace")
