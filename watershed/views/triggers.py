"""The triggers of views in their base, by which changes of its tables are noted.

Whoever uses a table waits behind a transaction that waits to lock it. So what is right already stays as it is, without
a lock; what is made locks out writers, whose transactions end soon, and no readers; and no transaction here waits for a
lock longer than LOCK_TIMEOUT_MS.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from cdc.model.events import TableId
from cdc.postgres.connection import PINNED_SETTINGS
from sinks.errors import SinkError
from watershed.views import statements
from watershed.views.definition import ViewDefinition

LOCK_TIMEOUT_MS: Final = 2_000

# The functions of one view with their triggers; without a function there are no triggers.
_EXISTING: LiteralString = """
SELECT p.proname, p.prosrc, t.tgenabled = 'O', n.nspname, c.relname, t.tgname
  FROM pg_proc p
  LEFT JOIN (pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace)
    ON t.tgfoid = p.oid
 WHERE p.pronamespace = to_regnamespace(%s) AND p.proname ~ ('^watershed_' || %s || '_[0-9]+_note$')
"""
_HAS: LiteralString = """
SELECT count(*) FROM unnest(%s::text[], %s::text[]) AS w(place, name)
  JOIN pg_trigger t ON t.tgrelid = to_regclass(w.place) AND t.tgname = w.name AND t.tgenabled = 'O'
"""


class _Trigger(NamedTuple):
    schema: str
    table: str
    name: str


@contextmanager
def brief_locks(connection: psycopg.Connection[Any], what: str) -> Iterator[None]:
    """A transaction in which no statement waits long for a lock. Raises SinkError for one that does not get it. `what`:
    the view or log, at the beginning of a sentence."""
    try:
        with connection.transaction():
            connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT_MS)))
            yield
    except psycopg.errors.LockNotAvailable as error:
        raise SinkError(
            f"{what}: it can't lock tables of its base, because other transactions have used them for more than "
            f"{LOCK_TIMEOUT_MS / 1000:g} s",
            "wait, or end those transactions, which pg_stat_activity shows in the base; `cdc view run` tries again by "
            "itself; run any other command again",
        ) from error


class Triggers:
    """The triggers of views in one base. Each method is a part of its caller's transaction."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        """`schema`: of the views' own tables."""
        self._connection = connection
        self._schema = schema

    def are_there(self, definition: ViewDefinition) -> bool:
        """Returns whether every table of the view has its triggers, enabled: none was created again since."""
        wanted = [
            (sql.Identifier(one.schema, one.table).as_string(), one.name)
            for table in definition.query.tables
            for one in _triggers(definition, table).values()
        ]
        row = self._connection.execute(_HAS, [list(one) for one in zip(*wanted, strict=True)])
        return row.fetchone() == (len(wanted),)

    def install(self, definition: ViewDefinition) -> None:
        """Drops triggers that an earlier definition has left, and makes those that are missing or note something else.
        A table of which something changes is locked until the end of the transaction: so no writer that called a
        former function has yet to commit then."""
        bodies, found = self._existing(definition.name)
        tables = sorted(definition.query.tables, key=definition.places.__getitem__)  # one order of locks for all views
        wanted = {table: _triggers(definition, table) for table in tables}
        right = {one for triggers in wanted.values() for one in triggers.values() if found.get(one)}
        functions = {table: _name(definition, table, "note") for table in wanted}
        self._drop(found.keys() - right, bodies.keys() - set(functions.values()))
        for table, triggers in wanted.items():
            place = sql.Identifier(*definition.places[table])
            function = sql.Identifier(self._schema, functions[table])
            statement = self._function(definition, table, function)
            if _body(statement) == bodies.get(functions[table]) and right.issuperset(triggers.values()):
                continue
            self._connection.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(place))
            self._connection.execute(statement.encode())
            for operation, one in triggers.items():
                if one not in right:
                    names = {"name": sql.Identifier(one.name), "table": place, "function": function}
                    self._connection.execute(sql.SQL(statements.TRIGGERS[operation]).format(**names))

    def remove(self, view: str) -> None:
        """Drops the view's triggers, including those on tables that an earlier definition read."""
        bodies, found = self._existing(view)
        self._drop(found.keys(), bodies.keys())

    def _existing(self, view: str) -> tuple[dict[str, str], dict[_Trigger, bool]]:
        """The bodies of the view's functions by their names, and their triggers, each with whether it is enabled."""
        schema = sql.Identifier(self._schema).as_string()
        rows = self._connection.execute(_EXISTING, (schema, view)).fetchall()
        bodies = {function: body for function, body, *_ in rows}
        return bodies, {_Trigger(*place): is_enabled for _, _, is_enabled, *place in rows if place[0] is not None}

    def _drop(self, triggers: Collection[_Trigger], functions: Collection[str]) -> None:
        for one in sorted(triggers):
            place = sql.Identifier(one.schema, one.table)
            self._connection.execute(sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(sql.Identifier(one.name), place))
        for name in sorted(functions):
            self._connection.execute(sql.SQL("DROP FUNCTION {}").format(sql.Identifier(self._schema, name)))

    def _function(self, definition: ViewDefinition, table: TableId, function: sql.Identifier) -> str:
        statement = sql.SQL(statements.NOTE).format(
            s=sql.Identifier(self._schema),
            function=function,
            settings=sql.SQL(" ").join(
                sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(PINNED_SETTINGS[name]))
                for name in statements.NOTE_SETTINGS
            ),
            view=sql.Literal(definition.name),
            source=sql.Literal(str(table)),
            image=statements.image(definition.traced_columns(table)),
            used=statements.used(definition.query.used[table]),
        )
        return statement.as_string(self._connection)


def _triggers(definition: ViewDefinition, table: TableId) -> dict[str, _Trigger]:
    """The triggers of one of the view's tables, by operation."""
    place = definition.places[table]
    return {operation: _Trigger(*place, _name(definition, table, operation)) for operation in statements.TRIGGERS}


def _name(definition: ViewDefinition, table: TableId, what: str) -> str:
    number = definition.query.tables.index(table)
    return f"watershed_{definition.name}_{number}_{what}"


def _body(statement: str) -> str:
    """Returns what PostgreSQL stores of a function."""
    return statement.split("$function$")[1]
