"""Part `snapshot`: existing rows, at the first start and beside a stream of changes of another table."""

import os
import time
from collections.abc import Sequence
from typing import Final

import psycopg

from tests.bench.public.bench import Bench, milliseconds, watched
from tests.bench.public.catchup import SETTINGS, SYSTEMS
from tests.bench.public.evaluation import COPY
from tests.bench.public.live import Reader, RetainedLog, Stream, reading
from tests.bench.public.raw_data import RawData, Wanted, missing
from tests.bench.public.systems import FOR_RATE, System
from tests.bench.public.workloads import BACKLOGS, LIVE, NARROW, SIGNALS

ROWS: Final = 400_000
INITIAL, BESIDE = "initial", "beside_stream"
STREAM_RATE: Final = 300
ARMS: Final = {INITIAL: (*SYSTEMS, COPY), BESIDE: SYSTEMS}
CONSISTENT: Final = {"snapshot": {"method": "consistent"}}
TUNING: Final[dict[str, dict[str, str]]] = {
    INITIAL: {**FOR_RATE, "snapshot.mode": "initial"},
    BESIDE: {
        **FOR_RATE,
        "signal.data.collection": f"public.{SIGNALS}",
        "incremental.snapshot.chunk.size": "16384",
    },
}


def wanted(raw: RawData, rounds: int) -> list[Wanted]:
    return [run for case, arms in ARMS.items() for run in missing(raw, [case], arms, rounds)]


def measure(bench: Bench, raw: RawData, runs: Sequence[Wanted]) -> None:
    rows = round(ROWS * bench.size.scale)
    bench.install()
    bench.query("CALL fill(%s, %s, %s, 10000)", NARROW, BACKLOGS[0].row, rows)
    bench.query("VACUUM ANALYZE narrow")
    bench.query("CHECKPOINT")
    for case, arm, number in runs:
        if arm == COPY:
            raw.add(case, arm, number, _copied(bench, rows))
        elif case == INITIAL:
            raw.add(case, arm, number, _initial(bench, arm, rows))
        else:
            raw.add(case, arm, number, _beside(bench, arm, rows))
        bench.say(raw)


def _copied(bench: Bench, rows: int) -> dict[str, float | None]:
    """Returns the rate of COPY into a file."""
    began = time.monotonic()
    with (
        bench.meter(os.getpid()) as meter,
        psycopg.connect(bench.superuser_dsn) as connection,
        connection.cursor().copy("COPY narrow TO STDOUT") as copy,
        (bench.folder / "copy").open("wb") as file,
    ):
        for block in copy:
            file.write(block)
        seconds = time.monotonic() - began
    return {"rows_per_s": round(rows / seconds), "foreign_share": meter.foreign_share}


def _initial(bench: Bench, arm: str, rows: int) -> dict[str, float | None]:
    system = bench.system(arm, [NARROW], TUNING[INITIAL], settings=CONSISTENT)
    try:
        system.prepare_first_start()
        began = time.monotonic()
        system.start()
        return watched(bench, system, NARROW, rows, began)
    finally:
        system.remove()


def _beside(bench: Bench, arm: str, rows: int) -> dict[str, float | None]:
    """The stream is of another table, so that the rows of the snapshot can be counted."""
    system = bench.system(arm, [NARROW, LIVE, SIGNALS], TUNING[BESIDE], settings=SETTINGS)
    try:
        system.prepare()
        system.start()
        system.wait_streaming()
        with reading(bench, system) as reader:
            return _watched_beside(bench, system, reader, rows)
    finally:
        system.remove()
        bench.query("TRUNCATE live, debezium_signal")


def _watched_beside(bench: Bench, system: System, reader: Reader, rows: int) -> dict[str, float | None]:
    stream = Stream(bench, STREAM_RATE)
    reader.await_count(STREAM_RATE, system)
    retained = RetainedLog(bench, system.slot)
    asked, asked_at = time.monotonic(), time.time()
    system.request_snapshot(NARROW)
    figures = watched(bench, system, NARROW, rows, asked)
    ended_at = time.time()
    peak_mb = retained.end()
    sent = stream.end()
    reader.await_count(sent, system)
    seconds = [one.seconds for one in reader.arrivals() if asked_at <= one.written <= ended_at]
    return {
        **figures,
        **{f"stream_{name}": value for name, value in milliseconds(seconds).items()},
        "retained_log_mb": peak_mb,
    }
