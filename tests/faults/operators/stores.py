"""The stores as their readers see them, and older copies of them."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

import psycopg
import redis as redis_client
from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError, OpenSearchException
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.faults.operators.source import TABLES, Values
from tests.support.waiting import eventually

Copy = Any
# Of one prefix, as the server stood at one moment, like a replica or a dump: rows and the position that was noted
# behind them belong together.
COPY_KEYS: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  found[#found + 1] = key
  found[#found + 1] = redis.call('DUMP', key)
end
return found
"""
RESTORE_KEYS: Final = """
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end
for at = 2, #ARGV, 2 do
  redis.call('RESTORE', ARGV[at], 0, ARGV[at + 1])
  -- A replica that took over, or a server that loaded a dump, is another process than the one to which the job bound
  -- the generation. Without this, what is lost between two notes could not be noticed by anybody.
  if string.sub(ARGV[at], -10) == ':watershed' then redis.call('HSET', ARGV[at], 'run_id', 'of another server') end
end
"""
ROWS_MAX: Final = 1000


class Store(Protocol):
    """What the campaign does with a store."""

    def rows(self, table: str) -> Values: ...
    def copied(self) -> Copy: ...
    def restore(self, copy: Copy) -> None: ...
    def empty(self) -> None: ...


class Cache:
    """Redis, with the keys of one prefix."""

    def __init__(self, url: str, prefix: str) -> None:
        self._client = redis_client.Redis.from_url(url)
        self._prefix = prefix
        self._pattern = f"{prefix}:*"

    def rows(self, table: str) -> Values:
        beginning = f"{self._prefix}:public.{table}:".encode()
        found: Values = {}
        for key in self._client.scan_iter(beginning + b"*", count=1000):
            document: Any = self._client.hget(key, "doc") if key != beginning else None
            if document is not None:
                row = json.loads(document)
                found[int(row["id"])] = row["v"]
        return found

    def copied(self) -> Copy:
        return self._client.eval(COPY_KEYS, 0, self._pattern)

    def restore(self, copy: Copy) -> None:
        self._client.eval(RESTORE_KEYS, 0, self._pattern, *copy)

    def empty(self) -> None:
        self.restore([])


class Search:
    """OpenSearch, with the indexes of one prefix. A copy of an index is another index, so for the sink a restored one
    is like one that was deleted."""

    def __init__(self, url: str, prefix: str) -> None:
        self._client = OpenSearch([url], timeout=30, max_retries=0)
        self._prefix = prefix

    def rows(self, table: str) -> Values:
        """As a search finds them; the alias may not exist yet, or the index not be ready."""
        found: Values = {}
        with suppress(NotFoundError):
            answer = self._client.search(index=f"{self._prefix}.public.{table}", body={"size": ROWS_MAX})
            if answer["_shards"]["failed"]:
                raise ConnectionError(f"not all of {table} was searched")
            for hit in answer["hits"]["hits"]:
                found[int(hit["_source"]["id"])] = hit["_source"].get("v")
        return found

    def copied(self) -> Copy:
        return None

    def restore(self, copy: Copy) -> None:  # noqa: ARG002 - see above
        self._delete(f"{self._prefix}.public.{TABLES[0]}.documents*")

    def empty(self) -> None:
        self._delete(f"{self._prefix}.*")

    def close(self) -> None:
        self.empty()
        self._client.close()

    def _delete(self, pattern: str) -> None:
        try:
            names = [*self._client.indices.get(index=pattern, params={"ignore_unavailable": "true"})]
            if names:
                self._client.indices.delete(index=",".join(names), params={"ignore_unavailable": "true"})
        except OpenSearchException as error:
            raise ConnectionError(str(error)) from error


class Mirror:
    """A database of PostgreSQL. It is copied and restored as a whole, which ends its connections."""

    def __init__(self, superuser_dsn: str, dsn: str) -> None:
        self._server = superuser_dsn
        self._name = str(conninfo_to_dict(dsn)["dbname"])
        self._owner = str(conninfo_to_dict(dsn)["user"])
        self._dsn = make_conninfo(superuser_dsn, dbname=self._name)
        self._copies = 0

    def rows(self, table: str) -> Values:
        """The table may not exist yet, or may be restored at this moment."""
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                found = connection.execute(sql.SQL("SELECT id, v FROM public.{}").format(sql.Identifier(table)))
                return dict(found.fetchall())
        except psycopg.errors.UndefinedTable:
            return {}

    def copied(self) -> Copy:
        self._copies += 1
        name = f"{self._name}_copy{self._copies}"
        self._made(name, self._name)
        return name

    def restore(self, copy: Copy) -> None:
        self._drop(self._name)
        self._made(self._name, copy)

    def empty(self) -> None:
        self._drop(self._name)
        self._made(self._name, "template1")

    def close(self) -> None:
        for number in range(1, self._copies + 1):
            self._drop(f"{self._name}_copy{number}")

    def _made(self, name: str, template: str) -> None:
        """Connections to the template, which would be in the way, are ended."""

        def is_made() -> bool:
            with psycopg.connect(self._server, autocommit=True) as connection:
                try:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [template]
                    )
                    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {}")
                    connection.execute(statement.format(*map(sql.Identifier, (name, template, self._owner))))
                except psycopg.errors.ObjectInUse:
                    return False
            return True

        eventually(is_made, 30.0, f"database {name} is made of {template}")

    def _drop(self, name: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def differences(rows: Callable[[str], Values], source: dict[str, Values]) -> list[str]:
    """Compares all tables of a store (`rows`) with the source at rest."""
    found = []
    for table in source:
        shown = rows(table)
        keys = sorted(key for key in source[table].keys() | shown.keys() if source[table].get(key) != shown.get(key))
        if keys:
            of = {key: (source[table].get(key), shown.get(key)) for key in keys[:3]}
            found.append(f"{table}: {len(keys)} rows differ, such as {of} (source, store)")
    return found


__all__ = ["TABLES", "Cache", "Mirror", "Search", "Store", "differences"]
