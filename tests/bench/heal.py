"""Measures how long a gap takes to heal in which few rows changed: by differences, and by publishing every row.

    python -m tests.bench.heal --rows 1000000 --differing 137 --rounds 3 --sink
    python -m tests.bench.heal --rows 1000000 --differing 137 --rounds 3 --failover

In each round capture is killed, its slot dropped, and some rows are inserted, updated and deleted. Capture starts
again, and is asked to heal. With `--failover` these changes are published, the primary is killed, and a standby is
promoted that does not have them. Measured is the time from the request until capture owes no row, and, with `--sink`,
until a cache has applied that. The two modes alternate, so that a busy machine slows both; `cpu_s` is the processor
time that capture took, which the load of others changes less.

The benchmark starts its own servers (PostgreSQL 18, Kafka, and with `--sink` Redis) in a temporary folder. The exit
code is 1 if healing by differences publishes more rows than differ, or takes half as long as publishing every row, or
longer; with `--sink`, until the store has it.
"""

import argparse
import json
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, LiteralString

from rich.console import Console

from tests.bench.backlog import peak_mb, under
from tests.bench.snapshot import ITEMS, fill, show
from tests.conftest import INTERPRETED
from tests.support.captured import Captured, CaptureProcess
from tests.support.sink_job import SinkJob
from tests.support.standby_servers import StandbyServers, standby_servers
from tests.support.waiting import eventually
from watershed.devstack.endpoints import Endpoints
from watershed.devstack.stack import Stack

CACHE: Final = "cache"
WAIT_S: Final = 1_800.0
MODES: Final = ("differences", "all")

# Rows behind those that the round before took, so that each round has as many.
INSERTED: LiteralString = """
INSERT INTO items SELECT n + %s * 1000000000::bigint, 1, 'new', 1, 'inserted in the gap', false, now()
  FROM generate_series(1::bigint, %s) AS n
"""
UPDATED: LiteralString = (
    "UPDATE items SET status = 'gap ' || %s WHERE id IN (SELECT id FROM items ORDER BY id LIMIT %s)"
)
RECEIVING: LiteralString = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
DELETED: LiteralString = "DELETE FROM items WHERE id IN (SELECT id FROM items ORDER BY id OFFSET 5000 LIMIT %s)"


@dataclass(frozen=True, slots=True)
class Healed:
    capture_s: float
    store_s: float  # until the cache has applied it; without one as capture_s
    compared: int
    published: int
    peak_mb: float
    cpu_s: float  # of capture's process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--differing", type=int, default=137)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sink", action="store_true", help="also keep a cache, and wait for it")
    parser.add_argument("--failover", action="store_true", help="the gap is a standby that was behind")
    parser.add_argument("--json", action="store_true", help="one line on standard output")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    result = measure(
        arguments.rows,
        arguments.differing,
        arguments.rounds,
        console,
        has_sink=arguments.sink,
        is_failover=arguments.failover,
    )
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result, Console())
    return int(not result["holds"])


def measure(
    rows: int, differing: int, rounds: int, console: Console, *, has_sink: bool, is_failover: bool
) -> dict[str, Any]:
    """Runs all rounds on one set of servers, and returns the figures."""
    found: dict[str, list[Healed]] = {mode: [] for mode in MODES}
    with ExitStack() as resources:
        temporary = tempfile.TemporaryDirectory(prefix="watershed-bench-", ignore_cleanup_errors=True)
        folder = Path(resources.enter_context(temporary))
        folder.chmod(0o711)  # PostgreSQL may run under another account
        stack = resources.enter_context(Stack(folder / "stack", given={}))
        names = ["kafka", *(["redis"] if has_sink else []), *([] if is_failover else ["postgres"])]
        endpoints = stack.start(*names)
        servers = resources.enter_context(standby_servers(2)) if is_failover else None
        if servers is not None:
            endpoints = Endpoints({**endpoints.addresses, "postgres": servers.dsn()}, servers.dsn("postgres"))
        captured = under(endpoints, "heal", folder)
        if has_sink:
            captured.settings = {
                "sinks": {CACHE: {"url": endpoints.redis_url}},
                "spark": {"checkpoint_location": str(folder / "checkpoints"), "options": INTERPRETED},
            }
        resources.callback(captured.end)
        console.print(f"filling {rows:,} rows", highlight=False)
        fill(captured, rows)
        captured.start()
        captured.await_caught_up(WAIT_S)
        job = resources.enter_context(SinkJob(captured.config(), CACHE)) if has_sink else None
        if job is not None:
            console.print("filling the cache", highlight=False)
            job.wait_applied(captured.progress(), CACHE, deadline_s=WAIT_S)
        for number in range(rounds):
            for mode in MODES:
                change = Changes(captured, differing, 2 * number + MODES.index(mode) + 1)
                capture = slot_lost(captured, change) if servers is None else standby_behind(captured, servers, change)
                healed = heal(captured, capture, job, all_rows=mode == "all")
                console.print(f"{mode}: {healed}", highlight=False)
                found[mode].append(healed)
    seconds = {mode: median(healed.store_s for healed in found[mode]) for mode in MODES}
    published = [healed.published for healed in found["differences"]]
    return {
        "rows": rows,
        "differing": differing,
        "waits_for": "cache" if has_sink else "capture",
        **{f"capture_s_{mode}": [round(healed.capture_s, 1) for healed in found[mode]] for mode in MODES},
        **{f"store_s_{mode}": [round(healed.store_s, 1) for healed in found[mode]] for mode in MODES},
        "published_differences": published,
        "published_all": [healed.published for healed in found["all"]],
        **{f"cpu_s_{mode}": [round(healed.cpu_s, 1) for healed in found[mode]] for mode in MODES},
        "peak_rss_mb": {mode: [healed.peak_mb for healed in found[mode]] for mode in MODES},
        "share": round(seconds["differences"] / seconds["all"], 2),
        "holds": max(published) <= differing and seconds["differences"] < seconds["all"] / 2,
    }


@dataclass(frozen=True, slots=True)
class Changes:
    """So many rows, one third of them inserted, updated and deleted each."""

    captured: Captured
    count: int
    number: int  # of the round: each has other rows

    def __call__(self) -> None:
        part = self.count // 3
        self.captured.query(INSERTED, self.number, self.count - 2 * part)
        self.captured.query(UPDATED, self.number, part)
        self.captured.query(DELETED, part)


def slot_lost(captured: Captured, change: Changes) -> CaptureProcess:
    """Returns a capture that has found the gap."""
    captured.end()
    captured.drop_slot()
    change()
    capture = captured.start()
    capture.await_said("state GAP", WAIT_S)
    return capture


def standby_behind(captured: Captured, servers: StandbyServers, change: Changes) -> CaptureProcess:
    """Promotes the standby without the changes, which are published, and makes a standby of the former primary. Returns
    a capture that has found the gap."""
    primary, standby = servers.servers
    if primary.query("SELECT pg_is_in_recovery()") == [(True,)]:
        primary, standby = standby, primary
    servers.await_synchronised(captured.name, [standby], WAIT_S)
    standby.set(primary_conninfo="")
    eventually(lambda: not primary.query(RECEIVING, standby.physical_slot), WAIT_S, "the standby receives nothing")
    change()
    captured.await_caught_up(WAIT_S)
    capture = captured.running()
    gaps = capture.said().count("never happened here")
    primary.kill()
    standby.promote()
    eventually(lambda: capture.said().count("never happened here") > gaps, WAIT_S, capture.said)
    standby.set(primary_conninfo="")
    primary.make_standby_of(standby)
    return capture


def heal(captured: Captured, capture: CaptureProcess, job: SinkJob | None, *, all_rows: bool) -> Healed:
    """Heals the gap that capture has found."""
    cpu_s = cpu_seconds(capture)
    began = time.monotonic()
    assert captured.ask("heal", WAIT_S, all_rows=all_rows).is_accepted
    request = f"epoch {captured.epoch()}"

    def is_done() -> bool:
        record = captured.snapshots()[ITEMS]
        return bool(record["request"] == request and record["status"] == "done")

    eventually(is_done, WAIT_S, capture.said)
    capture_s = store_s = time.monotonic() - began
    cpu_s = cpu_seconds(capture) - cpu_s
    if job is not None:
        captured.await_caught_up(WAIT_S)
        job.wait_applied(captured.progress(), CACHE, deadline_s=WAIT_S)
        store_s = time.monotonic() - began
    record = captured.snapshots()[ITEMS]
    return Healed(capture_s, store_s, record["compared"], record["rows"] + record["deleted"], peak_mb(capture), cpu_s)


def cpu_seconds(capture: CaptureProcess) -> float:
    """The processor time that the process has taken."""
    fields = Path(f"/proc/{capture.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main())
