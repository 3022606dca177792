"""The outbox at the source: the key that seals messages, and rows that are published and can go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

import psycopg
from psycopg import sql

from cdc.config.settings import SourceConfig
from cdc.model.errors import SourceError, UnreachableError
from cdc.model.events import TableId
from cdc.model.lsn import Lsn, parse_lsn
from cdc.model.sql_names import sql_name
from cdc.outbox.seal import KEY_BYTES, SealKey
from cdc.postgres.connection import SourceConnection, connect, lost, says_lost

PRUNE_ROWS: Final = 10_000  # of one transaction


def transactional_connection(source: SourceConfig) -> SourceConnection:
    """For who changes several things at once."""
    connection = connect(source, application="watershed migrate")
    connection.autocommit = False
    return connection


@says_lost
def read_seal_key(connection: SourceConnection, function: TableId) -> SealKey:
    """Of the function that publishes without a table. Raises SourceError with the next step, ConnectionLost."""
    table = sql.Identifier(function.schema, "outbox_key")
    try:
        rows = connection.execute(sql.SQL("SELECT secret FROM {}").format(table)).fetchall()
    except psycopg.errors.UndefinedTable as error:
        raise SourceError(
            f"there is no function {function} that publishes events",
            f"cdc outbox migrate --schema {function.schema}; or take outbox.messages out of the configuration",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(
            f"the role may not read {function.schema}.outbox_key, with which it knows messages that are true",
            f"cdc outbox migrate --schema {function.schema} --capture <role>",
        ) from error
    if len(rows) != 1 or len(rows[0][0]) != KEY_BYTES:
        raise SourceError(f"{function.schema}.outbox_key does not hold exactly one key", "restore it from a backup")
    return SealKey(rows[0][0])


def prune(
    connection: SourceConnection,
    table: TableId,
    id_column: str,
    slot: str,
    older_than_s: float | None,
    time_column: str,
    wait: Callable[[float], None],
    deadline_s: float,
    require_published: Callable[[], None],
) -> Iterator[int]:
    """Delete rows whose events are published and confirmed; how many, after each transaction. `older_than_s`: by
    `time_column`; None: all. `wait` sleeps. `require_published` raises where the slot may be past events that are not
    published: asked once the slot has confirmed, because who makes a new one, or stops a table, tells before. Raises
    SourceError, and UnreachableError where capture does not confirm within `deadline_s` what was committed,
    ConnectionLost."""
    condition: sql.Composable = sql.SQL("")
    if older_than_s is not None:
        condition = sql.SQL(" WHERE {} < now() - make_interval(secs => {})").format(
            sql.Identifier(time_column), sql.Literal(older_than_s)
        )
    names = {"table": sql.Identifier(*table), "id": sql.Identifier(id_column), "condition": condition}
    select = sql.SQL("SELECT {id} FROM {table}{condition} LIMIT {limit}").format(limit=sql.Literal(PRUNE_ROWS), **names)
    delete = sql.SQL("DELETE FROM {table} WHERE {id} = ANY (%s)").format(**names)
    while True:
        with _refusals(
            f"the role may not prune {table}", f"SELECT, DELETE ON {sql_name(*table)}", f"{table} can't be pruned"
        ):
            ids = [row[0] for row in connection.execute(select)]
            if not ids:
                return
            _await_confirmed(connection, slot, wait, deadline_s)
            require_published()
            deleted = connection.execute(delete, (ids,)).rowcount
        yield deleted


def republish(connection: SourceConnection, table: TableId, time_column: str, since: datetime) -> int:
    """Write rows again, those from `since` on by `time_column`: each is deleted and inserted as it was, in one
    transaction, so that the log has it again, with its id. How many. Raises SourceError, ConnectionLost."""
    names: dict[str, sql.Composable] = {"table": sql.Identifier(*table), "time": sql.Identifier(time_column)}
    columns = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
    again = sql.SQL(
        "WITH gone AS (DELETE FROM {table} WHERE {time} >= %s RETURNING *, ctid AS watershed_place)"
        " INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE"
        " SELECT {columns} FROM gone ORDER BY {time}, watershed_place"
    )
    rights, what = f"SELECT, INSERT, DELETE ON {sql_name(*table)}", f"rows of {table} can't be written again"
    with _refusals(f"the role may not write rows of {table} again", rights, what):
        found = connection.execute(f"{columns} AND attgenerated = ''", (names["table"].as_string(connection),))
        names["columns"] = sql.SQL(", ").join(sql.Identifier(name) for (name,) in found)
        return connection.execute(again.format(**names), (since,)).rowcount


@contextmanager
def _refusals(may_not: str, rights: str, what: str) -> Iterator[None]:
    """What a server's refusal means to who keeps an outbox table."""
    try:
        yield
    except psycopg.OperationalError as error:
        raise lost(error) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(may_not, f"GRANT {rights} TO <role>") from error
    except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable) as error:
        raise SourceError(f"{what}: {error.diag.message_primary}", "correct outbox.tables") from error


def _await_confirmed(connection: SourceConnection, slot: str, wait: Callable[[float], None], deadline_s: float) -> None:
    """What is visible now is in the log before a message that is written now, and on disk with it."""
    row = connection.execute("SELECT pg_catalog.pg_logical_emit_message(true, 'watershed.prune', '')::text").fetchone()
    assert row is not None
    end, waited = parse_lsn(row[0]), 0.0
    while True:
        found = connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (slot,)
        ).fetchone()
        if found is None or found[0] is None:
            raise SourceError(f"there is no slot {slot}: nothing is known to be published", "start cdc run first")
        if Lsn(parse_lsn(found[0])) >= end:
            return
        if waited >= deadline_s:
            raise UnreachableError(
                f"capture has not confirmed within {deadline_s:g} s what is committed; nothing more is deleted",
                "see that cdc run is up, and try again",
            )
        wait(0.1)
        waited += 0.1
