"""Existing rows, at one point in time: tables locked, slot created, its exported snapshot read with COPY.

The locks come before the slot. A snapshot that was taken first and then waited behind a TRUNCATE or a rewriting ALTER
would see an empty table, and a table altered in between would not be the one that was described.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
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
RANGE_PAGES = 4_096  # 32 MiB of a table, where a page has 8 KiB
BATCH_ROWS = 500  # from a reader to who publishes; two for each reader are held
BATCH_BYTES = 1024 * 1024


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


@dataclass(frozen=True, slots=True)
class _Part:
    """Pages of a relation from `first_page` to before `end_page` (None: all that follow). Without a first page the
    relation is a root, and all that hangs below it is meant."""

    relation: TableId
    first_page: int | None = None
    end_page: int | None = None


class SnapshotReader(AbstractContextManager["SnapshotReader"]):
    """Reads tables in an exported transaction snapshot, over several connections. Make it while TableLocks are held.

    A table is read in ranges of pages (ctid), which need neither a key nor an index; the rows come in no order."""

    def __init__(self, source: SourceConfig, snapshot_name: str, workers: int) -> None:
        self._connections: list[SourceConnection] = []
        try:
            for _ in range(workers):
                self._connections.append(_import_snapshot(source, snapshot_name))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @says_lost
    def estimate(self, tables: Sequence[TableId]) -> dict[TableId, int]:
        """Rows of each table as the planner has them; 0 where it never looked."""
        rows = (
            self._connections[0]
            .execute(
                "SELECT n.nspname::text, c.relname::text, greatest(c.reltuples, 0)::int8"
                "  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname = ANY (%s) AND c.relname = ANY (%s)",
                ([table.schema for table in tables], [table.name for table in tables]),
            )
            .fetchall()
        )
        return {TableId(schema, name): count for schema, name, count in rows if TableId(schema, name) in tables}

    def lines(self, schema: TableSchema, *, row_filter: str | None) -> Iterator[bytes]:
        """Each row as a line of COPY's text format, columns in the schema's order, without the line's end. Who stops
        before the last one can't read another table."""
        statements: queue.SimpleQueue[sql.Composed] = queue.SimpleQueue()
        for part in self._parts(schema):
            statements.put(_copy_statement(schema, part, row_filter) + copy_options(self._connections[0]))
        batches: queue.Queue[list[bytes] | BaseException | None] = queue.Queue(maxsize=2 * len(self._connections))
        stopped = threading.Event()
        readers = [
            threading.Thread(target=_read, args=(connection, statements, batches, stopped), name="load", daemon=True)
            for connection in self._connections
        ]
        for reader in readers:
            reader.start()
        try:
            ended = 0
            while ended < len(readers):
                batch = batches.get()
                if isinstance(batch, psycopg.OperationalError):
                    raise lost(batch) from batch
                if isinstance(batch, psycopg.Error):
                    words = batch.diag.message_primary
                    raise SourceError(f"existing rows of table {schema.table} can't be read: {words}") from batch
                if isinstance(batch, BaseException):
                    raise batch
                if batch is None:
                    ended += 1
                else:
                    yield from batch
        finally:
            stopped.set()
            while any(reader.is_alive() for reader in readers):  # one that waits to hand over must find room
                with suppress(queue.Empty):
                    batches.get(timeout=0.05)

    @says_lost
    def _parts(self, schema: TableSchema) -> list[_Part]:
        """The leaves of a partitioned table have pages of their own; where our role may read them only through their
        root, that is one part."""
        leaves = (
            self._connections[0]
            .execute(
                "SELECT n.nspname::text, c.relname::text,"
                "       pg_relation_size(c.oid) / current_setting('block_size')::int8,"
                "       has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE')"
                "  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE c.oid = %(oid)s AND c.relkind = 'r'"
                "    OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)",
                {"oid": schema.oid},
            )
            .fetchall()
        )
        if not all(may_read for *_, may_read in leaves):
            return [_Part(schema.table)]
        parts: list[_Part] = []
        for namespace, name, pages, _ in leaves:
            firsts = range(0, max(1, pages), RANGE_PAGES)
            parts += [_Part(TableId(namespace, name), first, first + RANGE_PAGES) for first in firsts[:-1]]
            parts.append(_Part(TableId(namespace, name), firsts[-1]))
        return parts


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


def _copy_statement(schema: TableSchema, part: _Part, row_filter: str | None) -> sql.Composed:
    conditions: list[sql.Composable] = []
    if part.first_page is not None:
        conditions.append(sql.SQL("ctid >= {}").format(sql.Literal(f"({part.first_page},0)")))
    if part.end_page is not None:
        conditions.append(sql.SQL("ctid < {}").format(sql.Literal(f"({part.end_page},0)")))
    if row_filter:
        conditions.append(sql.SQL(f"({row_filter})"))  # from the catalog, as the server itself prints it
    return sql.SQL("COPY (SELECT {} FROM {} {} {}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in schema.columns),
        sql.SQL("") if part.first_page is None else sql.SQL("ONLY"),
        sql.Identifier(*part.relation),
        sql.SQL("WHERE {}").format(sql.SQL(" AND ").join(conditions)) if conditions else sql.SQL(""),
    )


def _read(
    connection: SourceConnection,
    statements: "queue.SimpleQueue[sql.Composed]",
    batches: "queue.Queue[list[bytes] | BaseException | None]",
    stopped: threading.Event,
) -> None:
    """In a thread: one range after the other, until there are none. Then None, or what went wrong."""
    try:
        while not stopped.is_set():
            try:
                statement = statements.get_nowait()
            except queue.Empty:
                break
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                batch: list[bytes] = []
                size = 0
                for data in copy:
                    batch.append(bytes(data).removesuffix(b"\n"))
                    size += len(data)
                    if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
                        batches.put(batch)
                        batch, size = [], 0
                        if stopped.is_set():
                            return
                if batch:
                    batches.put(batch)
        batches.put(None)
    except BaseException as error:  # noqa: BLE001 - it is raised where the rows are wanted
        batches.put(error)
