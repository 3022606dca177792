"""A warehouse with a table of each mode while its job and capture are killed and its files are compacted: at the end
rows, intervals and changes are the source's and its journal's. Its short form runs with the integration tests.

    python -m tests.faults.warehouse_campaign --minutes 60
"""

import secrets
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import run_episodes
from tests.support.captured import under_capture
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually
from tests.support.warehouse_setup import SCHEMA, TABLES, TRIGGERS, change, iceberg, settings, unlike
from watershed.devstack.stack import Stack

KILLS: Final = 6
DEADLINE_S: Final = 300.0


def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    endpoints = stack.start("postgres", "kafka")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka, random = KafkaBroker(endpoints.bootstrap_servers, stack), Random(seed)
    folder.mkdir(parents=True)
    name, over = f"l{seed}_{secrets.token_hex(3)}", threading.Event()
    with (
        new_database(server) as dsn,
        under_capture(server, kafka, dsn, name, folder, SCHEMA, list(TABLES)) as captured,
    ):
        captured.settings = settings(folder)
        captured.query(TRIGGERS)
        process = captured.start()
        captured.await_caught_up()
        transactions = 0

        def work() -> None:
            nonlocal transactions
            with captured.connect() as connection:
                while not over.wait(0.02):
                    change(connection, Random(seed + transactions), 10)
                    transactions += 10

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(KILLS):
                with SinkJob(captured.config(), "lake") as job:
                    job.wait_said("sink starts")
                    over.wait(random.uniform(0.0, 25.0))
                    if random.random() < 0.3:
                        captured.cdc("warehouse", "maintain")
                    job.kill()
                if random.random() < 0.3:
                    process.kill()
                    process = captured.start()
        finally:
            over.set()
            worker.join()
        differing: list[str | None] = []

        def is_equal() -> bool:
            differing[:] = [unlike(captured)]
            return differing == [None]

        with SinkJob(captured.config(), "lake") as job:
            with suppress(AssertionError):  # the difference is told below
                eventually(is_equal, DEADLINE_S, "the warehouse is as the source")
            job.terminate()
        rows = {table: held.num_rows for table, held in iceberg(captured).items()}
    if differing == [None]:
        shutil.rmtree(folder)
    return {"seed": seed, "transactions": transactions, "kills": KILLS, "rows": rows, "differing": differing[0]}


if __name__ == "__main__":
    sys.exit(run_episodes(__doc__, "warehouse-campaign", episode, lambda reported: reported["differing"] is None))
