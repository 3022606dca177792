"""The reader of existing rows: threads with connections of their own, which read chunks and write their watermarks.

A chunk is one short transaction. The table is locked before the transaction snapshot is taken: a snapshot that was
taken first and then waited behind TRUNCATE or a rewriting ALTER would show an empty table. The answer is made available
before the watermark is written, so that it is there when the watermark arrives in the stream.
"""

import queue
import time
from dataclasses import replace
from typing import Final

import psycopg
import structlog
from psycopg import sql

from cdc.config.settings import SourceConfig
from cdc.model.errors import SourceError
from cdc.pgoutput.record_keys import RecordKeys
from cdc.ports.chunk_reader import (
    Answer,
    BarrierPassed,
    Chunk,
    ChunkRead,
    Compared,
    DescribeTable,
    LookedUp,
    Lookup,
    Request,
    TableDescribed,
    TopicComparison,
    TransactionBarrier,
)
from cdc.ports.stream import Probe, unarmed
from cdc.postgres.catalog import Publication
from cdc.postgres.chunk_failures import failed
from cdc.postgres.chunk_statements import (
    ChunkTable,
    chunk_statement,
    condition_statement,
    reread_statement,
    watermark_statement,
)
from cdc.postgres.chunk_table import TableAlteredError, begin_read, bounds, describe_for_chunks, size
from cdc.postgres.connection import SourceConnection, holds_any_bytes
from cdc.postgres.connection_worker import RECONNECT_S, ConnectionWorker, close_workers
from cdc.postgres.copy_lines import copy_lines, fields_of, key_of
from cdc.postgres.source import check_may_mark
from cdc.postgres.transaction_barrier import pass_barrier

log = structlog.get_logger(__name__)

LOCK_WAIT_S: Final = 3
_LOOKUP_BYTES_MAX: Final = 64 * 1024 * 1024  # a page of keys has a few MB at most

# The commit of a watermark does not wait for standbys: one that is named in synchronous_standby_names and down would
# block it. Chunks follow an index, so parallel workers and compilation would cost the source more than they gain.
_SETTINGS: Final = (
    f"SET synchronous_commit = local; SET lock_timeout = '{LOCK_WAIT_S}s';"
    " SET max_parallel_workers_per_gather = 0; SET jit = off"
)

_Queue = queue.SimpleQueue[Request | None]


class PostgresChunkReader:
    """Implements cdc.ports.chunk_reader.ChunkReader[Request]. Threads and connections start at the first request."""

    def __init__(
        self,
        source: SourceConfig,
        publication: Publication,
        workers: int,
        split_rows_min: int,
        probe: Probe = unarmed,
        comparison: TopicComparison | None = None,
    ) -> None:
        """`comparison`: for chunks that are compared."""
        self._comparison = comparison
        self._source = source
        self._publication = publication
        self._split_rows_min = split_rows_min
        self._probe = probe
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._chunk_tables: dict[str, ChunkTable] = {}  # by fingerprint
        self._chunks: _Queue = queue.SimpleQueue()
        # Served by a thread of their own, because a transaction barrier may last for hours.
        self._others: _Queue = queue.SimpleQueue()
        self._workers = [
            ConnectionWorker(source, requests, self._serve, _SETTINGS)
            for requests in (self._others, *[self._chunks] * workers)
        ]

    # ---- the port

    def ask(self, request: Request) -> None:
        for worker in self._workers:
            worker.start()
        (self._chunks if isinstance(request, Chunk | Lookup) else self._others).put(request)

    def answers(self) -> list[Answer]:
        return [self._answers.get_nowait() for _ in range(self._answers.qsize())]

    def close(self) -> None:
        """Cancels running requests; requests without an answer get none. Idempotent."""
        close_workers(self._workers)

    # ---- in the threads

    def _serve(self, worker: ConnectionWorker[Request], request: Request) -> None:
        try:
            match request:
                case TransactionBarrier():
                    self._barrier(worker, request)
                case DescribeTable():
                    self._describe(worker, request)
                case Chunk():
                    self._chunk(worker, request)
                case Lookup():
                    self._look_up(worker, request)
        except Exception as error:  # noqa: BLE001 - the outermost handler of the thread: every request must be answered
            worker.drop()
            if not worker.closing.is_set():
                failure = failed(request, error)
                if isinstance(request, TransactionBarrier):
                    log.warning("transaction barrier failed", error=failure.error.message, next=failure.error.hint)
                    worker.closing.wait(RECONNECT_S)
                self._answers.put(failure)

    def _barrier(self, worker: ConnectionWorker[Request], request: TransactionBarrier) -> None:
        snapshot = pass_barrier(worker.connection(), worker.closing)
        if snapshot is not None:
            self._answers.put(BarrierPassed(request.nonce, snapshot))

    def _describe(self, worker: ConnectionWorker[Request], request: DescribeTable) -> None:
        connection, schema = worker.connection(), request.schema
        chosen = self._source.chosen(schema.table)
        snapshot, described = describe_for_chunks(connection, schema, self._publication, chosen)
        sizes = size(connection, schema)
        splits = request.ranges > 1 and sizes.rows >= self._split_rows_min
        edges = bounds(connection, described, sizes.pages, request.ranges) if splits else ()
        self._chunk_tables[described.fingerprint] = described
        self._answers.put(
            TableDescribed(
                request.nonce, snapshot, described.fingerprint, sizes.rows, sizes.row_bytes, edges, described.order
            )
        )
        _write_watermark(connection, request.nonce)

    def _chunk(self, worker: ConnectionWorker[Request], request: Chunk) -> None:
        connection, schema = worker.connection(), request.schema
        described = self._described(request)
        is_part = bool(described.row_filter or request.where) or request.keys is not None
        snapshot = begin_read(connection, described, prefers_index=not is_part)
        statement = chunk_statement(
            described,
            schema.columns,
            request.rows_max,
            where=request.where,
            after=request.after,
            up_to=request.up_to,
            keys=request.keys,
        )
        if request.where is not None:
            _require_condition(connection, condition_statement(described, request.where))
        began = time.monotonic()
        copied = copy_lines(connection, statement, request.bytes_max)
        places = [[column.name for column in schema.columns].index(name) for name in schema.key]
        is_utf8 = not holds_any_bytes(connection.pgconn)
        read = ChunkRead(
            nonce=request.nonce,
            snapshot=snapshot,
            lines=copied.lines,
            last=key_of(copied.lines[-1], places, schema.table, promises_utf8=is_utf8) if copied.lines else None,
            is_end=len(copied.lines) == copied.row_count < request.rows_max,
            seconds=time.monotonic() - began,
        )
        if request.compared_with is not None:
            read = self._compared(worker, request.compared_with, read)
        self._answers.put(read)
        self._probe("chunk.read")
        if not copied.is_ended:
            worker.drop()
        _write_watermark(worker.connection(), request.nonce)
        self._probe("chunk.marked")

    def _compared(self, worker: ConnectionWorker[Request], scan: str, read: ChunkRead) -> ChunkRead:
        """Leaves out the rows that the topic has. The transaction ends before, because that may take a while."""
        assert self._comparison is not None, "no chunk is compared without it"
        began = time.monotonic()
        if worker.connection().info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
            worker.connection().execute("COMMIT")
        lines = self._comparison.differing(scan, read.lines)
        return replace(
            read,
            lines=lines,
            compared=Compared(len(read.lines), sum(map(len, read.lines))),
            seconds=read.seconds + time.monotonic() - began,
        )

    def _look_up(self, worker: ConnectionWorker[Request], request: Lookup) -> None:
        connection, described = worker.connection(), self._described(request)
        snapshot = begin_read(connection, described)
        self._answers.put(LookedUp(request.nonce, snapshot, tuple(_absent_keys(connection, described, request))))
        _write_watermark(connection, request.nonce)

    def _described(self, request: Chunk | Lookup) -> ChunkTable:
        described = self._chunk_tables.get(request.fingerprint)
        if described is None:
            raise TableAlteredError(f"table {request.schema.table} is not described yet")
        return described


def _absent_keys(connection: SourceConnection, table: ChunkTable, request: Lookup) -> list[bytes]:
    """Returns the requested keys in the range that have no row which is published under them, in their order.

    Only a key that PostgreSQL itself prints back can be found absent: a key that is not of the key's columns, or that
    is not a valid value, is ignored. Raises psycopg.Error, SourceError.
    """
    records = RecordKeys(request.schema)
    candidates = {key: texts for key in request.keys if (texts := records.texts(key)) is not None}
    if not candidates:
        return []
    keys = list(candidates)
    statement = reread_statement(table, (), list(candidates.values()), after=request.after, up_to=request.up_to)
    connection.execute("SAVEPOINT keys")
    try:
        copied = copy_lines(connection, statement, _LOOKUP_BYTES_MAX)
    except psycopg.DataError:
        # A key is not a valid value of its type (any more). The others are looked up without it, in the same
        # transaction snapshot.
        connection.execute("ROLLBACK TO SAVEPOINT keys")
        half = len(keys) // 2
        halves = (keys[:half], keys[half:]) if half else ()
        return [key for part in halves for key in _absent_keys(connection, table, replace(request, keys=tuple(part)))]
    if len(copied.lines) < copied.row_count or not copied.is_ended:
        raise SourceError(
            f"keys of table {table.name} are too large to be looked up", "start a snapshot with a smaller range"
        )
    given = range(2, 2 + len(table.key))
    found = range(given.stop, given.stop + len(table.key))
    is_there: dict[bytes, bool] = {}
    for line in copied.lines:
        number, xmin, *_ = fields_of(line)
        key = keys[int(number or b"")]
        if records.encode(key_of(line, given, table.name)) == key:
            # Keys that the index takes for equal may be different record keys: 1.0 and 1.00, or letters of other case.
            is_same = xmin is not None and records.encode(key_of(line, found, table.name)) == key
            is_there[key] = is_there.get(key, False) or is_same
    return [key for key, is_found in is_there.items() if not is_found]


def _require_condition(connection: SourceConnection, statement: sql.Composed) -> None:
    """Executes the check of a condition by the extended protocol, which allows one statement only. Raises
    psycopg.Error."""
    result = connection.pgconn.exec_params(statement.as_bytes(connection), None)
    if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)


def _write_watermark(connection: SourceConnection, nonce: str) -> None:
    """Ends the open transaction, if any, and writes the watermark. Raises psycopg.Error, SourceError."""
    is_open = connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
    statement = sql.SQL("COMMIT; {}" if is_open else "{}").format(watermark_statement(nonce))
    try:
        connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        check_may_mark(connection)
        raise
