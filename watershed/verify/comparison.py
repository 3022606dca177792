"""Compares a table of a store with its rows in the source, of which neither changes meanwhile: every row and every
column, by type, exactly.

The source's rows are read once, as PostgreSQL prints them, and kept in a temporary file (`SourceRows`); any number
of stores is then compared with them, in whatever order each store gives its rows. Memory stays bounded: SQLite's
page cache, one bit for each source row, and a bounded list of differences. `watershed.verify.verifier` compares tables
that do change.
"""

import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import orjson

from cdc.model.events import TableId
from sinks.contract import Json, StoredRow
from watershed.verify.equality import key_form, same, source_form, store_form
from watershed.verify.model import ColumnDifference, DriftKind, RowDifference, TableResult, shown

CACHE_KIB = 64 * 1024  # SQLite's page cache; everything else is in its temporary file
INSERT_ROWS = 10_000  # rows for each executemany


class SourceRows:
    """One table's rows in the source, which is not written meanwhile. A context manager."""

    def __init__(
        self,
        table: TableId,
        columns: Mapping[str, str],
        key: Sequence[str],
        rows: Iterable[Sequence[str | None]],
    ) -> None:
        """`columns`: name → type (as in `watershed.verify.equality`), in the order of each row's texts."""
        self.table = table
        self.columns = dict(columns)
        self.key = tuple(key)
        assert self.key and all(name in self.columns for name in self.key), "a key of known columns"
        self._types = [(name, columns[name]) for name in self.key]
        self._key_at = [list(columns).index(name) for name in self.key]
        # An empty name is SQLite's private temporary file, which goes away with the connection.
        self._file = sqlite3.connect("", isolation_level=None)
        self._file.execute(f"pragma cache_size = -{CACHE_KIB}")
        self._file.execute("pragma journal_mode = off")
        self._file.execute("create table source (n integer primary key, key text not null unique, row blob not null)")
        self.count = self._fill(rows)

    def _fill(self, rows: Iterable[Sequence[str | None]]) -> int:
        count = 0
        batch: list[tuple[int, str, bytes]] = []
        for row in rows:
            batch.append((count, self._source_key(row), orjson.dumps(list(row))))
            count += 1
            if len(batch) == INSERT_ROWS:
                self._insert(batch)
        self._insert(batch)
        return count

    def _insert(self, batch: list[tuple[int, str, bytes]]) -> None:
        self._file.execute("begin")
        self._file.executemany("insert into source values (?, ?, ?)", batch)
        self._file.execute("commit")
        batch.clear()

    def _source_key(self, row: Sequence[str | None]) -> str:
        forms = []
        for (_, pg_type), at in zip(self._types, self._key_at, strict=True):
            text = row[at]
            assert text is not None, "a key column is NOT NULL"
            forms.append(source_form(pg_type, text))
        return key_form(forms)

    def find(self, key: Mapping[str, Json]) -> tuple[int, list[str | None]] | None:
        """Returns the row (number, texts) with a store's key; None if the source has none."""
        if key.keys() != set(self.key) or any(key[name] is None for name in self.key):
            return None
        text = key_form([store_form(pg_type, key[name]) for name, pg_type in self._types])
        found = self._file.execute("select n, row from source where key = ?", (text,)).fetchone()
        return (found[0], orjson.loads(found[1])) if found else None

    def __iter__(self) -> Iterator[tuple[int, list[str | None]]]:
        for number, row in self._file.execute("select n, row from source order by n"):
            yield number, orjson.loads(row)

    def key_of(self, row: Sequence[str | None]) -> bytes:
        """Returns a source row's key, as a difference shows it."""
        return _object(
            {
                name: source_form(pg_type, row[at] or "")
                for (name, pg_type), at in zip(self._types, self._key_at, strict=True)
            }
        )

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Marks:
    """One bit for each row of `SourceRows`."""

    def __init__(self, count: int) -> None:
        self._bits = bytearray(count // 8 + 1)

    def add(self, number: int) -> bool:
        """Marks the row. Returns whether it was not marked before."""
        is_new = number not in self
        self._bits[number >> 3] |= 1 << (number & 7)
        return is_new

    def __contains__(self, number: int) -> bool:
        return bool(self._bits[number >> 3] & 1 << (number & 7))


def compare(sink: str, source: SourceRows, store: Iterable[StoredRow], added: Container[str] = ()) -> TableResult:
    """Compares every row and column of a store's table with the source's. `added`: columns that may be absent if the
    source has NULL (`Lineage.added`).
    """
    result = TableResult(sink, source.table, source.count)
    seen = Marks(source.count)
    for stored in store:
        result.store_rows += 1
        match = source.find(stored.key)
        if match is None:
            result.add(RowDifference(_object(stored.key), DriftKind.EXTRA, version=stored.version))
            continue
        number, row = match
        if not seen.add(number):
            result.add(RowDifference(source.key_of(row), DriftKind.TWICE, version=stored.version))
        elif columns := tuple(_differing(source, row, stored.row, added)):
            result.add(RowDifference(source.key_of(row), DriftKind.WRONG, columns, stored.version))
    for number, row in source:
        if number not in seen:
            result.add(RowDifference(source.key_of(row), DriftKind.MISSING))
    return result


def _differing(
    source: SourceRows, row: Sequence[str | None], stored: Mapping[str, Json], added: Container[str]
) -> Iterator[ColumnDifference]:
    for (name, pg_type), text in zip(source.columns.items(), row, strict=True):
        if name not in stored:
            if text is not None or name not in added:
                yield ColumnDifference(name, shown_text(pg_type, text), "absent")
        elif not same(pg_type, text, stored[name]):
            yield ColumnDifference(name, shown_text(pg_type, text), shown(stored[name]))
    for name in stored:
        if name not in source.columns:
            yield ColumnDifference(name, "absent", shown(stored[name]))


def _object(key: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(key), default=str)


def shown_text(pg_type: str, text: str | None) -> str:
    """Returns a value of the source as a difference shows it."""
    return shown(None if text is None else source_form(pg_type, text))
