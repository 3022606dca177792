"""Existing rows, at one point in time: tables locked, slot created, its exported snapshot read with COPY.

The locks come before the slot. A snapshot that was taken first and then waited behind a TRUNCATE or a rewriting ALTER
would see an empty table, and a table altered in between would not be the one that was described.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConnectionLost, SourceError
from cdc.model.events import TableId, TableSchema
from cdc.postgres.connection import SourceConnection, connect, copy_options, lost, says_lost

LOCK_WAIT_S = 60
OWN_LOCK_WAIT_S = 5


def lock_statement(tables: Sequence[TableId]) -> sql.Composed:
    """Takes no snapshot."""
    names = sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
    return sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names)


class TableLocks(AbstractContextManager["TableLocks"]):
    """ACCESS SHARE on every captured table: rows may be written, the tables can't be altered, dropped, truncated."""

    def __init__(self, source: SourceConfig) -> None:
        self._tables = source.table_ids
        self.connection = connect(source, application="watershed load")

    def __enter__(self) -> Self:
        try:
            self.connection.execute("BEGIN")
            self.connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'")
            self.connection.execute(lock_statement(self._tables))
        except psycopg.errors.LockNotAvailable as error:
            self.connection.close()
            raise SourceError(
                f"the captured tables could not be locked in {LOCK_WAIT_S} s: something alters or truncates one",
                "wait for it to end, then start again",
            ) from error
        except psycopg.OperationalError as error:
            raise lost(error) from error
        except psycopg.Error as error:
            self.connection.close()
            raise SourceError(
                f"the captured tables can't be locked: {error.diag.message_primary}",
                "a table was dropped or its rights were taken meanwhile: correct that, then start again",
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()


class SnapshotReader:
    """Reads tables in an exported transaction snapshot. Make it while TableLocks are held. The rows come in no order,
    so that neither a key nor an index is needed."""

    def __init__(self, source: SourceConfig, snapshot_name: str) -> None:
        self._connection = _import_snapshot(source, snapshot_name)

    def close(self) -> None:
        self._connection.close()

    @says_lost
    def estimate(self, tables: Sequence[TableId]) -> dict[TableId, int]:
        """Rows of each table as the planner has them; 0 where it never looked."""
        rows = self._connection.execute(
            "SELECT n.nspname::text, c.relname::text, greatest(c.reltuples, 0)::int8"
            "  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = ANY (%s) AND c.relname = ANY (%s)",
            ([table.schema for table in tables], [table.name for table in tables]),
        ).fetchall()
        return {TableId(schema, name): count for schema, name, count in rows if TableId(schema, name) in tables}

    def lines(self, schema: TableSchema, *, row_filter: str | None) -> Iterator[bytes]:
        """Each row as a line of COPY's text format, columns in the schema's order, without the line's end. Who stops
        before the last one can't read another table. Raises ConnectionLost, SourceError."""
        try:
            found = self._connection.execute(
                "SELECT relkind = 'p' FROM pg_class WHERE oid = %s", (schema.oid,)
            ).fetchone()
            statement = _copy_statement(schema, row_filter, is_partitioned=found == (True,))
            with self._connection.cursor() as cursor, cursor.copy(statement + copy_options(self._connection)) as copy:
                for line in copy:
                    yield bytes(line).removesuffix(b"\n")
        except psycopg.OperationalError as error:
            raise lost(error) from error
        except psycopg.Error as error:
            raise SourceError(
                f"existing rows of table {schema.table} can't be read: {error.diag.message_primary}"
            ) from error


def _import_snapshot(source: SourceConfig, name: str) -> SourceConnection:
    connection = connect(source, application="watershed load")
    try:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
        # Its own locks, and soon: an ALTER that has queued behind the TableLocks would keep us waiting for ever.
        connection.execute(f"SET LOCAL lock_timeout = '{OWN_LOCK_WAIT_S}s'")
        connection.execute(lock_statement(source.table_ids))
    except psycopg.errors.LockNotAvailable as error:
        connection.close()
        raise ConnectionLost("an ALTER or TRUNCATE of a captured table waits for us, as we for it") from error
    except psycopg.Error as error:
        connection.close()
        raise lost(error) from error
    return connection


def _copy_statement(schema: TableSchema, row_filter: str | None, *, is_partitioned: bool) -> sql.Composed:
    return sql.SQL("COPY (SELECT {} FROM {} {} {}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in schema.columns),
        sql.SQL("" if is_partitioned else "ONLY"),
        sql.Identifier(*schema.table),
        sql.SQL(f"WHERE {row_filter}" if row_filter else ""),  # from the catalog, as the server itself prints it
    )
