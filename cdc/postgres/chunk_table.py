"""Describes a table before its rows are read in chunks: its definition, the order of its key, its size, and where to
split it.
"""

import hashlib
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Final, LiteralString, cast

import psycopg
from psycopg import sql

from cdc.config.columns import AS_IT_IS, Chosen
from cdc.model.errors import NEXT_AFTER_ALTER, SourceError
from cdc.model.events import TableId, TableSchema
from cdc.pgoutput.relations import relation_differs, relation_of
from cdc.ports.chunk_reader import Key
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.postgres.catalog import Publication, read_publication, read_table, require_all_rows
from cdc.postgres.chunk_statements import (
    BUILT_IN_OPERATORS,
    ChunkTable,
    KeyColumn,
    QualifiedName,
    begin_statement,
    sample_statement,
)
from cdc.postgres.connection import read_row
from cdc.postgres.copy_lines import copy_lines, key_of

# Enough for ranges that differ by a few percent, if rows of a page have adjacent keys.
_SAMPLE_PAGES: Final = 400
_SAMPLE_ROWS_MIN: Final = 10  # sampled rows for each range
_SAMPLE_BYTES_MAX: Final = 64 * 1024 * 1024  # keys are small, and few pages are sampled

# Indexes that may be the key's, column by column. The operators are those of the index's operator class, in btree's
# order; NULL if it is not a btree. A domain is compared as its base type.
_KEYS: LiteralString = """
WITH RECURSIVE part AS (
    SELECT i.indexrelid, i.indisprimary, k.ord, a.attname, a.atttypid AS type, k.class, k.coll
      FROM pg_index i
     CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[])
           WITH ORDINALITY AS k(attnum, class, coll, ord)
      JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
     WHERE i.indrelid = %(oid)s AND k.ord <= i.indnkeyatts
       AND (i.indisprimary OR i.indisreplident
            OR i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL)
), base(indexrelid, ord, type) AS (
    SELECT indexrelid, ord, type FROM part
    UNION ALL
    SELECT b.indexrelid, b.ord, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
)
SELECT p.indexrelid::int8, p.attname::text, ARRAY[tn.nspname::text, t.typname::text],
       CASE WHEN co.oid IS NOT NULL THEN ARRAY[cn.nspname::text, co.collname::text] END,
       (SELECT array_agg(ARRAY[n.nspname::text, o.oprname::text] ORDER BY m.amopstrategy)
          FROM pg_opclass c
          JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amoppurpose = 's'
                        AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
          JOIN pg_operator o ON o.oid = m.amopopr
          JOIN pg_namespace n ON n.oid = o.oprnamespace
          JOIN pg_am am ON am.oid = c.opcmethod AND am.amname = 'btree'
         WHERE c.oid = p.class),
       p.type <> b.type,
       (SELECT c.opcdefault FROM pg_opclass c WHERE c.oid = p.class)
  FROM part p
  JOIN base b ON b.indexrelid = p.indexrelid AND b.ord = p.ord
  JOIN pg_type t ON t.oid = b.type AND t.typtype <> 'd'
  JOIN pg_namespace tn ON tn.oid = t.typnamespace
  LEFT JOIN pg_collation co ON co.oid = p.coll
  LEFT JOIN pg_namespace cn ON cn.oid = co.collnamespace
 ORDER BY p.indisprimary DESC, p.indexrelid, p.ord
"""

_SIZES: LiteralString = """
SELECT coalesce(sum(greatest(c.reltuples::float8, 0)), 0)::int8,
       coalesce(sum(pg_table_size(c.oid)) FILTER (WHERE c.reltuples > 0), 0)::int8,
       coalesce(sum(pg_relation_size(c.oid)), 0)::int8 / current_setting('block_size')::int8
  FROM pg_class c
 WHERE c.relkind = 'r' AND (c.oid = %(oid)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass)))
"""


class TableAlteredError(SourceError):
    """The table differs from its description. Describing it again may succeed, or gives the reason why not."""


class TableUnlikeError(TableAlteredError):
    """The table differs from its known description. Schema tracking (cdc/tables/schema_tracking.py) will adopt the new
    description or stop the table; then describing it again helps, or is not needed."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size by the planner's last statistics, of all partitions; 0 without statistics."""

    rows: int
    row_bytes: int
    pages: int  # present number of pages


def begin_read(
    connection: psycopg.Connection, table: ChunkTable, *, prefers_index: bool = False
) -> TransactionSnapshot:
    """Opens the transaction of a chunk. Returns its transaction snapshot. Raises psycopg.Error, and TableAlteredError
    if the table is not as described."""
    statement = begin_statement(table.name, is_partitioned=table.is_partitioned, prefers_index=prefers_index)
    snapshot, fingerprint = _begin(connection, table.name, statement)
    if fingerprint != table.fingerprint:
        raise TableAlteredError(f"table {table.name} was altered or replaced meanwhile", "try again")
    return snapshot


def _begin(connection: psycopg.Connection, table: TableId, statement: sql.Composed) -> tuple[TransactionSnapshot, str]:
    """Returns the transaction snapshot and the fingerprint of the table."""
    try:
        cursor = connection.execute(statement)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise TableUnlikeError(
            f"table {table} no longer exists: it was dropped or renamed", NEXT_AFTER_ALTER
        ) from error
    row = cursor.set_result(-1).fetchone()
    if row is None:
        raise TableAlteredError(f"table {table} was replaced while it was locked")
    snapshot, fingerprint = row
    return TransactionSnapshot.parse(snapshot), hashlib.sha256(fingerprint.encode()).hexdigest()[:32]


def describe_for_chunks(
    connection: psycopg.Connection,
    schema: TableSchema,
    publication: Publication | None,
    chosen: Chosen = AS_IT_IS,
) -> tuple[TransactionSnapshot, ChunkTable]:
    """Opens a transaction and describes the table in it. `publication`: the one at the beginning of the session; None:
    there is none yet.

    Raises psycopg.Error; SourceError if rows of the table can't be published with `schema`; ConnectionLost.
    """
    statement = begin_statement(schema.table, is_partitioned=True, prefers_index=False)
    snapshot, fingerprint = _begin(connection, schema.table, statement)
    published, row_filter = None, None
    if publication is not None:
        now = read_publication(connection, publication.name, [schema.table], filters=[schema.table])
        if now is None or not now.is_as(publication, schema.table):
            raise TableAlteredError(f"publication {publication.name} was altered or dropped")
        # Without a column list, the publication also has columns that were added.
        published, row_filter = now.columns.get(schema.table, ()), now.row_filters.get(schema.table)
    found = read_table(connection, schema.table, published, chosen)
    difference = relation_differs(schema, relation_of(replace(schema, oid=found.oid, columns=found.columns)))
    if difference is None and found.key != schema.key:
        difference = f"its key is ({', '.join(found.key)}), but was ({', '.join(schema.key)})"
    if difference is not None:
        raise TableUnlikeError(f"table {schema.table} was altered: {difference}", NEXT_AFTER_ALTER)
    require_all_rows(found)
    key = _key_columns(connection, schema)
    return snapshot, ChunkTable(schema.table, fingerprint, found.is_partitioned, key, row_filter)


def size(connection: psycopg.Connection, schema: TableSchema) -> Size:
    rows, known_bytes, pages = read_row(connection, _SIZES, {"oid": schema.oid})
    return Size(rows, known_bytes // rows if rows else 0, pages)


def bounds(connection: psycopg.Connection, table: ChunkTable, pages: int, ranges: int) -> tuple[Key, ...]:
    """Returns ascending keys between ranges of about equal numbers of rows; empty if there are too few rows. Raises
    psycopg.Error, SourceError."""
    statement = sample_statement(table, min(100.0, max(100.0 * _SAMPLE_PAGES / max(pages, 1), 1e-6)))
    copied = copy_lines(connection, statement, _SAMPLE_BYTES_MAX)
    assert copied.is_ended, "the keys of the sampled pages fit"
    lines = copied.lines
    if len(lines) < ranges * _SAMPLE_ROWS_MIN:
        return ()
    places = range(len(table.key))
    return tuple(key_of(lines[len(lines) * number // ranges], places, table.name) for number in range(1, ranges))


def _key_columns(connection: psycopg.Connection, schema: TableSchema) -> tuple[KeyColumn, ...]:
    rows = connection.execute(_KEYS, {"oid": schema.oid}).fetchall()
    for _, group in groupby(rows, key=itemgetter(0)):
        key = tuple(
            KeyColumn(
                name,
                _name(type_),
                _name(collation) if collation else None,
                tuple(map(_name, operators)) if operators else BUILT_IN_OPERATORS,
                is_domain,
                is_default and bool(operators),
            )
            for _, name, type_, collation, operators, is_domain, is_default in group
        )
        if tuple(column.name for column in key) == schema.key:
            return key
    raise SourceError(
        f"rows of table {schema.table} can't be read in chunks: no unique index has exactly its key columns "
        f"({', '.join(schema.key)}), in this order",
        "create one, then cdc snapshot resume",
    )


def _name(parts: list[str]) -> QualifiedName:
    return cast(QualifiedName, tuple(parts))
