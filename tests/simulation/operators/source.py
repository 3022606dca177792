"""The source: tables with rows, and a log. Every state that a row ever had is kept, for the oracles."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from cdc.model.events import Column, TableId, TableSchema

PREFIX: Final = "ops"
NAMES: Final = ("a", "b")
TABLES: Final = tuple(TableId("public", name) for name in NAMES)
KEYS: Final = 5
BAD: Final = "too odd for the store"
COMMIT_BYTES: Final = 8  # of a commit record: its LSN is the transaction's, and waiters know the end
VERSIONS_MAX: Final = 4  # of a table's schema
Row = dict[str, Any]


def topic_of(table: TableId) -> str:
    return f"{PREFIX}.{table}"


TABLE_OF: Final = {topic_of(table): table for table in TABLES}


def schema_of(table: TableId, version: int) -> TableSchema:
    """The schema's version: each has a column more than the one before it."""
    added = [Column(f"c{number}", 25, -1, "text", True, "b", 25) for number in range(2, version + 1)]
    columns = (Column("id", 20, -1, "bigint", False, "b", 20), Column("v", 25, -1, "text", True, "b", 25), *added)
    return TableSchema(table, version, 16385, columns, ("id",), topic_of(table))


@dataclass(frozen=True, slots=True)
class RowChange:
    table: TableId
    key: int
    row: Row | None


@dataclass(frozen=True, slots=True)
class Truncate:
    table: TableId


@dataclass(frozen=True, slots=True)
class Alter:
    """A column with a default is added: rows change that are not in the log."""

    table: TableId
    version: int


Message = RowChange | Truncate | Alter


@dataclass(frozen=True, slots=True)
class Transaction:
    lsn: int  # of its commit record
    messages: tuple[Message, ...]

    @property
    def end(self) -> int:
        return self.lsn + COMMIT_BYTES


class Source:
    """One database."""

    def __init__(self) -> None:
        self.rows: dict[TableId, dict[int, Row]] = {table: {} for table in TABLES}
        self.versions = dict.fromkeys(TABLES, 1)
        self.oids = dict.fromkeys(TABLES, 1)
        self.wal: list[Transaction] = []
        self.end = 1_000  # of the log
        self.slot: int | None = None  # its confirmed LSN; None: there is no slot
        self._states: dict[tuple[TableId, int], list[tuple[int, Row | None]]] = {}

    def commit(self, *messages: Message) -> Transaction:
        """Commits a transaction; without messages it is a watermark."""
        transaction = Transaction(self.end + 16, messages)
        for message in messages:
            self._apply(transaction.lsn, message)
        self.wal.append(transaction)
        self.end = transaction.end
        return transaction

    def _apply(self, lsn: int, message: Message) -> None:
        rows = self.rows[message.table]
        match message:
            case RowChange(_, key, None):
                rows.pop(key, None)
                self._note(lsn, message.table, key, None)
            case RowChange(_, key, row) if row is not None:
                rows[key] = row
                self._note(lsn, message.table, key, row)
            case Truncate():
                for key in [*rows]:
                    self._note(lsn, message.table, key, None)
                rows.clear()
            case Alter(_, version):
                self.versions[message.table] = version
                for key, row in rows.items():
                    rows[key] = row | {f"c{version}": f"default {version}"}
                    self._note(lsn, message.table, key, rows[key])

    def drop(self, table: TableId) -> None:
        """The table is dropped: its rows go, and nothing in the log says so."""
        lsn = self.commit().lsn
        for key in [*self.rows[table]]:
            self._note(lsn, table, key, None)
        self.rows[table].clear()
        self.oids[table] += 1

    def _note(self, lsn: int, table: TableId, key: int, row: Row | None) -> None:
        self._states.setdefault((table, key), []).append((lsn, row))

    def row(self, table: TableId, key: int, text: str | None) -> RowChange:
        """A change of the row, in the table's present schema. None: it is deleted."""
        if text is None:
            return RowChange(table, key, None)
        added = {f"c{number}": f"{text} {number}" for number in range(2, self.versions[table] + 1)}
        return RowChange(table, key, {"id": key, "v": text} | added)

    def after(self, lsn: int) -> Iterator[Transaction]:
        """The transactions that end behind this LSN, in order."""
        start = len(self.wal)
        while start and self.wal[start - 1].end > lsn:
            start -= 1
        yield from self.wal[start:]

    def states_from(self, table: TableId, key: int, lsn: int) -> list[Row | None]:
        """What the row was at this LSN, and everything that it was later."""
        found: list[Row | None] = [None]
        for at, row in self._states.get((table, key), ()):
            if at <= lsn:
                found = [row]
            else:
                found.append(row)
        return found
