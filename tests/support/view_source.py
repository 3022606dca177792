"""The tables under views as tables of a source, and random transactions on them, by SQL."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from tests.conformance.tables import TYPES, Table
from tests.support.view_tables import ALL, CUSTOMERS, PAYER, PAYMENTS, draw_key, draw_values

ROWS_TO_FILL: Final = 12
LATE: Final = "20 minutes"
_Statement = tuple[sql.Composed, Sequence[Any]]


def schema() -> sql.Composed:
    """The statements that create the tables."""
    return sql.SQL("").join(_created(kind) for kind in ALL)


def _created(kind: Table) -> sql.Composed:
    columns = [sql.SQL("{} {}").format(sql.Identifier(name), _type(kind, name)) for name in kind.types]
    return sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}));").format(
        sql.Identifier(*kind.id), sql.SQL(", ").join(columns), _names(kind.schema.key)
    )


class SourceClient:
    """One session's random transactions. Implements tests.support.workload.Transactions."""

    def __init__(self, connection: psycopg.Connection, seed: int) -> None:
        self._connection = connection
        self._chance = random.Random(seed)
        self._last: _Statement | None = None

    def transaction(self) -> bool:
        """Runs a transaction on one to six rows, mostly of several tables. Returns whether it committed."""
        chance = self._chance
        try:
            with self._connection.transaction():
                for _ in range(chance.choice((1, 1, 2, 3, 6))):
                    self._statement(chance.choice(ALL))
                if chance.random() < 0.08:
                    raise psycopg.Rollback
        except psycopg.errors.DeadlockDetected:
            return False
        return True

    def fill(self) -> None:
        """Leaves rows in every table, also after deletes and a TRUNCATE. Payments of one customer are a pattern of the
        recipes, which random ones rarely are."""
        with self._connection.transaction():
            for kind in ALL:
                for _ in range(ROWS_TO_FILL):
                    self._connection.execute(*self._upsert(kind))
            self._connection.execute(*self._upsert(CUSTOMERS, {"id": PAYER}))
            for number, status in enumerate(["failed", "failed", "failed", "paid"]):
                at = f"2026-01-01T10:{10 * number + self._chance.randrange(10):02}:00Z"
                chosen = {"id": PAYER + number, "customer_id": PAYER, "at": at, "status": status}
                self._connection.execute(*self._upsert(PAYMENTS, chosen))

    def _statement(self, kind: Table) -> None:
        chances: Mapping[Any, float] = {
            self._upsert: 30,
            self._update: 20,
            self._delete: 14,
            self._move: 8,
            self._duplicate: 8,
            self._again: 8,
            self._truncate: 0.15,
        }
        make = self._chance.choices([*chances], [*chances.values()])[0]
        self._last = make(kind)
        try:
            with self._connection.transaction():
                self._connection.execute(*self._last)
        except psycopg.errors.UniqueViolation:  # another row has the key
            return

    # ---- statements

    def _upsert(self, kind: Table, chosen: Mapping[str, Any] | None = None) -> _Statement:
        """`chosen`: values instead of random ones."""
        row = {**draw_key(self._chance, kind), **draw_values(self._chance, kind), **(chosen or {})}
        others = [name for name in row if name not in kind.schema.key]
        sets = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO {}").format(
            sql.Identifier(*kind.id),
            _names(row),
            sql.SQL(", ").join(_place(kind, name) for name in row),
            _names(kind.schema.key),
            sql.SQL("UPDATE SET {}").format(sets) if others else sql.SQL("NOTHING"),
        )
        return statement, [*row.values()]

    def _update(self, kind: Table) -> _Statement:
        """Some of the columns that are not part of the key; a table that has no other gets another key."""
        values = draw_values(self._chance, kind)
        if not values:
            return self._move(kind)
        chosen = self._chance.sample([*values], self._chance.randint(1, len(values)))
        return self._set(kind, {name: values[name] for name in chosen})

    def _move(self, kind: Table) -> _Statement:
        """A row to another key."""
        return self._set(kind, draw_key(self._chance, kind))

    def _set(self, kind: Table, values: Mapping[str, Any]) -> _Statement:
        where, key = self._where(kind)
        statement = sql.SQL("UPDATE {} SET {} WHERE {}").format(
            sql.Identifier(*kind.id),
            sql.SQL(", ").join(sql.SQL("{} = {}").format(sql.Identifier(name), _place(kind, name)) for name in values),
            where,
        )
        return statement, [*values.values(), *key]

    def _delete(self, kind: Table) -> _Statement:
        where, key = self._where(kind)
        return sql.SQL("DELETE FROM {} WHERE {}").format(sql.Identifier(*kind.id), where), key

    def _duplicate(self, kind: Table) -> _Statement:
        """A row again under another key, of the same times or of earlier ones."""
        key = draw_key(self._chance, kind)
        others = [name for name in kind.types if name not in key]
        late = sql.Literal(LATE if self._chance.random() < 0.5 else "0")
        copied = [
            sql.SQL("{} - {}::interval").format(sql.Identifier(name), late)
            if kind.types[name] == "timestamptz"
            else sql.Identifier(name)
            for name in others
        ]
        statement = sql.SQL(
            "INSERT INTO {0} ({1}) SELECT {2} FROM {0} ORDER BY random() LIMIT 1 ON CONFLICT DO NOTHING"
        ).format(
            sql.Identifier(*kind.id),
            _names([*key, *others]),
            sql.SQL(", ").join([*(_place(kind, name) for name in key), *copied]),
        )
        return statement, [*key.values()]

    def _again(self, kind: Table) -> _Statement:
        """The last statement once more."""
        return self._last or self._upsert(kind)

    def _truncate(self, kind: Table) -> _Statement:
        return sql.SQL("TRUNCATE {}").format(sql.Identifier(*kind.id)), []

    def _where(self, kind: Table) -> tuple[sql.Composed, list[Any]]:
        key = draw_key(self._chance, kind)
        parts = [sql.SQL("{} = {}").format(sql.Identifier(name), _place(kind, name)) for name in key]
        return sql.SQL(" AND ").join(parts), [*key.values()]


def _names(names: Any) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _place(kind: Table, name: str) -> sql.Composed:
    return sql.SQL("%s::{}").format(_type(kind, name))


def _type(kind: Table, name: str) -> sql.SQL:
    known: LiteralString = kind.types[name]
    assert known in TYPES
    return sql.SQL(known)
