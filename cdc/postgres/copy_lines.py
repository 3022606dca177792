"""Reads the lines of COPY TO STDOUT, holding no more of them than requested.

libpq is used directly: one statement by the extended protocol, so that a condition in it can't contain a second
statement, and rows as they arrive, without a call through psycopg's cursor for each.
"""

import re
import select
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import pq, sql

from cdc.model.errors import ConnectionLost, SourceError
from cdc.model.events import TableId
from cdc.ports.chunk_reader import Key
from cdc.postgres.connection import copy_options

# Rows beyond the limit are received and dropped, up to this size; beyond it a new connection is cheaper.
_DROPPED_BYTES_MAX: Final = 8 * 1024 * 1024
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a COPY."""

    lines: tuple[bytes, ...]  # without the newline
    row_count: int  # number of received rows
    is_ended: bool  # False: rows were left, and the connection can't be used any more


def copy_lines(connection: psycopg.Connection, statement: sql.Composed, bytes_max: int) -> Copied:
    """Executes a COPY TO STDOUT without options. Returns the first line, and as many more as `bytes_max` holds. Raises
    psycopg.Error."""
    lines: list[bytes] = []
    room = bytes_max
    row_count = dropped = 0
    is_full = False
    for line in all_lines(connection, statement):
        size = len(line) + 1
        row_count += 1
        is_full = is_full or (bool(lines) and size > room)
        if is_full:
            dropped += size
            if dropped > _DROPPED_BYTES_MAX:
                return Copied(tuple(lines), row_count, is_ended=False)
        else:
            lines.append(line)
            room -= size
    return Copied(tuple(lines), row_count, is_ended=True)


def all_lines(connection: psycopg.Connection, statement: sql.Composed) -> Iterator[bytes]:
    """Executes a COPY TO STDOUT without options. Yields each line, without its newline. The connection can't be used
    any more unless all lines were read. Raises psycopg.Error."""
    pgconn = connection.pgconn
    pgconn.send_query_params((statement + copy_options(connection)).as_bytes(connection), None)
    while pgconn.flush():
        _wait(pgconn, select.POLLIN | select.POLLOUT)
        pgconn.consume_input()
    _expect(pgconn, pq.ExecStatus.COPY_OUT)
    while True:
        size, view = pgconn.get_copy_data(1)
        if size > 0:
            yield bytes(view[: size - 1])
        elif size == 0:
            _wait(pgconn, select.POLLIN)
            pgconn.consume_input()
        else:
            break
    _expect(pgconn, pq.ExecStatus.COMMAND_OK)
    _finish(pgconn)


def key_of(line: bytes, places: Sequence[int], table: TableId, *, promises_utf8: bool = False) -> Key:
    """Returns the texts of these fields of a line. Raises SourceError, with the table, for text that is not UTF-8;
    ConnectionLost if the server promises UTF-8, because the text was damaged in transit."""
    fields = line.split(b"\t")
    try:
        return tuple(_ESCAPE.sub(_unescaped, fields[place]).decode() for place in places)
    except UnicodeDecodeError as error:
        if promises_utf8:
            raise ConnectionLost(
                f"a key in table {table} is not UTF-8, which the encoding of the database promises",
                "look for a proxy or network that damages data; if this occurs again, correct the key in the database",
            ) from error
        raise SourceError(
            f"a key in table {table} is not UTF-8",
            "a database with encoding SQL_ASCII accepts such bytes: correct them, or convert it",
        ) from error


def fields_of(line: bytes) -> list[bytes | None]:
    """Returns the texts of a line's fields, None for NULL."""
    fields = line.split(b"\t")
    if b"\\" not in line:
        return list(fields)
    return [None if field == b"\\N" else _ESCAPE.sub(_unescaped, field) for field in fields]


def _unescaped(escape: re.Match[bytes]) -> bytes:
    return _ESCAPED.get(escape[1], escape[1])


def _next_result(pgconn: pq.abc.PGconn) -> pq.abc.PGresult | None:
    while pgconn.is_busy():
        _wait(pgconn, select.POLLIN)
        pgconn.consume_input()
    return pgconn.get_result()


def _finish(pgconn: pq.abc.PGconn) -> None:
    """Reads results until the connection accepts the next statement."""
    while _next_result(pgconn) is not None:
        pass


def _expect(pgconn: pq.abc.PGconn, status: pq.ExecStatus) -> None:
    result = _next_result(pgconn)
    if result is None or result.status != status:
        _finish(pgconn)
        raise psycopg.errors.error_from_result(result) if result else psycopg.OperationalError("the server is gone")


def _wait(pgconn: pq.abc.PGconn, events: int) -> None:
    poll = select.poll()  # select() refuses sockets above 1023
    poll.register(pgconn.socket, events)
    poll.poll()
