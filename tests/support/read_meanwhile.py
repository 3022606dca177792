"""Readers of a store, while the source is written: no row may be missing, stale or deleted too late at any moment.

The table is `counters (id int PRIMARY KEY, n bigint, note text)`. One thread writes random rows: it numbers all writes,
and `n` of a row is the number of its last write. For each sink one thread waits, with a `Waiter`, until the store
shows everything that was committed, and notes the number. Other threads read random rows through the name that readers
use: what they find is the row's last write before that number, or a later one.
"""

import json
import random
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, LiteralString, Self

import psycopg
import redis
from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError, TransportError

from cdc.model.events import TableId
from sinks.warehouse.catalog import CatalogPlace
from watershed import Waiter

TABLE: Final = "public.counters"
SCHEMA: LiteralString = "CREATE TABLE counters (id int PRIMARY KEY, n bigint NOT NULL DEFAULT 0, note text);"
FILL: LiteralString = "INSERT INTO counters SELECT n, 0, 'note ' || n FROM generate_series(1, %s) AS n"
WAIT_S_MAX: Final = 180.0  # a job that was killed starts again meanwhile
READ_PAUSE_S: Final = 0.01  # the machine has other work to do
WRITE_PAUSE_S: Final = 0.02
DELETED_PART: Final = 0.1
RECENT: Final = 500  # of the rows that were written last, every second read takes one

ReadRow = Callable[[int], dict[str, Any] | None]


class BusyStore(Exception):  # noqa: N818
    """The store has no resources for the request now, and said so: nothing was read."""


@contextmanager
def _busy_is_reported() -> Iterator[None]:
    try:
        yield
    except TransportError as error:
        if error.status_code == 429:  # its heap is full
            raise BusyStore from error
        raise


def search_reader(url: str, prefix: str) -> ReadRow:
    """By GET through the alias, which needs no refresh."""
    client = OpenSearch(url, timeout=60)

    def read(key: int) -> dict[str, Any] | None:
        try:
            with _busy_is_reported():
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
        with _busy_is_reported():
            hits = client.search(index=f"{prefix}.{TABLE}", body=body)["hits"]["hits"]
        return hits[0]["_source"] if len(hits) == 1 else None

    return read


def cache_reader(url: str, prefix: str) -> ReadRow:
    client = redis.Redis.from_url(url)

    def read(key: int) -> dict[str, Any] | None:
        text: Any = client.hget(f"{prefix}:{TABLE}:{key}", "doc")
        return None if text is None else dict(json.loads(text))

    return read


def sql_reader(dsn: str) -> ReadRow:
    """By the name of the table."""
    connection = psycopg.connect(dsn, autocommit=True)

    def read(key: int) -> dict[str, Any] | None:
        found = connection.execute("SELECT n FROM public.counters WHERE id = %s", (key,)).fetchone()
        return None if found is None else {"n": found[0]}

    return read


def warehouse_reader(where: CatalogPlace) -> ReadRow:
    """By the name of the table in the catalog, which is opened for each row."""
    name = where.place(TableId("public", "counters")).rows

    def read(key: int) -> dict[str, Any] | None:
        with where.opened() as catalog:
            found = catalog.load_table(name).scan(row_filter=f"id = {key}", selected_fields=("n",)).to_arrow()
        return None if not found.num_rows else {"n": found.column("n")[0].as_py()}

    return read


class Writes:
    """All writes to the table by number: which row, and whether it was there afterwards. The first state of each row
    has number 0."""

    def __init__(self) -> None:
        self.committed = 0  # the number of the last write that is committed
        self._numbers: dict[int, list[int]] = {}
        self._are_there: dict[int, list[bool]] = {}
        self.recent: list[int] = []

    def note(self, number: int, key: int, *, is_there: bool) -> None:
        """Before it commits: the store may show it right afterwards. One thread calls this."""
        self._are_there.setdefault(key, [True]).append(is_there)  # first, since readers look at the numbers
        self._numbers.setdefault(key, [0]).append(number)

    def complaint(self, key: int, row: Mapping[str, Any] | None, shown: int) -> str | None:
        """Returns the error of a row that was read after all writes up to the number `shown` were visible."""
        numbers = list(self._numbers.get(key, (0,)))
        states = list(zip(numbers, self._are_there.get(key, (True,)), strict=False))
        allowed = states[bisect_right(numbers, shown) - 1 :]
        if row is None:
            return None if any(not is_there for _, is_there in allowed) else f"row {key} is missing: {allowed}"
        if (row["n"], True) in allowed:
            return None
        return f"row {key} is {row['n']}, and since write {shown} it could be: {allowed}"


class ReadMeanwhile:
    """Writes and reads while it is entered; `complaints` has what was wrong."""

    def __init__(
        self,
        dsn: str,
        config: Path,
        rows: int,
        readers: Mapping[str, Sequence[ReadRow]],
        per_s: float,
        writes: Writes,
    ) -> None:
        """`readers`: sink → ways to read. `writes`: all those before, to which this one adds."""
        self._dsn = dsn
        self._config = config
        self._rows = rows
        self._each = max(1, round(per_s * WRITE_PAUSE_S))
        self._pause_s = self._each / per_s
        self._ended = threading.Event()
        self._failures: list[Exception] = []
        self._writes = writes
        self._first = writes.committed
        self._shown = dict.fromkeys(readers, 0)  # sink → the number of the last write that a wait has covered
        self.complaints: list[str] = []
        self.reads, self.waits, self.busy = (dict.fromkeys(readers, 0) for _ in range(3))
        self.slowest_read_s, self.slowest_wait_s = dict.fromkeys(readers, 0.0), dict.fromkeys(readers, 0.0)
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

    @property
    def written(self) -> int:
        return self._writes.committed - self._first

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again by whoever leaves
            self._failures.append(error)

    def _write(self) -> None:
        number = self._writes.committed
        chance, due = random.Random(number), time.monotonic()
        with psycopg.connect(self._dsn) as connection:
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                due += self._pause_s
                keys = chance.sample(range(1, self._rows + 1), self._each)
                written: list[tuple[int, int]] = []
                deleted: list[int] = []
                for key in keys:
                    number += 1
                    is_there = chance.random() >= DELETED_PART
                    self._writes.note(number, key, is_there=is_there)
                    if is_there:
                        written.append((key, number))
                    else:
                        deleted.append(key)
                connection.execute(
                    "INSERT INTO counters (id, n) SELECT * FROM unnest(%s::int[], %s::bigint[]) "
                    "ON CONFLICT (id) DO UPDATE SET n = excluded.n",
                    ([key for key, _ in written], [n for _, n in written]),
                )
                connection.execute("DELETE FROM counters WHERE id = ANY(%s)", (deleted,))
                connection.commit()
                self._writes.committed = number
                self._writes.recent = [*self._writes.recent, *keys][-RECENT:]

    def _read(self, sink: str, read: ReadRow) -> None:
        chance = random.Random(8)
        while not self._ended.wait(READ_PAUSE_S):
            recent = self._writes.recent
            key = chance.choice(recent) if recent and chance.random() < 0.5 else chance.randint(1, self._rows)
            shown, began = self._shown[sink], time.monotonic()
            try:
                row = read(key)
            except BusyStore:
                self.busy[sink] += 1
                continue
            self.slowest_read_s[sink] = max(self.slowest_read_s[sink], time.monotonic() - began)
            self.reads[sink] += 1
            complaint = self._writes.complaint(key, row, shown)
            if complaint is not None:
                self.complaints.append(f"{sink}: {complaint}")

    def _wait(self, sink: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection, Waiter(self._config) as waiter:
            while not self._ended.wait(READ_PAUSE_S):
                committed = self._writes.committed
                place = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                assert place is not None
                began = time.monotonic()
                waiter.wait_for(sink, place[0], WAIT_S_MAX)
                self.slowest_wait_s[sink] = max(self.slowest_wait_s[sink], time.monotonic() - began)
                self._shown[sink] = committed
                self.waits[sink] += 1
