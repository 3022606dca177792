"""The catalog's facts of many tables at once, and what is behind a relation message's type numbers."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import LiteralString

import psycopg

from cdc.events import Column, TableId
from cdc.pgoutput.messages import RelationColumn
from cdc.postgres.catalog import column_types
from cdc.postgres.connection import says_lost
from cdc.table_state import ColumnFacts, StorageFacts, TableFacts

# Rows of the catalog that are written anew whenever what they say changes tell it by their xmin. Enums: of a column's
# type, its elements', and what a domain stands for.
_FACTS: LiteralString = """
SELECT n.nspname::text, c.relname::text, c.oid::int8,
       (SELECT json_agg(json_build_array(a.attnum, a.attname, a.xmin::text, a.atthasmissing) ORDER BY a.attnum)
          FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT json_agg(json_build_array(l.oid::int8, coalesce(pg_relation_filenode(l.oid)::int8, 0)) ORDER BY l.oid)
          FROM (SELECT c.oid WHERE c.relkind <> 'p'
                UNION ALL SELECT relid FROM pg_partition_tree(c.oid) WHERE c.relkind = 'p' AND isleaf) AS l),
       (SELECT coalesce(string_agg(concat_ws(' ', a.attnum, d.oid, d.xmin), ',' ORDER BY a.attnum), '')
          FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attrelid = c.oid AND a.attgenerated <> ''),
       concat_ws(';', c.relkind, c.relpersistence, c.relreplident,
         (SELECT string_agg(concat_ws(' ', i.indexrelid, i.xmin), ',' ORDER BY i.indexrelid)
            FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique),
         (SELECT string_agg(concat_ws(' ', e.oid, e.enumlabel, e.enumsortorder), ',' ORDER BY e.oid)
            FROM pg_enum e WHERE e.enumtypid IN (
              SELECT unnest(ARRAY[t.oid, t.typelem, t.typbasetype, b.typelem, x.typbasetype])
                FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
                LEFT JOIN pg_type b ON b.oid = t.typbasetype LEFT JOIN pg_type x ON x.oid = t.typelem
               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)),
         (SELECT string_agg(concat_ws(' ', p.oid, p.relreplident), ',' ORDER BY p.oid)
            FROM pg_partition_tree(c.oid) l JOIN pg_class p ON p.oid = l.relid WHERE c.relkind = 'p'))
  FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS w(schema, name)
  JOIN pg_namespace n ON n.nspname = w.schema
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
"""


@says_lost
def read_facts(connection: psycopg.Connection, tables: Sequence[TableId]) -> dict[TableId, TableFacts]:
    """Of those that are there. Raises ConnectionLost."""
    names = {"schemas": [table.schema for table in tables], "names": [table.name for table in tables]}
    return {
        TableId(schema, name): TableFacts(
            oid=oid,
            columns=tuple(
                ColumnFacts(number=number, name=column, changed_in=xmin, has_missing=has_missing)
                for number, column, xmin, has_missing in columns or ()
            ),
            storage=tuple(StorageFacts(oid=part, file=file) for part, file in storage or ()),
            generated=generated,
            others=hashlib.sha256(others.encode()).hexdigest()[:16],
        )
        for schema, name, oid, columns, storage, generated, others in connection.execute(_FACTS, names)
    }


@says_lost
def describe(connection: psycopg.Connection, oid: int, sent: Sequence[RelationColumn]) -> list[Column]:
    """Columns that a relation message names, with what the catalog says of their types now: a type that is gone is
    published as text. Raises ConnectionLost."""
    types = column_types(connection, [(column.type_oid, column.type_modifier) for column in sent])
    nullable: dict[str, bool] = dict(
        connection.execute(
            "SELECT attname::text, NOT attnotnull FROM pg_attribute WHERE attrelid = %s AND attnum > 0", (oid,)
        ).fetchall()
    )
    columns = []
    for column in sent:
        kind = types.get((column.type_oid, column.type_modifier)) or Column(
            name="",
            type_oid=column.type_oid,
            type_modifier=column.type_modifier,
            type_name=f"type {column.type_oid}",
            nullable=True,
            base_type_oid=column.type_oid,
        )
        columns.append(replace(kind, name=column.name, nullable=nullable.get(column.name, True)))
    return columns
