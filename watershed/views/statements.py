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
CREATE TABLE IF NOT EXISTS {s}.keys (
  view text NOT NULL, key jsonb NOT NULL, noted_at timestamptz NOT NULL, PRIMARY KEY (view, key));
CREATE INDEX IF NOT EXISTS keys_in_order ON {s}.keys (view, noted_at);
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
# Values are noted and compared as the texts that PostgreSQL prints, under settings of our own: these are exact for all
# types, and not every type has an equality.
NOTE: LiteralString = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql {settings} AS $function$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO {s}.changes (view, source, image) SELECT DISTINCT {view}, {source}, {image} FROM new_rows r;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO {s}.changes (view, source, image) SELECT DISTINCT {view}, {source}, {image} FROM old_rows r;
  ELSIF TG_OP = 'TRUNCATE' THEN  -- by hand: a sink deletes
    UPDATE {s}.views SET state = 'rebuild' WHERE name = {view};
  ELSE
    INSERT INTO {s}.changes (view, source, image)
    WITH before AS (SELECT {image} AS image, {used} AS used FROM old_rows r),
         after AS (SELECT {image} AS image, {used} AS used FROM new_rows r)
    SELECT DISTINCT {view}, {source}, image
      FROM ((SELECT * FROM before EXCEPT ALL SELECT * FROM after)
            UNION ALL (SELECT * FROM after EXCEPT ALL SELECT * FROM before)) changed;
  END IF;
  PERFORM pg_notify('watershed_views', '');
  RETURN NULL;
EXCEPTION WHEN undefined_column THEN
  RETURN NULL;  -- the table was altered: the view notices it and is filled again
END $function$
"""
# Settings on which the texts of values depend.
NOTE_SETTINGS: Final = (
    *("datestyle", "intervalstyle", "timezone", "bytea_output", "extra_float_digits", "quote_all_identifiers"),
    *("xmloption", "search_path"),
)
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
COLUMNS: LiteralString = """
SELECT attname, attnum, format_type(atttypid, atttypmod) FROM pg_attribute
 WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# PostgreSQL notes the columns on which a stored query depends: all that it reads, wherever it names them.
STORED: LiteralString = "CREATE TEMPORARY VIEW watershed_query AS SELECT 1 AS one FROM ({}) v"
READ: LiteralString = """
SELECT DISTINCT n.nspname, c.relname, a.attname
  FROM pg_rewrite r
  JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
  JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
  JOIN pg_class c ON c.oid = a.attrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE r.ev_class = 'pg_temp.watershed_query'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0
"""
TAKEN: LiteralString = """
CREATE TEMP TABLE IF NOT EXISTS watershed_taken (source text, image jsonb, noted_at timestamptz, xid xid8)
ON COMMIT DELETE ROWS
"""
# The plans of statements on the queues `changes` and `keys` must not depend on statistics, which may say that a view
# has noted nothing: rows are found in the order of an index that begins with the view, and deleted by their places.
BY_INDEX: Final = "; ".join(f"SET LOCAL enable_{plan} = off" for plan in ("seqscan", "bitmapscan", "sort"))
BY_ANY_PLAN: Final = "; ".join(f"SET LOCAL enable_{plan} TO DEFAULT" for plan in ("seqscan", "bitmapscan", "sort"))
# Returns the number of changes, the last of them, and the last that there is.
TAKE: LiteralString = """
WITH gone AS (DELETE FROM {s}.changes WHERE ctid = ANY(ARRAY(
                SELECT ctid FROM {s}.changes WHERE view = %(view)s AND id > %(after)s ORDER BY id LIMIT %(count_max)s))
              RETURNING id, source, image, noted_at, xid),
     put AS (INSERT INTO pg_temp.watershed_taken SELECT source, image, noted_at, xid FROM gone)
SELECT count(*), coalesce(max(id), 0),
       coalesce((SELECT id FROM {s}.changes WHERE view = %(view)s ORDER BY id DESC LIMIT 1), 0)
  FROM gone
"""
KEYS: LiteralString = "SELECT key, ctid::text FROM {s}.keys WHERE view = %s ORDER BY noted_at LIMIT %s"
# A place may be another row's, if somebody has rewritten the table.
FORGET_KEYS: LiteralString = """
DELETE FROM {s}.keys WHERE ctid = ANY(%s::tid[]) AND key = ANY(%s::jsonb[]) AND view || '' = %s
"""
# An index has no place for longer keys.
KEY_BYTES_MAX: Final = 2_000
NOTE_KEYS: LiteralString = """
WITH touched AS (SELECT key FROM ({touched}) k(key)),
     long AS (INSERT INTO {s}.rejected (view, key, reason)
              SELECT DISTINCT ON (1, 2) {view}, jsonb_build_array(left(key::text, {shown})), {reason}
                FROM touched WHERE octet_length(key::text) > {bytes_max} ON CONFLICT DO NOTHING)
INSERT INTO {s}.keys (view, key, noted_at)
SELECT {view}, key, (SELECT min(noted_at) FROM pg_temp.watershed_taken)
  FROM touched WHERE octet_length(key::text) <= {bytes_max} ON CONFLICT DO NOTHING
"""
# The functions that the stored query calls, also by operators and casts, and that are not PostgreSQL's own.
CALLED: LiteralString = """
SELECT DISTINCT p.proname
  FROM pg_rewrite r
  JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
  LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
  JOIN pg_proc p ON p.oid = CASE WHEN d.refclassid = 'pg_proc'::regclass THEN d.refobjid ELSE o.oprcode END
 WHERE r.ev_class = 'pg_temp.watershed_query'::regclass AND p.provolatile <> 'i' ORDER BY 1
"""
# Of PostgreSQL's own functions, no query is stored as depending on them. STABLE ones read settings, which are pinned.
CHANGING: LiteralString = """
SELECT DISTINCT proname FROM pg_proc
 WHERE proname = ANY(%s) AND provolatile = 'v' AND pronamespace = 'pg_catalog'::regnamespace ORDER BY 1
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
       extract(epoch FROM clock_timestamp() - least(
         (SELECT noted_at FROM {s}.changes c WHERE c.view = v.name ORDER BY id LIMIT 1),
         (SELECT noted_at FROM {s}.keys k WHERE k.view = v.name ORDER BY noted_at LIMIT 1)))::float8,
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
    "truncate": "CREATE TRIGGER {name} AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
}


def image(columns: Sequence[str]) -> sql.Composed:
    """The columns of the row `r` as a jsonb object of texts, from which `restored` makes their values."""
    pairs = [sql.SQL("{}, {}").format(sql.Literal(name), _text(name)) for name in columns]
    return sql.SQL("jsonb_build_object({})").format(sql.SQL(", ").join(pairs))


def restored(columns: Mapping[str, str]) -> sql.Composed:
    """The columns of a change `c`, given with their types. A cast from the text that PostgreSQL prints gives the same
    value, where JSON has one null, one form of spaces and no bounds of arrays."""
    values = [
        sql.SQL("CAST(c.image->>{} AS {}) AS {}").format(sql.Literal(name), sql.SQL(kind), sql.Identifier(name))
        for name, kind in columns.items()
    ]
    return sql.SQL(", ").join(values)


def used(columns: Sequence[str]) -> sql.Composed:
    """The columns of the row `r` as an array of texts."""
    return sql.SQL("ARRAY[{}]::text[]").format(sql.SQL(", ").join(map(_text, columns)))


def _text(name: str) -> sql.Composed:
    """The text that PostgreSQL prints; a cast to text prints something else for some types."""
    value = sql.Identifier("r", name)
    return sql.SQL("CASE WHEN {} IS DISTINCT FROM NULL THEN format('%s', {}) END").format(value, value)


def schema_of(prefix: str) -> str:
    """Returns the schema of the views' own tables in the base."""
    return f"watershed_views_{prefix}"
