"""Compares a derived store with the source: every row and every column of a table, by type, exactly.

The source's rows are read once, as PostgreSQL prints them, and kept in a temporary file (`SourceRows`); any number
of stores is then compared with them, in whatever order each store gives its rows. Memory stays bounded: SQLite's
page cache, one bit for each source row, and a bounded list of examples.
"""

import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self

import orjson

from cdc.model.events import TableId
from sinks.contract import Json, StoredRow
from sinks.equality import key_form, same, source_form, store_form

CACHE_KIB = 64 * 1024  # SQLite's page cache; everything else is in its temporary file
INSERT_ROWS = 10_000  # rows for each executemany
EXAMPLES_MAX = 20  # differences kept for each table and store; the counts are always whole
VALUE_CHARS_MAX = 40  # of a value in a difference


class Kind(Enum):
    """The kind of difference between a store's row and the source's."""

    MISSING = "missing in store"
    EXTRA = "extra in store"
    TWICE = "twice in store"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class Difference:
    """A row, or one column of it, that differs from the source. Values are truncated to VALUE_CHARS_MAX characters."""

    table: TableId
    key: str  # JSON object
    kind: Kind
    column: str = ""  # for DIFFERS
    source: str = ""  # "absent" where there is no such column, "null" for NULL
    store: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.DIFFERS:
            return f"{self.table} {self.key}: {self.column} is {self.source} in the source, {self.store} in the store"
        return f"{self.table} {self.key}: {self.kind.value}"


@dataclass(frozen=True, slots=True)
class TableComparison:
    """The result of comparing one table of one store. Counts are of rows."""

    table: TableId
    source_rows: int
    store_rows: int
    missing: int
    extra: int  # rows without a source row, and second rows of one key
    differing: int
    examples: tuple[Difference, ...]

    @property
    def differences(self) -> int:
        return self.missing + self.extra + self.differing


class SourceRows:
    """One table's rows in the source, which is not written meanwhile. A context manager."""

    def __init__(
        self,
        table: TableId,
        columns: Mapping[str, str],
        key: Sequence[str],
        rows: Iterable[Sequence[str | None]],
    ) -> None:
        """`columns`: name → type (as `sinks.equality` names types), in the order of each row's texts."""
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

    def key_of(self, row: Sequence[str | None]) -> str:
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


def compare(
    source: SourceRows, store: Iterable[StoredRow], examples_max: int = EXAMPLES_MAX, added: Container[str] = ()
) -> TableComparison:
    """Compares every row and column of a store's table with the source's. `added`: columns that may be absent if the
    source has NULL (`Lineage.added`).
    """
    seen = bytearray(source.count // 8 + 1)
    found = _Found(source.table, examples_max)
    store_rows = matched = 0
    for stored in store:
        store_rows += 1
        match = source.find(stored.key)
        if match is None:
            found.add(Kind.EXTRA, _object(stored.key))
            continue
        number, row = match
        if seen[number >> 3] & 1 << (number & 7):
            found.add(Kind.TWICE, source.key_of(row))
            continue
        seen[number >> 3] |= 1 << (number & 7)
        matched += 1
        _compare_row(source, row, stored.row, added, found)
    if matched < source.count:
        for number, row in source:
            if not seen[number >> 3] & 1 << (number & 7):
                found.add(Kind.MISSING, source.key_of(row))
    return TableComparison(
        table=source.table,
        source_rows=source.count,
        store_rows=store_rows,
        missing=found.counts[Kind.MISSING],
        extra=found.counts[Kind.EXTRA] + found.counts[Kind.TWICE],
        differing=found.counts[Kind.DIFFERS],
        examples=tuple(found.examples),
    )


class _Found:
    """Counts rows by kind, and keeps the first examples."""

    def __init__(self, table: TableId, examples_max: int) -> None:
        self.counts = dict.fromkeys(Kind, 0)
        self.examples: list[Difference] = []
        self._table = table
        self._examples_max = examples_max

    def add(self, kind: Kind, key: str) -> None:
        self.counts[kind] += 1
        self.example(Difference(self._table, key, kind))

    def example(self, difference: Difference) -> None:
        if len(self.examples) < self._examples_max:
            self.examples.append(difference)


def _compare_row(
    source: SourceRows, row: Sequence[str | None], stored: Mapping[str, Json], added: Container[str], found: _Found
) -> None:
    differing: list[tuple[str, str, str]] = []
    for (name, pg_type), text in zip(source.columns.items(), row, strict=True):
        if name not in stored:
            if text is None and name in added:
                continue
            differing.append((name, _short_text(pg_type, text), "absent"))
        elif not same(pg_type, text, stored[name]):
            differing.append((name, _short_text(pg_type, text), shown(stored[name])))
    differing += [(name, "absent", shown(stored[name])) for name in stored if name not in source.columns]
    if differing:
        found.counts[Kind.DIFFERS] += 1
        key = source.key_of(row)
        for name, left, right in differing:
            found.example(Difference(source.table, key, Kind.DIFFERS, name, left, right))


def _object(key: Mapping[str, Any]) -> str:
    return orjson.dumps(dict(key), default=str).decode()


def _short_text(pg_type: str, text: str | None) -> str:
    return shown(None if text is None else source_form(pg_type, text))


def shown(value: object) -> str:
    """Returns a value as a difference shows it, truncated to VALUE_CHARS_MAX characters."""
    if value is None:
        return "null"
    # A string is quoted, so that "1" and 1, or a trailing blank, can be distinguished.
    text = str(value) if isinstance(value, bool | int | float) else repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"
