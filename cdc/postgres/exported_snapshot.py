"""Existing rows at one point in time: tables are locked, the slot is created, and its exported snapshot is read with
COPY.

The locks come before the slot. A snapshot that was taken first and then waited behind TRUNCATE or a rewriting ALTER
would show an empty table, and a table that was altered in between would differ from its description.
"""

from collections.abc import Iterator, Sequence

import psycopg
from psycopg import sql

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConnectionLost, SourceError
from cdc.model.events import TableId, TableSchema
from cdc.postgres.chunk_table import size
from cdc.postgres.connection import SourceConnection, connect, lost, says_lost
from cdc.postgres.copy_lines import all_lines
from cdc.postgres.source import has_rows

LOCK_WAIT_S = 60
OWN_LOCK_WAIT_S = 5


def lock_statement(tables: Sequence[TableId]) -> sql.Composed:
    """Returns LOCK TABLE, which takes no transaction snapshot."""
    names = sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
    return sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names)


def lock_tables(source: SourceConfig) -> SourceConnection:
    """Returns a connection with ACCESS SHARE locks on all captured tables, which last until it is closed: rows may be
    written, but the tables can't be altered, dropped or truncated. Raises SourceError, ConnectionLost."""
    connection = connect(source, application="watershed load")
    dropped = "a table was dropped or privileges were revoked meanwhile: correct that, then start again"
    try:
        with says_lost("the captured tables can't be locked", dropped):
            try:
                connection.execute("BEGIN")
                connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'")
                connection.execute(lock_statement(source.table_ids))
            except psycopg.errors.LockNotAvailable as error:
                raise SourceError(
                    f"the captured tables could not be locked in {LOCK_WAIT_S} s: another session alters or truncates "
                    "one",
                    "wait until that session ends, then start again",
                ) from error
    except BaseException:
        connection.close()
        raise
    return connection


class SnapshotReader:
    """Reads tables in an exported transaction snapshot, while `lock_tables` keeps them as they are. The rows have no
    order, so neither a key nor an index is needed."""

    def __init__(self, source: SourceConfig, snapshot_name: str) -> None:
        self._connection = _import_snapshot(source, snapshot_name)

    def close(self) -> None:
        self._connection.close()

    def has_rows(self, table: TableId) -> bool:
        """Says whether the table has rows. Raises ConnectionLost."""
        return has_rows(self._connection, table)

    @says_lost()
    def estimate(self, schema: TableSchema) -> int:
        """Returns the planner's number of rows of the table; 0 without statistics."""
        return size(self._connection, schema).rows

    def lines(self, schema: TableSchema, *, row_filter: str | None) -> Iterator[bytes]:
        """Yields each row as a line of COPY's text format, with the columns in the schema's order, without the newline.
        The connection can't read another table unless all lines were read. Raises ConnectionLost, SourceError."""
        with says_lost(f"existing rows of table {schema.table} can't be read"):
            found = self._connection.execute(
                "SELECT relkind = 'p' FROM pg_class WHERE oid = %s", (schema.oid,)
            ).fetchone()
            statement = _copy_statement(schema, row_filter, is_partitioned=found == (True,))
            yield from all_lines(self._connection, statement)


def _import_snapshot(source: SourceConfig, name: str) -> SourceConnection:
    connection = connect(source, application="watershed load")
    try:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
        # Takes locks of its own with a short timeout: an ALTER that waits behind `lock_tables` would block it for
        # ever.
        connection.execute(f"SET LOCAL lock_timeout = '{OWN_LOCK_WAIT_S}s'")
        connection.execute(lock_statement(source.table_ids))
    except psycopg.errors.LockNotAvailable as error:
        connection.close()
        raise ConnectionLost(
            "an ALTER or TRUNCATE of a captured table and the initial load are in a deadlock"
        ) from error
    except psycopg.Error as error:
        connection.close()
        raise lost(error) from error
    return connection


def _copy_statement(schema: TableSchema, row_filter: str | None, *, is_partitioned: bool) -> sql.Composed:
    return sql.SQL("COPY (SELECT {} FROM {} {} {}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in schema.columns),
        sql.SQL("" if is_partitioned else "ONLY"),
        sql.Identifier(*schema.table),
        sql.SQL(f"WHERE {row_filter}" if row_filter else ""),  # SQL of the server, from the catalog
    )
