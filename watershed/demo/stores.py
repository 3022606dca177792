"""The three derived stores as an application uses them: queries for sampled rows, and all rows of a table."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from cdc.config.config_file import Config
from cdc.config.stores import CacheConfig, SearchConfig, WarehouseConfig
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from sinks.cache.keys import DOCUMENT_FIELD, CacheKeys
from sinks.cache.sink import CacheSink
from sinks.contract import StoredRow
from sinks.lineage import Lineage
from sinks.reduction import document_id
from sinks.search.names import SearchNames
from sinks.search.server import is_transient
from sinks.search.sink import SearchSink
from sinks.warehouse.catalog import catalog_place
from sinks.warehouse.reader import WarehouseReader
from watershed.demo.workload import CommittedSample

STORES = ("search", "cache", "warehouse")
SCHEMA = "public"
PROBE_TIMEOUT_S = 10

Probe = Callable[[Sequence[CommittedSample]], list[bool]]
"""Returns for each row whether a reader of the store finds it now; False while the store is busy or down."""


def cache_probe(config: Config) -> Probe:
    """Returns a probe that uses HEXISTS on the row's key."""
    section = config.sinks["cache"]
    assert isinstance(section, CacheConfig)
    client = redis.Redis.from_url(section.url.get_secret_value(), socket_timeout=PROBE_TIMEOUT_S)
    keys = CacheKeys(section.key_prefix or config.topics.prefix)

    def probe(samples: Sequence[CommittedSample]) -> list[bool]:
        pipeline: Any = client.pipeline(transaction=False)
        for sample in samples:
            pipeline.hexists(keys.table(TableId(SCHEMA, sample.table)) + document_id(sample.key), DOCUMENT_FIELD)
        try:
            return [bool(found) for found in pipeline.execute()]
        except (redis.ConnectionError, redis.TimeoutError):
            return [False] * len(samples)

    return probe


def search_probe(config: Config) -> Probe:
    """Returns a probe that searches through the readers' alias. Unlike a GET by id, a search only sees refreshed
    documents.
    """
    section = config.sinks["search"]
    assert isinstance(section, SearchConfig)
    client = OpenSearch([section.url.get_secret_value()], timeout=PROBE_TIMEOUT_S)
    names = SearchNames(section.index_prefix or config.topics.prefix)

    def probe(samples: Sequence[CommittedSample]) -> list[bool]:
        ids = [document_id(sample.key) for sample in samples]
        tables = {names.alias(TableId(SCHEMA, sample.table)) for sample in samples}
        try:
            answer: Any = client.search(
                index=",".join(sorted(tables)),
                body={"query": {"ids": {"values": ids}}, "_source": False, "size": len(ids)},
                params={"ignore_unavailable": "true", "allow_no_indices": "true"},
            )
        except TransportError as error:
            if is_transient(error):  # an index that was just created has no shard yet
                return [False] * len(samples)
            raise
        found = {hit["_id"] for hit in answer["hits"]["hits"]}
        return [name in found for name in ids]

    return probe


def stored_rows(store: str, config: Config, lineage: Lineage) -> Iterator[StoredRow]:
    """Yields every live row of a table in a store."""
    schema = lineage.newest
    match config.sinks.get(store):
        case SearchConfig() as section:
            search = SearchSink.open(section, config.topics.prefix)
            try:
                search.prepare(schema, lineage.earlier)
                yield from search.rows(schema.table)
            finally:
                search.close()
        case CacheConfig() as section:
            cache = CacheSink.open(section, config.topics.prefix)
            try:
                cache.prepare(schema, lineage.earlier)
                # SCAN may return a key twice.
                yield from _once(cache.rows(schema.table))
            finally:
                cache.close()
        case WarehouseConfig() as section:
            place = catalog_place(section, config.topics.prefix)
            yield from WarehouseReader(place).rows(schema.table)
        case _:
            raise WatershedError(f"there is no store {store!r}", f"the stores are {', '.join(STORES)}")


def _once(rows: Iterator[StoredRow]) -> Iterator[StoredRow]:
    seen: set[str] = set()
    for row in rows:
        name = document_id(row.key)
        if name not in seen:
            seen.add(name)
            yield row
