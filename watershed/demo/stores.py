"""The three derived stores as an application reads one row in them."""

import json
from typing import Any, Final

import redis
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from cdc.config.config_file import Config
from cdc.config.stores import CacheConfig, SearchConfig
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from sinks.cache.keys import DOCUMENT_FIELD, CacheKeys
from sinks.reduction import document_id
from sinks.registry import open_contents
from sinks.schema_history import SchemaHistory
from sinks.search.names import SearchNames

STORES: Final = ("search", "cache", "warehouse")
SCHEMA: Final = "public"
ORDERS: Final = TableId(SCHEMA, "orders")
TIMEOUT_S: Final = 10


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
