"""Tables altered while capture and all sinks run, with kills in between; then every store is held against the source.

    python -m tests.faults.schema_campaign --minutes 30 --folder .watershed/schema-campaign

It is made of episodes, each a seed with a database and topics of its own: every kind of change in schema_cases.py
that does not stop its table, in a random order. Each is a line in `episodes.jsonl`; a run that is started again goes on
behind the last one.
"""

import random
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import run_episodes
from tests.support.captured import Captured, under_capture
from tests.support.hot_snapshots import compare_stores, wrong_rows
from tests.support.schema_cases import CASES, TYPES, Case, make, run
from tests.support.sink_job import SinkJob
from tests.support.stores import ALL, sinks_section
from tests.support.waiting import eventually
from watershed.devstack.stack import Stack

EQUAL_S_MAX: Final = 600.0
FOLLOWED: Final = tuple(case for case in CASES if case.stops is None)


def altered(
    captured: Captured,
    cases: Sequence[Case],
    chance: random.Random,
    *,
    kills: int,
    wait_s: float,
    stores: Sequence[str] = ALL,
) -> None:
    """Capture and these sinks run, the tables are altered, and every store is the source in the end. Raises
    AssertionError."""
    process = captured.start()
    captured.await_caught_up()
    with SinkJob(captured.config(), *stores, log_level="info") as job, captured.connect() as connection:
        job.wait_applied(captured.progress(), *stores, deadline_s=wait_s)
        steps = [(case, case.change) for case in cases]
        chance.shuffle(steps)
        killed_at = {len(steps) * (number + 1) // (kills + 1) for number in range(kills)}
        for number, (case, statements) in enumerate(steps):
            run(connection, case, statements)
            if chance.random() < 0.5:
                run(connection, case, case.then)
            if number in killed_at:
                process.kill()
                process = captured.start()
        found: dict[str, list[str]] = {}

        def is_equal() -> bool:
            captured.await_caught_up(wait_s)
            job.wait_applied(captured.progress(), *stores, deadline_s=wait_s)
            found.clear()
            found.update(wrong_rows(compare_stores(captured, stores)))
            return not found

        eventually(is_equal, wait_s, lambda: f"{found}\n{process.said()}")
        assert {record["status"] for record in captured.states().values()} == {"captured"}


def settings(folder: Path, opensearch: str, redis: str) -> dict[str, Any]:
    """Of the configuration, all three stores."""
    return {
        "sinks": sinks_section(folder, opensearch, redis),
        "spark": {
            "checkpoint_location": str(folder / "checkpoints"),
            "warehouse_trigger_ms": 1_000,
            "options": INTERPRETED,
        },
    }


def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    began = time.monotonic()
    endpoints = stack.start("postgres", "kafka", "redis", "opensearch")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    folder.mkdir(parents=True)
    name = f"d{seed}_{secrets.token_hex(3)}"
    tables = [case.table for case in FOLLOWED]
    with new_database(server) as dsn, under_capture(server, kafka, dsn, name, folder, TYPES, []) as captured:
        captured.settings = settings(folder, endpoints.opensearch_url, endpoints.redis_url)
        captured.tables = tables
        with captured.connect() as connection:
            make(connection, FOLLOWED)
        altered(captured, FOLLOWED, random.Random(seed), kills=4, wait_s=EQUAL_S_MAX)
        changes = len(captured.changes())
    shutil.rmtree(folder)
    return {"seed": seed, "tables": len(tables), "changes": changes, "kills": 4,
            "seconds": round(time.monotonic() - began)}  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_episodes(__doc__, "schema-campaign", episode))
