"""Measures the speed of the machine: rows per second that PostgreSQL's pg_recvlogical reads from a slot.

Figures of two machines, or of a busy and a quiet one, compare through this: narrow rows, 100 of them a transaction,
by pgoutput over TCP into /dev/null.
"""

import shutil
import subprocess
import time
from typing import Final, LiteralString

import psycopg

from watershed.devstack.postgres import INSTALLED

ROWS: Final = 300_000
ROWS_PER_TRANSACTION: Final = 100
NAME: Final = "yardstick"
ENDED_S_MAX: Final = 120.0

SCHEMA: LiteralString = """
CREATE TABLE yardstick (
  id bigint PRIMARY KEY, a int, b text, c numeric(12,2), d text, e boolean, f timestamptz, g int, h text, i text
)
"""
FILL: LiteralString = """
CREATE PROCEDURE fill_yardstick(last int, size int) LANGUAGE plpgsql AS $$ BEGIN
  FOR start IN 1..last BY size LOOP
    INSERT INTO yardstick SELECT n, n % 9973, 'new', n / 100.0, md5(n::text), n % 3 = 0, now(), 0, 'city', 'NL'
      FROM generate_series(start, start + size - 1) AS n;
    COMMIT;
  END LOOP;
END $$
"""


def narrow_rows_per_second(dsn: str) -> int | None:
    """`dsn`: of a superuser. None where pg_recvlogical is not installed. The table, slot and publication are removed
    again."""
    installed = [
        shutil.which("pg_recvlogical"),
        *sorted(map(str, INSTALLED.glob("*/bin/pg_recvlogical")), reverse=True),
    ]
    program = next((path for path in installed if path), None)
    if program is None:
        return None
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SCHEMA)
        connection.execute(FILL)
        connection.execute("CREATE PUBLICATION yardstick FOR TABLE yardstick")
        connection.execute("SELECT pg_create_logical_replication_slot('yardstick', 'pgoutput')")
        try:
            connection.execute("CALL fill_yardstick(%s, %s)", (ROWS, ROWS_PER_TRANSACTION))
            ((end,),) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
            connection.execute("SELECT pg_switch_wal()")  # there must be something behind the end
            options = ["--start", "--file", "/dev/null", "--endpos", end, "--fsync-interval", "0"]
            options += ["--option", "proto_version=1", "--option", f"publication_names={NAME}"]
            begun = time.monotonic()
            subprocess.run(
                [program, "--dbname", dsn, "--slot", NAME, *options],
                check=True,
                timeout=ENDED_S_MAX,
                stdout=subprocess.DEVNULL,
            )
            return round(ROWS / (time.monotonic() - begun))
        finally:
            connection.execute("SELECT pg_drop_replication_slot('yardstick')")
            connection.execute("DROP PUBLICATION yardstick")
            connection.execute("DROP TABLE yardstick")
            connection.execute("DROP PROCEDURE fill_yardstick")
