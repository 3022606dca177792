"""Part `restart`: kill -9 under load, and a start at once; how long until something new is readable, and what comes
twice.
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from tests.bench.public.bench import Bench
from tests.bench.public.catchup import SETTINGS, SYSTEMS
from tests.bench.public.live import Arrival, Writer, reading
from tests.bench.public.raw_data import RawData, Wanted, missing
from tests.bench.public.systems import FOR_LATENCY, FOR_RESTART
from tests.bench.public.workloads import LIVE

CASE: Final = "kill_9"
RATE: Final = 500
KILLED_AFTER: Final = 0.5  # of the rows
SECONDS_PER_LIVE: Final = 2.0  # of load, for each second of a rate in part `latency`


def wanted(raw: RawData, rounds: int) -> list[Wanted]:
    return missing(raw, [CASE], SYSTEMS, rounds)


def measure(bench: Bench, raw: RawData, runs: Sequence[Wanted]) -> None:
    bench.install()
    for _, arm, number in runs:
        raw.add(CASE, arm, number, _killed(bench, arm))
        bench.say(raw)


def _killed(bench: Bench, arm: str) -> dict[str, float | None]:
    rows = round(RATE * SECONDS_PER_LIVE * bench.size.live_s)
    system = bench.system(arm, [LIVE], FOR_LATENCY, settings=SETTINGS, worker=FOR_RESTART)
    try:
        system.prepare()
        system.start()
        system.wait_streaming()
        with reading(bench, system) as reader:
            writer = Writer(bench, 1, rows, RATE)
            reader.await_count(round(rows * KILLED_AFTER), system)
            killed_at = time.time()
            system.kill()
            system.start()
            reached = writer.finish()
            reader.await_count(rows, system)
            arrivals = reader.arrivals()
    finally:
        system.remove()
        bench.query("TRUNCATE live")
    return {**outcome(arrivals, rows, killed_at), "commits_per_s": round(reached)}


def outcome(arrivals: Sequence[Arrival], rows: int, killed_at: float) -> dict[str, float | None]:
    """Returns the seconds until the first row was readable that was not before the kill, and the numbers of rows that
    came again or never. Rows have the ids 1 to `rows`."""
    times = Counter(one.id for one in arrivals)
    newest = max((one.id for one in arrivals if one.readable <= killed_at), default=0)
    fresh = min((one.readable for one in arrivals if one.readable > killed_at and one.id > newest), default=None)
    return {
        "recovery_s": None if fresh is None else round(fresh - killed_at, 2),
        "duplicates": float(len(arrivals) - len(times)),
        "lost": float(rows - sum(1 <= number <= rows for number in times)),
        "readable_before_kill": float(sum(one.readable <= killed_at for one in arrivals)),
    }
