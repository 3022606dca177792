"""Readers of a transactional SQL store, and of a warehouse by its tags, while the sinks' job and capture are killed:
none sees a transfer in part. Its short form runs with the long tests.

    python -m tests.faults.bank_campaign --minutes 10
"""

import secrets
import shutil
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.conformance.stores import url_of
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.bank import (
    SCHEMA,
    TABLES,
    Reads,
    await_equal,
    running,
    settings,
    sql_reader,
    tag_reader,
    transfers,
)
from tests.faults.episodes import run_episodes
from tests.support.captured import under_capture
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually
from watershed.devstack.stack import Stack

KILLS: Final = 6  # of the job
DEADLINE_S: Final = 120.0
PAUSES_S: Final = (0.01, 0.03, 0.1)  # between transfers: batches of many transactions, and of few


def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    endpoints = stack.start("postgres", "kafka")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka, random = KafkaBroker(endpoints.bootstrap_servers, stack), Random(seed)
    folder.mkdir(parents=True)
    name, sql, tags, begun = f"b{seed}_{secrets.token_hex(3)}", Reads(), Reads(), time.monotonic()
    capture_kills, over = 0, threading.Event()
    with (
        new_database(server) as target,
        new_database(server) as dsn,
        under_capture(server, kafka, dsn, name, folder, SCHEMA, list(TABLES)) as bank,
    ):
        bank.settings = settings(folder, url_of(target))
        bank.start()
        bank.await_caught_up()
        read_sql, read_tags = sql_reader(target), tag_reader(folder / "warehouse", name)
        job = SinkJob(bank.config(), "books", "lake").__enter__()
        try:
            job.wait_applied(bank.log_end(), "books", "lake", deadline_s=DEADLINE_S)
            with (
                transfers(bank, seed, sql, random.choice(PAUSES_S)),
                running({"sql": lambda: read_sql(sql)}, sql, 0.05),
                running({"tags": lambda: read_tags(tags)}, tags, 0.05),
            ):
                for number in range(KILLS):
                    # The warehouse is the slower one: each second kill is before it has a tag.
                    _await_progress(job, *([sql] if number % 2 else [sql, tags]))
                    over.wait(random.uniform(0.0, 2.0))  # into some part of a batch
                    job.kill()
                    if random.random() < 0.5:
                        bank.running().kill()
                        bank.start()
                        capture_kills += 1
                    job = SinkJob(bank.config(), "books", "lake").__enter__()
            bank.await_caught_up()
            job.wait_applied(bank.progress(), "books", "lake", deadline_s=DEADLINE_S)
            await_equal(bank, read_sql)
            read_tags(tags)
        finally:
            job.kill()
    wrong = sql.wrong + tags.wrong
    if not wrong:
        shutil.rmtree(folder)
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - begun),
        "kills": KILLS + 1,
        "capture_kills": capture_kills,
        "sql_reads": sql.count,
        "sql_states": len(sql.states),
        "tag_reads": tags.count,
        "tags": len(tags.states),
        "wrong": len(wrong),
        "first_wrong": wrong[:3],
    }


def _await_progress(job: SinkJob, *stores: Reads) -> None:
    """Until readers have seen new states of these stores."""
    before = [len(store.states) for store in stores]

    def is_there() -> bool:
        assert not any(store.failed for store in stores), [store.failed for store in stores]
        return all(len(store.states) > known for store, known in zip(stores, before, strict=True))

    eventually(is_there, DEADLINE_S, lambda: f"{[len(store.states) for store in stores]} states\n{job.said()}")


if __name__ == "__main__":
    sys.exit(run_episodes(__doc__, "bank-campaign", episode, lambda reported: reported["wrong"] == 0))
