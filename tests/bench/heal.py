"""Measures how long a gap takes to heal in which few rows changed: by differences, and by publishing every row.

    python -m tests.bench.heal --rows 1000000 --differing 137 --sink

In each round capture is killed, its slot dropped, and some rows are inserted, updated and deleted. Capture starts
again, and is asked to heal. Measured is the time from the request until capture owes no row, and, with `--sink`, until
a cache has applied that. The two modes alternate, so that a busy machine slows both.

The benchmark starts its own servers (PostgreSQL 18, Kafka, and with `--sink` Redis) in a temporary folder. The exit
code is 1 if healing by differences publishes more rows than differ, or takes half as long as publishing every row, or
longer; with `--sink`, until the store has it.
"""

import argparse
import json
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
from tests.support.captured import Captured
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually
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
DELETED: LiteralString = "DELETE FROM items WHERE id IN (SELECT id FROM items ORDER BY id OFFSET 5000 LIMIT %s)"


@dataclass(frozen=True, slots=True)
class Healed:
    capture_s: float
    store_s: float  # until the cache has applied it; without one as capture_s
    compared: int
    published: int
    peak_mb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--differing", type=int, default=137)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sink", action="store_true", help="also keep a cache, and wait for it")
    parser.add_argument("--json", action="store_true", help="one line on standard output")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    result = measure(arguments.rows, arguments.differing, arguments.rounds, console, has_sink=arguments.sink)
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result, Console())
    return int(not result["holds"])


def measure(rows: int, differing: int, rounds: int, console: Console, *, has_sink: bool) -> dict[str, Any]:
    """Runs all rounds on one set of servers, and returns the figures."""
    found: dict[str, list[Healed]] = {mode: [] for mode in MODES}
    with ExitStack() as resources:
        temporary = tempfile.TemporaryDirectory(prefix="watershed-bench-", ignore_cleanup_errors=True)
        folder = Path(resources.enter_context(temporary))
        folder.chmod(0o711)  # PostgreSQL may run under another account
        stack = resources.enter_context(Stack(folder / "stack", given={}))
        endpoints = stack.start("postgres", "kafka", *(["redis"] if has_sink else []))
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
                healed = heal(captured, job, differing, 2 * number + MODES.index(mode) + 1, all_rows=mode == "all")
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
        "peak_rss_mb": {mode: [healed.peak_mb for healed in found[mode]] for mode in MODES},
        "share": round(seconds["differences"] / seconds["all"], 2),
        "holds": max(published) <= differing and seconds["differences"] < seconds["all"] / 2,
    }


def heal(captured: Captured, job: SinkJob | None, differing: int, number: int, *, all_rows: bool) -> Healed:
    """Makes a gap with so many differing rows, and heals it."""
    captured.end()
    captured.drop_slot()
    part = differing // 3
    captured.query(INSERTED, number, differing - 2 * part)
    captured.query(UPDATED, number, part)
    captured.query(DELETED, part)
    capture = captured.start()
    capture.await_said("state GAP", WAIT_S)
    began = time.monotonic()
    assert captured.ask("heal", WAIT_S, all_rows=all_rows).is_accepted
    request = f"epoch {captured.epoch()}"

    def is_done() -> bool:
        record = captured.snapshots()[ITEMS]
        return bool(record["request"] == request and record["status"] == "done")

    eventually(is_done, WAIT_S, capture.said)
    capture_s = store_s = time.monotonic() - began
    if job is not None:
        captured.await_caught_up(WAIT_S)
        job.wait_applied(captured.progress(), CACHE, deadline_s=WAIT_S)
        store_s = time.monotonic() - began
    record = captured.snapshots()[ITEMS]
    return Healed(capture_s, store_s, record["compared"], record["rows"] + record["deleted"], peak_mb(capture))


if __name__ == "__main__":
    raise SystemExit(main())
