"""Part `latency`: from just before a commit until a `read_committed` consumer in another process has the record."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.bench.public.bench import Bench, milliseconds
from tests.bench.public.catchup import SETTINGS, SYSTEMS
from tests.bench.public.evaluation import DEFAULTS
from tests.bench.public.live import RetainedLog, Writer, reading
from tests.bench.public.raw_data import RawData, Wanted, missing
from tests.bench.public.systems import FOR_LATENCY
from tests.bench.public.workloads import LIVE

RATES: Final = (100, 1000, 3000)  # commits a second
WARM_RATE: Final = 500
WARM_S: Final = 6.0
ARMS: Final = (*SYSTEMS, DEFAULTS)
# Tuned, as Debezium is: Kafka transactions end more often, which costs the brokers and readers processor time.
TUNED: Final[Mapping[str, Any]] = {"capture": {"transaction_time_ms_min": 5}, **SETTINGS}
STEP: Final = 10_000_000  # between the first ids of two rates


def case(rate: int) -> str:
    return f"{rate}_per_s"


def wanted(raw: RawData, rounds: int) -> list[Wanted]:
    """One start of a system serves all rates, whose runs are added together, so the case is the first rate's."""
    return missing(raw, [case(RATES[0])], ARMS, rounds)


def measure(bench: Bench, raw: RawData, runs: Sequence[Wanted]) -> None:
    bench.install()
    for _, arm, number in runs:
        _measure(bench, raw, arm, number)


def _measure(bench: Bench, raw: RawData, arm: str, number: int) -> None:
    system = bench.system(arm, [LIVE], FOR_LATENCY, settings=SETTINGS if arm == DEFAULTS else TUNED)
    found: dict[int, dict[str, float | None]] = {}
    try:
        system.prepare()
        system.start()
        system.wait_streaming()
        with reading(bench, system) as reader:
            sent = round(WARM_RATE * min(WARM_S, bench.size.live_s))
            Writer(bench, 1, sent, WARM_RATE).finish()
            reader.await_count(sent, system)
            for step, rate in enumerate(RATES, 1):
                rows = round(rate * bench.size.live_s)
                retained = RetainedLog(bench, system.slot)
                with bench.meter(system.pid) as meter:
                    reached = Writer(bench, step * STEP, rows, rate).finish()
                    sent += rows
                    reader.await_count(sent, system)
                found[rate] = {
                    "commits_per_s": round(reached),
                    **meter.figures(rows),
                    "retained_log_mb": retained.end(),
                }
            arrivals = reader.arrivals()
    finally:
        system.remove()
        bench.query("TRUNCATE live")
    seconds = {rate: [one.seconds for one in arrivals if one.id // STEP == step] for step, rate in enumerate(RATES, 1)}
    raw.add_all(arm, number, {case(rate): {**milliseconds(seconds[rate]), **found[rate]} for rate in RATES})
    bench.say(raw, len(RATES))
