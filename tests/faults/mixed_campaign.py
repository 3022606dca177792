"""Everything mixed on real servers: rows with large values, outbox rows and messages with empty payloads, dead letters,
masks, columns that are left out, tables that are altered, and restarts in a snapshot behind a backlog.

    python -m tests.faults.mixed_campaign --minutes 30 --folder .watershed/mixed-campaign

It is made of episodes, each a seed with a database and topics of its own. Judged are the tables' topics (see
tests/checker), events against the writers' ledger, values in topics of others, and whether capture goes on behind a
backlog, in bounded memory. Each is a line in `episodes.jsonl`; a run that is started again goes on behind the last one.
`--seed 17` repeats one.
"""

import random
import secrets
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.checker.judge import gather, judge
from tests.checker.records import read_topics
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import run_episodes
from tests.mixed.judge import events_are_the_ledger, foreign_values
from tests.mixed.operations import EVENT, EVENT_SOURCES, HEAVY
from tests.mixed.progress import Progress, caught_up
from tests.mixed.servers import (
    BULK,
    CAPTURED,
    LARGE_MAX,
    MixedClient,
    dead_letter_topic,
    delete_too_large,
    event_topic,
    ledger,
    with_mixture,
)
from tests.mixed.view import View
from tests.support.captured import Captured, CaptureProcess
from tests.support.waiting import eventually
from tests.support.workload import Workload
from watershed.devstack.stack import Stack

BACKLOGS: Final = (250_000, 30_000, 100_000)  # by turns
BULK_ROWS: Final = 100_000
KILLS: Final = 4
TRANSACTIONS_PER_KILL: Final = 200
CLIENTS: Final = 3
CAUGHT_UP_S_MAX: Final = 900.0
COMPLAINTS_MAX: Final = 20


def churned(captured: Captured, seed: int, kills: int, transactions: int) -> tuple[CaptureProcess, int]:
    """Clients write while capture is killed as often. The capture that runs then, and how many committed."""
    chance = random.Random(seed)
    process = captured.start()
    process.await_said("streaming", 120.0)
    with Workload(captured.dsn, seed=seed, clients=CLIENTS, pause_s=0.005, client=MixedClient) as clients:
        for _ in range(kills):
            until = clients.committed + chance.randrange(transactions // 2, transactions * 2)
            eventually(lambda until=until: clients.committed > until, 600.0)  # type: ignore[misc]
            process.kill()
            process = captured.start()
            if chance.random() < 0.7:
                process.await_said("streaming", 120.0)
            if chance.random() < 0.5:
                captured.signal("snapshot")
        until = clients.committed + transactions
        eventually(lambda: clients.committed > until, 600.0)
    return process, clients.committed


def behind_a_backlog(captured: Captured, process: CaptureProcess, backlog: int, bulk_rows: int) -> Progress:
    """Kill capture while it reads the rows of a table, commit so many transactions on that table, start it again."""
    process.await_said("streaming", 120.0)
    captured.signal("snapshot", tables=(f"public.{BULK}",))

    def is_being_read() -> bool:
        record = captured.snapshots().get(f"public.{BULK}")
        return record is not None and record["status"] == "running" and record["rows"] > 0

    eventually(is_being_read, 300.0, "existing rows are being read")
    process.kill()
    with captured.connect() as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute("CALL single_rows(%s, %s)", (backlog, bulk_rows))
    return caught_up(captured, captured.start(is_forked=False), captured.log_end(), CAUGHT_UP_S_MAX)


def complaints_of(captured: Captured, *, is_at_rest: bool) -> list[str]:
    """Of all judges. While capture is behind, only whether a value is where it does not belong."""
    name = captured.name
    events = [of(name, source) for source in EVENT_SOURCES for of in (event_topic, dead_letter_topic)]
    owners = {
        **{f"{name}.{table}": {table.partition(".")[2]} for table in CAPTURED},
        **{topic: {EVENT} for topic in events},
        f"{name}.dead-letter": {HEAVY},
    }
    records, _ = read_topics(captured.bootstrap_servers, sorted({*captured.topics(), *events}))
    found = list(foreign_values(records, owners))
    if is_at_rest:
        found += events_are_the_ledger(ledger(captured), records, events)
        view = View(LARGE_MAX)
        evidence = gather(captured.bootstrap_servers, name, captured.dsn, CAPTURED)
        found += judge(
            replace(
                evidence,
                table_records=view.records(evidence.table_records),
                journal=view.journal(evidence.journal),
                rows=view.rows(evidence.rows),
            )
        ).complaints
    return found[:COMPLAINTS_MAX]


def mixed(
    captured: Captured, seed: int, *, kills: int, transactions: int, backlog: int, bulk_rows: int
) -> dict[str, Any]:
    """The whole course, and how it went."""
    began = time.monotonic()
    process, committed = churned(captured, seed, kills, transactions)
    progress = behind_a_backlog(captured, process, backlog, bulk_rows)
    complaints = [*progress.complaints]
    if not complaints:
        delete_too_large(captured)
        captured.await_caught_up(CAUGHT_UP_S_MAX)
    complaints += complaints_of(captured, is_at_rest=not complaints)
    return {
        "seed": seed,
        "transactions": committed,
        "backlog": backlog,
        "kills": kills + 1,
        "records": progress.records,
        "rss_mebibytes": progress.rss_mebibytes,
        "seconds": round(time.monotonic() - began),
        "complaints": complaints,
    }


def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    endpoints = stack.start("postgres", "kafka")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    folder.mkdir(parents=True)
    name = f"m{seed}_{secrets.token_hex(3)}"
    profile, backlog = ("readable", "debezium")[seed % 2], BACKLOGS[(seed - 1) % len(BACKLOGS)]
    with (
        new_database(server) as dsn,
        with_mixture(server, kafka, dsn, name, folder, profile=profile, bulk_rows=BULK_ROWS) as captured,
    ):
        reported = mixed(
            captured, seed, kills=KILLS, transactions=TRANSACTIONS_PER_KILL, backlog=backlog, bulk_rows=BULK_ROWS
        )
    if not reported["complaints"]:
        shutil.rmtree(folder)
    return reported | {"profile": profile}


if __name__ == "__main__":
    sys.exit(run_episodes(__doc__, "mixed-campaign", episode, lambda reported: not reported["complaints"]))
