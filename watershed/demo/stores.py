"""The topics and the three derived stores as an application reads them: a topic from its beginning, in a store one
row.
"""

import json
import time
from collections.abc import Iterator
from typing import Any, Final

import redis
from confluent_kafka import Message
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from cdc.config.config_file import Config
from cdc.config.settings import KafkaConfig
from cdc.config.stores import CacheConfig, SearchConfig
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from sinks.cache.keys import DOCUMENT_FIELD, CacheKeys
from sinks.reduction import document_id
from sinks.registry import open_contents
from sinks.schema_history import SchemaHistory
from sinks.search.names import SearchNames

STORES: Final = ("search", "cache", "warehouse")
ORDERS: Final = TableId("public", "orders")
TIMEOUT_S: Final = 10
RECORDS_MAX: Final = 1_000  # of one read


class TopicTail:
    """A plain consumer of one topic. It commits nothing. For one thread; methods raise WatershedError."""

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic
        self._reader = TopicReader(kafka, name="watershed-demo")
        self._partitions: list[int] = []  # empty while the topic does not exist

    def read(self, wait_s: float) -> list[Message]:
        """Returns records that arrive within this time; none while the topic does not exist."""
        if self._exists():
            return self._reader.poll(wait_s, RECORDS_MAX)
        time.sleep(wait_s)
        return []

    def read_to_end(self) -> Iterator[Message]:
        """Yields every record up to the present end that was not read before."""
        if self._exists():
            for partition in self._partitions:
                yield from self._reader.read_to(self._topic, self._reader.end(self._topic, partition), partition)

    def start_over(self) -> None:
        """Reads from the beginning again, as after a crash in which a consumer loses its offsets."""
        self.close()
        self._reader, self._partitions = TopicReader(self._kafka, name="watershed-demo"), []

    def close(self) -> None:
        self._reader.close()

    def _exists(self) -> bool:
        if not self._partitions and self._topic in self._reader.topics():
            self._partitions = self._reader.partitions(self._topic)
            for partition in self._partitions:
                self._reader.follow(self._topic, partition)
        return bool(self._partitions)


def redis_url(config: Config) -> str:
    section = config.sinks["cache"]
    assert isinstance(section, CacheConfig), "the demo has a cache"
    return section.url.get_secret_value()


def cache_client(config: Config) -> "redis.Redis":
    return redis.Redis.from_url(redis_url(config), socket_timeout=TIMEOUT_S, decode_responses=True)


def order_key(config: Config, number: int) -> str:
    """Returns the key of an order in the cache."""
    return CacheKeys(config.topics.prefix).table(ORDERS) + document_id({"id": number})


def cached_order(client: "redis.Redis", key: str) -> Any:
    """Returns the order; None where there is none, or the server is busy or down."""
    try:
        found: Any = client.hget(key, DOCUMENT_FIELD)
    except (redis.ConnectionError, redis.TimeoutError):
        return None
    return None if found is None else json.loads(found)


def search_section(config: Config) -> SearchConfig:
    section = config.sinks["search"]
    assert isinstance(section, SearchConfig), "the demo has a search index"
    return section


def search_client(section: SearchConfig) -> OpenSearch:
    return OpenSearch([section.url.get_secret_value()], timeout=TIMEOUT_S)


def orders_alias(config: Config) -> str:
    return SearchNames(config.topics.prefix).alias(ORDERS)


def searched_order(client: OpenSearch, alias: str, number: int) -> Any:
    """Returns an order's document; None where there is none, or the index is busy or down. Unlike a GET by id, a search
    only sees refreshed documents.
    """
    query = {"query": {"ids": {"values": [document_id({"id": number})]}}}
    try:
        hits = client.search(index=alias, body=query, params={"ignore_unavailable": "true"})["hits"]["hits"]
    except TransportError:
        return None
    return hits[0]["_source"] if hits and "id" in hits[0]["_source"] else None


def warehouse_order(config: Config, orders: SchemaHistory, number: int) -> Any:
    """Returns an order's row; None where there is none, or its files were just replaced."""
    try:
        contents = open_contents("warehouse", config.sinks["warehouse"], config.topics.prefix)
        contents.attach(orders.newest)
        (held,) = contents.held(ORDERS, [{"id": number}])
    except (WatershedError, OSError):
        return None
    return None if held is None else held.row
