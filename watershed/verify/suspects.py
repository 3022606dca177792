"""The keys of rows that differed in the first comparison, and what the last readings of both sides have shown of them:
in a temporary file, because there may be as many as rows.
"""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from sinks.contents import StoredEntry
from watershed.verify.source_rows import SourceRow

CACHE_KIB: Final = 4 * 1024
PAGE_KEYS: Final = 2_000
PAGE_BYTES: Final = 16 * 1024 * 1024  # of the source's rows


class Suspect(NamedTuple):
    """The last readings of one key."""

    key: bytes
    version: int | None  # in the store; None: no entry
    has_wrong_lookups: bool  # in the store
    row: SourceRow | None  # in the source
    again: int  # readings of the source that have shown the same tuple as the one before them


class Suspects:
    """A set of record keys; a context manager."""

    def __init__(self) -> None:
        # An empty name opens SQLite's private temporary file, which is deleted with the connection.
        self._file = sqlite3.connect("", isolation_level=None)
        self._file.execute(f"pragma cache_size = -{CACHE_KIB}")
        self._file.execute("pragma journal_mode = off")
        self._file.execute(
            "create table suspects (key blob primary key, version integer, wrong_lookups integer not null default 0, "
            "xmin text, texts text, again integer not null default 0) without rowid"
        )

    def add(self, key: bytes) -> None:
        self._file.execute("insert or ignore into suspects (key) values (?)", (key,))

    def remove(self, keys: Collection[bytes]) -> None:
        self._many("delete from suspects where key = ?", [(key,) for key in keys])

    def __len__(self) -> int:
        return int(self._file.execute("select count(*) from suspects").fetchone()[0])

    def pages(self) -> Iterator[list[bytes]]:
        """Yields all keys in order, some hundreds at a time. Keys of a page may be removed meanwhile."""
        last = b""
        while True:
            query = "select key from suspects where key > ? order by key limit ?"
            page = [key for (key,) in self._file.execute(query, (last, PAGE_KEYS))]
            if not page:
                return
            yield page
            last = page[-1]

    def readings(self) -> Iterator[list[Suspect]]:
        """Yields all suspects in order of their keys, some hundreds at a time: fewer if their rows are large. Suspects
        of a page may be removed meanwhile."""
        last = b""
        while page := self._page(last):
            yield page
            last = page[-1].key

    def note_store(self, found: Mapping[bytes, StoredEntry | None]) -> None:
        """Sets what the store has of these keys."""
        rows = [
            (None, False, key) if held is None else (held.version, bool(held.lookups), key)
            for key, held in found.items()
        ]
        self._many("update suspects set version = ?, wrong_lookups = ? where key = ?", rows)

    def note_source(self, keys: Collection[bytes], found: Mapping[bytes, SourceRow]) -> None:
        """Sets what the source has of these keys."""
        rows: list[tuple[str | None, str | None, str | None, bytes]] = []
        for key in keys:
            row = found.get(key)
            rows.append((None, None, None, key) if row is None else (row.xmin, row.xmin, json.dumps(row.texts), key))
        self._many(
            "update suspects set again = case when xmin = ? then again + 1 else 0 end, xmin = ?, texts = ? "
            "where key = ?",
            rows,
        )

    def close(self) -> None:
        self._file.close()

    def _page(self, after: bytes) -> list[Suspect]:
        query = (
            "select key, version, wrong_lookups, xmin, texts, again from suspects where key > ? order by key limit ?"
        )
        page: list[Suspect] = []
        size = 0
        cursor = self._file.execute(query, (after, PAGE_KEYS))
        for key, version, wrong_lookups, xmin, texts, again in cursor:
            row = None if xmin is None else SourceRow(xmin, tuple(json.loads(texts)))
            page.append(Suspect(key, version, bool(wrong_lookups), row, again))
            size += len(texts or "")
            if size > PAGE_BYTES:
                break
        cursor.close()
        return page

    def _many(self, statement: str, rows: Collection[tuple[object, ...]]) -> None:
        self._file.execute("begin")
        self._file.executemany(statement, rows)
        self._file.execute("commit")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
