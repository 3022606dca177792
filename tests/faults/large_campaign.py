"""One transaction of millions of rows, published by a capture that is killed inside it again and again.

    python -m tests.faults.large_campaign --rows 10000000 --kills 5

Prints a table and writes `result.json`. What is measured: how long it takes from the commit in the source until
progress says that all is published, and the most memory that any `cdc run` had. What is judged: each change of
the transaction is in the topic once, as it was written (tests/checker/large.py). Begun again, it restarts.
"""

import argparse
import json
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from tests.checker.large import SCHEMA, TABLE, Judge, Plan
from tests.checker.positions import positions_never_go_back
from tests.checker.records import stream_topics
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import servers
from tests.support.captured import Captured, CaptureProcess, under_capture
from watershed.devstack.stack import Stack

RSS_MEBIBYTES_MAX: Final = 120
PUBLISHED_S_MAX: Final = 3_600.0
POLL_S: Final = 0.1


@dataclass
class Memory:
    """Of one process, sampled: (seconds since the commit, changes published, resident MiB)."""

    samples: list[tuple[float, int, float]] = field(default_factory=list)
    peak: float = 0.0

    def sample(self, process: CaptureProcess, seconds: float, published: int) -> None:
        """Nothing where the process has ended."""
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            return
        lines = dict(line.split(":", 1) for line in status.splitlines())
        if "VmRSS" in lines:
            self.samples.append((round(seconds, 1), published, int(lines["VmRSS"].split()[0]) / 1024))
            self.peak = max(self.peak, int(lines["VmHWM"].split()[0]) / 1024)


class PublishedTail:
    """How many changes of the transaction the position record says are published."""

    def __init__(self, captured: Captured) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": captured.bootstrap_servers,
                "group.id": "tail",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
            }
        )
        self._consumer.assign([TopicPartition(f"{captured.name}.state", 0, 0)])
        self._position: dict[str, Any] = {}

    def close(self) -> None:
        self._consumer.close()

    def read(self, wait_s: float) -> dict[str, Any]:
        """The newest position; empty before the first."""
        for message in self._consumer.consume(1_000, wait_s):
            if message.error() is None and message.key() == b"position":
                self._position = json.loads(message.value() or b"{}")
        return self._position


@dataclass(frozen=True, slots=True)
class Course:
    """What was seen of the publication."""

    seconds: float
    rows_received: int  # of all processes: what is published already is sent again
    memories: Sequence[Memory]


def publish(captured: Captured, plan: Plan, kills: int, seq_before: int) -> Course:
    """From the commit on until all is published; killed as often, at equal distances. Capture runs already."""
    process = captured.running()
    memories = [Memory()]
    received = 0
    kill_at = [plan.changes * (number + 1) // (kills + 1) for number in range(kills)]
    began = time.monotonic()
    with closing(PublishedTail(captured)) as tail:
        while True:
            position = tail.read(POLL_S)
            published = max(0, int(position.get("seq", 0)) - seq_before)
            seconds = time.monotonic() - began
            memories[-1].sample(process, seconds, published)
            assert process.exit_code is None, process.said()
            assert seconds < PUBLISHED_S_MAX, f"{published} of {plan.changes} are published; {process.said()}"
            if kill_at and position.get("partial") is not None and published >= kill_at[0]:
                kill_at.pop(0)
                process.kill()
                received += published
                process = captured.start(is_forked=False)
                memories.append(Memory())
            elif published >= plan.changes and position.get("partial") is None:
                return Course(seconds, received + plan.changes, memories)


def judged(captured: Captured, plan: Plan, xid: int, seq_before: int) -> tuple[Judge, list[str]]:
    """All records of the table, read once."""
    topic = f"{captured.name}.{TABLE}"
    judge = Judge(plan, xid, seq_before)
    for record, partitions in stream_topics(captured.bootstrap_servers, [topic], PUBLISHED_S_MAX):
        judge.take(record, partitions[topic])
    positions = [record for record in captured.records("state") if record.key == b"position"]
    return judge, [*judge.complaints(), *positions_never_go_back(positions)]


def source_rows(captured: Captured) -> tuple[int, int]:
    """How many there are, and how many of them were updated."""
    ((rows, touched),) = captured.query("SELECT count(*), count(*) FILTER (WHERE touched = 1) FROM large")
    return int(rows), int(touched)


def run(stack: Stack, folder: Path, rows: int, kills: int) -> dict[str, Any]:
    """Everything, and how it went."""
    endpoints = stack.start("postgres", "kafka")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    plan = Plan.of(rows)
    name = f"l{secrets.token_hex(4)}"
    with new_database(server) as dsn, under_capture(server, kafka, dsn, name, folder, SCHEMA, [TABLE]) as captured:
        captured.query("ALTER TABLE large DISABLE TRIGGER judge")
        captured.start(is_forked=False)
        captured.await_caught_up()
        began = time.monotonic()
        with captured.connect() as connection:
            xid = plan.write(connection)
        written_s = time.monotonic() - began
        course = publish(captured, plan, kills, seq_before=0)
        began = time.monotonic()
        judge, complaints = judged(captured, plan, xid, seq_before=0)
        assert source_rows(captured) == (plan.rows, plan.blocks * plan.updates)
    return {
        "changes": plan.changes,
        "ops": dict(judge.ops),
        "kills": len(course.memories) - 1,
        "written_s": round(written_s, 1),
        "published_s": round(course.seconds, 1),
        "changes_per_s": round(plan.changes / course.seconds),
        "received": course.rows_received,
        "rss_mebibytes_max": round(max(memory.peak for memory in course.memories), 1),
        "processes": [process_line(memory) for memory in course.memories],
        "judged_s": round(time.monotonic() - began, 1),
        "complaints": complaints,
    }


def process_line(memory: Memory) -> dict[str, Any]:
    """Of one process: when it ran, how far it came, and its memory early and late in its life."""
    resident = [mebibytes for _, _, mebibytes in memory.samples]
    third = max(1, len(resident) // 3)
    return {
        "from_s": memory.samples[0][0],
        "to_s": memory.samples[-1][0],
        "published": memory.samples[-1][1],
        "rss_second_third": round(max(resident[third : 2 * third], default=resident[-1]), 1),
        "rss_last_third": round(max(resident[-third:]), 1),
        "rss_peak": round(memory.peak, 1),
    }


def table(reported: dict[str, Any]) -> str:
    """For who watches."""
    lines = ["process   from s     to s   published   MiB, 2nd third   last third   peak"]
    for number, line in enumerate(reported["processes"]):
        lines.append(
            f"{number:7} {line['from_s']:8.1f} {line['to_s']:8.1f} {line['published']:11,}"
            f" {line['rss_second_third']:16.1f} {line['rss_last_third']:12.1f} {line['rss_peak']:6.1f}"
        )
    lines.append(
        f"{reported['changes']:,} changes in one transaction, {reported['kills']} kills: "
        f"published in {reported['published_s']} s "
        f"({reported['changes_per_s']:,}/s, {reported['received']:,} received), "
        f"at most {reported['rss_mebibytes_max']} MiB;"
        f" {len(reported['complaints'])} complaints"
    )
    return "\n".join([*lines, *reported["complaints"]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="changes in the transaction, about")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(".watershed/large-campaign"))
    asked = parser.parse_args()
    folder: Path = asked.folder.absolute()
    made = folder / "run"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    with servers(folder / "stack") as stack:
        reported = run(stack, made, asked.rows, asked.kills)
    (folder / "result.json").write_text(json.dumps(reported, indent=1), encoding="utf-8")
    print(table(reported), flush=True)
    return 0 if not reported["complaints"] and reported["rss_mebibytes_max"] <= RSS_MEBIBYTES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
