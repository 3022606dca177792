"""The mixture on a real PostgreSQL: its tables, its operations as statements, and clients that execute them."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from pydantic import SecretStr

from cdc.config.settings import SourceConfig
from tests.conftest import KafkaBroker, PostgresServer
from tests.mixed.judge import Written
from tests.mixed.operations import (
    AGGREGATES,
    ALTERED,
    EVENT_SOURCES,
    HEAVY,
    MASK_CHARS,
    MASKED,
    PLAIN,
    Alter,
    Empty,
    Event,
    Mixture,
    Move,
    Operation,
    Put,
    Remove,
    Sizes,
    Touch,
)
from tests.support.captured import Captured, under_capture
from tests.support.topics import admin_of, create_topic, delete_topic
from watershed.client.outbox_migrations import Names, migrate

BULK: Final = "bulk"  # the table of backlogs
TABLES: Final = (PLAIN, MASKED, HEAVY, ALTERED)
CAPTURED: Final = tuple(f"public.{name}" for name in (*TABLES, BULK))
KEYS: Final = range(1, 41)
SIZES: Final = Sizes(usual=3_000, too_large=30_000)
LARGE_MAX: Final = 10_000  # characters between the two
RECORD_BYTES_MAX: Final = 20_000
READ_S_MIN: Final = 6.0  # of BULK: long enough that capture is killed meanwhile
_CONFLICTS: Final = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)

SCHEMA: LiteralString = """
CREATE TABLE plain (id int PRIMARY KEY, v text, big text);
CREATE TABLE masked (id int PRIMARY KEY, v text, big text, hidden text DEFAULT '~hidden 1~');
CREATE TABLE heavy (id int PRIMARY KEY, v text, big text);
CREATE TABLE altered (id int PRIMARY KEY, v text, big text, n int);
CREATE TABLE bulk (id int PRIMARY KEY, v text);
ALTER TABLE plain ALTER big SET STORAGE EXTERNAL;
ALTER TABLE masked ALTER big SET STORAGE EXTERNAL;
ALTER TABLE heavy ALTER big SET STORAGE EXTERNAL;
ALTER TABLE altered ALTER big SET STORAGE EXTERNAL;
CREATE TABLE outbox (
  id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload text
);
CREATE TABLE blobs (
  id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload bytea
);
CREATE TABLE aggregates (id int PRIMARY KEY, n int NOT NULL DEFAULT 0);
CREATE TABLE ledger (
  event uuid PRIMARY KEY, source text NOT NULL, aggregate int NOT NULL, n int NOT NULL, payload bytea, is_dead bool
);
CREATE PROCEDURE single_rows(many int, rows int) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..many LOOP
    UPDATE bulk SET v = '~bulk ' || (1000000 + i) || '~' WHERE id = i % rows + 1;
    COMMIT;
  END LOOP;
END $$;
"""
# Columns come and go, so the trigger takes the row as it is; of these types jsonb has the records' form.
_JOURNAL_OF_ALTERED: LiteralString = """
CREATE FUNCTION judge.note_altered() RETURNS trigger LANGUAGE plpgsql AS $judge$ BEGIN
  INSERT INTO judge.journal (xid, lsn, table_name, op, old_key, old_row, new_key, new_row) VALUES
  (pg_current_xact_id(), pg_current_wal_insert_lsn(), 'public.altered', TG_OP,
   CASE WHEN TG_OP <> 'INSERT' THEN jsonb_build_object('id', OLD.id) END,
   CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END,
   CASE WHEN TG_OP <> 'DELETE' THEN jsonb_build_object('id', NEW.id) END,
   CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END);
  RETURN NULL;
END $judge$;
CREATE TRIGGER judge AFTER INSERT OR UPDATE OR DELETE ON altered FOR EACH ROW EXECUTE FUNCTION judge.note_altered();
CREATE TRIGGER judge_truncate AFTER TRUNCATE ON altered FOR EACH STATEMENT
  EXECUTE FUNCTION judge.note_truncate('public.altered');
"""
_ENTRY: LiteralString = """
WITH next AS (UPDATE aggregates SET n = n + 1 WHERE id = %(aggregate)s RETURNING n),
     entry AS (INSERT INTO ledger SELECT %(id)s::uuid, %(source)s, %(aggregate)s, n, %(payload)s::bytea, %(is_dead)s
               FROM next RETURNING event)
"""
_EVENTS: Final[Mapping[str, LiteralString]] = {
    "outbox": _ENTRY + "INSERT INTO outbox SELECT event, %(type)s, %(key)s, 'Said', %(text)s::text FROM entry",
    "blobs": _ENTRY + "INSERT INTO blobs SELECT event, %(type)s, %(key)s, 'Said', %(payload)s::bytea FROM entry",
    "message": _ENTRY + "SELECT cdc.publish(%(type)s, %(key)s, 'Said', %(text)s::jsonb, id => event) FROM entry",
}


class MixedClient:
    """One session's transactions."""

    def __init__(self, connection: psycopg.Connection, seed: int) -> None:
        """`seed` is the client's own: numbers of its markers and events come from it."""
        self._connection = connection
        connection.prepare_threshold = None  # tables are altered
        self._chance = random.Random(seed)
        self._mixture = Mixture(self._chance, SIZES, KEYS, client=seed, tables=TABLES)

    def transaction(self) -> bool:
        """One transaction; whether it committed."""
        wanted = self._mixture.transaction()
        try:
            with self._connection.transaction(force_rollback=not wanted.is_committed):
                for part in wanted.parts:
                    with self._connection.transaction(force_rollback=not part.is_kept):
                        for operation in part.operations:
                            execute(self._connection, operation)
                if self._chance.random() < 0.3:
                    self._connection.execute("DELETE FROM outbox WHERE xmin = pg_current_xact_id()::xid")
        except _CONFLICTS:
            return False
        return wanted.is_committed


def execute(connection: psycopg.Connection, operation: Operation) -> None:
    """An operation, as statements."""
    match operation:
        case Event():
            text = None if operation.payload is None or operation.source == "blobs" else operation.payload.decode()
            values: dict[str, Any] = {
                "id": operation.id,
                "source": operation.source,
                "aggregate": operation.aggregate,
                "payload": operation.payload,
                "text": text,
                "key": str(operation.aggregate),
                "type": operation.aggregate_type,
                "is_dead": not operation.is_routable,
            }
            connection.execute(_EVENTS[operation.source], values)
        case Alter():
            connection.execute(_altered(operation))
        case Put(table, key, v, big):
            statement = (
                "INSERT INTO {} (id, v, big) VALUES (%s, %s, %s)"
                " ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v, big = EXCLUDED.big"
            )
            connection.execute(_of(table, statement), (key, v, big))
        case Touch(table, key, v):
            connection.execute(_of(table, "UPDATE {} SET v = %s WHERE id = %s"), (v, key))
        case Move(table, key, to, v):
            statement = "UPDATE {0} SET id = %s, v = %s WHERE id = %s AND NOT EXISTS (SELECT FROM {0} WHERE id = %s)"
            connection.execute(_of(table, statement), (to, v, key, to))
        case Remove(table, key):
            connection.execute(_of(table, "DELETE FROM {} WHERE id = %s"), (key,))
        case Empty(table):
            connection.execute(_of(table, "TRUNCATE {}"))


def _of(table: str, statement: LiteralString) -> sql.Composed:
    return sql.SQL(statement).format(sql.Identifier(table))


def _altered(operation: Alter) -> sql.Composed:
    column = sql.Identifier(f"x{operation.number % 3}")
    match operation.change:
        case "add":
            return sql.SQL("ALTER TABLE altered ADD COLUMN IF NOT EXISTS {} text").format(column)
        case "drop":
            return sql.SQL("ALTER TABLE altered DROP COLUMN IF EXISTS {}").format(column)
        case "retype":
            kind = sql.SQL("bigint" if operation.number % 2 else "int")
            return sql.SQL("ALTER TABLE altered ALTER n TYPE {}").format(kind)


# ---- what the judge asks


def event_topic(name: str, source: str) -> str:
    return f"{name}-{source}-thing"


def dead_letter_topic(name: str, source: str) -> str:
    return f"{name}.outbox_dead_letters" if source == "message" else f"{name}.public.{source}"


def ledger(captured: Captured) -> list[Written]:
    """Each aggregate's in the order of their commits: its row is locked from the event to its transaction's end."""
    return [
        Written(
            str(event),
            (dead_letter_topic if is_dead else event_topic)(captured.name, source),
            str(aggregate),
            None if payload is None else bytes(payload),
            is_dead,
        )
        for event, source, aggregate, payload, is_dead in captured.query(
            "SELECT event, source, aggregate, payload, is_dead FROM ledger ORDER BY aggregate, n"
        )
    ]


def delete_too_large(captured: Captured) -> None:
    """What no topic can hold, so that topics and source are equal in the end."""
    captured.query("DELETE FROM heavy WHERE length(big) > %s", LARGE_MAX)


@contextmanager
def with_mixture(
    server: PostgresServer, kafka: KafkaBroker, dsn: str, name: str, folder: Path, *, profile: str, bulk_rows: int
) -> Iterator[Captured]:
    """A database with rows in all tables, journaled, and the configuration of the mixture."""
    journaled = [table for table in CAPTURED if table != f"public.{ALTERED}"]
    with under_capture(server, kafka, dsn, name, folder, SCHEMA, journaled) as captured:
        captured.tables = CAPTURED
        migrate(SourceConfig(dsn=SecretStr(dsn), tables=CAPTURED), Names())
        captured.settings = settings(name, profile, bulk_rows)
        create_topic(
            kafka.bootstrap_servers, f"{name}.public.{HEAVY}", partitions=4, max_message_bytes=str(RECORD_BYTES_MAX)
        )
        with captured.connect() as connection:
            connection.execute(_JOURNAL_OF_ALTERED)
            connection.execute("INSERT INTO aggregates SELECT generate_series(0, %s::int)", (AGGREGATES - 1,))
            connection.execute(
                "INSERT INTO bulk SELECT n, '~bulk ' || n || '~' FROM generate_series(1, %s) n", (bulk_rows,)
            )
            mixture = Mixture(random.Random(0), SIZES, KEYS, client=1)
            for table in TABLES:
                for key in KEYS[::2]:
                    execute(connection, mixture.put(table, key))
            connection.execute("ANALYZE")
        yield captured
        existing = admin_of(kafka.bootstrap_servers).list_topics(timeout=15).topics
        for topic in {event_topic(name, source) for source in EVENT_SOURCES} & existing.keys():
            delete_topic(kafka.bootstrap_servers, topic)


def settings(name: str, profile: str, bulk_rows: int) -> dict[str, Any]:
    """Of the configuration."""

    def route(source: str) -> dict[str, str]:
        return {"route.topic.replacement": f"{name}-{source}-${{routedByValue}}"}

    return {
        "source": {"exclude_columns": [r"public\.masked\.hidden"]},
        "format": {"profile": profile},
        "masking": {"truncate": {f"public.{MASKED}.big": MASK_CHARS}},
        "capture": {"on_unpublishable": "dead_letter"},
        "snapshot": {"chunk_rows_max": 500, "rows_per_s_max": bulk_rows / READ_S_MIN},
        "outbox": {
            "tables": [
                {"table": "public.outbox", **route("outbox")},
                {"table": "public.blobs", "value.converter": "bytes", **route("blobs")},
            ],
            "messages": route("message"),
        },
    }
