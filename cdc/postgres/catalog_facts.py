"""Reads what the catalog has of many tables: their facts, and whether each can be captured."""

from collections.abc import Sequence
from typing import LiteralString

import psycopg

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConfigError, SourceError, WatershedError
from cdc.model.events import TableId
from cdc.model.table_state import ColumnFacts, StorageFacts, TableFacts
from cdc.ports.source_table import SourceTable, TableDescription
from cdc.postgres.catalog import Publication, digest
from cdc.postgres.connection import says_lost
from cdc.postgres.source import checked_table, published_table

# Catalog rows are written again whenever they change, which their xmin shows. Enums: those of a column's type, of its
# elements, and of a domain's base type. `reached`: the types of a column and all types within them; built-in types
# never change, and a domain prints as its base type. A column with a default that is added to a partitioned table has a
# missing value in the partitions only. All of this is read from the catalog's tables, whose rows are those of one
# moment: pg_relation_filenode() and pg_partition_ancestors() would return the newest state beside columns that are
# older, and pg_partition_tree() locks the partitions: it would wait for an ALTER of one.
_FACTS: LiteralString = """
SELECT n.nspname::text, c.relname::text, c.oid::int8,
       (SELECT json_agg(json_build_array(a.attnum, a.attname, a.xmin::text,
                 a.atthasmissing OR a.attname = ANY (p.missing), types.forms ->> a.attnum::text) ORDER BY a.attnum)
          FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT json_agg(json_build_array(l.oid::int8, l.relfilenode::int8, coalesce(part.attached, ''),
                 l.reltoastrelid::int8) ORDER BY l.oid)
          FROM (SELECT c.oid, NULL WHERE c.relkind <> 'p'
                UNION ALL SELECT * FROM unnest(tree.members, tree.attached)) AS part(oid, attached)
          JOIN pg_class l ON l.oid = part.oid AND l.relkind <> 'p'),
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
            FROM pg_class p WHERE p.oid = ANY (tree.members))),
       c.relnatts, types.labels, (SELECT t.xmin::text FROM pg_type t WHERE t.oid = c.reltype)
  FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS w(schema, name)
  JOIN pg_namespace n ON n.nspname = w.schema
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
 CROSS JOIN LATERAL (
    WITH RECURSIVE part(oid, attached) AS (
        SELECT c.oid, NULL WHERE c.relkind = 'p'
        UNION ALL
        SELECT i.inhrelid, concat_ws(' ', part.attached, i.xmin)
          FROM part JOIN pg_inherits i ON i.inhparent = part.oid AND NOT i.inhdetachpending
    ) SELECT array_agg(oid) AS members, array_agg(attached) AS attached FROM part) AS tree
 CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(DISTINCT a.attname), '{}') AS missing
      FROM pg_attribute a WHERE a.attrelid = ANY (tree.members) AND a.atthasmissing) AS p
 CROSS JOIN LATERAL (
    WITH RECURSIVE reached(number, oid) AS (
        SELECT a.attnum, a.atttypid FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        UNION
        SELECT r.number, part.oid FROM reached r JOIN pg_type t ON t.oid = r.oid CROSS JOIN LATERAL (
            SELECT t.typbasetype AS oid WHERE t.typtype = 'd'
            UNION ALL SELECT t.typelem WHERE t.typelem <> 0
            UNION ALL SELECT a.atttypid FROM pg_attribute a
                       WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
            UNION ALL SELECT g.rngsubtype FROM pg_range g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)
        ) AS part WHERE r.oid >= 16384  -- FirstNormalObjectId
    ), formed AS (
        SELECT r.number, string_agg(concat_ws(' ',
                   CASE t.oid WHEN 'varchar'::regtype THEN 'text'::regtype::oid ELSE t.oid END, o.relnatts,
                   (SELECT string_agg(concat_ws(' ', a.attnum, a.atttypid, a.atttypmod), ';' ORDER BY a.attnum)
                      FROM pg_attribute a WHERE a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped)),
                 ',' ORDER BY t.oid) AS form
          FROM reached r JOIN pg_type t ON t.oid = r.oid LEFT JOIN pg_class o ON o.oid = t.typrelid AND t.typtype = 'c'
         WHERE t.typtype <> 'd' GROUP BY r.number
    ) SELECT (SELECT json_object_agg(number, form) FROM formed) AS forms,
             (SELECT array_agg(concat_ws(' ', e.oid, e.xmin) ORDER BY e.oid)
                FROM pg_enum e WHERE e.enumtypid IN (SELECT oid FROM reached)) AS labels) AS types
"""


@says_lost()
def read_facts(connection: psycopg.Connection, tables: Sequence[TableId]) -> dict[TableId, TableFacts]:
    """Returns the facts of those tables that exist. Raises ConnectionLost."""
    names = {"schemas": [table.schema for table in tables], "names": [table.name for table in tables]}
    return {
        TableId(schema, name): TableFacts(
            oid=oid,
            columns=tuple(
                ColumnFacts(number=number, name=column, changed_in=xmin, has_missing=has_missing, form=_short(form))
                for number, column, xmin, has_missing, form in columns or ()
            ),
            storage=tuple(
                StorageFacts(oid=part, file=file, attached=_short(rows), toast=toast)
                for part, file, rows, toast in storage or ()
            ),
            generated=generated,
            others=digest(others),
            attributes=attributes,
            labels=tuple(labels or ()),
            row_type=row_type or "",
        )
        for schema, name, oid, columns, storage, generated, others, attributes, labels, row_type in connection.execute(
            _FACTS, names
        )
    }


def _short(text: str | None) -> str:
    return text or "" if len(text or "") <= 16 else digest(text or "")


def describe_tables(
    connection: psycopg.Connection, source: SourceConfig, publication: Publication
) -> dict[TableId, TableDescription]:
    """Returns the description of each configured table. Raises ConnectionLost."""
    facts = read_facts(connection, source.table_ids)
    return {
        table: describe_table(connection, source, table, publication, facts.get(table)) for table in source.table_ids
    }


def describe_table(
    connection: psycopg.Connection,
    source: SourceConfig,
    table: TableId,
    publication: Publication,
    facts: TableFacts | None,
) -> TableDescription:
    """Returns the description of one table. Raises ConnectionLost."""
    entry, chosen = publication.entries.get(table, ""), source.chosen(table)
    found: SourceTable | None = None
    error: WatershedError | None = None
    barrier: WatershedError | None = None
    try:
        found = published_table(connection, table, publication, chosen)
    except (SourceError, ConfigError) as refusal:
        error = refusal
    try:
        addable = checked_table(connection, table, publication, chosen)
        found = found or addable
    except (SourceError, ConfigError) as refusal:
        barrier = refusal
    state = f"{facts.model_dump_json() if facts else None} {entry} {barrier.message if barrier else None}"
    return TableDescription(found, facts, entry, state, error, barrier)
