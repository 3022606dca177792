"""The long run of brokers that die: kill -9 of Kafka, and of some of the captures, while all are writing.

    python -m tests.faults.broker_campaign --minutes 30 --folder .watershed/broker-campaign

Several captures share the broker, each with a database and a prefix of its own, so that at each kill some are just
committing: what the brokers decided then, and did not end, each has to find and to end. It is made of episodes, each a
seed. Each is a line in `episodes.jsonl`; a run that is started again goes on behind the last one.
"""

import random
import secrets
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import run_episodes
from tests.support.captured import Captured, under_capture
from tests.support.waiting import eventually
from tests.support.workload import SCHEMA, TABLES, Workload
from watershed.devstack.stack import Stack

CAPTURES: Final = 6
KILLS: Final = 8
DIES: Final = 0.5  # how often a capture dies with the broker
TRANSACTIONS_PER_KILL: Final = 200


def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    endpoints = stack.start("postgres", "kafka")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    chance = random.Random(seed)
    with ExitStack() as all_of_it:
        captures = []
        for number in range(CAPTURES):
            home = folder / str(number)
            home.mkdir(parents=True)
            dsn = all_of_it.enter_context(new_database(server))
            name = f"b{seed}_{number}_{secrets.token_hex(3)}"
            under = under_capture(server, kafka, dsn, name, home, SCHEMA, TABLES)
            captures.append(all_of_it.enter_context(under))
        deaths = _killed(captures, stack, chance)
        complaints = []
        for captured in captures:
            captured.await_caught_up(300.0)
            complaints += _complaints(captured)
        message = [log.read_text() for log in folder.glob("*/*.log")]
    if not complaints:
        shutil.rmtree(folder)
    return {
        "seed": seed,
        "broker_kills": KILLS,
        "capture_kills": deaths,
        "ended": sum(text.count("hanging Kafka transaction ended") for text in message),
        "noticed_alive": sum(text.count("a transaction hangs in topic") for text in message),
        "gaps": sum(text.count("state GAP") for text in message),
        "complaints": complaints,
    }


def _killed(captures: list[Captured], stack: Stack, chance: random.Random) -> int:
    """All write, the broker dies again and again; how many captures died with it. They run on."""
    deaths = 0
    for captured in captures:
        captured.start()
    with ExitStack() as writing:
        loads = [Workload(captured.dsn, seed=chance.randrange(1000), clients=1, pause_s=0.01) for captured in captures]
        for load in loads:
            writing.enter_context(load)
        for _ in range(KILLS):
            for captured in captures:
                eventually(lambda captured=captured: _streams(captured), 120.0, "capture streams")  # type: ignore[misc]
            until = loads[0].committed + chance.randrange(10, TRANSACTIONS_PER_KILL)
            eventually(lambda until=until: loads[0].committed > until, 600.0)  # type: ignore[misc]
            stack.kill("kafka")
            dead = [captured for captured in captures if chance.random() < DIES]
            for captured in dead:
                captured.running().kill()
            stack.restart("kafka")
            for captured in dead:
                captured.start()
            deaths += len(dead)
    return deaths


def _streams(captured: Captured) -> bool:
    return "[info     ] streaming" in captured.running().said()


def _complaints(captured: Captured) -> list[str]:
    """Records that were written again are no longer where the progress was told that covers them."""
    return [f"{captured.name}: {found}" for found in captured.complaints() if not found.startswith("progress:")]


if __name__ == "__main__":
    sys.exit(run_episodes(__doc__, "broker-campaign", episode, lambda reported: not reported["complaints"]))
