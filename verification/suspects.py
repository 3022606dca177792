"""The keys of rows that differed in the first comparison, in a temporary file, because there may be as many as rows."""

import sqlite3
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

CACHE_KIB: Final = 4 * 1024
PAGE_KEYS: Final = 2_000


class Suspects:
    """A set of record keys; a context manager."""

    def __init__(self) -> None:
        # An empty name opens SQLite's private temporary file, which is deleted with the connection.
        self._file = sqlite3.connect("", isolation_level=None)
        self._file.execute(f"pragma cache_size = -{CACHE_KIB}")
        self._file.execute("pragma journal_mode = off")
        self._file.execute("create table suspects (key blob primary key) without rowid")

    def add(self, key: bytes) -> None:
        self._file.execute("insert or ignore into suspects values (?)", (key,))

    def __len__(self) -> int:
        return int(self._file.execute("select count(*) from suspects").fetchone()[0])

    def pages(self) -> Iterator[list[bytes]]:
        """Yields all keys in order, some hundreds at a time."""
        last = b""
        while True:
            query = "select key from suspects where key > ? order by key limit ?"
            page = [key for (key,) in self._file.execute(query, (last, PAGE_KEYS))]
            if not page:
                return
            yield page
            last = page[-1]

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
