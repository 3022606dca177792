"""The long run of events: eight writers in both modes, rollbacks, savepoints, and kills of capture at random moments.

    python -m tests.faults.outbox_campaign --minutes 30 --folder .watershed/outbox-campaign

It is made of episodes, each a seed with a database and topics of its own. Each is a line in `episodes.jsonl`; a run
that is started again goes on behind the last one.
"""

import random
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import run_episodes
from tests.support.captured import Captured, CaptureProcess
from tests.support.outbox_workload import Writers, judge, with_outbox
from tests.support.topics import delete_topic
from tests.support.waiting import eventually
from watershed.cli.failpoints import FAILPOINTS
from watershed.devstack.stack import Stack

KILLS: Final = 8
TRANSACTIONS_PER_KILL: Final = 300
POINTS: Final = sorted(name for name in FAILPOINTS if name.split(".")[0] in ("kafka", "transaction", "status"))


def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    endpoints = stack.start("postgres", "kafka")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    name = f"o{seed}_{secrets.token_hex(3)}"
    settings = {"capture": {"transaction_rows_max": chance.choice((5, 50, 5000))}}
    with new_database(server) as dsn, with_outbox(server, kafka, dsn, name, folder, settings) as captured:
        process = captured.start()
        process.await_said("streaming", 90.0)
        with Writers(dsn, seed) as writers:
            for _ in range(KILLS):
                until = writers.committed + chance.randrange(TRANSACTIONS_PER_KILL // 10, TRANSACTIONS_PER_KILL)
                eventually(lambda until=until: writers.committed > until, 600.0)  # type: ignore[misc]
                process.kill()
                process = _restarted(captured, chance)
        if process.exit_code is not None:
            captured.start()
        captured.await_caught_up(300.0)
        reported = judge(captured)
        complaints = [*reported.complaints, *captured.complaints()]
        delete_topic(kafka.bootstrap_servers, f"{name}-thing")
    if not complaints:
        shutil.rmtree(folder)
    return {"seed": seed, "transactions": writers.committed, "events": reported.events, "complaints": complaints}


def _restarted(captured: Captured, chance: random.Random) -> CaptureProcess:
    """One half of the times it dies of a failpoint first, while the writers write."""
    if chance.random() < 0.5:
        point = f"{chance.choice(POINTS)}:{chance.randrange(1, 4)}"
        dying = captured.start(failpoint=point)
        try:
            dying.await_end(10.0)
        except AssertionError:
            dying.kill()  # it never came to that point
    return captured.start()


if __name__ == "__main__":
    sys.exit(run_episodes(__doc__, "outbox-campaign", episode, lambda reported: not reported["complaints"]))
