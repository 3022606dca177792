"""The naive application's cache and the one that is kept from the log, side by side."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
import redis

from cdc.config.config_file import Config
from cdc.config.stores import CacheConfig
from cdc.model.events import TableId
from sinks.cache.keys import DOCUMENT_FIELD, CacheKeys
from sinks.reduction import document_id
from watershed.demo.naive import CUSTOMER, HASH


class SideBySide(NamedTuple):
    """The orders of the naive application in its own cache, and in the one that is kept from the log."""

    orders: int
    naive: int  # that differ in the hash which the application writes
    kept: int  # that differ in the cache which Watershed keeps


def side_by_side(config: Config, dsn: str) -> SideBySide:
    """Compares both caches with the rows. The application has ended, and the sink has applied everything."""
    section = config.sinks["cache"]
    assert isinstance(section, CacheConfig), "the demo has a cache"
    prefix = CacheKeys(section.key_prefix or config.topics.prefix).table(TableId("public", "orders"))
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT id, note FROM orders WHERE customer_id = %s", (CUSTOMER,)).fetchall()
    with redis.Redis.from_url(section.url.get_secret_value(), decode_responses=True) as client:
        naive: Any = client.hgetall(HASH)
        pipeline: Any = client.pipeline(transaction=False)
        for number, _ in found:
            pipeline.hget(prefix + document_id({"id": number}), DOCUMENT_FIELD)
        kept = pipeline.execute()
    return counted(found, naive, kept)


def counted(found: Sequence[tuple[int, str]], naive: Mapping[str, str], kept: Sequence[str | None]) -> SideBySide:
    """`found`: number and note of each order in the database; `naive`: notes by number; `kept`: the documents."""
    wrong = sum(naive.get(str(number)) != note for number, note in found)
    lost = sum(text is None or json.loads(text)["note"] != note for (_, note), text in zip(found, kept, strict=True))
    return SideBySide(len(found), wrong, lost)
