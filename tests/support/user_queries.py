"""Queries as users write them, each kept as a view while random rows of its tables change, by the statements that keep
views, without a target: what would be written is compared with the query over the tables."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql
from pydantic import SecretStr

from cdc.config.stores import SqlConfig
from cdc.config.views import ViewConfig
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.postgres.connection import pinned_options
from tests.conformance.stores import url_of
from watershed.views.base import Base
from watershed.views.connection import Key, Texts, texts
from watershed.views.definition import ViewDefinition
from watershed.views.maintainer import RowEncoder, define

FOLDER: Final = Path(__file__).parents[1] / "fixtures/user_queries"
_HEAD: Final = re.compile(r"^-- (query|refused): (\w+) key: ([^\n]*?)(?: says: ([^\n]*))?\n", re.MULTILINE)
_NUMBERS: Final = {"int2", "int4", "int8"}
_TEXTS: Final = ("open", "paid", "gone", "a_b", "abc x", "xA b", "Ü", "a\tb", "", "a", "new")
_TIMES: Final = (
    "2026-01-01 00:00:00", "2026-01-01 12:34:56.5", "2026-01-02 23:59:59", "2026-01-09 08:00:00", "2026-02-28 05:00:00",
    "2025-12-31 22:30:00", "2025-12-29 01:07:00",
)  # fmt: skip
_NESTED: Final = (
    '{"color": "red", "a": {"b": "x"}}', '{"color": "blue", "a": {"c": "y"}, "list": [1, 2]}', '{"size": 1}', "{}",
)  # fmt: skip


class UserQuery(NamedTuple):
    """A query of a file; one that is refused has the reason as a regular expression."""

    name: str
    text: str
    key: list[str]
    refusal: str | None

    @property
    def config(self) -> ViewConfig:
        target = {"type": "sql", "url": "postgresql://nowhere/x"}
        return ViewConfig.model_validate({"base": "base", "sql": self.text, "key": self.key, "target": target})


class UserTable(NamedTuple):
    """A table of a file."""

    id: TableId
    columns: Mapping[str, str]  # with their types in pg_type
    keys: frozenset[str]


def read_queries(schema: str) -> tuple[str, list[UserQuery]]:
    """The statements that create the tables of a file, and its queries."""
    text = (FOLDER / f"{schema}.sql").read_text()
    parts = _HEAD.split(text)
    found = [
        UserQuery(
            name, body, [part.strip().strip('"') for part in key.split(",")], expected if kind == "refused" else None
        )
        for kind, name, key, expected, body in zip(*(parts[number::5] for number in range(1, 6)), strict=True)
    ]
    return parts[0], found


class PlainBase(Base):
    """A base whose tables have the names of the source, and that no sink keeps."""

    tables: Mapping[TableId, UserTable]

    def places(self) -> dict[TableId, tuple[str, str]]:
        return {table: (table.schema, table.name) for table in self.tables}


class History:
    """Random changes of all tables of a database, one statement each."""

    def __init__(self, connection: psycopg.Connection[Any], seed: int) -> None:
        self._connection = connection
        self._chance = random.Random(seed)
        rows = connection.execute(_COLUMNS).fetchall()
        self.tables: dict[TableId, UserTable] = {}
        for schema, name, columns, kinds, keys in rows:
            table = TableId(schema, name)
            self.tables[table] = UserTable(table, dict(zip(columns, kinds, strict=True)), frozenset(keys))

    def fill(self) -> None:
        for table in self.tables.values():
            for _ in range(12):
                self._insert(table)

    def step(self) -> None:
        """One to four statements, most of which change a row."""
        for _ in range(self._chance.randint(1, 4)):
            table = self._chance.choice(list(self.tables.values()))
            kind = self._chance.random()
            if kind < 0.4:
                self._insert(table)
            elif kind < 0.75:
                self._update(table)
            elif kind < 0.98:
                self._run(sql.SQL("DELETE FROM {} WHERE ctid = {}").format(_place(table), self._row(table)), [])
            else:
                self._run(sql.SQL("DELETE FROM {}").format(_place(table)), [])

    def _insert(self, table: UserTable) -> None:
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING").format(
            _place(table),
            sql.SQL(", ").join(map(sql.Identifier, table.columns)),
            sql.SQL(", ").join(map(_cast, table.columns.values())),
        )
        self._run(statement, [self._value(table, name) for name in table.columns])

    def _update(self, table: UserTable) -> None:
        names = self._chance.sample(list(table.columns), self._chance.randint(1, min(2, len(table.columns))))
        pairs = [sql.SQL("{} = {}").format(sql.Identifier(name), _cast(table.columns[name])) for name in names]
        statement = sql.SQL("UPDATE {} SET {} WHERE ctid = {}")
        self._run(
            statement.format(_place(table), sql.SQL(", ").join(pairs), self._row(table)),
            [self._value(table, name) for name in names],
        )

    def _row(self, table: UserTable) -> sql.Composed:
        place = sql.SQL("(SELECT ctid FROM {} ORDER BY ctid OFFSET (SELECT count(*) FROM {}) * {} / 100 LIMIT 1)")
        return place.format(_place(table), _place(table), sql.Literal(self._chance.randint(0, 99)))

    def _run(self, statement: sql.Composed, values: Sequence[Any]) -> None:
        try:
            self._connection.execute(statement, values)
        except psycopg.errors.UniqueViolation:
            return  # an update to a key that another row has

    def _value(self, table: UserTable, name: str) -> Any:
        kind = table.columns[name]
        if name not in table.keys and self._chance.random() < 0.16:
            return None
        if kind in _NUMBERS:
            return self._chance.randint(0, 5)
        if kind == "numeric":
            return self._chance.choice(["1", "1.0", "2", "3.00", "17.5", "55", "120.25"])
        if kind == "bool":
            return self._chance.choice([True, False])
        if kind in ("timestamptz", "timestamp", "date"):
            return self._chance.choice(_TIMES)
        if kind in ("json", "jsonb"):
            return self._chance.choice(_NESTED)
        if kind == "uuid":
            return f"00000000-0000-0000-0000-00000000000{self._chance.randint(0, 4)}"
        if kind == "_int4":
            return [self._chance.randint(0, 3) for _ in range(self._chance.randint(0, 3))]
        if name == "unit":
            return self._chance.choice(["day", "hour", "month"])
        if kind == "_text":
            return self._chance.sample(["red", "new", "old", "red"], self._chance.randint(0, 3))
        if kind == "bpchar":
            return self._chance.choice(["a", "new", "ü"])
        return self._chance.choice(_TEXTS)


_COLUMNS: Final = """
SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum),
       array_agg(t.typname::text ORDER BY a.attnum),
       coalesce(array_agg(a.attname::text) FILTER (WHERE a.attnum = ANY(i.indkey)), '{}')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 JOIN pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
 WHERE c.relkind = 'r' AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT LIKE 'watershed%'
   AND n.nspname <> 'information_schema'
 GROUP BY 1, 2 ORDER BY 1, 2
"""


def _place(table: UserTable) -> sql.Identifier:
    return sql.Identifier(table.id.schema, table.id.name)


def _cast(kind: str) -> sql.Composed:
    return sql.SQL("%s::{}").format(sql.SQL(kind.removeprefix("_") + "[]" * kind.startswith("_")))


class KeptQuery:
    """A view without a target: its rows are kept in memory, by the changes that its base notes."""

    def __init__(self, query: UserQuery, base: Base, definition: ViewDefinition) -> None:
        self.query = query
        self._base = base
        self._definition = definition
        self._encoder = RowEncoder(definition, base.described(definition))
        base.install_triggers(definition)
        self._rows: dict[Key, Texts] = {
            self._encoder.key_of(row): row for rows in base.all_rows(definition) for row in rows
        }

    def follow(self) -> None:
        while self._base.collect(self._definition, self._encoder.key_types):
            pass
        keys = self._base.keys(self._definition, 100_000)
        rows, failed = self._base.rows_of(self._definition, self._encoder.key_types, keys)
        assert not failed, failed
        for key, row in rows.items():
            if row is None:
                self._rows.pop(key, None)
            else:
                assert self._encoder.key_of(row) == key, f"the row of {key} has key {self._encoder.key_of(row)}"
                self._rows[key] = row
        self._base.written(self.query.name, keys, {})

    def difference(self, connection: psycopg.Connection[Any]) -> str | None:
        """Rows that are missing or too many."""
        there = " AND ".join(f'"{name}" IS NOT NULL' for name in self.query.key)
        cursor = connection.execute(f"SELECT * FROM ({_bare(self.query.text)}\n) v WHERE {there}".encode())
        wanted, kept = set(texts(cursor)), set(self._rows.values())
        if wanted == kept:
            return None
        return f"missing {sorted(wanted - kept, key=repr)[:3]}, too many {sorted(kept - wanted, key=repr)[:3]}"


def _bare(text: str) -> str:
    """The query without its last semicolon, and without what follows it."""
    return re.sub(r";\s*(/\*.*\*/)?\s*\Z", "", text)


def run_history(dsn: str, schema: str, steps: int, only: str | None = None) -> Iterator[str]:
    """Keeps the queries of a file through a random history. Yields what is wrong, with the name of its query."""
    statements, queries = read_queries(schema)
    config = SqlConfig.model_validate({"url": SecretStr(url_of(dsn))})
    settings = pinned_options(search_path="public", row_security="on")
    with psycopg.connect(dsn, autocommit=True, options=settings) as connection:
        connection.execute(statements.encode())
        history = History(connection, 1)
        history.fill()
        with closing(PlainBase(config, "shop")) as base:
            base.tables = history.tables
            base.install()
            kept: list[KeptQuery] = []
            for query in queries:
                if only and query.name != only:
                    continue
                try:
                    definition = define(query.name, query.config, base)
                    kept.append(KeptQuery(query, base, definition))
                except ConfigError as error:
                    message = f"{error.message}; next: {error.hint}"
                    if query.refusal is None:
                        yield f"{query.name} is refused: {message}"
                    elif not re.search(query.refusal, message):
                        yield f"{query.name} is refused for another reason: {message}"
                except Exception as error:  # noqa: BLE001 - a query that fails does not end the others
                    yield f"{query.name} fails: {type(error).__name__}: {error}"
                else:
                    if query.refusal is not None:
                        yield f"{query.name} is not refused"
            for step in range(steps):
                history.step()
                for one in list(kept):
                    try:
                        one.follow()
                        problem = one.difference(connection)
                    except Exception as error:  # noqa: BLE001 - a query that fails does not end the others
                        problem = f"{type(error).__name__}: {error}"
                    if problem:
                        yield f"{one.query.name}, step {step}: {problem}"
                        kept.remove(one)
