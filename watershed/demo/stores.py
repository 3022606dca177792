"""The topics and the three derived stores as an application reads them: a topic from its beginning, in a store one
row.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import redis
from confluent_kafka import Message
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from cdc.config.config_file import Config
from cdc.config.settings import KafkaConfig
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


class TopicTail:
    """A plain consumer of one topic, from its beginning on. It commits nothing. For one thread."""

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        self._topic = topic
        self._reader = TopicReader(kafka, name="watershed-demo")
        self._partitions: list[int] = []  # empty while the topic does not exist
        self.close = self._reader.close

    def read(self) -> Iterator[Message]:
        """Yields every record up to the present end that was not read before. Raises WatershedError."""
        if not self._partitions and self._topic in self._reader.topics():
            self._partitions = self._reader.partitions(self._topic)
        for partition in self._partitions:
            yield from self._reader.read_to(self._topic, self._reader.end(self._topic, partition), partition)


def cache_client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, decode_responses=True)


def order_key(config: Config, number: int) -> str:
    """Returns the key of an order in the cache."""
    return CacheKeys(config.topics.prefix).table(ORDERS) + document_id({"id": number})


def cached_order(client: redis.Redis, key: str) -> Any:
    """Returns the order; None where there is none, or the server is busy or down."""
    try:
        found: Any = client.hget(key, DOCUMENT_FIELD)
    except (redis.ConnectionError, redis.TimeoutError):
        return None
    return None if found is None else json.loads(found)


def search_client(url: str) -> OpenSearch:
    return OpenSearch([url], timeout=TIMEOUT_S)


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
