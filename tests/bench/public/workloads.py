"""The tables, and the changes that are written to them."""

from dataclasses import dataclass, replace
from typing import Final, LiteralString

NARROW, WIDE, LARGE, LIVE, SIGNALS = "narrow", "wide", "large", "live", "debezium_signal"
ROWS_MIN: Final = 1000

SCHEMA: LiteralString = """
DROP TABLE IF EXISTS narrow, wide, large, live, debezium_signal;
CREATE TABLE narrow (
  id bigint PRIMARY KEY, a int, amount numeric(12,2), code varchar(20), name varchar(60), ts timestamptz, d date,
  flag bool, u uuid, j jsonb
);
CREATE TABLE wide (
  id bigint PRIMARY KEY, i1 int, i2 int, i3 int, i4 int, i5 int, b1 bigint, b2 bigint, b3 bigint, b4 bigint,
  m1 numeric(12,2), m2 numeric(12,2), m3 numeric(18,6), m4 numeric, v1 varchar(20), v2 varchar(20), v3 varchar(60),
  v4 varchar(60), x1 text, x2 text, x3 text, z1 timestamptz, z2 timestamptz, z3 timestamptz, d1 date, d2 date, f1 bool,
  f2 bool, u1 uuid, j1 jsonb
);
CREATE TABLE large (id bigint PRIMARY KEY, a int, body text);
ALTER TABLE large ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE live (id bigint PRIMARY KEY, a int, amount numeric(12,2), code varchar(20), name varchar(60),
  ts timestamptz, d date, flag bool, u uuid, j jsonb, t_us bigint);
CREATE TABLE debezium_signal (id varchar(64) PRIMARY KEY, type varchar(32), data varchar(2048));
ALTER TABLE narrow OWNER TO watershed;
ALTER TABLE wide OWNER TO watershed;
ALTER TABLE large OWNER TO watershed;
ALTER TABLE live OWNER TO watershed;
ALTER TABLE debezium_signal OWNER TO watershed;
"""

_NARROW_ROW: LiteralString = (
    "g, g % 1000, (g % 100000) / 100.0, 'code' || g % 10000, 'customer name number ' || g, "
    "timestamptz '2026-01-01' + g * interval '1 s', date '2026-01-01' + (g % 365)::int, g % 2 = 0, md5(g::text)::uuid, "
    "jsonb_build_object('k', g % 100, 's', 'v' || g % 10)"
)
_WIDE_ROW: LiteralString = (
    "g, g % 10, g % 100, g % 1000, g % 10000, g, g * 10, g * 100, g * 1000, g * 10000, (g % 1000) / 100.0, "
    "(g % 100000) / 100.0, g / 7.0, g / 3.0, 'v1-' || g % 100, 'v2-' || g % 1000, 'some street and number ' || g, "
    "'some city name ' || g % 5000, 'a text of forty characters or so, row ' || g, 'short ' || g, "
    "md5(g::text) || md5((g + 1)::text), timestamptz '2026-01-01' + g * interval '1 s', "
    "timestamptz '2026-02-01' + g * interval '1 ms', timestamptz '2026-03-01' + g * interval '1 us', "
    "date '2026-01-01' + (g % 365)::int, date '2020-01-01' + (g % 365)::int, g % 2 = 0, g % 3 = 0, "
    "md5(g::text)::uuid, jsonb_build_object('k', g % 100, 's', 'v' || g % 10)"
)
# 8 kB that are not compressed, in the table's TOAST relation.
_LARGE_ROW: LiteralString = "g, 0, (SELECT string_agg(md5((g * 256 + n)::text), '') FROM generate_series(1, 256) AS n)"

PROCEDURES: LiteralString = f"""
CREATE OR REPLACE PROCEDURE fill(name text, row_of text, rows bigint, per_transaction int) LANGUAGE plpgsql AS $$
DECLARE first bigint := 1; BEGIN
  WHILE first <= rows LOOP
    EXECUTE format('INSERT INTO %I SELECT %s FROM generate_series($1, $2) AS g', name, row_of)
      USING first, least(first + per_transaction - 1, rows);
    COMMIT;
    first := first + per_transaction;
  END LOOP;
END $$;
CREATE OR REPLACE PROCEDURE change(name text, changes text, rows bigint, per_transaction int) LANGUAGE plpgsql AS $$
DECLARE first bigint := 1; BEGIN
  WHILE first <= rows LOOP
    EXECUTE format('UPDATE %I SET %s WHERE id BETWEEN $1 AND $2', name, changes)
      USING first, least(first + per_transaction - 1, rows);
    COMMIT;
    first := first + per_transaction;
  END LOOP;
END $$;
-- Commits single rows by a schedule. Each row has the time just before its own commit, in µs.
CREATE OR REPLACE PROCEDURE write_live(first bigint, rows int, rate float8) LANGUAGE plpgsql AS $$
DECLARE began timestamptz := clock_timestamp(); early float8; BEGIN
  FOR n IN 0..rows - 1 LOOP
    early := n / rate - extract(epoch FROM clock_timestamp() - began);
    IF early >= 0.001 THEN PERFORM pg_sleep(early); END IF;
    INSERT INTO live SELECT {_NARROW_ROW}, (extract(epoch FROM clock_timestamp()) * 1e6)::bigint
      FROM (VALUES (first + n)) AS row (g);
    COMMIT;
  END LOOP;
END $$;
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """A backlog of changes of one table."""

    name: str
    title: str
    table: str
    rows: int
    rows_per_transaction: int
    row: LiteralString
    changes: LiteralString = ""  # of rows that exist before; "" to insert the rows
    is_full: bool = False  # REPLICA IDENTITY FULL

    def scaled(self, scale: float) -> "Workload":
        rows = max(ROWS_MIN, round(self.rows * scale))
        is_one = self.rows_per_transaction == self.rows
        return replace(self, rows=rows, rows_per_transaction=rows if is_one else self.rows_per_transaction)


LARGE_TRANSACTION: Final = "one_transaction"
NARROW_CHANGES: Final[LiteralString] = "a = a + 1, amount = amount + 1"
BACKLOGS: Final = (
    Workload("narrow", "10 columns, 1,000 rows a transaction", NARROW, 500_000, 1000, _NARROW_ROW),
    Workload("single", "10 columns, one row a transaction", NARROW, 100_000, 1, _NARROW_ROW),
    Workload(
        "update_full", "update, REPLICA IDENTITY FULL", NARROW, 200_000, 1000, _NARROW_ROW, NARROW_CHANGES, is_full=True
    ),
    Workload("wide", "30 columns, 1,000 rows a transaction", WIDE, 150_000, 1000, _WIDE_ROW),
    Workload("toast", "insert of values of 8 kB (TOAST)", LARGE, 20_000, 100, _LARGE_ROW),
    Workload("toast_kept", "update beside values of 8 kB that stay", LARGE, 20_000, 100, _LARGE_ROW, "a = a + 1"),
    Workload(LARGE_TRANSACTION, "10 columns, all rows in one transaction", NARROW, 500_000, 500_000, _NARROW_ROW),
)
