"""The long run of large values that are not in the log: writers, frozen commits and kills, until the time is over.

    python -m tests.faults.hole_campaign --minutes 30 --folder .watershed/hole-campaign

It is made of episodes, each a seed with a database and topics of its own: thousands of changes, the judge, and the
cache's rows held against the source's. Each is a line in `episodes.jsonl`; a run that is started again goes on behind
the last one.
"""

import random
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import run_episodes
from tests.support.captured import under_capture
from tests.support.hole_workload import SCHEMA, TABLES, HoleClient, fill
from tests.support.hot_snapshots import compare_stores, wrong_rows
from tests.support.hot_workload import FrozenCommits, thaw
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually
from tests.support.workload import Workload
from watershed.devstack.stack import Stack

CLIENTS: Final = 8
KILLS: Final = 6
TRANSACTIONS_PER_KILL: Final = 400
SETTINGS: Final[dict[str, Any]] = {
    "capture": {"transaction_rows_max": 300},
    "snapshot": {"chunk_rows_max": 40, "workers": 3, "lag_s_max": 30},
}


def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    endpoints = stack.start("postgres", "kafka", "redis")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
        thaw(connection)
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    name = f"h{seed}_{secrets.token_hex(3)}"
    with new_database(server) as dsn, under_capture(server, kafka, dsn, name, folder, SCHEMA, TABLES) as captured:
        captured.settings = {
            **SETTINGS,
            "sinks": {"cache": {"url": endpoints.redis_url}},
            "spark": {"checkpoint_location": str(folder / "checkpoints")},
        }
        with captured.connect() as connection:
            fill(connection)
        process = captured.start()
        process.await_said("streaming", 60.0)
        with SinkJob(captured.config(), "cache", log_level="info") as job:
            with (
                Workload(dsn, seed=seed, clients=CLIENTS, pause_s=0.01, client=HoleClient) as clients,
                FrozenCommits(captured.superuser_dsn, seed, frozen_s=(0.1, 2.5), thawed_s=(0.05, 1.0)) as freezes,
            ):
                for kill in range(KILLS + 1):
                    until = clients.committed + chance.randrange(TRANSACTIONS_PER_KILL // 2, TRANSACTIONS_PER_KILL * 2)
                    eventually(lambda until=until: clients.committed > until, 600.0)  # type: ignore[misc]
                    if kill < KILLS:
                        process.kill()
                        process = captured.start()
                    if chance.random() < 0.3:
                        captured.signal("snapshot")
            captured.await_caught_up(300.0)
            job.wait_applied(captured.progress(), "cache")
            differing = wrong_rows(compare_stores(captured, ["cache"]))
        complaints = list(captured.complaints())
        changes = captured.changes()
    if not complaints and not differing:
        shutil.rmtree(folder)
    return {
        "seed": seed,
        "transactions": clients.committed,
        "freezes": freezes.count,
        "changes": len(changes),
        "filled": sum(bool(change.filled) for change in changes),
        "unfilled": sum(bool(change.unchanged) for change in changes),
        "complaints": complaints,
        "differing": differing,
    }


def is_true(reported: dict[str, Any]) -> bool:
    """Returns whether an episode that reported this found no fault."""
    return not reported["complaints"] and not reported["differing"]


if __name__ == "__main__":
    sys.exit(run_episodes(__doc__, "hole-campaign", episode, is_true))
