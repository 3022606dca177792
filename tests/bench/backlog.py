"""Measures how fast a backlog of small transactions is published beside a snapshot and without one, and the memory that
it takes.

    python -m tests.bench.backlog --rows 1500000 --transactions 250000 --rounds 2

In each round capture is killed (beside the snapshot: in the middle of it), the transactions are committed, and capture
starts again. The time is measured from when the slot is in use again until capture confirms the last transaction. The
two modes alternate, so that a busy machine slows both. The benchmark starts its own servers (PostgreSQL 18, Kafka) in a
temporary folder. The exit code is 1 if the snapshot halves the speed, or if capture takes more memory than allowed.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final, LiteralString

from psycopg.conninfo import make_conninfo
from rich.console import Console

from tests.bench.snapshot import DATABASE, ITEMS, START_S_MAX, fill, show
from tests.support.captured import Captured, CaptureProcess
from tests.support.waiting import eventually
from watershed.devstack.endpoints import Endpoints
from watershed.devstack.stack import Stack

SHARE_MIN: Final = 0.5  # of the speed without a snapshot
RSS_MB_MAX: Final = 120.0
STALL_S_MAX: Final = 900.0
POLL_S: Final = 0.1
MODES: Final = ("without", "beside")

TOUCH: LiteralString = """
CREATE PROCEDURE touch(number bigint) LANGUAGE plpgsql AS $$
BEGIN FOR i IN 1..number LOOP UPDATE items SET amount = amount + 1 WHERE id = i; COMMIT; END LOOP; END $$
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--transactions", type=int, default=250_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one line on standard output")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    result = measure(arguments.rows, arguments.transactions, arguments.rounds, console)
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result, Console())
    return int(not result["holds"])


def measure(rows: int, transactions: int, rounds: int, console: Console) -> dict[str, Any]:
    """Runs all rounds on one pair of servers, and returns the figures."""
    with tempfile.TemporaryDirectory(prefix="watershed-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may run under another account
        with Stack(folder / "stack", given={}) as stack:
            endpoints = stack.start("postgres", "kafka")
            first = under(endpoints, "fill", folder)
            console.print(f"filling {rows:,} rows", highlight=False)
            fill(first, rows)
            first.query(TOUCH)
            seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
            rss_mb: dict[str, list[float]] = {mode: [] for mode in MODES}
            for number in range(rounds):
                for mode in MODES:
                    captured = under(endpoints, f"{mode}{number}", folder)
                    captured.settings = {"snapshot": {"mode": "never"}} if mode == "without" else {}
                    took_s, peak_mb = one_round(captured, rows, transactions)
                    console.print(f"{mode}: {transactions / took_s:,.0f}/s, {peak_mb:.0f} MB", highlight=False)
                    seconds[mode].append(took_s)
                    rss_mb[mode].append(peak_mb)
    speed = {mode: [round(transactions / s) for s in seconds[mode]] for mode in MODES}
    share = median(seconds["without"]) / median(seconds["beside"])
    return {
        "rows": rows,
        "transactions": transactions,
        "transactions_per_s_without": speed["without"],
        "transactions_per_s_beside": speed["beside"],
        "share": round(share, 2),
        "peak_rss_mb_without": rss_mb["without"],
        "peak_rss_mb_beside": rss_mb["beside"],
        "holds": share >= SHARE_MIN and max(rss_mb["beside"]) <= RSS_MB_MAX,
    }


def under(endpoints: Endpoints, name: str, folder: Path) -> Captured:
    (folder / name).mkdir()
    return Captured(
        dsn=endpoints.dsn,
        superuser_dsn=make_conninfo(endpoints.superuser_dsn, dbname=DATABASE),
        bootstrap_servers=endpoints.bootstrap_servers,
        name=name,
        tables=[ITEMS],
        folder=folder / name,
    )


def one_round(captured: Captured, rows: int, transactions: int) -> tuple[float, float]:
    """Returns the seconds from streaming until the backlog is confirmed, and the peak memory of capture in MB."""
    try:
        capture = captured.start()
        capture.await_said(" streaming", START_S_MAX)
        if not captured.settings:
            eventually(lambda: published(captured) > rows // 6, STALL_S_MAX, "a part of the rows is published")
        capture.kill()
        eventually(lambda: not is_streamed(captured), START_S_MAX, "the server has noticed that capture is gone")
        captured.query("CALL touch(%s)", transactions)
        end = captured.log_end()
        capture = captured.start()
        eventually(lambda: is_streamed(captured), START_S_MAX, "capture streams again")
        began = time.monotonic()
        while (captured.confirmed() or 0) < end:
            if capture.exit_code is not None or time.monotonic() - began > STALL_S_MAX:
                raise SystemExit(f"the backlog is not published:\n{capture.said()}")
            time.sleep(POLL_S)
        return time.monotonic() - began, peak_mb(capture)
    finally:
        captured.end()
        captured.drop_slot()
        captured.delete_topics()


def is_streamed(captured: Captured) -> bool:
    """Returns whether a process streams from the slot."""
    slot = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
    return bool(captured.query(slot, captured.name))


def published(captured: Captured) -> int:
    """Returns the number of published rows of the snapshot."""
    return sum(int(record["rows"]) for record in captured.snapshots().values())


def peak_mb(capture: CaptureProcess) -> float:
    status = Path(f"/proc/{capture.pid}/status").read_text(encoding="ascii")
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return round(peak_kib * 1024 / 1e6, 1)


if __name__ == "__main__":
    raise SystemExit(main())
