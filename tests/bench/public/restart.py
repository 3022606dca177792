"""Part `restart`: kill -9 under load, and a start at once; how long until something new is readable, and what comes
twice.
"""

import os
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
        # The meter is of this process, because the system's changes; what has ended counts too.
        with bench.meter(os.getpid()) as meter, reading(bench, system) as reader:
            writer = Writer(bench, 1, rows, RATE)
            reader.await_count(round(rows * KILLED_AFTER), system)
            system.kill()
            killed_at = time.time()
            system.start()
            reached = writer.finish()
            reader.await_count(rows, system)
            arrivals = reader.arrivals()
    finally:
        system.remove()
        bench.query("TRUNCATE live")
    return {
        **outcome(arrivals, rows, killed_at),
        "commits_per_s": round(reached),
        "foreign_share": meter.foreign_share,
    }


def outcome(arrivals: Sequence[Arrival], rows: int, killed_at: float) -> dict[str, float | None]:
    """Returns the seconds from the kill until the first row was readable that was written after it, and the numbers of
    rows that came again or never. Rows have the ids 1 to `rows`. What the killed process had published may be readable
    a moment after the kill, so that alone says nothing.
    """
    times = Counter(one.id for one in arrivals)
    fresh = min((one.readable for one in arrivals if one.written > killed_at), default=None)
    return {
        "recovery_s": None if fresh is None else round(fresh - killed_at, 2),
        "duplicates": float(len(arrivals) - len(times)),
        "lost": float(rows - sum(1 <= number <= rows for number in times)),
        "readable_before_kill": float(sum(one.readable <= killed_at for one in arrivals)),
    }
