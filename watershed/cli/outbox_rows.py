"""Rows of outbox tables that can be deleted, because their events are published, or published again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import psycopg
from psycopg import sql

from cdc.model.errors import SourceError, UnreachableError
from cdc.model.events import TableId
from cdc.model.lsn import parse_lsn
from cdc.model.sql_names import sql_name
from cdc.postgres.connection import SourceConnection, read_row, says_lost

PRUNE_ROWS: Final = 10_000  # rows deleted in one transaction


@dataclass(frozen=True, slots=True)
class OldEvents:
    """The rows of an outbox table that have reached an age."""

    table: TableId
    id_column: str
    time_column: str
    older_than_s: float | None  # the age by `time_column`; None: all rows

    @property
    def condition(self) -> sql.Composable:
        if self.older_than_s is None:
            return sql.SQL("")
        age = sql.SQL(" WHERE {} < now() - make_interval(secs => {})")
        return age.format(sql.Identifier(self.time_column), sql.Literal(self.older_than_s))


@dataclass(frozen=True, slots=True)
class PublishedProof:
    """The proof that committed events are published."""

    server: SourceConnection  # to the one that has the slot
    slot: str
    deadline_s: float  # for capture to confirm committed rows
    wait: Callable[[float], None]  # sleeps
    # Raises if the slot may be past events that are not published. It is called when the slot has confirmed, because a
    # process that creates a slot or stops a table records that before.
    require_published: Callable[[], None]


def prune(connection: SourceConnection, events: OldEvents, proof: PublishedProof) -> Iterator[int]:
    """Deletes rows whose events are published and confirmed. Yields the number of rows after each transaction.

    Raises SourceError, ConnectionLost, and UnreachableError if capture does not confirm the committed rows in time.
    """
    table = events.table
    names = {"table": sql.Identifier(*table), "id": sql.Identifier(events.id_column), "condition": events.condition}
    select = sql.SQL("SELECT {id} FROM {table}{condition} LIMIT {limit}").format(limit=sql.Literal(PRUNE_ROWS), **names)
    delete = sql.SQL("DELETE FROM {table} WHERE {id} = ANY (%s)").format(**names)
    while True:
        with _refusals(
            f"the role may not prune {table}", f"SELECT, DELETE ON {sql_name(*table)}", f"{table} can't be pruned"
        ):
            ids = [row[0] for row in connection.execute(select)]
            if not ids:
                return
            _await_confirmed(connection, proof)
            proof.require_published()
            deleted = connection.execute(delete, (ids,)).rowcount
        yield deleted


def republish(connection: SourceConnection, table: TableId, time_column: str, since: datetime) -> int:
    """Deletes and inserts the rows from `since` on by `time_column`, in one transaction, so that the log has them
    again, with their ids. Returns their number. Raises SourceError, ConnectionLost."""
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
    """Translates the server's errors for a maintainer of outbox tables."""
    try:
        with says_lost():
            yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(may_not, f"GRANT {rights} TO <role>") from error
    except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable) as error:
        raise SourceError(f"{what}: {error.diag.message_primary}", "correct outbox.tables") from error


def _await_confirmed(connection: SourceConnection, proof: PublishedProof) -> None:
    """Waits until the slot confirms a message that is written now: rows that are visible now are before it in the
    log."""
    (end,) = read_row(connection, "SELECT pg_catalog.pg_logical_emit_message(true, 'watershed.prune', '')::text")
    waited = 0.0
    while True:
        found = proof.server.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (proof.slot,)
        ).fetchone()
        if found is None or found[0] is None:
            raise SourceError(
                f"there is no slot {proof.slot}, so it is not known which events are published", "start cdc run first"
            )
        if parse_lsn(found[0]) >= parse_lsn(end):
            return
        if waited >= proof.deadline_s:
            raise UnreachableError(
                f"capture has not confirmed the committed rows within {proof.deadline_s:g} s; no more rows are deleted",
                "check that cdc run is running, and try again",
            )
        proof.wait(0.1)
        waited += 0.1
