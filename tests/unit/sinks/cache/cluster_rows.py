"""Rows of tables in a cache, for tests of a Redis Cluster."""

from typing import Any

from pydantic import SecretStr

from cdc.config.stores import CacheConfig
from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.cache.sink import CacheSink
from sinks.contract import Change
from sinks.retries import Retries

V = pack_version(1, 100)
QUICK = Retries(attempt_count_max=2, delay_s_first=0.01)
COLUMNS = (Column("id", 20, -1, "bigint", False), Column("email", 25, -1, "text", True))


def schema_of(name: str) -> TableSchema:
    return TableSchema(TableId("public", name), 1, 16_400, COLUMNS, ("id",), "t")


USERS = schema_of("users")


def upsert(key: int, version: int, email: str = "", table: str = "users") -> Change:
    return Change(TableId("public", table), {"id": key}, version, {"id": key, "email": email}, 1)


def config(url: str, **section: Any) -> CacheConfig:
    return CacheConfig(url=SecretStr(url), **section)


def opened(url: str, prefix: str, retries: Retries = QUICK, **section: Any) -> CacheSink:
    """With generation 1 and the table of users."""
    sink = CacheSink.open(config(url, **section), prefix, retries)
    sink.begin_generation(1)
    sink.prepare(USERS)
    return sink


def rows(sink: CacheSink) -> dict[Any, Any]:
    return {row.key["id"]: row.row["email"] for row in sink.rows(USERS.table)}
