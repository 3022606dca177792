"""Finds record keys that have no row in their table, in an open transaction."""

from collections.abc import Sequence
from typing import Final

import psycopg

from cdc.model.errors import SourceError
from cdc.model.events import TableSchema
from cdc.pgoutput.record_keys import RecordKeys
from cdc.ports.chunk_reader import Key
from cdc.postgres.chunk_statements import ChunkTable, lookup_statement
from cdc.postgres.copy_lines import copy_lines, key_of

_BYTES_MAX: Final = 64 * 1024 * 1024  # a page of keys has a few MB at most
_NULL: Final = b"\\N"


def absent_keys(
    connection: psycopg.Connection,
    schema: TableSchema,
    chunk_table: ChunkTable,
    keys: Sequence[bytes],
    after: Key | None,
    up_to: Key | None,
) -> tuple[bytes, ...]:
    """Returns the keys in the range that have no row which is published under them, in their order.

    Only a key that PostgreSQL itself prints back can be found absent: a key that is not of the key's columns, or that
    is not a valid value, is ignored. Raises psycopg.Error, SourceError.
    """
    records = RecordKeys(schema)
    candidates = [(key, texts) for key in keys if (texts := records.texts(key)) is not None]
    found = _absent(connection, schema, chunk_table, [texts for _, texts in candidates], after, up_to)
    return tuple(key for key, _ in candidates if key in found)


def _absent(
    connection: psycopg.Connection,
    schema: TableSchema,
    chunk_table: ChunkTable,
    candidates: Sequence[Key],
    after: Key | None,
    up_to: Key | None,
) -> set[bytes]:
    """Returns the record keys of the rows that do not exist."""
    if not candidates:
        return set()
    statement = lookup_statement(chunk_table, candidates, after=after, up_to=up_to)
    connection.execute("SAVEPOINT keys")
    try:
        copied = copy_lines(connection, statement, _BYTES_MAX)
    except psycopg.DataError:
        # A key is not a valid value of its type (any more). The others are looked up without it, in the same
        # transaction snapshot.
        connection.execute("ROLLBACK TO SAVEPOINT keys")
        half = len(candidates) // 2
        if half == 0:
            return set()
        rest = (candidates[:half], candidates[half:])
        return set().union(*(_absent(connection, schema, chunk_table, part, after, up_to) for part in rest))
    if len(copied.lines) < copied.row_count or not copied.is_ended:
        raise SourceError(
            f"keys of table {schema.table} are too large to be looked up", "start a snapshot with a smaller range"
        )
    records = RecordKeys(schema)
    wanted, there = range(len(chunk_table.key)), range(len(chunk_table.key), 2 * len(chunk_table.key))
    absent: set[bytes] = set()
    for line in copied.lines:
        key = records.encode(key_of(line, wanted, schema.table))
        is_there = line.split(b"\t")[there[0]] != _NULL
        # Keys that the index takes for equal may be different record keys: 1.0 and 1.00, or letters of other case.
        if not is_there or records.encode(key_of(line, there, schema.table)) != key:
            absent.add(key)
    return absent
