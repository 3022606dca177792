"""The version of the last record of some keys, read from a table's topic."""

from collections.abc import Callable, Collection
from typing import Final

import orjson
from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import broker_error, new_client, tail_settings
from cdc.kafka.compacted import read_records
from cdc.model.events import pack_version

ANSWER_S_MAX: Final = 8.0
_VERSION_HEADER: Final = "watershed.version"


def last_versions(
    kafka: KafkaConfig, topic: str, keys: Collection[bytes], plain: Callable[[bytes], bytes]
) -> dict[bytes, int]:
    """Key → version, of those of the keys that the topic has; `plain` makes a record's key one of them. The topic is
    read from its beginning to its end. Raises UnreachableError, BrokerError."""
    consumer = new_client(
        Consumer, tail_settings(kafka, "watershed-reader", **{"auto.offset.reset": "earliest", "fetch.wait.max.ms": 5})
    )
    last: dict[bytes, int] = {}
    try:
        partitions = consumer.list_topics(topic, timeout=ANSWER_S_MAX).topics[topic].partitions
        for partition in partitions:
            for message in read_records(consumer, TopicPartition(topic, partition, 0)):
                key = plain(message.key() or b"")
                if key in keys:
                    last[key] = _version(message.value(), message.headers() or [])
    except KafkaException as exception:
        raise broker_error(f"can't read topic {topic}", exception) from exception
    finally:
        consumer.close()
    return last


def _version(value: bytes | None, headers: object) -> int:
    if value is None:
        assert isinstance(headers, list)
        return int(dict(headers)[_VERSION_HEADER])
    source = orjson.loads(value)["source"]
    return pack_version(source["epoch"], source["seq"])
