"""Measures how long stores are behind after the sinks' job was killed, and what a job costs that has nothing to do."""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from tests.bench.processes import cpu_s, family
from tests.bench.sinks_load import MARK, SampledRow, reader
from tests.bench.snapshot import percentile
from tests.support.captured import Captured
from tests.support.sink_job import SinkJob

FRESH_S_MAX: Final = 120.0
POLL_S: Final = 0.01
PAUSE_S: Final = 5.0  # of steady work between two kills
CHANGES: Final = 60  # of tables at random, while nothing else happens
IDLE_S: Final = 60.0


def restarts(
    captured: Captured, stores: Sequence[str], rows: Sequence[SampledRow], kills: int, *, has_standby: bool
) -> dict[str, Any]:
    """Returns the seconds from a kill -9 of the whole job until a change that was committed right after it is readable,
    by store. The job is started again at once, or another one stands by."""
    took: dict[str, list[float]] = {row.store: [] for row in rows}

    def started() -> SinkJob:
        return SinkJob(captured.config(), *stores, log_level="info").__enter__()

    job, standby = started(), None
    try:
        job.wait_applied(captured.progress(), *stores, deadline_s=FRESH_S_MAX)
        for _ in range(kills):
            if has_standby:
                standby = started()
                standby.wait_said("standing by", FRESH_S_MAX)
            time.sleep(PAUSE_S)
            job.kill()
            killed = time.monotonic()
            job, standby = standby or started(), None
            waiting = [threading.Thread(target=_wait, args=(captured.dsn, row, killed, took)) for row in rows]
            for thread in waiting:
                thread.start()
            for thread in waiting:
                thread.join()
    finally:
        for running in (job, standby):
            if running is not None:
                running.__exit__(None, None, None)
    return {store: _spread(seconds, kills) for store, seconds in took.items()}


def _wait(dsn: str, row: SampledRow, killed: float, took: Mapping[str, list[float]]) -> None:
    shows, mark = reader(row), f"restart {time.time_ns()}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL(MARK).format(psycopg.sql.Identifier(row.table)), (mark, row.key))
    while time.monotonic() - killed < FRESH_S_MAX:
        if shows(mark):
            took[row.store].append(time.monotonic() - killed)
            return
        time.sleep(POLL_S)


def _spread(seconds: Sequence[float], count: int) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50_s": round(percentile(ordered, 0.5), 1),
        "p95_s": round(percentile(ordered, 0.95), 1),
        "max_s": round(max(ordered, default=float("nan")), 1),
        "samples": len(ordered),
        "lost": count - len(ordered),
    }


def idle(captured: Captured, job: SinkJob, tables: Sequence[str], row: SampledRow) -> dict[str, Any]:
    """Returns cores and memory of a job whose tables do not change, then the seconds until a change of one of them is
    readable. `row`: of the first table; the tables have rows with the same keys."""
    before, begun = cpu_s(job.process.pid), time.monotonic()
    time.sleep(IDLE_S)
    cores = (cpu_s(job.process.pid) - before) / (time.monotonic() - begun)
    memory_mb = sum(process.memory_full_info().pss for process in family(job.process.pid)) / 1e6
    took = []
    chance = random.Random(1)
    with psycopg.connect(captured.dsn, autocommit=True) as connection:
        for _ in range(CHANGES):
            place = row._replace(table=chance.choice(tables))
            shows, mark = reader(place), f"change {time.time_ns()}"
            connection.execute(psycopg.sql.SQL(MARK).format(psycopg.sql.Identifier(place.table)), (mark, place.key))
            committed = time.monotonic()
            while not shows(mark) and time.monotonic() - committed < FRESH_S_MAX:
                time.sleep(POLL_S)
            took.append(time.monotonic() - committed)
            time.sleep(chance.random())
    return {"cores": round(cores, 3), "memory_mb": round(memory_mb), "readable": _spread_ms(took)}


def _spread_ms(seconds: Sequence[float]) -> dict[str, int]:
    return {f"{name}_ms": round(percentile(sorted(seconds), at) * 1000) for name, at in (("p50", 0.5), ("p95", 0.95))}
