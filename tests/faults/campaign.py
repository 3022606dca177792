"""The long campaign: hundreds of kills, freezes and outages on real servers, and as many simulated runs as time allows.

    python -m tests.faults.campaign --minutes 60 --folder .watershed/campaign

Each episode is a seed: a database, topics of its own, clients, and faults drawn from the seed; in the end the judge.
Its result is a line in `episodes.jsonl`; a campaign that is started again goes on behind the last one. `--seed 17`
repeats one.
"""

import random
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import structlog
from psycopg.conninfo import conninfo_to_dict

from cdc.model.errors import WatershedError
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import Told, run_episodes
from tests.simulation.run import Run
from tests.support.captured import Captured, CaptureProcess, frozen, under_capture
from tests.support.waiting import eventually
from tests.support.workload import SCHEMA, TABLES, Workload, fill
from watershed.cli.failpoints import FAILPOINTS
from watershed.devstack.stack import Stack

SIMULATED_SEEDS = 300  # for each episode


class Episode:
    """One seed on real servers."""

    def __init__(self, seed: int, stack: Stack, captured: Captured, clients: Workload) -> None:
        self.chance = random.Random(seed)
        self.stack = stack
        self.captured = captured
        self.clients = clients
        self.process: CaptureProcess | None = None
        self.faults: list[str] = []

    def run(self) -> None:
        nemesis: list[tuple[Callable[[], None], int]] = [
            (self.kill_capture, 6),
            (self.die_at_failpoint, 5),
            (self.stop_capture, 2),
            (self.freeze_capture, 2),
            (self.cut_connection, 2),
            (self.freeze_kafka, 2),
            (self.kill_kafka, 1),
            (self.kill_postgres, 1),
            (self.large_transaction, 2),
        ]
        self.start()
        for _ in range(self.chance.randint(4, 10)):
            (fault,) = self.chance.choices([f for f, _ in nemesis], [weight for _, weight in nemesis])
            self.faults.append(fault.__name__)
            self.live()
            fault()
        self.live()

    def live(self) -> None:
        """Some transactions are committed."""
        until = self.clients.committed + self.chance.randrange(1, 80)
        eventually(lambda: self.clients.committed > until, 60.0)

    def start(self) -> None:
        if self.process is None or self.process.exit_code is not None:
            self.process = self.captured.start()
        if self.chance.random() < 0.6:
            self.process.await_said("streaming", 60.0)

    def kill_capture(self) -> None:
        self.start()
        assert self.process is not None
        self.process.kill()
        self.start()

    def die_at_failpoint(self) -> None:
        """At most: a point in the load is not passed any more."""
        if self.process is not None:
            self.process.kill()
        names = [name for name in FAILPOINTS if not name.startswith(("load.", "join."))]
        dying = self.captured.start(failpoint=f"{self.chance.choice(names)}:{self.chance.randint(1, 6)}")
        self.live()
        dying.kill()
        self.start()

    def stop_capture(self) -> None:
        self.start()
        assert self.process is not None
        self.process.await_said("source checked")  # earlier, Python itself obeys
        assert self.process.terminate() == 0
        self.start()

    def freeze_capture(self) -> None:
        self.start()
        assert self.process is not None
        self.process.signal(SIGSTOP)
        other = self.captured.start()
        self.captured.query(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", self.captured.name
        )
        self.live()
        self.process.signal(SIGCONT)
        self.live()
        other.kill()

    def cut_connection(self) -> None:
        self.captured.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'watershed%%'"
            " AND datname = current_database()"
        )

    def freeze_kafka(self) -> None:
        with frozen(self.stack, "kafka"):
            self.live()

    def kill_kafka(self) -> None:
        self.stack.kill("kafka")
        self.live()
        self.stack.restart("kafka")

    def kill_postgres(self) -> None:
        self.stack.kill("postgres")
        self.stack.restart("postgres")

    def large_transaction(self) -> None:
        rows = self.chance.choice((2_000, 10_000))
        with self.captured.connect() as connection, connection.transaction():
            connection.execute(
                "INSERT INTO lines SELECT n, %s::int, n, 1, 'large' FROM generate_series(1, %s::int) AS n"
                " ON CONFLICT (order_id, line_no) DO UPDATE SET qty = lines.qty + 1",
                (5_000 + len(self.faults), rows),
            )


def episode(seed: int, stack: Stack, folder: Path) -> Told:
    """Runs one, and returns how it went."""
    endpoints = stack.start("postgres", "kafka")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    name = f"c{seed}_{secrets.token_hex(3)}"
    began = time.monotonic()
    folder.mkdir(parents=True)
    with new_database(server) as dsn, under_capture(server, kafka, dsn, name, folder, SCHEMA, TABLES) as captured:
        captured.settings = {"capture": {"transaction_rows_max": random.Random(seed).choice((50, 1_000, 50_000))}}
        with captured.connect() as connection:
            fill(connection, 500)
        with Workload(dsn, seed=seed, clients=2, pause_s=0.01, outlives_server=True) as clients:
            made = Episode(seed, stack, captured, clients)
            made.run()
        made.start()
        captured.await_caught_up(120.0)
        report = captured.judge()
    shutil.rmtree(folder)
    return {
        "seed": seed,
        "database": str(conninfo_to_dict(dsn)["dbname"]),
        "faults": made.faults,
        "events": sum(report.ops.values()),
        "epoch": report.epoch,
        "seconds": round(time.monotonic() - began, 1),
    }


def simulated(first: int) -> None:
    for seed in range(first, first + SIMULATED_SEEDS):
        try:
            Run(seed).report()
        except (AssertionError, WatershedError) as error:
            raise AssertionError(f"simulated seed {seed}: {error}") from error


def main() -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # of the simulated runs

    def both(seed: int, stack: Stack, folder: Path) -> Told:
        reported = episode(seed, stack, folder)
        simulated(10_000 + seed * SIMULATED_SEEDS)
        return reported

    return run_episodes(__doc__, "campaign", both)


if __name__ == "__main__":
    sys.exit(main())
