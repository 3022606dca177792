"""Measures how many keys of each recipe are computed and written per second, the time from one change in the base to
the written view rows, and the size of the state."""

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from pydantic import SecretStr

from cdc.config.stores import SearchConfig, SqlConfig
from cdc.config.views import ViewConfig
from sinks.registry import make_sink
from tests.bench.snapshot import percentile
from tests.conformance.stores import url_of
from tests.support.folds import documented
from tests.support.view_tables import ALL, recipes
from tests.support.views import base_sink
from watershed.views.base import Base
from watershed.views.maintainer import RowEncoder, ViewMaintainer, define

CHANGED: Final = 500  # rows of the table that drives a recipe
INDEXES: Final = {
    "purchases": ["country"],
    "searches": ["user_id", "due_at"],
    "clicks": ["user_id", "url"],
    "payments": ["customer_id", "due_at"],
    "readings": ["device_id"],
    "saved_searches": ["category"],
    "documents": ["category"],
    "orders": ["customer_id"],
    "follows": ["author_id"],
    "posts": ["author_id"],
    "invoices": ["due_at"],
    "receipts": ["invoice_id"],
}
# {n}: rows of a large table.
FILL: Final = """
INSERT INTO rates SELECT 'C' || n % 20, timestamptz '2026-01-01' + n * interval '1 day', 0.19
  FROM generate_series(1, 400) AS n;
INSERT INTO purchases SELECT n, 'C' || n % 20, timestamptz '2026-01-01' + n * interval '1 minute', 10
  FROM generate_series(1, {n}) AS n;
INSERT INTO users SELECT n, 'u' || n FROM generate_series(1, {n} / 20) AS n;
INSERT INTO customers SELECT n, 'c' || n, 'north' FROM generate_series(1, {n} / 20) AS n;
INSERT INTO orders SELECT n, n % ({n} / 20) + 1, timestamptz '2026-01-01' + n * interval '1 minute', '{{}}'
  FROM generate_series(1, {n} / 4) AS n;
INSERT INTO lines SELECT n, no, 's' || n % 50, 10 FROM generate_series(1, {n} / 4) AS n, generate_series(1, 3) AS no;
INSERT INTO follows SELECT n, (n + step * 37) % ({n} / 20) + 1
  FROM generate_series(1, {n} / 20) AS n, generate_series(1, 10) AS step;
INSERT INTO posts SELECT n, n % ({n} / 20) + 1, timestamptz '2026-01-01' + n * interval '1 minute', 'text'
  FROM generate_series(1, {n}) AS n;
INSERT INTO searches SELECT n, n % ({n} / 20) + 1, timestamptz '2026-01-01' + n * interval '1 minute', 'words',
  timestamptz '2026-01-01' + (n + 11) * interval '1 minute'
  FROM generate_series(1, {n}) AS n;
INSERT INTO clicks SELECT n, n % ({n} / 20) + 1, timestamptz '2026-01-01' + (n + 2) * interval '1 minute',
  '/' || n % 500 FROM generate_series(1, {n}) AS n;
INSERT INTO payments SELECT n, n % ({n} / 20) + 1, timestamptz '2026-01-01' + n / 100 * interval '10 minutes',
  CASE WHEN n * 7919 % 10 < 7 THEN 'failed' ELSE 'paid' END, 10,
  timestamptz '2026-01-01' + n / 100 * interval '10 minutes' + interval '61 minutes' FROM generate_series(1, {n}) AS n;
INSERT INTO readings SELECT n, n % 200, t, t + interval '1 minute', t + interval '2 minutes', 20
  FROM (SELECT n, timestamptz '2026-01-01' + n * interval '1 minute' AS t FROM generate_series(1, {n}) AS n) x;
INSERT INTO saved_searches SELECT n, 'k' || n % 100, n % 200, 'red', '$ ? (@.gears > 3)'
  FROM generate_series(1, {n} / 20) AS n;
INSERT INTO documents SELECT n, 'k' || n % 100, 'a red bike', n % 200, '{{"gears": 7}}'
  FROM generate_series(1, {n}) AS n;
INSERT INTO invoices SELECT n, n % ({n} / 20), timestamptz '2026-01-01' + n / 10 * interval '1 minute'
  FROM generate_series(1, {n}) AS n;
INSERT INTO receipts SELECT n, n, timestamptz '2026-01-01' + (n / 10 + n % 3 - 1) * interval '1 minute'
  FROM generate_series(1, {n}) AS n WHERE n % 4 > 0;
INSERT INTO ticks SELECT timestamptz '2026-01-01' + n * interval '1 minute' FROM generate_series(1, {n} / 10) AS n;
INSERT INTO account_events SELECT n / 10, n % 10 + 1, CASE n % 10 WHEN 0 THEN 'opened' ELSE 'deposited' END, 5, 'Ada'
  FROM generate_series(10, {n}) AS n;
CREATE INDEX ON payments (date_bin('1 hour', at, timestamptz '2000-01-01 00:00Z'));
ANALYZE;
"""
CHANGES: Final = {
    "purchases": "UPDATE purchases SET amount = amount + 1 WHERE id <= {c}",
    "clicks": "UPDATE clicks SET at = at + interval '1 minute', url = '/' || id % 499 WHERE id <= {c}",
    "payments": "UPDATE payments SET amount = amount + 1, at = at + interval '1 minute', status = 'paid' "
    "WHERE id * 7919 % {n} < {c}",
    "readings": "UPDATE readings SET value = value + 1, sent_at = sent_at - interval '3 minutes' "
    "WHERE id * 7919 % {n} < {c}",
    "documents": "UPDATE documents SET price = price + 1 WHERE id <= {c} / 10",
    "orders": "UPDATE orders SET placed_at = placed_at + interval '1 minute' WHERE id <= {c}",
    "posts": "UPDATE posts SET at = at + interval '1 minute' WHERE id <= {c} / 10",
    "receipts": "UPDATE receipts SET at = at + interval '1 minute' WHERE id <= {c}",
    "account_events": "UPDATE account_events SET amount = amount + 1 WHERE no = 2 AND account_id <= {c}",
}

ONE_CHANGE: Final = {
    "purchases": "UPDATE purchases SET amount = amount + 1 WHERE id = {i}",
    "clicks": "UPDATE clicks SET at = at + interval '1 minute', url = '/' || id % 499 WHERE id = {i}",
    "payments": "UPDATE payments SET amount = amount + 1, at = at + interval '1 second' WHERE id = {i}",
    "readings": "UPDATE readings SET value = value + 1 WHERE id = {i}",
    "documents": "UPDATE documents SET price = price + 1 WHERE id = {i}",
    "orders": "UPDATE orders SET placed_at = placed_at + interval '1 minute' WHERE id = {i}",
    "posts": "UPDATE posts SET at = at + interval '1 minute' WHERE id = {i}",
    "receipts": "UPDATE receipts SET at = at + interval '1 minute' WHERE id = {i}",
    "account_events": "UPDATE account_events SET amount = amount + 1 WHERE no = 2 AND account_id = {i}",
}
SINGLES: Final = 40  # changes that are measured one by one
SHARES: Final = {"p50": 0.5, "p95": 0.95}


def kinds(dsn: str, search_url: str, rows: int) -> dict[str, Any]:
    """Returns for each recipe: `changes` of its driving table, the `keys` that they concern, and the rates."""
    shapes = {f"public.{name}": {"indexes": [[column] for column in columns]} for name, columns in INDEXES.items()}
    config = SqlConfig.model_validate({"url": SecretStr(url_of(dsn)), "shapes": shapes})
    with base_sink(config, ALL), psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(FILL.format(n=rows).encode())
        sections: dict[str, dict[str, Any]] = {
            name: {"sql": query.text, "key": query.key} for name, query in recipes().items()
        }
        with tempfile.TemporaryDirectory() as folder:  # of the module with the functions of the folds
            sys.path.insert(0, folder)
            sections |= documented(Path(folder))
            found = {
                name: _kind(name, section, config, search_url, connection, rows) for name, section in sections.items()
            }
            sys.path.remove(folder)
        return found


def _kind(
    name: str, view: dict[str, Any], config: SqlConfig, search_url: str, connection: psycopg.Connection, rows: int
) -> dict[str, Any]:
    section = ViewConfig.model_validate(view | {"base": "base", "target": {"type": "search", "url": search_url}})
    with Base(config, "shop") as base:
        definition = define(name, section, base)

        def open_target() -> Any:
            assert isinstance(section.target, SearchConfig)
            return make_sink(name, section.target, f"kinds_{name}")

        with closing(ViewMaintainer(definition, base, open_target, lambda: None)) as maintainer:
            begun = time.monotonic()
            maintainer.start()
            filled_s = time.monotonic() - begun
            driving = next(table for table in CHANGES if any(one.name == table for one in definition.query.tables))
            connection.execute(CHANGES[driving].format(n=rows, c=CHANGED).encode())
            key_types = RowEncoder(definition, base.described(definition)).key_types
            begun = time.monotonic()
            changes = base.collect(definition, key_types)
            collected_s = time.monotonic() - begun
            counts = base.counts(name)
            assert counts is not None
            begun = time.monotonic()
            while maintainer.step():
                pass
            took_s = time.monotonic() - begun
            singles = sorted(_one_change(maintainer, connection, driving, number) for number in range(SINGLES))
    return {
        "filled_s": round(filled_s, 1),
        "changes": changes,
        "keys": counts.keys,
        "changes_per_s": round(changes / collected_s),
        "keys_per_s": round(counts.keys / took_s),
        "one_change_ms": {name: round(percentile(singles, share) * 1000) for name, share in SHARES.items()},
        "state_mb": round(_size(definition, connection) / 1e6, 1),
        "base_rows": sum(_rows(place, connection) for place in definition.places.values()),
    }


def _one_change(maintainer: ViewMaintainer, connection: psycopg.Connection, table: str, number: int) -> float:
    """Returns the seconds from a commit in the base until all rows that it concerns are written. Rows that no bulk
    change has touched are changed."""
    connection.execute(ONE_CHANGE[table].format(i=CHANGED + 1 + number).encode())
    begun = time.monotonic()
    while maintainer.step():
        pass
    return time.monotonic() - begun


def _size(definition: Any, connection: psycopg.Connection) -> int:
    """The tables of the base that the view reads, with their indexes; the view's own tables are empty when idle."""
    places = [sql.Identifier(*place).as_string() for place in definition.places.values()]
    found = connection.execute("SELECT sum(pg_total_relation_size(p::regclass)) FROM unnest(%s::text[]) p", (places,))
    return int(found.fetchall()[0][0])


def _rows(place: tuple[str, str], connection: psycopg.Connection) -> int:
    return int(connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(*place))).fetchall()[0][0])
