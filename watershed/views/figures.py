"""Reads the state of views from their base. Changes nothing there."""

from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from cdc.config.stores import SqlConfig
from watershed.status.view_facts import ViewFacts
from watershed.views import statements
from watershed.views.connection import CONNECT_TIMEOUT_S, connect, explained
from watershed.views.statements import schema_of


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
