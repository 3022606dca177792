"""The source under load, with every state that a row ever had, in the order of the log."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, LiteralString, NamedTuple, Self

import psycopg
from psycopg import sql

from tests.support.drift import Background

TABLES: Final = ("items", "goods")
KEYS: Final = 100
FIRST_KEYS: Final = 80  # that exist from the beginning
COLD: Final = 4  # how rarely the last keys are written: a row that was lost stays lost for a while
TOO_LONG: Final = "much too long for the column of the SQL store"
PAUSE_S: Final = 0.05
REJECTED_SHARE: Final = 0.02  # of the load's writes, which the SQL store can't hold
SCHEMA: LiteralString = """
CREATE TABLE items (id int PRIMARY KEY, v text); CREATE TABLE goods (id int PRIMARY KEY, v text);
INSERT INTO items SELECT n, 'first ' || n FROM generate_series(0, 79) n;
INSERT INTO goods SELECT n, 'first ' || n FROM generate_series(0, 79) n
"""
END: Final = "SELECT pg_current_wal_insert_lsn()::text"
Values = dict[int, str | None]  # key → v


class Written(NamedTuple):
    """A committed write."""

    number: int  # in the order of commits
    lsn: str  # behind its commit
    table: str


class Source:
    """One writer at a time, so that the order of writes is the log's."""

    def __init__(self, dsn: str, chance: random.Random) -> None:
        self._chance = chance
        self._lock = threading.RLock()
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._number = 0
        self._states: dict[tuple[str, int], list[tuple[int, str | None]]] = {}  # with the write's number
        for table in TABLES:
            for key in range(FIRST_KEYS):
                self._states[table, key] = [(0, f"first {key}")]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def write(self, *, rejected: bool = False) -> Written:
        """Changes a row or deletes it; at times all rows of the table are changed at once."""
        with self._lock:
            table, key = self._chance.choice(TABLES), int(KEYS * self._chance.random() ** COLD)
            self._number += 1
            text = f"{TOO_LONG} {self._number}" if rejected else f"value {self._number}"
            if self._chance.random() < 0.2 and not rejected:
                self._note(table, key, None)
                self._run("DELETE FROM {} WHERE id = %s", table, key)
            else:
                self._note(table, key, text)
                self._run(
                    "INSERT INTO {} VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = %s", table, key, text, text
                )
            return Written(self._number, self._end(), table)

    def truncate(self) -> None:
        with self._lock:
            table = self._chance.choice(TABLES)
            self._number += 1
            for key in range(KEYS):
                self._note(table, key, None)
            self._run("TRUNCATE {}", table)

    def add_column(self, name: str) -> None:
        with self._lock:
            table = self._chance.choice(TABLES)
            self._run("ALTER TABLE {} ADD COLUMN {} text DEFAULT 'added'", table, column=name)

    @contextmanager
    def paused(self) -> Iterator[Written]:
        """Nothing is written; yields the end of the log."""
        with self._lock:
            yield Written(self._number, self._end(), "")

    def rows(self, table: str) -> Values:
        with self._lock:
            rows = self._connection.execute(sql.SQL("SELECT id, v FROM {}").format(sql.Identifier(table)))
            return dict(rows.fetchall())

    def rejected(self, table: str, number: int) -> set[int]:
        """The keys of rows that the SQL store can't hold, and that are so since this write or an earlier one."""
        with self._lock:
            newest = {key: self._states[table, key][-1] for key in range(KEYS) if (table, key) in self._states}
        return {key for key, (at, value) in newest.items() if at <= number and is_rejected(value)}

    def difference(self, table: str, shown: Values, number: int, *, rejects: bool = False) -> str:
        """Returns what no state of the table from this write on has; "" if there is nothing. `rejects`: the store can't
        hold some values, and there keeps some earlier row, or none."""
        with self._lock:
            for key in range(KEYS):
                possible: list[Any] = [None]
                earlier: list[Any] = [None]
                for at, value in self._states.get((table, key), ()):
                    possible = [value] if at <= number else [*possible, value]
                    earlier.append(value)
                if rejects and any(map(is_rejected, possible)):
                    possible = earlier
                if shown.get(key) not in possible:
                    return f"row {key} of {table} is {shown.get(key)!r}, not one of {possible}"
            strangers = [key for key in shown if key >= KEYS]
            return f"rows {strangers} of {table} never existed" if strangers else ""

    def _note(self, table: str, key: int, value: str | None) -> None:
        self._states.setdefault((table, key), []).append((self._number, value))

    def _run(self, statement: LiteralString, table: str, *values: Any, column: str = "") -> None:
        names = [sql.Identifier(table), *([sql.Identifier(column)] if column else [])]
        self._connection.execute(sql.SQL(statement).format(*names), values or None)

    def _end(self) -> str:
        row = self._connection.execute(END).fetchone()
        assert row is not None
        return str(row[0])


class Load(Background):
    """Writes all the time, also values that the SQL store can't hold."""

    def __init__(self, source: Source, chance: random.Random) -> None:
        super().__init__()
        self._source = source
        self._chance = chance

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            self._source.write(rejected=self._chance.random() < REJECTED_SHARE)


def is_rejected(value: str | None) -> bool:
    """Says whether the SQL store can't hold it."""
    return (value or "").startswith(TOO_LONG)
