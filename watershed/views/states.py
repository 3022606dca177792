"""The states of views and event logs, which their base holds: what is filled, in which form, and what went wrong."""

import json
from contextlib import suppress
from typing import Any, Final, LiteralString, NamedTuple, Self

import psycopg
from psycopg import sql

from cdc.config.stores import SqlConfig
from cdc.model.errors import WatershedError
from watershed.status.view_facts import ViewFacts
from watershed.views import statements
from watershed.views.connection import CONNECT_TIMEOUT_S, connect, explained
from watershed.views.statements import schema_of

CHANNEL: Final = "watershed_views"


class ViewState(NamedTuple):
    """The stored state of a view, from earlier runs."""

    fingerprint: str
    state: str  # filling, filled, serving, failed, rebuild
    generation: int
    schema_version: int
    columns: list[list[Any]]  # names and types of the rows' columns


class States:
    """A connection to a base. Methods raise SinkError for a database that does not answer."""

    def __init__(self, config: SqlConfig, prefix: str) -> None:
        self.schema = schema_of(prefix)
        self._config = config
        self._connection = connect(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the view's lock at once: the server notices the end of the connection a moment later only."""
        with suppress(psycopg.Error):
            self._connection.execute("SELECT pg_advisory_unlock_all()")
        self._connection.close()

    def install(self) -> None:
        """Creates the schema and its tables where they are missing."""
        with explained(), self._connection.transaction():
            self._connection.execute("SELECT pg_advisory_xact_lock(hashtext('watershed_views'))")
            self._connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema)))
            self._connection.execute(sql.SQL(statements.TABLES).format(s=sql.Identifier(self.schema)))
            self._connection.execute(self._sql(statements.ADVANCE_VERSIONS), (self._name("versions"),))

    def lock(self, view: str) -> bool:
        """Takes the view's lock, and listens for changes, until the connection ends; returns False if another process
        has it."""
        with explained():
            row = self._connection.execute(
                "SELECT pg_try_advisory_lock(hashtext(%s), hashtext(%s))", (self.schema, view)
            ).fetchone()
            self._connection.execute(f"LISTEN {CHANNEL}")
        return bool(row and row[0])

    def state(self, view: str) -> ViewState | None:
        with explained():
            row = self._connection.execute(
                self._sql(
                    "SELECT fingerprint, state, generation, schema_version, columns FROM {s}.views WHERE name = %s"
                ),
                (view,),
            ).fetchone()
        return None if row is None else ViewState(*row)

    def note(self, view: str, state: ViewState) -> None:
        """Writes the view's state; `rebuild` stays until the view begins to be filled. An error stays, unless the view
        had stopped for it, until its cause is known to be gone."""
        with explained():
            self._connection.execute(self._sql(statements.NOTE_STATE), (view, *state[:4], json.dumps(state.columns)))

    def note_error(self, view: str, error: WatershedError, state: str | None = None) -> None:
        """Writes what a view has stopped for, or what it waits for, also where it has never begun."""
        with explained():
            self._connection.execute(
                self._sql(statements.NOTE_ERROR),
                {"view": view, "error": error.message, "next": error.hint, "state": state},
            )

    def forget_error(self, view: str) -> None:
        """Removes the error of a running view; not that of a filled one, which waits to serve. Another connection
        does it: a filling only reads in this one."""
        with explained(), connect(self._config) as connection:
            connection.execute(self._sql(statements.FORGET_ERROR), (view,))

    def ask_rebuild(self, view: str) -> bool:
        """Requests that the view's job fills it again. Returns False if the view has never run."""
        with explained():
            done = self._connection.execute(
                self._sql(
                    "UPDATE {s}.views SET state = 'rebuild', error = NULL, next = NULL, failing_since = NULL "
                    "WHERE name = %s"
                ),
                (view,),
            )
            self._connection.execute("SELECT pg_notify('watershed_views', '')")
        return bool(done.rowcount)

    def counts(self, view: str) -> ViewFacts | None:
        return read_counts(self._connection, self.schema, view)

    def versions(self, count: int = 1) -> list[int]:
        """Returns the next version numbers of computations."""
        with explained():
            rows = self._connection.execute(
                "SELECT nextval(%s::regclass) FROM generate_series(1, %s)", (self._name("versions"), count)
            ).fetchall()
        return [number for (number,) in rows]

    def wait(self, seconds: float) -> None:
        """Waits until a change is noted, or this time has passed."""
        with explained():
            for _ in self._connection.notifies(timeout=seconds, stop_after=1):
                return

    def _forget(self, view: str) -> None:
        """Deletes all records about a view or log, as a part of the caller's transaction."""
        for own, column in statements.OWN_TABLES:
            place = sql.Identifier(self.schema, own), sql.Identifier(column)
            self._connection.execute(sql.SQL("DELETE FROM {} WHERE {} = %s").format(*place), (view,))

    def _name(self, own: str) -> str:
        return sql.Identifier(self.schema, own).as_string()

    def _sql(self, text: LiteralString) -> sql.Composed:
        return sql.SQL(text).format(s=sql.Identifier(self.schema))


class ViewFigures:
    """A connection to one base. Methods raise SinkError for a database that does not answer."""

    def __init__(self, config: SqlConfig, prefix: str, connect_timeout_s: int = CONNECT_TIMEOUT_S) -> None:
        self._schema = schema_of(prefix)
        self._connection = connect(config, connect_timeout_s)

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    def of(self, view: str) -> ViewFacts:
        """Returns the view's figures."""
        return read_counts(self._connection, self._schema, view) or ViewFacts(view, "never run")


def read_counts(connection: psycopg.Connection[Any], schema: str, view: str) -> ViewFacts | None:
    """Returns the figures of a view; None if it has never run. `schema`: of the views' own tables."""
    statement = sql.SQL(statements.COUNTS).format(
        s=sql.Identifier(schema), counted_max=sql.Literal(statements.COUNTED_MAX)
    )
    with explained():
        try:
            row = connection.execute(statement, {"view": view, "schema": schema}).fetchone()
        except psycopg.errors.UndefinedTable:  # no view has run on this base
            return None
    return None if row is None else ViewFacts(*row)
