"""Reads whole tables as PostgreSQL prints them, in one transaction: the source's side of a comparison.

The values are COPY's text, unescaped by psycopg; the codec that encodes records is not used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import psycopg
from psycopg import sql

from cdc.config.settings import SourceConfig
from cdc.model.errors import SourceError
from cdc.model.events import TableId
from cdc.model.sql_names import sql_name
from cdc.postgres.connection import connect, lost

APPLICATION = "watershed verify"

# Columns in attribute order. A type is named by pg_type.typname where it is built in, else schema.typname; domains
# are resolved, an array is its element's name with []. int2vector and its like have elements and are no arrays.
_COLUMNS = """
WITH RECURSIVE base AS (
  SELECT a.attnum, a.attname, t.oid, t.typtype, t.typbasetype
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
  UNION ALL
  SELECT b.attnum, b.attname, t.oid, t.typtype, t.typbasetype
  FROM base b JOIN pg_type t ON t.oid = b.typbasetype WHERE b.typtype = 'd'
), element AS (
  SELECT b.attnum, b.attname, b.oid, e.oid AS element_oid, e.typtype, e.typbasetype
  FROM base b JOIN pg_type t ON t.oid = b.oid
  LEFT JOIN pg_type e ON e.typarray = t.oid
  WHERE b.typtype <> 'd'
  UNION ALL
  SELECT x.attnum, x.attname, x.oid, t.oid, t.typtype, t.typbasetype
  FROM element x JOIN pg_type t ON t.oid = x.typbasetype WHERE x.typtype = 'd'
)
SELECT x.attname::text,
       CASE WHEN n.nspname = 'pg_catalog' THEN '' ELSE n.nspname || '.' END || t.typname
         || CASE WHEN x.element_oid IS NULL THEN '' ELSE '[]' END
FROM element x
JOIN pg_type t ON t.oid = coalesce(x.element_oid, x.oid)
JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE x.typtype IS DISTINCT FROM 'd'
ORDER BY x.attnum
"""

# The replica identity's index where one is chosen, else the primary key; its columns in key order.
_KEY = """
SELECT a.attname::text
FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid
CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %(oid)s AND k.place <= i.indnkeyatts
  AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
ORDER BY k.place
"""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns and the key of a table. Types are named as in _COLUMNS."""

    table: TableId
    columns: dict[str, str]  # name → type, in attribute order
    key: tuple[str, ...]  # column names, in key order
    is_partitioned: bool = False


class TableReader:
    """Reads tables in one REPEATABLE READ transaction. Close it soon: while it is open, VACUUM keeps the
    rows that it may read."""

    def __init__(self, source: SourceConfig) -> None:
        """Raises SourceError if the source can't be reached."""
        self._source = source
        self._connection = connect(source, application=APPLICATION)
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def shape(self, table: TableId) -> TableColumns:
        """Returns the columns and the key. Raises SourceError for a table that does not exist or has no key."""
        try:
            found = self._connection.execute(
                "SELECT c.oid, c.relkind = 'p' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')",
                table,
            ).fetchone()
            if found is None:
                raise SourceError(f"there is no table {table}", "correct source.tables")
            oid, is_partitioned = found
            parameters = {"oid": oid}
            columns: dict[str, str] = dict(self._connection.execute(_COLUMNS, parameters).fetchall())
            key = self._source.chosen(table).key or tuple(
                name for (name,) in self._connection.execute(_KEY, parameters)
            )
        except psycopg.Error as error:
            raise lost(error) from error
        if not key:
            raise SourceError(f"table {table} has no key", "give it a primary key, or REPLICA IDENTITY USING INDEX")
        return TableColumns(table, columns, key, is_partitioned)

    def rows(self, shape: TableColumns) -> Iterator[tuple[str | None, ...]]:
        """Yields every row as texts in the order of `shape.columns`, None for NULL, without rows of inheritance
        children. Holds one row in memory at a time."""
        query = sql.SQL("COPY (SELECT {} FROM {} {}) TO STDOUT").format(
            sql.SQL(", ").join(map(sql.Identifier, shape.columns)),
            sql.SQL("" if shape.is_partitioned else "ONLY"),
            sql.Identifier(*shape.table),
        )
        try:
            with self._connection.cursor() as cursor, cursor.copy(query) as copy:
                for row in copy.rows():
                    yield cast("tuple[str | None, ...]", row)
        except psycopg.errors.InsufficientPrivilege as error:
            raise SourceError(
                f"the role may not read {shape.table}: {' '.join(str(error).split())}",
                f"as its owner: GRANT SELECT ON {sql_name(*shape.table)} TO <role>",
            ) from error
        except psycopg.Error as error:
            raise lost(error) from error

    def close(self) -> None:
        self._connection.close()
