"""Reads unchanged TOAST values: a few columns of rows by key, from the table as it is now.

A row may have been written by a transaction that is visible before it is durable (synchronous_commit = off), and that a
crash of the server would undo. That can't be if the row's last writer was received from the log. For any other row, and
for a row that does not exist, the log is flushed before the answer counts.

There is one thread, so a server that does not answer delays the stream for at most READ_S_MAX.
"""

import queue
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, LiteralString

import psycopg

from cdc.config.settings import SourceConfig
from cdc.model.errors import WatershedError
from cdc.model.events import TableId, TableSchema
from cdc.ports.row_reader import FoundRows, RequestedRow, RowsRequest, Unreadable
from cdc.ports.stream import WhileWaiting
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.postgres.catalog import Publication
from cdc.postgres.chunk_failures import may_succeed_later
from cdc.postgres.chunk_statements import ChunkTable, reread_statement, watermark_statement
from cdc.postgres.chunk_table import TableAlteredError, TableUnlikeError, begin_read, describe_for_chunks
from cdc.postgres.connection import SourceConnection
from cdc.postgres.connection_worker import ConnectionWorker, close_workers
from cdc.postgres.copy_lines import copy_lines, fields_of

READ_S_MAX: Final = 5.0
LATE_S_MAX: Final = 0.5  # after a request without an answer, until one is answered
WAIT_S: Final = 0.05
CANCEL_S: Final = 0.8

# Keys are few and tables large: whatever the statistics say, use the key's index. A table that is locked against
# reading is being rewritten, truncated or dropped: its rows are not worth a long wait.
_SETTINGS: LiteralString = (
    "SET synchronous_commit = local; SET lock_timeout = '200ms'; SET max_parallel_workers_per_gather = 0;"
    " SET jit = off; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
)
# The end of the log is read after the rows, hence it is behind everything that they come from.
_IS_FLUSHED: LiteralString = (
    "COMMIT; SELECT pg_current_wal_flush_lsn() >= end_lsn, (end_lsn - '0/0')::int8"
    " FROM pg_current_wal_insert_lsn() AS end_lsn"
)


@dataclass(frozen=True, slots=True)
class _Request:
    number: int
    wanted: RowsRequest
    bytes_max: int


class PostgresRowReader:
    """Implements cdc.ports.row_reader.RowReader. Thread and connection start at the first request."""

    def __init__(self, source: SourceConfig, publication: Publication) -> None:
        self._source = source
        self._publication = publication
        self._chunk_tables: dict[TableId, ChunkTable] = {}
        self._answers: queue.SimpleQueue[tuple[int, FoundRows | Unreadable | None]] = queue.SimpleQueue()
        self._number = 0  # number of the last request
        self._is_late = False
        self._worker: ConnectionWorker[_Request] = ConnectionWorker(source, queue.SimpleQueue(), self._serve, _SETTINGS)

    def read(self, wanted: RowsRequest, bytes_max: int, while_waiting: WhileWaiting) -> FoundRows | Unreadable | None:
        self._number += 1
        self._worker.start()
        with suppress(queue.Empty):
            while True:  # drop requests that nobody waits for, if the server hangs
                self._worker.requests.get_nowait()
        self._worker.requests.put(_Request(self._number, wanted, bytes_max))
        deadline = time.monotonic() + (LATE_S_MAX if self._is_late else READ_S_MAX)
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                number, answer = self._answers.get(timeout=min(WAIT_S, left_s))
            except queue.Empty:
                while_waiting()
                continue
            if number == self._number:
                self._is_late = False
                return answer
        self._is_late = True
        self._worker.cancel(time.monotonic() + CANCEL_S)
        return None

    def close(self) -> None:
        close_workers([self._worker])

    # ---- in the thread

    def _serve(self, worker: ConnectionWorker[_Request], request: _Request) -> None:
        if request.number != self._number:
            return  # nobody waits for the answer any more
        answer: FoundRows | Unreadable | None = None
        try:
            answer = self._found(worker, request.wanted, request.bytes_max)
        except Exception as error:  # noqa: BLE001 - the outermost handler of the thread: every request must be answered
            worker.drop()
            self._chunk_tables.pop(request.wanted.schema.table, None)
            answer = _failure(error)
        self._answers.put((request.number, answer))

    def _found(self, worker: ConnectionWorker[_Request], wanted: RowsRequest, bytes_max: int) -> FoundRows | None:
        connection = worker.connection()
        snapshot, described = self._begin(connection, wanted.schema)
        statement = reread_statement(described, wanted.columns, [row.key for row in wanted.rows])
        copied = copy_lines(connection, statement, bytes_max)
        rows, is_ours = _rows(wanted, copied.lines)
        if len(copied.lines) < copied.row_count and rows[-1] is None:
            rows.pop()  # of several lines for its key, the right one may follow
        if not rows:
            return None
        if not copied.is_ended:
            worker.drop()
            connection = worker.connection()
        cursor = connection.execute(_IS_FLUSHED if copied.is_ended else _IS_FLUSHED.removeprefix("COMMIT; "))
        row = cursor.set_result(-1).fetchone()
        assert row is not None, "a query of one row"
        is_flushed, read_lsn = row
        if not is_ours and not is_flushed:
            # A commit waits for the flush of the log. To poll for the flush could take long: the end of the written log
            # may be the beginning of a page, up to which nothing is ever flushed.
            connection.execute(watermark_statement(""))
        return FoundRows(snapshot, tuple(rows), 0 if is_ours else read_lsn)

    def _begin(self, connection: SourceConnection, schema: TableSchema) -> tuple[TransactionSnapshot, ChunkTable]:
        described = self._chunk_tables.get(schema.table)
        if described is not None:
            with suppress(TableAlteredError):
                return begin_read(connection, described), described
            connection.execute("ROLLBACK")
        chosen = self._source.chosen(schema.table)
        snapshot, described = describe_for_chunks(connection, schema, self._publication, chosen)
        self._chunk_tables[schema.table] = described
        return snapshot, described


def _rows(wanted: RowsRequest, lines: Sequence[bytes]) -> tuple[list[tuple[bytes | None, ...] | None], bool]:
    """Returns the values of the wanted rows, as many as were read, and whether all were last written by transactions
    that were received."""
    key_size = len(wanted.schema.key)
    rows: list[tuple[bytes | None, ...] | None] = []
    is_ours = True
    for line in lines:
        number, xmin, *fields = fields_of(line)
        row: RequestedRow = wanted.rows[int(number or b"")]
        if int(number or b"") == len(rows):
            rows.append(None)
        key = tuple(field.decode() for field in fields[key_size : 2 * key_size] if field is not None)
        if key == row.key:  # not a key that the index only takes for equal
            rows[-1] = tuple(fields[2 * key_size :])
            is_ours = is_ours and xmin == b"%d" % row.xid
    return rows, is_ours and None not in rows


def _failure(error: Exception) -> Unreadable | None:
    """Returns the answer for an error; None if a retry may succeed."""
    if isinstance(error, TableUnlikeError):
        # The stream has to reach the change of the table first, and must not wait for itself
        return Unreadable(error.message)
    if may_succeed_later(error):
        return None
    if isinstance(error, WatershedError):
        return Unreadable(error.message)
    return Unreadable(f"SQLSTATE {error.sqlstate}" if isinstance(error, psycopg.Error) else type(error).__name__)
