"""Lines of COPY TO STDOUT where the server can't print a row: it sends binary format, of which the lines are made.

The format: PostgreSQL manual, COPY, "Binary Format". A signature before the first row, -1 behind the last one.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from struct import Struct
from typing import Final

import psycopg
from psycopg import sql

from cdc.config.settings import SourceConfig
from cdc.model.errors import SourceError
from cdc.model.events import TableSchema
from cdc.pgoutput.binary_rows import BinaryRow, BinaryValues
from cdc.pgoutput.row_parts import BINARY, NULL, RawValue
from cdc.postgres.connection import holds_any_bytes
from cdc.postgres.copy_lines import Copied, copy_lines
from cdc.postgres.types import PostgresTypes

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES: Final = len(_SIGNATURE) + 8  # flags 4, length of an extension 4: both 0
_COUNT: Final = Struct(">h")
_LENGTH: Final = Struct(">i")
_ESCAPES: Final = {
    b"\\": b"\\\\",
    b"\b": b"\\b",
    b"\f": b"\\f",
    b"\n": b"\\n",
    b"\r": b"\\r",
    b"\t": b"\\t",
    b"\v": b"\\v",
}


def copy_binary(
    source: SourceConfig, connection: psycopg.Connection, schema: TableSchema, query: sql.Composed, bytes_max: int
) -> Copied:
    """As copy_lines gives them; `query` is a COPY of the schema's columns without options. Raises psycopg.Error,
    ConnectionLost; SourceError for a value that has no text."""
    if holds_any_bytes(connection.pgconn):
        connection.execute("SET LOCAL client_encoding = 'SQL_ASCII'")
    statement = query + sql.SQL(" (FORMAT binary)")
    copied = copy_lines(connection, statement.as_bytes(connection), bytes_max, end=b"")
    types = [column.type_oid for column in schema.columns]
    rows = [BinaryRow(types, values) for line in copied.lines for values in _rows(line, schema)]
    with closing(PostgresTypes(source)) as server:
        lines = tuple(_line(schema, values) for values in BinaryValues(server).with_texts(rows))
    # The end is a message of its own, which was received or dropped.
    return replace(copied, lines=lines, row_count=copied.row_count - copied.is_ended)


def _rows(message: bytes, schema: TableSchema) -> Iterator[list[RawValue]]:
    """Of one CopyData message: a row, or the end."""
    at = _HEADER_BYTES if message.startswith(_SIGNATURE) else 0
    view = memoryview(message)
    count: int = _COUNT.unpack_from(view, at)[0]
    if count < 0:
        return
    if count != len(schema.columns):
        raise SourceError(f"table {schema.table}: the server sends {count} columns of {len(schema.columns)}")
    at += _COUNT.size
    values = []
    for _ in range(count):
        size: int = _LENGTH.unpack_from(view, at)[0]
        at += _LENGTH.size
        values.append(RawValue(NULL) if size < 0 else RawValue(BINARY, view[at : at + size]))
        at += max(0, size)
    yield values


def _line(schema: TableSchema, values: Sequence[RawValue]) -> bytes:
    """In text format, without the line's end."""
    fields: list[bytes] = []
    for column, value in zip(schema.columns, values, strict=True):
        if value.kind == BINARY:
            raise SourceError(
                f"existing rows of table {schema.table} can't be read: PostgreSQL gave no text of a value in column "
                f"{column.name}",
                "write another value, then ask for the snapshot again",
            )
        fields.append(b"\\N" if value.kind == NULL else _escaped(bytes(value.content)))
    return b"\t".join(fields)


def _escaped(text: bytes) -> bytes:
    for character, escape in _ESCAPES.items():  # the backslash first
        text = text.replace(character, escape)
    return text
