"""What the parts share: the servers, how large a run is, and the watch over a backlog that is published."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from rich.console import Console

from cdc.model.errors import StackError
from tests.bench.public.machine import Meter
from tests.bench.public.raw_data import RawData
from tests.bench.public.systems import Committed, System, system_of, tables_of
from tests.bench.public.workloads import PROCEDURES, SCHEMA
from tests.bench.snapshot import percentile
from tests.support.captured import Captured
from watershed.devstack.endpoints import Endpoints

DATABASE: Final = "watershed"
POLL_S: Final = 0.02
STALL_S_MAX: Final = 300.0
RETAINED: LiteralString = """
SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8 FROM pg_replication_slots WHERE slot_name = %s
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. `scale`: of rows; `live_s`: seconds of each rate of live changes."""

    rounds: int
    scale: float
    live_s: float
    large_rows: int  # of the one transaction

    def __post_init__(self) -> None:
        assert self.rounds >= 1


FULL: Final = Size(rounds=5, scale=1.0, live_s=8.0, large_rows=500_000)
QUICK: Final = Size(rounds=1, scale=0.05, live_s=3.0, large_rows=50_000)


@dataclass
class Bench:
    folder: Path
    endpoints: Endpoints
    servers: tuple[int, ...]  # pids
    size: Size
    console: Console
    number: int = 0

    def install(self) -> None:
        """Creates the tables, empty, and the procedures that fill them."""
        self.query(SCHEMA)
        self.query(PROCEDURES)

    @property
    def superuser_dsn(self) -> str:
        return make_conninfo(self.endpoints.superuser_dsn, dbname=DATABASE)

    def query(self, statement: LiteralString | sql.Composed, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.superuser_dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def system(
        self,
        arm: str,
        tables: list[str],
        tuning: Mapping[str, str],
        *,
        settings: Mapping[str, Any] | None = None,
        worker: Mapping[str, str] | None = None,
    ) -> System:
        """Returns a system with a name of its own, which is that of its slot, publication and topics."""
        self.number += 1
        name = f"bench{self.number}"
        folder = self.folder / name
        folder.mkdir()
        captured = Captured(
            dsn=self.endpoints.dsn,
            superuser_dsn=self.superuser_dsn,
            bootstrap_servers=self.endpoints.bootstrap_servers,
            name=name,
            tables=tables_of(tables),
            folder=folder,
        )
        return system_of(arm, captured, settings or {}, tuning, worker or {})

    def meter(self, pid: int) -> Meter:
        return Meter(pid, self.servers)

    def retained_mb(self, slot: str) -> float:
        """Returns the log that the server keeps for this slot."""
        rows = self.query(RETAINED, slot)
        return float(rows[0][0] or 0.0) / 1e6 if rows else 0.0

    def say(self, raw: RawData, count: int = 1) -> None:
        """Prints the newest runs."""
        for run in raw.runs[-count:]:
            values = ", ".join(f"{name} {value:,g}" for name, value in run.figures.items() if value is not None)
            self.console.print(f"{run.case:18}{run.arm:16}{run.round}  {values}", highlight=False, soft_wrap=True)


def watched(bench: Bench, system: System, table: str, rows: int, began: float) -> dict[str, float | None]:
    """Returns the rates at which so many rows become readable, from the first moment at which some are: on the whole,
    and in the second half, when Java's compiler has seen the code. The start's processor time is apart. The system
    has been started at `began`.
    """
    committed = Committed(bench.endpoints.bootstrap_servers, system.topic(table))
    seen: list[tuple[float, int]] = []  # time, rows
    moved_at = time.monotonic()
    try:
        with bench.meter(system.pid) as meter:
            while not seen or seen[-1][1] < rows:
                count, now = committed(), time.monotonic()
                if count > (seen[-1][1] if seen else 0):
                    if not seen:
                        meter.end_start()
                    seen.append((now, count))
                    moved_at = now
                elif now - moved_at > STALL_S_MAX:
                    raise StackError(
                        f"{system.topic(table)} has had {seen[-1][1] if seen else 0:,} of {rows:,} rows for "
                        f"{STALL_S_MAX:g} s",
                        "see the log in the folder of the run",
                    )
                system.check()
                time.sleep(POLL_S)
    finally:
        committed.close()
    first, last = seen[0], (seen[-1][0], rows)
    half = next(place for place in seen if place[1] >= rows / 2)
    return {
        "rows_per_s": rate(first, last),
        "rows_per_s_second_half": rate(half, last),
        "start_to_first_s": round(first[0] - began, 2),
        "start_to_last_s": round(last[0] - began, 2),
        "start_cpu_s": meter.start_cpu_s,
        **meter.figures(rows - first[1]),
    }


def rate(start: tuple[float, int], end: tuple[float, int]) -> float | None:
    """Returns rows per second between two places (time, rows); None if they are one."""
    seconds, rows = end[0] - start[0], end[1] - start[1]
    return round(rows / seconds) if seconds > 0 and rows > 0 else None


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Returns percentiles in ms, nearest rank."""
    ordered = sorted(seconds)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {f"{name}_ms": round(percentile(ordered, share) * 1000, 1) for name, share in shares.items()}
