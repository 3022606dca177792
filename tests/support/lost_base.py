"""Deletes what a SQL sink and views have made in their base, beside processes that use it."""

import json
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from cdc.config.stores import SqlConfig
from tests.support.waiting import eventually
from watershed.views.statements import schema_of


def holds_tables(config: SqlConfig, prefix: str) -> bool:
    """Returns whether the sink has prepared all of its tables."""
    own = sql.Identifier(config.beginning(prefix), "tables")
    with psycopg.connect(config.url.get_secret_value(), autocommit=True) as connection:
        if connection.execute("SELECT to_regclass(%s)", (own.as_string(),)).fetchone() == (None,):
            return False
        found = connection.execute(sql.SQL("SELECT bool_and(is_prepared) FROM {}").format(own)).fetchone()
    return found == (True,)


def drop_base(config: SqlConfig, prefix: str) -> None:
    """Drops the sink's tables and its own schema, and the schema of views with triggers and notes. The targets of views
    in the same database stay."""
    own, of_views = sql.Identifier(config.beginning(prefix)), sql.Identifier(schema_of(prefix))
    with psycopg.connect(config.url.get_secret_value(), autocommit=True) as connection:
        places = connection.execute(sql.SQL("SELECT shape FROM {}.tables").format(own)).fetchall()
        lost = [sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(one) for one in (own, of_views)]
        lost += [
            sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(sql.Identifier(*json.loads(shape)["place"]))
            for (shape,) in places
        ]
        for statement in lost:
            eventually(partial(_is_done, connection, statement))


def _is_done(connection: psycopg.Connection[Any], statement: sql.Composed) -> bool:
    """Executes it, unless it meets another one in a deadlock."""
    try:
        connection.execute(statement)
    except psycopg.errors.DeadlockDetected:
        return False
    return True
