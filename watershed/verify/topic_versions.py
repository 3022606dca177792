"""Reads the versions of given keys from a topic."""

from collections.abc import Callable, Collection

import orjson

from cdc.config.settings import KafkaConfig
from cdc.kafka.record_decoding import record_reader
from cdc.kafka.topic_reader import open_reader
from cdc.model.events import VERSION_HEADER, pack_version


def last_versions(
    kafka: KafkaConfig, topic: str, keys: Collection[bytes], plain: Callable[[bytes], bytes]
) -> dict[bytes, int]:
    """Key → version, of those of the keys that the topic has; `plain` makes a record's key one of them. The topic is
    read from its beginning to its end. Raises UnreachableError, BrokerError."""
    last: dict[bytes, int] = {}
    json_of = record_reader(kafka).plain
    with open_reader(kafka) as reader:
        for partition in reader.partitions(topic):
            for message in reader.read(topic, partition):
                key = plain(json_of(message.key()) or b"")
                version = version_of(json_of(message.value()), message.headers() or []) if key in keys else None
                if version is not None:
                    last[key] = version
    return last


def version_of(value: bytes | None, headers: object) -> int | None:
    """Returns the version that a record has; None for a record of another program."""
    try:
        if value is None:
            assert isinstance(headers, list)
            return int(dict(headers)[VERSION_HEADER])
        source = orjson.loads(value)["source"]
        return pack_version(source["epoch"], source["seq"])
    except (ValueError, KeyError, TypeError):
        return None
