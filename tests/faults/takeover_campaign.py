"""How long a second daemon takes to publish when the first one is killed, or frozen: two on one slot, under load.

    python -m tests.faults.takeover_campaign --kills 20 --freezes 20

Each round waits for a standby, kills or stops the process that streams, and reads the tables' topics as a
`read_committed` consumer until there is a change that committed later than that. A frozen process goes on afterwards:
it becomes the next standby, and must publish nothing of its own. In the end the judge: nothing lost, nothing twice.
The result is a JSON object; the exit code is 1 where a 95th percentile is above its target.
"""

import argparse
import json
import random
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any, Final

import orjson
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from cdc.config.settings import TopicConfig
from tests.checker.judge import table_topic
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import servers
from tests.support.captured import Captured, CaptureProcess, under_capture
from tests.support.waiting import eventually
from tests.support.workload import SCHEMA, TABLES, Workload, fill

WAL_SENDER_TIMEOUT_S: Final = 5.0  # the server's default of 60 s would only make each round longer
TARGET_S: Final = 5.0
ROUND_S_MAX: Final = 60.0


class Watcher:
    """Receives what is committed in the tables' topics."""

    def __init__(self, captured: Captured) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": captured.bootstrap_servers,
            "group.id": "takeover",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
        self._consumer = Consumer(settings)
        count = TopicConfig(prefix="t").partitions
        topics = [table_topic(captured.name, table) for table in captured.tables]
        self._consumer.assign([TopicPartition(topic, n, OFFSET_END) for topic in topics for n in range(count)])

    def seconds_until_published(self, since: float) -> float:
        """From this moment until a change is received that committed later."""
        while time.time() - since < ROUND_S_MAX:
            for message in self._consumer.consume(100, 0.05):
                value = message.value()
                if value is not None and orjson.loads(value)["source"]["ts_ms"] > since * 1000:
                    return time.time() - since
        raise AssertionError(f"nothing was published in {ROUND_S_MAX:g} s")

    def close(self) -> None:
        self._consumer.close()


class Pair:
    """Two daemons, of which one streams."""

    def __init__(self, captured: Captured, seed: int) -> None:
        self._captured = captured
        self._chance = random.Random(seed)
        self._watcher = Watcher(captured)
        self.active = captured.start(is_forked=False)
        self.active.await_said("streaming")
        self._standby = captured.start(is_forked=False)

    def kill(self) -> float:
        active, standby = self._ready()
        began = time.time()
        active.kill()
        took_s = self._watcher.seconds_until_published(began)
        print(f"killed: {took_s:.2f} s", flush=True)
        self.active, self._standby = standby, self._captured.start(is_forked=False)
        return took_s

    def freeze(self) -> float:
        active, standby = self._ready()
        began = time.time()
        active.signal(SIGSTOP)
        took_s = self._watcher.seconds_until_published(began)
        print(f"frozen: {took_s:.2f} s", flush=True)
        active.signal(SIGCONT)
        self.active, self._standby = standby, active
        return took_s

    def _ready(self) -> tuple[CaptureProcess, CaptureProcess]:
        """Any moment at which the second one stands by."""
        standby = self._standby
        message = standby.said()
        eventually(lambda: _stands_by(standby), ROUND_S_MAX, lambda: f"a standby; it said:\n{message}")
        self._watcher.seconds_until_published(time.time() + self._chance.random())
        return self.active, standby

    def close(self) -> None:
        self._watcher.close()


def _stands_by(process: CaptureProcess) -> bool:
    assert process.exit_code is None, process.said()
    message = process.said()
    return message.rfind("standing by") > max(message.rfind("taking over"), message.rfind("session lost"))


def figures(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    at = [ordered[min(len(ordered) - 1, round(part * (len(ordered) - 1)))] for part in (0.5, 0.95)]
    return {"runs": len(ordered), "p50": round(at[0], 2), "p95": round(at[1], 2), "max": round(ordered[-1], 2)}


def run(captured: Captured, kills: int, freezes: int, seed: int) -> dict[str, Any]:
    with captured.connect() as connection:
        fill(connection, 500)
    with Workload(captured.dsn, seed=seed, clients=2, pause_s=0.01):
        pair = Pair(captured, seed)
        killed = [pair.kill() for _ in range(kills)]
        frozen = [pair.freeze() for _ in range(freezes)]
        pair.close()
    captured.await_caught_up(120.0)
    report = captured.judge()
    found: dict[str, Any] = {"events": sum(report.ops.values()), "epoch": report.epoch}
    if killed:
        found["kill"] = figures(killed) | {"target": TARGET_S}
    if frozen:
        found["freeze"] = figures(frozen) | {"target": TARGET_S + WAL_SENDER_TIMEOUT_S}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--freezes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(".watershed/takeover"))
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    name = f"takeover_{secrets.token_hex(3)}"
    with servers(folder / "stack") as stack:
        endpoints = stack.start("postgres", "kafka")
        server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
        kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
        work = folder / name
        work.mkdir()
        with new_database(server) as dsn, under_capture(server, kafka, dsn, name, work, SCHEMA, TABLES) as captured:
            captured.query("ALTER SYSTEM SET wal_sender_timeout = '5s'")
            captured.query("SELECT pg_reload_conf()")
            found = run(captured, arguments.kills, arguments.freezes, arguments.seed)
        shutil.rmtree(work)
    print(json.dumps(found), flush=True)
    return int(any(part["p95"] > part["target"] for part in found.values() if isinstance(part, dict)))


if __name__ == "__main__":
    sys.exit(main())
