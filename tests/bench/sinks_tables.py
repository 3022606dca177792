"""Measures how long ten changes in each of many tables take to reach the warehouse: from the first commit until the
sink's applied position covers the last one.
"""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from cdc.model.topics import Topics
from tests.support.captured import Captured
from tests.support.sink_machine import Positions
from tests.support.waiting import eventually

ROUNDS: Final = 3
CHANGES: Final = 10  # of each table in a round
APPLIED_S_MAX: Final = 600.0

INSERT: LiteralString = """
INSERT INTO {} SELECT n, n %% 9973, 'new', n / 100.0, 'a note ' || md5(n::text), n %% 3 = 0, now(), 0, 'city', 'NL'
  FROM generate_series(1, %s) AS n
ON CONFLICT (id) DO UPDATE SET counter = excluded.counter + 1, changed_at = now()
"""


def rounds(captured: Captured, tables: Sequence[str]) -> dict[str, float]:
    """Seconds of each round: the first one inserts rows, the others update them. One transaction for each table."""
    took: dict[str, float] = {}
    positions = Positions(captured.bootstrap_servers, Topics(captured.name).progress)
    with closing(positions), psycopg.connect(captured.superuser_dsn, autocommit=True) as source:
        for number in range(1, ROUNDS + 1):
            begun = time.monotonic()
            for table in tables:
                source.execute(sql.SQL(INSERT).format(sql.Identifier(table)), (CHANGES,))
            wanted = captured.log_end()
            eventually(
                lambda wanted=wanted: positions.applied("warehouse") >= wanted,  # type: ignore[misc]
                APPLIED_S_MAX,
                "the warehouse has the changes of all tables",
            )
            took[f"round_{number}_s"] = round(time.monotonic() - begun, 1)
    assert not positions.complaints, positions.complaints
    return took
