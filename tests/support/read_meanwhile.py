"""Readers of a store, while the source is written: no row may be missing, go back, or lag behind what was waited for.

The table is `counters (id int PRIMARY KEY, n bigint, note text)`. One thread increments `n` of random rows; one reads
rows through the name that readers use; one waits for an LSN with `cdc.client` and then reads the row that it wrote.
"""

import json
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg
import redis
from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError

from cdc.client import Waiter

TABLE: Final = "public.counters"
SCHEMA: Final = "CREATE TABLE counters (id int PRIMARY KEY, n bigint NOT NULL DEFAULT 0, note text);"
WAIT_S_MAX: Final = 60.0
READ_PAUSE_S: Final = 0.01

ReadRow = Callable[[int], dict[str, Any] | None]


def search_reader(url: str, prefix: str) -> ReadRow:
    """By GET through the alias, which needs no refresh."""
    client = OpenSearch(url, timeout=60)

    def read(key: int) -> dict[str, Any] | None:
        try:
            row: dict[str, Any] = client.get_source(index=f"{prefix}.{TABLE}", id=str(key))
        except NotFoundError:
            return None
        return None if row["ws_deleted"] else row

    return read


def search_finder(url: str, prefix: str) -> ReadRow:
    """By a search through the alias, which shows what was refreshed."""
    client = OpenSearch(url, timeout=60)

    def read(key: int) -> dict[str, Any] | None:
        body = {"query": {"ids": {"values": [str(key)]}}}
        hits = client.search(index=f"{prefix}.{TABLE}", body=body)["hits"]["hits"]
        return hits[0]["_source"] if len(hits) == 1 else None

    return read


def cache_reader(url: str, prefix: str) -> ReadRow:
    client = redis.Redis.from_url(url)

    def read(key: int) -> dict[str, Any] | None:
        text: Any = client.hget(f"{prefix}:{TABLE}:{key}", "doc")
        return None if text is None else dict(json.loads(text))

    return read


class ReadMeanwhile:
    """Writes and reads while it is entered; `complaints` has what was wrong."""

    def __init__(self, dsn: str, config: Path, rows: int, readers: dict[str, list[ReadRow]], per_s: float) -> None:
        """`readers`: sink → ways to read; the last one is that of those who wait."""
        self._dsn = dsn
        self._config = config
        self._rows = rows
        self._readers = readers
        self._pause_s = 1 / per_s
        self._ended = threading.Event()
        self._failures: list[Exception] = []
        self.complaints: list[str] = []
        self.written = self.read = self.waited = 0
        targets: list[Callable[[], None]] = [self._write, *(partial(self._wait, sink) for sink in readers)]
        targets += [partial(self._read, sink, read) for sink in readers for read in readers[sink]]
        self._threads = [threading.Thread(target=self._guarded, args=(target,), daemon=True) for target in targets]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(WAIT_S_MAX + 5)
        if self._failures and error is None:
            raise self._failures[0]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again by whoever leaves
            self._failures.append(error)

    def _write(self) -> None:
        chance, due = random.Random(7), time.monotonic()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                due += self._pause_s
                key = chance.randrange(1, self._rows)
                connection.execute("UPDATE counters SET n = n + 1 WHERE id = %s", (key,))
                self.written += 1

    def _read(self, sink: str, read: ReadRow) -> None:
        chance, seen = random.Random(8), dict[int, int]()
        while not self._ended.wait(READ_PAUSE_S):  # the machine has other work to do
            key = chance.randrange(1, min(50, self._rows))  # often the same, to see one go back
            row = read(key)
            self.read += 1
            if row is None:
                self.complaints.append(f"{sink}: row {key} is missing")
            elif row["n"] < seen.get(key, 0):
                self.complaints.append(f"{sink}: row {key} went back from {seen[key]} to {row['n']}")
            else:
                seen[key] = row["n"]

    def _wait(self, sink: str) -> None:
        """Of a row that nobody else writes."""
        read = self._readers[sink][-1]
        key = -1 - sorted(self._readers).index(sink)
        with psycopg.connect(self._dsn, autocommit=True) as connection, Waiter(self._config) as waiter:
            connection.execute("INSERT INTO counters VALUES (%s, 0) ON CONFLICT DO NOTHING", (key,))
            while not self._ended.is_set():
                found = connection.execute("UPDATE counters SET n = n + 1 WHERE id = %s RETURNING n", (key,)).fetchone()
                place = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                assert found is not None and place is not None
                waiter.wait_for(sink, place[0], WAIT_S_MAX)
                row = read(key)
                self.waited += 1
                if row is None or row["n"] != found[0]:
                    self.complaints.append(f"{sink}: {row} was read after a wait for n = {found[0]}")
