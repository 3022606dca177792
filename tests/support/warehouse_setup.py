"""A warehouse in which each table has another mode: `orders` by day, `customers` as history, `events` as change log.

Triggers in the source write a journal of every change, which the warehouse is compared with."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any, Final

import duckdb
import pyarrow as pa
from psycopg import Connection
from pyiceberg.catalog.sql import SqlCatalog

from tests.conftest import INTERPRETED
from tests.support.captured import Captured

TABLES: Final = ("public.orders", "public.customers", "public.events")
SCHEMA: Final = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, amount numeric(12,2), created_at timestamptz NOT NULL);
CREATE TABLE customers (id bigint PRIMARY KEY, name text, city text);
CREATE TABLE events (id bigint PRIMARY KEY, kind text, payload text);
ALTER TABLE customers REPLICA IDENTITY FULL;
ALTER TABLE events REPLICA IDENTITY FULL;
CREATE TABLE journal (n bigserial PRIMARY KEY, tab text, id bigint, op text, row jsonb, at timestamptz,
  tx bigint DEFAULT txid_current());
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO journal (tab, id, op, row, at) VALUES (TG_TABLE_NAME, coalesce(NEW.id, OLD.id),
    CASE TG_OP WHEN 'INSERT' THEN 'c' WHEN 'UPDATE' THEN 'u' ELSE 'd' END,
    CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END, clock_timestamp());
  RETURN NULL;
END $$;
"""
TRIGGERS: Final = "".join(
    f"CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION note();"
    for table in ("orders", "customers", "events")
)
SHAPES: Final = {
    "public.orders": {"partition_by": ["day(created_at)"], "sort_by": ["customer_id", "id desc"]},
    "public.customers": {"mode": "history", "partition_by": ["bucket(4, id)"]},
    "public.events": {"mode": "changelog", "partition_by": ["day(committed_at)"]},
}


def settings(folder: Path) -> dict[str, Any]:
    """Sections of the configuration file."""
    return {
        "sinks": {
            "lake": {
                "type": "warehouse",
                "catalog_uri": f"jdbc:sqlite:{folder}/warehouse/catalog.db",
                "location": f"{folder}/warehouse/tables",
                "shapes": SHAPES,
            }
        },
        "spark": {
            "checkpoint_location": str(folder / "checkpoints"),
            "warehouse_trigger_ms": 500,
            "options": INTERPRETED,
        },
    }


def change(connection: Connection, random: Random, count: int) -> None:
    """So many transactions, each of which changes a few rows. Rows are changed and deleted often enough that most keys
    have several lives."""
    for _ in range(count):
        with connection.transaction():
            for _ in range(random.randrange(1, 5)):
                key = random.randrange(40)
                if random.random() < 0.25:
                    connection.execute(random.choice(_DELETES), (key,))
                    continue
                statement, values = random.choice(_UPSERTS)
                connection.execute(statement, (key, *values(random)))


_DELETES: Final = tuple(f"DELETE FROM {table} WHERE id = %s" for table in ("orders", "customers", "events"))
_UPSERTS: Final = (
    (
        "INSERT INTO orders VALUES (%s, %s, %s, '2026-01-01Z'::timestamptz + %s * interval '1 day') ON CONFLICT (id) "
        "DO UPDATE SET customer_id = excluded.customer_id, amount = excluded.amount, created_at = excluded.created_at",
        lambda random: (random.randrange(9), random.randrange(10**6) / 100, random.randrange(5)),
    ),
    (
        "INSERT INTO customers VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name, "
        "city = CASE WHEN length(excluded.city) > 9 THEN customers.city ELSE excluded.city END",
        lambda random: (random.choice("abc"), random.choice([None, "x", random.randbytes(3000).hex()])),
    ),
    (
        "INSERT INTO events VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, "
        "payload = CASE WHEN length(excluded.payload) > 9 THEN events.payload ELSE excluded.payload END",
        lambda random: (random.choice("abc"), random.choice([None, "p", random.randbytes(3000).hex()])),
    ),
)


def iceberg(source: Captured) -> dict[str, pa.Table]:
    """What PyIceberg reads of each table, opened as any reader opens it."""
    folder = source.folder / "warehouse"
    catalog = SqlCatalog("watershed", uri=f"sqlite:///{folder}/catalog.db", warehouse=(folder / "tables").as_uri())
    found = {table: catalog.load_table((source.name, *table.split("."))).scan().to_arrow() for table in TABLES}
    catalog.close()
    return {table.removeprefix("public."): rows for table, rows in found.items()}


def duck(tables: Mapping[str, pa.Table], statement: str) -> list[tuple[Any, ...]]:
    """DuckDB's answer on the tables."""
    with duckdb.connect() as connection:
        for name, rows in tables.items():
            connection.register(name, rows.cast(pa.schema([(field.name, _plain(field.type)) for field in rows.schema])))
        return connection.execute(statement).fetchall()


def unlike(source: Captured) -> str | None:
    """Where the warehouse differs from the source and its journal; None: nowhere."""
    tables = iceberg(source)
    for name, in_source, in_warehouse in _QUESTIONS:
        wanted, found = source.query(in_source), duck(tables, in_warehouse)
        if wanted != found:
            first = next(pair for pair in zip_longest(found, wanted) if pair[0] != pair[1])
            return f"{name}: {len(found)} rows, expected {len(wanted)}; found and expected: {_short(first)}"
    journal = source.query("SELECT id, op, row, at, tx FROM journal WHERE tab = 'customers' ORDER BY n")
    return _unlike_journal(tables["customers"].to_pylist(), journal)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Times in UTC: DuckDB's own time zones are an extension, which tests can't download."""
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


_QUESTIONS: Final[Sequence[tuple[Any, Any, str]]] = (
    ("orders", "SELECT count(*) FROM orders", "SELECT count(*) FROM orders"),
    (
        "orders by day",
        "SELECT (created_at AT TIME ZONE 'UTC')::date d, count(*), sum(amount) FROM orders GROUP BY d ORDER BY d",
        "SELECT created_at::date d, count(*), sum(amount) FROM orders GROUP BY d ORDER BY d",
    ),
    (
        "customers",
        "SELECT id, name, city FROM customers ORDER BY id",
        "SELECT id, name, city FROM customers WHERE is_current ORDER BY id",
    ),
    (
        "events",
        "SELECT id, op, row->>'kind', row->>'payload' FROM journal WHERE tab = 'events' ORDER BY n",
        "SELECT id, operation, kind, payload FROM events WHERE operation <> 'r' ORDER BY ws_version",
    ),
)


def _short(what: object) -> str:
    return re.sub(r"([0-9a-f]{8})[0-9a-f]{100,}", r"\1...", repr(what))


def _unlike_journal(history: Sequence[dict[str, Any]], journal: Sequence[tuple[Any, ...]]) -> str | None:
    """Each change is an interval, which began between its statement and the next one of its key, and ends where that
    one's begins."""
    by_key: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(history, key=lambda row: row["ws_version"]):
        by_key.setdefault(row["id"], []).append(row)
    entries: dict[int, list[tuple[str, dict[str, Any] | None, datetime, int]]] = {}
    for key, *entry in journal:
        entries.setdefault(key, []).append(tuple(entry))
    for key, lives in by_key.items():
        if lives[0]["operation"] == "r":  # from before the journal, or the stream
            continue
        reported = [(row["operation"], None if row["operation"] == "d" else _values(row)) for row in lives]
        wanted = [(op, row) for op, row, *_ in entries.get(key, [])]
        if reported != wanted:
            return f"customer {key}: {_short(reported)}, expected {_short(wanted)}"
    for key, lives in by_key.items():
        for row, after in zip(lives, [*lives[1:], None], strict=True):
            ends = row["valid_from"] if row["operation"] == "d" else after and after["valid_from"]
            if (row["valid_to"], row["is_current"]) != (ends, ends is None):
                return f"customer {key}: {_short(row)} ends at {ends}"
        changes = [row for row in lives if row["operation"] != "r"]
        ours = entries.get(key, [])[-len(changes) :] if changes else []
        for number, (row, (_, _, at, tx)) in enumerate(zip(changes, ours, strict=True)):
            until = next((later[2] for later in ours[number:] if later[3] != tx), None)
            if row["valid_from"] < at or (until is not None and row["valid_from"] > until):
                return f"customer {key}: {_short(row)} began before {at} or after the next change"
    if missing := entries.keys() - by_key.keys():
        return f"customers {missing} have no history"
    return None


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "name", "city")}
