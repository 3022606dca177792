"""Measures a large table's snapshot beside a workload, while capture is killed repeatedly: the rows that are read
twice, the lag of the stream meanwhile, the longest transaction of capture, its memory, and whether the topic equals the
table.

    python -m tests.bench.snapshot --rows 5000000 --kills 5 --json

The benchmark starts its own servers (PostgreSQL 18, Kafka) in a temporary folder. The settings of `snapshot` are the
defaults.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, LiteralString

import psutil  # type: ignore[import-untyped]
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench.snapshot_load import read_stream, write_changes
from tests.bench.snapshot_truth import Equality, compare
from tests.bench.snapshot_watch import Machine, Tail, Watch
from tests.checker.judge import table_topic
from tests.support.captured import Captured, CaptureProcess
from tests.support.waiting import eventually
from watershed.devstack.stack import Stack

ITEMS, PULSE = "public.items", "public.pulse"
DATABASE: Final = "watershed"
START_S_MAX: Final = 120.0
STALL_S_MAX: Final = 600.0
POLL_S: Final = 0.05

SCHEMA: LiteralString = """
CREATE TABLE items (
  id bigint PRIMARY KEY, customer_id int NOT NULL, status text NOT NULL, amount numeric(12,2) NOT NULL,
  note text NOT NULL, is_gift boolean NOT NULL, changed_at timestamptz(0) NOT NULL
);
CREATE TABLE pulse (id bigint PRIMARY KEY, note text NOT NULL);
"""
FILL: LiteralString = """
INSERT INTO items
SELECT n, n %% 9973, (ARRAY['new', 'paid', 'packed', 'shipped'])[n %% 4 + 1], (n %% 500000) / 100.0,
       'a note of some words ' || md5(n::text), n %% 3 = 0, timestamptz '2026-01-01 00:00:00+00' + n * interval '1 s'
  FROM generate_series(1::bigint, %s) AS n
"""
# Rows that the server has read through the table's index, for any client.
FETCHED: LiteralString = "SELECT idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'items'"
CONNECTED: LiteralString = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'watershed%'"


@dataclass
class Run:
    """The measurements. Durations are in seconds, times are seconds since 1970."""

    began: float = 0.0
    streaming_at: list[float] = field(default_factory=list)  # of each process
    killed_at: list[float] = field(default_factory=list)
    killed_at_rows: list[int] = field(default_factory=list)
    published_at: float = 0.0
    peak_rss_kib: int = 0
    cpu_s: float = 0.0  # of capture

    @property
    def restarts(self) -> list[tuple[float, float]]:
        """The times of each kill, and at which capture streamed again."""
        return list(zip(self.killed_at, self.streaming_at[1:], strict=True))

    @property
    def reading_s(self) -> float:
        return self.published_at - self.streaming_at[0] - sum(end - begin for begin, end in self.restarts)


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """Returns the nearest-rank percentile. `share`: 0 to 1. NaN for no values."""
    if not sorted_values:
        return float("nan")
    return sorted_values[max(0, math.ceil(len(sorted_values) * share) - 1)]


def lags(arrivals: Sequence[tuple[float, float]], run: Run) -> tuple[list[float], list[float]]:
    """Returns the sorted seconds from commit to readable of changes while chunks were read: of all, and of those that
    no restart affected. `arrivals`: (committed, readable). A restart affects a change if it was committed before
    capture streamed again, and was not readable at the kill.
    """
    during = [(c, r) for c, r in arrivals if run.streaming_at[0] <= c <= run.published_at]
    calm = [(c, r) for c, r in during if not any(c < again and r > kill for kill, again in run.restarts)]
    return sorted(r - c for c, r in during), sorted(r - c for c, r in calm)


def kill_points(rows: int, kills: int, seed: int) -> list[int]:
    """Returns the numbers of published rows at which capture is killed: a random one in each of `kills` equal parts."""
    chance = random.Random(seed)
    return [int(rows * (number + chance.uniform(0.1, 0.9)) / kills) for number in range(kills)]


def fill(captured: Captured, rows: int) -> tuple[int, int]:
    """Creates and fills the table. Returns the bytes of a row, and the rows that the server has read through the index
    so far.
    """
    captured.query(SCHEMA)
    captured.query(FILL, rows)
    captured.query("VACUUM ANALYZE items")
    captured.query("GRANT SELECT ON items, pulse TO watershed")
    captured.query("ALTER TABLE items OWNER TO watershed")
    captured.query("ALTER TABLE pulse OWNER TO watershed")
    size = captured.query("SELECT pg_table_size('items')")[0][0]
    return size // rows, captured.query(FETCHED)[0][0] or 0


def snapshot(captured: Captured, points: Sequence[int], rows: int, console: Console) -> Run:
    """Runs capture from its first start until every row is published, with a kill at each of the points."""
    run, left = Run(began=time.time()), list(points)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn()
    with (
        Tail(captured.bootstrap_servers, f"{captured.name}.state", b"snapshot/public.items") as tail,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        task = progress.add_task("snapshot", total=rows, said="")
        capture = _start(captured, run)
        moved_at, last = time.monotonic(), -1
        while True:
            record = tail.latest()
            published = int(record["rows"]) if record else 0
            if record and record["status"] == "done":
                break
            if published != last:
                moved_at, last = time.monotonic(), published
                message = f"{published:,} of {rows:,} rows, {len(run.killed_at)} kills"
                progress.update(task, completed=published, said=message)
            if capture.exit_code is not None or time.monotonic() - moved_at > STALL_S_MAX:
                raise SystemExit(f"the snapshot does not go on at {published:,} rows:\n{capture.said()}")
            if left and published >= left[0]:
                left.pop(0)
                _measure(capture, run)
                run.killed_at.append(time.time())
                run.killed_at_rows.append(published)
                capture.kill()
                capture = _start(captured, run)
            time.sleep(POLL_S)
        run.published_at = time.time()
        _measure(capture, run)
    return run


def _start(captured: Captured, run: Run) -> CaptureProcess:
    capture = captured.start()
    capture.await_said(" streaming", START_S_MAX)
    run.streaming_at.append(time.time())
    return capture


def _measure(capture: CaptureProcess, run: Run) -> None:
    """Records peak memory and processor time of a process that is about to end."""
    status = Path(f"/proc/{capture.pid}/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    run.peak_rss_kib = max(run.peak_rss_kib, peak)
    times = psutil.Process(capture.pid).cpu_times()
    run.cpu_s += times.user + times.system


def measure(rows: int, kills: int, rate: float, seed: int, console: Console) -> dict[str, Any]:
    """Performs one run with new servers, and returns the figures."""
    with tempfile.TemporaryDirectory(prefix="watershed-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may run under another account
        with Stack(folder / "stack", given={}) as stack:
            endpoints = stack.start("postgres", "kafka")
            captured = Captured(
                dsn=endpoints.dsn,
                superuser_dsn=make_conninfo(endpoints.superuser_dsn, dbname=DATABASE),
                bootstrap_servers=endpoints.bootstrap_servers,
                name="bench",
                tables=[ITEMS, PULSE],
                folder=folder,
            )
            try:
                servers = [stack.pid("postgres"), stack.pid("kafka")]
                return _measure_in(captured, servers, rows, kills, rate, seed, console)
            finally:
                captured.end()


def _measure_in(
    captured: Captured, servers: Sequence[int], rows: int, kills: int, rate: float, seed: int, console: Console
) -> dict[str, Any]:
    console.print(f"filling {rows:,} rows", highlight=False)
    row_bytes, fetched_before = fill(captured, rows)
    processes = multiprocessing.get_context("spawn")
    stop, results = processes.Event(), processes.Queue()
    writer = processes.Process(target=write_changes, args=(captured.dsn, rows, rate, seed, stop, results))
    topic = table_topic(captured.name, PULSE)
    reader = processes.Process(target=read_stream, args=(captured.bootstrap_servers, topic, stop, results))
    writer.start()
    reader.start()
    with Watch(captured.superuser_dsn, Machine([os.getpid(), *servers])) as watch:
        run = snapshot(captured, kill_points(rows, kills, seed), rows, console)
    stop.set()
    measured = dict(results.get(timeout=60) for _ in (writer, reader))
    writer.join()
    reader.join()
    captured.await_caught_up()
    captured.end()
    eventually(
        lambda: captured.query(CONNECTED) == [(0,)], 30.0, "capture's connections have reported their statistics"
    )
    fetched = captured.query(FETCHED)[0][0]
    console.print("comparing topic and table", highlight=False)
    topic = table_topic(captured.name, ITEMS)
    truth = compare(captured.superuser_dsn, captured.bootstrap_servers, topic, rows + measured["writer"]["inserted"])
    read = fetched - fetched_before - measured["writer"]["found"]
    every, calm = lags(measured["reader"], run)
    return {
        "rows": rows,
        "row_bytes": row_bytes,
        "kills": len(run.killed_at),
        "killed_at_rows": run.killed_at_rows,
        "duration_s": round(run.published_at - run.began, 1),
        "reading_s": round(run.reading_s, 1),
        "rows_per_s": round(truth.snapshot_keys / run.reading_s),
        "restart_s": [round(end - begin, 1) for begin, end in run.restarts],
        "rows_read": read,
        "rows_published": truth.snapshot_records,
        "published_again": truth.snapshot_records - truth.snapshot_keys,
        "read_again_percent": round(100 * (read - truth.snapshot_keys) / rows, 2),
        "changes_per_s": round(measured["writer"]["changes"] / measured["writer"]["seconds"]),
        "lag_s": _spread(calm),
        "lag_s_with_restarts": _spread(every),
        "longest_transaction_s": {name: round(s, 2) for name, s in sorted(watch.longest.items())},
        "activity_samples": watch.samples,
        "peak_rss_mb": round(run.peak_rss_kib * 1024 / 1e6, 1),
        "capture_cpu_s": round(run.cpu_s, 1),
        "machine": watch.machine.report(),
        "equality": _equality(truth),
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {"count": len(values), **{name: round(percentile(values, share), 3) for name, share in shares.items()}}


def _equality(truth: Equality) -> dict[str, int]:
    names = ("table_rows", "topic_rows", "missing", "extra", "different")
    return {name: int(getattr(truth, name)) for name in names}


def show(result: dict[str, Any], console: Console) -> None:
    for name, value in result.items():
        console.print(f"{name:24}{value}", highlight=False, markup=False, soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--rate", type=float, default=300.0, help="changes/s of the workload")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one line on standard output")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    result = measure(arguments.rows, arguments.kills, arguments.rate, arguments.seed, console)
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result, Console())
    return int(any(result["equality"][name] for name in ("missing", "extra", "different")))


if __name__ == "__main__":
    raise SystemExit(main())
