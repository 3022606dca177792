"""Statements on the base of a view: its own tables, and the triggers that note which rows have changed."""

from collections.abc import Mapping, Sequence
from typing import Final, LiteralString

from psycopg import sql

TABLES: LiteralString = """
CREATE TABLE IF NOT EXISTS {s}.views (
  name text PRIMARY KEY, fingerprint text NOT NULL, state text NOT NULL, generation bigint NOT NULL,
  schema_version integer NOT NULL, columns jsonb NOT NULL, error text, next text, filled_at timestamptz,
  applied_at timestamptz, failing_since timestamptz);
CREATE TABLE IF NOT EXISTS {s}.changes (
  id bigint GENERATED ALWAYS AS IDENTITY, view text NOT NULL, source text NOT NULL, image jsonb NOT NULL,
  noted_at timestamptz NOT NULL DEFAULT clock_timestamp(), xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  PRIMARY KEY (view, id));
CREATE TABLE IF NOT EXISTS {s}.keys (view text NOT NULL, key jsonb NOT NULL, PRIMARY KEY (view, key));
CREATE TABLE IF NOT EXISTS {s}.folds (
  view text NOT NULL, key jsonb NOT NULL, at jsonb NOT NULL, state text NOT NULL, read_at pg_snapshot NOT NULL,
  cluster bigint NOT NULL, PRIMARY KEY (view, key));
CREATE TABLE IF NOT EXISTS {s}.rejected (
  view text NOT NULL, key jsonb NOT NULL, reason text NOT NULL, PRIMARY KEY (view, key));
CREATE TABLE IF NOT EXISTS {s}.topics (
  view text PRIMARY KEY, topic_id text NOT NULL, partitions integer NOT NULL, generation bigint NOT NULL);
CREATE TABLE IF NOT EXISTS {s}.published (
  view text NOT NULL, key text NOT NULL, version bigint NOT NULL, digest bytea, PRIMARY KEY (view, key));
CREATE TABLE IF NOT EXISTS {s}.log_offsets (
  log text NOT NULL, topic text NOT NULL, partition integer NOT NULL, topic_id text NOT NULL, next bigint NOT NULL,
  PRIMARY KEY (log, topic, partition));
CREATE TABLE IF NOT EXISTS {s}.log_rejected (
  log text NOT NULL, topic text NOT NULL, partition integer NOT NULL, no bigint NOT NULL, reason text NOT NULL,
  key bytea, value bytea, headers bytea NOT NULL, at_ms bigint, PRIMARY KEY (log, topic, partition, no));
CREATE SEQUENCE IF NOT EXISTS {s}.versions;
"""
OWN_TABLES: Final = (  # with the columns that name the view
    ("views", "name"),
    *((own, "view") for own in ("changes", "keys", "folds", "rejected", "topics", "published")),
    *((own, "log") for own in ("log_offsets", "log_rejected")),
)
# Versions are greater than those of a base that was lost, or restored from a backup, in targets that outlived it.
ADVANCE_VERSIONS: LiteralString = """
SELECT setval(%s::regclass, now_ms) FROM {s}.versions,
       (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms) clock
 WHERE last_value < now_ms
"""
# `n.*` is the row also where a column is named n. Values are compared as the texts that PostgreSQL prints, because not
# every type has an equality.
NOTE: LiteralString = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO {s}.changes (view, source, image)
    SELECT DISTINCT {view}, {source}, {image} FROM (SELECT row_to_json(n.*) AS r FROM new_rows n) x;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO {s}.changes (view, source, image)
    SELECT DISTINCT {view}, {source}, {image} FROM (SELECT row_to_json(o.*) AS r FROM old_rows o) x;
  ELSE
    INSERT INTO {s}.changes (view, source, image)
    WITH before AS (SELECT {image} AS image, {used} AS used FROM (SELECT row_to_json(o.*) AS r FROM old_rows o) x),
         after AS (SELECT {image} AS image, {used} AS used FROM (SELECT row_to_json(n.*) AS r FROM new_rows n) x)
    SELECT DISTINCT {view}, {source}, image
      FROM ((SELECT * FROM before EXCEPT ALL SELECT * FROM after)
            UNION ALL (SELECT * FROM after EXCEPT ALL SELECT * FROM before)) changed;
  END IF;
  PERFORM pg_notify('watershed_views', '');
  RETURN NULL;
END $function$
"""
# A valid index of the table that begins with one of the columns.
INDEX: LiteralString = """
SELECT 1 FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
 WHERE i.indrelid = to_regclass(%(table)s) AND i.indisvalid AND a.attname = ANY(%(columns)s)
"""
# One that begins with the key, in any order, which the order of events follows.
INDEX_OF_FOLD: LiteralString = """
SELECT 1 FROM pg_index i
 CROSS JOIN LATERAL (SELECT array_agg(a.attname::text ORDER BY k.number) AS names
                       FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, number)
                       LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum) c
 WHERE i.indrelid = to_regclass(%(table)s) AND i.indisvalid AND i.indpred IS NULL
   AND c.names[1:%(keys)s] <@ (%(columns)s::text[])[1:%(keys)s]
   AND c.names[%(keys)s + 1:cardinality(%(columns)s::text[])] = (%(columns)s::text[])[%(keys)s + 1:]
"""
# The columns of a table, by which a change of it is seen that no trigger notes.
COLUMNS: LiteralString = """
SELECT attname, format('%%s %%s', attnum, format_type(atttypid, atttypmod)) FROM pg_attribute
 WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# STABLE functions of PostgreSQL read settings; those of others may read tables.
CHANGING: LiteralString = """
SELECT DISTINCT proname FROM pg_proc
 WHERE proname = ANY(%s)
   AND (provolatile = 'v' OR (provolatile = 's' AND pronamespace <> 'pg_catalog'::regnamespace)) ORDER BY 1
"""
AGGREGATES: LiteralString = """
SELECT DISTINCT proname FROM pg_proc WHERE proname = ANY(%s) AND prokind = 'a' ORDER BY 1
"""
# A rebuild that was asked for while the view was filled is to be done afterwards.
NOTE_STATE: LiteralString = """
INSERT INTO {s}.views (name, fingerprint, state, generation, schema_version, columns)
VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (name) DO UPDATE SET
  fingerprint = excluded.fingerprint, generation = excluded.generation,
  state = CASE WHEN excluded.state <> 'filling' AND views.state = 'rebuild' THEN 'rebuild' ELSE excluded.state END,
  schema_version = excluded.schema_version, columns = excluded.columns,
  error = CASE WHEN views.state <> 'failed' THEN views.error END,
  next = CASE WHEN views.state <> 'failed' THEN views.next END,
  failing_since = CASE WHEN views.state <> 'failed' THEN views.failing_since END,
  filled_at = CASE WHEN excluded.state = 'serving' THEN now() ELSE views.filled_at END
"""
NOTE_ERROR: LiteralString = """
INSERT INTO {s}.views (name, fingerprint, state, generation, schema_version, columns, error, next, failing_since)
VALUES (%(view)s, '', coalesce(%(state)s, 'filling'), 1, 1, '[]', %(error)s, %(next)s, now())
ON CONFLICT (name) DO UPDATE SET
  error = excluded.error, next = excluded.next, state = coalesce(%(state)s, views.state),
  failing_since = coalesce(views.failing_since, excluded.failing_since)
"""
# Of a filled view the error is that of its swap, whatever else it does meanwhile.
FORGET_ERROR: LiteralString = """
UPDATE {s}.views SET error = NULL, next = NULL, failing_since = NULL
 WHERE name = %s AND error IS NOT NULL AND state <> 'filled'
"""
COUNTED_MAX: Final = 100_000  # rows of each kind, because every process that shows a view counts them every second
COUNTS: LiteralString = """
SELECT v.name, v.state,
       (SELECT count(*) FROM (SELECT FROM {s}.changes c WHERE c.view = v.name LIMIT {counted_max}) c),
       (SELECT extract(epoch FROM clock_timestamp() - noted_at)::float8 FROM {s}.changes c WHERE c.view = v.name
         ORDER BY id LIMIT 1),
       (SELECT count(*) FROM (SELECT FROM {s}.keys k WHERE k.view = v.name LIMIT {counted_max}) k),
       (SELECT count(*) FROM (SELECT FROM {s}.rejected r WHERE r.view = v.name LIMIT {counted_max}) r),
       extract(epoch FROM clock_timestamp() - applied_at)::float8, v.error, v.next,
       coalesce(extract(epoch FROM clock_timestamp() - failing_since), 0)::float8,
       EXISTS (SELECT FROM pg_locks l
                WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
                  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                  AND l.classid = hashtext(%(schema)s)::oid AND l.objid = hashtext(v.name)::oid)
  FROM {s}.views v WHERE v.name = %(view)s
"""
TRIGGERS: Final[Mapping[str, LiteralString]] = {
    "insert": "CREATE TRIGGER {name} AFTER INSERT ON {table} REFERENCING NEW TABLE AS new_rows "
    "FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
    "update": "CREATE TRIGGER {name} AFTER UPDATE ON {table} REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows "
    "FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
    "delete": "CREATE TRIGGER {name} AFTER DELETE ON {table} REFERENCING OLD TABLE AS old_rows "
    "FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
}


def image(columns: Sequence[str]) -> sql.Composed:
    """The columns of `r`, a row as JSON, as a jsonb object."""
    pairs = [sql.SQL("{}, r->{}").format(sql.Literal(name), sql.Literal(name)) for name in columns]
    return sql.SQL("jsonb_build_object({})").format(sql.SQL(", ").join(pairs))


def used(columns: Sequence[str]) -> sql.Composed:
    """The columns of `r`, a row as JSON, as an array of texts."""
    values = [sql.SQL("(r->{})::text").format(sql.Literal(name)) for name in columns]
    return sql.SQL("ARRAY[{}]::text[]").format(sql.SQL(", ").join(values))


def schema_of(prefix: str) -> str:
    """Returns the schema of the views' own tables in the base."""
    return f"watershed_views_{prefix}"
