"""Reads the source's catalog: schema and key of the captured tables, and the publication."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import kwargs_row

from cdc.config.columns import AS_IT_IS, Chosen
from cdc.model.errors import ConnectionLost, SourceError
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.sql_names import sql_name
from cdc.model.topics import Topics
from cdc.pgoutput.messages import RelationColumn
from cdc.ports.source_table import SourceTable
from cdc.postgres.connection import says_lost

_TABLES: LiteralString = """
SELECT c.oid::int8, c.relkind::text, c.relreplident::text, c.relpersistence::text,
       has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE'), row_security_active(c.oid),
       pg_has_role(c.relowner, 'USAGE'),
       -- columns of the primary key and of the replica identity index, in index order; a deferrable one is no identity,
       -- and rows may have the same within a transaction
       (SELECT array_agg(a.attname::text ORDER BY k.ord) FROM pg_index i
          CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, ord)
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
         WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND k.ord <= i.indnkeyatts),
       (SELECT array_agg(a.attname::text ORDER BY k.ord) FROM pg_index i
          CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, ord)
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
         WHERE i.indrelid = c.oid AND i.indisreplident AND k.ord <= i.indnkeyatts)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s
"""

# Columns of each index that is unique at any moment. NULLs would be distinct, but keys have none.
_UNIQUE: LiteralString = """
SELECT array_agg(a.attname::text ORDER BY k.ord)
  FROM pg_index i
 CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, ord)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
 WHERE i.indrelid = %s AND k.ord <= i.indnkeyatts
   AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
 GROUP BY i.indexrelid
"""

_COLUMNS: LiteralString = """
SELECT a.attname::text, a.atttypid::int8, a.atttypmod, NOT a.attnotnull
  FROM pg_attribute a
 WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped AND (a.attgenerated = '' OR %(generated)s)
   AND (%(published)s::text[] IS NULL OR a.attname = ANY (%(published)s::text[]))
 ORDER BY a.attnum
"""

# A domain's values are those of its base type, with the modifier of the domain; domains over domains are resolved to
# the end. An array is a type that array_out prints: int2vector and its like have elements, but are printed differently.
_TYPES: LiteralString = """
WITH RECURSIVE wanted AS (
    SELECT place, oid::oid, modifier
      FROM unnest(%(oids)s::int8[], %(modifiers)s::int4[]) WITH ORDINALITY AS w(oid, modifier, place)
), base(place, oid, modifier) AS (
    SELECT place, oid, NULL::int4 FROM wanted
    UNION ALL
    SELECT base.place, t.typbasetype, t.typtypmod FROM base JOIN pg_type t ON t.oid = base.oid WHERE t.typtype = 'd'
), element(place, oid) AS (
    SELECT base.place, t.typelem FROM base JOIN pg_type t ON t.oid = base.oid WHERE t.typoutput = 'array_out'::regproc
    UNION ALL
    SELECT element.place, t.typbasetype FROM element JOIN pg_type t ON t.oid = element.oid WHERE t.typtype = 'd'
)
SELECT w.oid::int8 AS type_oid, w.modifier AS type_modifier, format_type(w.oid, w.modifier) AS type_name,
       t.typtype::text AS type_kind, t.oid::int8 AS base_type_oid, coalesce(e.oid::int8, 0) AS element_oid,
       t.typdelim::text AS delimiter, base.modifier AS base_type_modifier,
       (SELECT array_agg(l.enumlabel::text ORDER BY l.enumsortorder)
          FROM pg_enum l WHERE l.enumtypid = coalesce(e.oid, t.oid)) AS labels
  FROM wanted w
  JOIN base ON base.place = w.place
  JOIN pg_type t ON t.oid = base.oid AND t.typtype <> 'd'
  LEFT JOIN (element JOIN pg_type e ON e.oid = element.oid AND e.typtype <> 'd') ON element.place = w.place
"""

# A column's value in rows that were written before it was added; one for all of them, in an array. The roots of
# partitions have none. Elements of an array that another delimiter separates (box) are read as several.
_CONSTANTS: LiteralString = """
SELECT a.attname::text, a.attmissingval::text::text[]
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
 WHERE a.attrelid = %(oid)s::int8::oid AND c.relkind = 'r' AND a.attname = ANY (%(names)s::text[])
   AND a.attnum > 0 AND NOT a.attisdropped AND a.atthasmissing
"""

_PUBLICATION: LiteralString = """
SELECT p.oid::int8, p.xmin::text, p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, p.pubviaroot,
       pg_has_role(p.pubowner, 'USAGE'), to_jsonb(p) ->> 'pubgencols',  -- since PostgreSQL 18
       (SELECT coalesce(string_agg(concat_ws(':', s.oid, s.xmin, s.pnnspid), ',' ORDER BY s.oid), '')
          FROM pg_publication_namespace s WHERE s.pnpubid = p.oid)
  FROM pg_publication p WHERE p.pubname = %(name)s
"""

_ENTRIES: LiteralString = """
SELECT n.nspname::text, c.relname::text, concat_ws(':', r.oid, r.xmin, r.prrelid)
  FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE r.prpubid = %(publication)s::int8::oid
"""

# The contents of pg_publication_tables for the requested tables. The view itself locks every table of the publication:
# it would wait for an ALTER of any of them, and fail if one is dropped meanwhile.
_PUBLISHED: LiteralString = """
WITH RECURSIVE line AS (  -- each table, with what it is a partition of
    SELECT c.oid, c.oid AS root, c.relnamespace AS namespace
      FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS w(schema, name)
      JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
    UNION ALL
    SELECT line.oid, r.oid, r.relnamespace
      FROM line JOIN pg_class l ON l.oid = line.root AND l.relispartition
      JOIN pg_inherits i ON i.inhrelid = l.oid AND NOT i.inhdetachpending JOIN pg_class r ON r.oid = i.inhparent
), published AS (
    SELECT line.oid, p.oid AS publication, p.puballtables, p.pubviaroot, array_agg(line.root) AS roots
      FROM line CROSS JOIN pg_publication p
     WHERE p.oid = %(publication)s::int8::oid
       AND (p.puballtables
            OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = line.root)
            OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = line.namespace))
     GROUP BY 1, 2, 3, 4
)
SELECT n.nspname::text, c.relname::text,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND CASE WHEN r.prattrs IS NULL THEN a.attgenerated = '' OR a.attgenerated = 's' AND %(generated)s
                         ELSE a.attnum = ANY (r.prattrs::int2[]) END ORDER BY a.attnum),
       CASE WHEN concat_ws('.', n.nspname, c.relname) = ANY (%(filters)s) THEN pg_get_expr(r.prqual, r.prrelid) END
  FROM published p JOIN pg_class c ON c.oid = p.oid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_publication_rel r ON r.prpubid = p.publication AND r.prrelid = c.oid AND NOT p.puballtables
   AND NOT EXISTS (SELECT FROM pg_publication_namespace s
                    WHERE s.pnpubid = p.publication AND s.pnnspid = c.relnamespace)
 WHERE CASE WHEN p.pubviaroot THEN p.roots = ARRAY[c.oid] ELSE c.relkind = 'r' END
"""


# Tables that patterns may take. A partition's rows are its root's; views, foreign tables and the like have no log; a
# table of an extension is the extension's. An unlogged table is among them, so that it is refused by name.
_EXISTING: LiteralString = """
SELECT n.nspname::text, c.relname::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND NOT c.relispartition
   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                      AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e')
"""


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication and its tables."""

    name: str
    publishes_all: bool  # insert, update, delete and truncate
    publishes_roots: bool  # changes of partitions are published as the root's
    is_owned: bool  # owned by our role
    # Name, oid, and a digest that changes when the publication was altered, except for its tables.
    fingerprint: str
    # Requested tables that the publication names → fingerprint of the entry, which changes when the table was removed,
    # even if it was added again.
    entries: dict[TableId, str]
    columns: dict[TableId, tuple[str, ...]]  # published columns of each table
    row_filters: dict[TableId, str]  # row filters of the tables for which they were requested

    def is_as(self, then: "Publication", table: TableId) -> bool:
        """Returns whether the publication is unchanged for this table."""
        return self.fingerprint == then.fingerprint and self.entries.get(table) == then.entries.get(table)


@says_lost()
def read_publication(
    connection: psycopg.Connection, name: str, tables: Sequence[TableId], *, filters: Sequence[TableId] = ()
) -> Publication | None:
    """Returns the publication and its entries for `tables`; None if there is none of that name. `filters`: tables whose
    row filters are wanted, which waits for a lock on a table that has one. Raises ConnectionLost."""
    row = connection.execute(_PUBLICATION, {"name": name}).fetchone()
    if row is None:
        return None
    oid, xmin, publishes_all, publishes_roots, is_owned, publishes_generated, schemas = row
    found = {TableId(*names): entry for *names, entry in connection.execute(_ENTRIES, {"publication": oid})}
    entries = {table: digest(found[table]) for table in tables if table in found}
    columns: dict[TableId, tuple[str, ...]] = {}
    row_filters: dict[TableId, str] = {}
    asked = {
        "publication": oid,
        "schemas": [table.schema for table in tables],
        "names": [table.name for table in tables],
        "generated": publishes_generated == "s",
        "filters": list(map(str, filters)),
    }
    for schema, table, names, row_filter in connection.execute(_PUBLISHED, asked):
        columns[TableId(schema, table)] = tuple(names)
        if row_filter is not None:
            row_filters[TableId(schema, table)] = row_filter
    fingerprint = f"{name}:{oid}:{digest(f'{xmin}:{schemas}')}"
    return Publication(name, publishes_all, publishes_roots, is_owned, fingerprint, entries, columns, row_filters)


@says_lost()
def existing_tables(connection: psycopg.Connection) -> list[TableId]:
    """Returns the tables that patterns may take. Raises ConnectionLost."""
    return [TableId(schema, name) for schema, name in connection.execute(_EXISTING)]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@says_lost()
def read_table(
    connection: psycopg.Connection,
    table: TableId,
    published: Sequence[str] | None,
    chosen: Chosen = AS_IT_IS,
) -> SourceTable:
    """Returns the table with those of its published columns (all if `published` is None) that are chosen. Raises
    SourceError if it can't be captured whatever the publication has, ConfigError for a key column that is excluded,
    ConnectionLost."""
    row = connection.execute(_TABLES, (table.schema, table.name)).fetchone()
    if row is None:
        if chosen.is_outbox:
            raise SourceError(
                f"table {table} does not exist", "cdc outbox migrate creates it; or correct outbox.tables"
            )
        hint = "correct source.tables, or create the table"
        if table.name.startswith('"') and table.name.endswith('"'):
            plain = TableId(table.schema, table.name[1:-1].replace('""', '"'))
            hint = f"source.tables takes names of tables without the quotes of SQL: write {plain}"
        raise SourceError(f"table {table} does not exist", hint)
    oid, kind, identity, persistence, may_select, hides_rows, is_owned, primary_key, identity_index = row
    if kind not in ("r", "p"):
        raise SourceError(f"{table} is not a table (relkind {kind})", "name tables only in source.tables")
    if persistence != "p":
        raise SourceError(f"table {table} is unlogged: its changes are not in the WAL", "ALTER TABLE … SET LOGGED")
    columns = _columns(connection, oid, published)
    key, is_chunkable = _record_key(identity, primary_key or [], identity_index or []), True
    key_columns = chosen.key
    if key_columns is not None:
        covered = {"d": primary_key, "i": identity_index, "f": [column.name for column in columns]}.get(identity)
        _require_fit(table, key_columns, columns, covered or [])
        is_chunkable = (list(key_columns),) in connection.execute(_UNIQUE, (oid,)).fetchall()
        if not (is_chunkable or chosen.is_outbox or identity == "f") and (key_columns or identity != "n"):
            raise SourceError(
                f"no unique index of table {table} has exactly its key columns ({', '.join(key_columns) or 'none'}): "
                "large values that an update does not change could be found in the old row only",
                f"ALTER TABLE {sql_name(*table)} REPLICA IDENTITY FULL"
                + ("" if key_columns else "; or NOTHING, if its rows are only ever inserted"),
            )
        key = key_columns
    captured = chosen.columns.of(table, columns, key)
    return SourceTable(
        table=table,
        oid=oid,
        is_partitioned=kind == "p",
        may_select=may_select,
        hides_rows=hides_rows,
        is_owned=is_owned,
        columns=captured,
        key=key,
        is_chunkable=is_chunkable,
        left_out=tuple(column.name for column in columns if column not in captured),
        has_primary_key=bool(primary_key),
    )


def _columns(connection: psycopg.Connection, oid: int, published: Sequence[str] | None) -> tuple[Column, ...]:
    """Returns the published columns of the table in attribute order."""
    attributes = connection.execute(
        _COLUMNS,
        {
            "oid": oid,
            "published": list(published) if published is not None else None,
            # Older versions list generated columns as published, but never send them.
            "generated": published is not None and connection.info.server_version >= 180_000,
        },
    ).fetchall()
    types = column_types(connection, [(type_oid, modifier) for _, type_oid, modifier, _ in attributes])
    if any((type_oid, modifier) not in types for _, type_oid, modifier, _ in attributes):
        raise ConnectionLost("a table was altered while it was being described")
    return tuple(
        replace(types[type_oid, modifier], name=name, nullable=nullable)
        for name, type_oid, modifier, nullable in attributes
    )


def column_types(connection: psycopg.Connection, types: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Column]:
    """Returns a column without a name for each type oid and modifier that the catalog knows. Raises psycopg.Error."""
    wanted = {"oids": [oid for oid, _ in types], "modifiers": [modifier for _, modifier in types]}
    with connection.cursor(row_factory=kwargs_row(_nameless_column)) as cursor:
        return {(column.type_oid, column.type_modifier): column for column in cursor.execute(_TYPES, wanted)}


@says_lost()
def describe(connection: psycopg.Connection, oid: int, sent: Sequence[RelationColumn]) -> list[Column]:
    """Returns the columns of a relation message with the catalog's present description of their types; a type that no
    longer exists is published as text. Raises ConnectionLost."""
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


@says_lost()
def read_constants(connection: psycopg.Connection, oid: int, names: Collection[str]) -> dict[str, str]:
    """Returns the value that these columns of a table have in all rows from before they were added, as PostgreSQL
    prints it. A column that is not there was added without a default, or not every such row has the same value, or the
    rows were rewritten since. Raises ConnectionLost."""
    found = connection.execute(_CONSTANTS, {"oid": oid, "names": list(names)}).fetchall()
    return {name: values[0] for name, values in found if len(values) == 1 and values[0] is not None}


def _nameless_column(labels: list[str] | None, **described: Any) -> Column:
    return Column(name="", nullable=True, labels=tuple(labels or ()), **described)


def _require_fit(table: TableId, key: Sequence[str], columns: Sequence[Column], covered: Sequence[str]) -> None:
    """Raises SourceError if the chosen columns can't be a record key. `covered`: the columns of the replica
    identity."""
    nullable = {column.name: column.nullable for column in columns}
    for name in key:
        if name not in nullable:
            raise SourceError(
                f"table {table} has no column {name}, or does not publish it",
                "correct source.key_columns, or the publication's column list",
            )
        if name not in covered:
            raise SourceError(
                f"key column {name} of table {table} is not in its replica identity: deletes would not contain it",
                f"ALTER TABLE {sql_name(*table)} REPLICA IDENTITY FULL; or USING INDEX a unique index that holds it",
            )
        if nullable[name]:
            raise SourceError(
                f"key column {name} of table {table} may be NULL: the first NULL would stop capture",
                f"ALTER TABLE {sql_name(*table)} ALTER COLUMN {sql_name(name)} SET NOT NULL; or choose others "
                "in source.key_columns",
            )


def require_all_rows(table: SourceTable) -> None:
    """Raises SourceError if row-level security hides rows from our role."""
    if table.hides_rows:
        raise SourceError(
            f"row security hides rows of table {table.table} from the role, but not from the WAL",
            "ALTER ROLE <role> BYPASSRLS, or make the role the table's owner",
        )


def _record_key(identity: str, primary_key: list[str], identity_index: list[str]) -> tuple[str, ...]:
    """Returns the primary key if the replica identity covers it, else the columns of the replica identity."""
    match identity:
        case "d" | "f":
            return tuple(primary_key)
        case "i":
            covers = bool(primary_key) and set(primary_key) <= set(identity_index)
            return tuple(primary_key if covers else identity_index)
        case _:
            return ()


def schema_of(found: SourceTable, before: TableSchema | None, topics: Topics) -> TableSchema:
    """Returns the next version of the table's schema, or `before` if it is unchanged."""
    version, dropped = (1, ()) if before is None else (before.version + 1, before.dropped)
    topic = topics.table(found.table)
    schema = TableSchema(found.table, version, found.oid, found.columns, found.key, topic, dropped=dropped)
    if before is not None and replace(schema, version=before.version) == before:
        return before
    return schema


def continued_schema(found: SourceTable, before: TableSchema | None, topics: Topics) -> TableSchema:
    """Returns what `schema_of` does, but keeps the version of a table that was created again, or is in another database
    now, in the same form: records of that version are records of this table, too."""
    schema = schema_of(found, before, topics)
    if before is None or not schema.has_form_of(before):
        return schema
    return replace(schema, version=before.version, filled=before.filled)


def create_publication_statement(name: str, tables: Sequence[TableId]) -> sql.Composed:
    """Returns CREATE PUBLICATION for these tables without their inheritance children; partitioned tables are published
    as their root."""
    return sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)").format(
        sql.Identifier(name), _published(tables)
    )


def add_tables_statement(name: str, tables: Sequence[TableId]) -> sql.Composed:
    return sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(name), _published(tables))


def create_index_statement(table: TableId, columns: Sequence[str]) -> sql.Composed:
    """Returns CREATE UNIQUE INDEX that does not block writers."""
    return sql.SQL("CREATE UNIQUE INDEX CONCURRENTLY ON {} ({})").format(
        sql.Identifier(*table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )


def _published(tables: Sequence[TableId]) -> sql.Composed:
    # Without ONLY, inheritance children would be added too: those without a key could then not be updated any more, and
    # one that is in the publication already would make the statement fail. Partitions are added all the same.
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*table)) for table in tables)
