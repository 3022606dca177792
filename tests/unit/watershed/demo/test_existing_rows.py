"""What the filling of a store has said in its log, as the demo reads it."""

import json
from pathlib import Path

from watershed.demo.existing_rows import Filling
from watershed.status.fill_progress import FillProgress

TABLE = FillProgress("table", "public.orders", "running", 300, 1000, 50.0)
STORE = FillProgress("sink", "warehouse", "waiting", 0, 0, 0.0, "Spark starts")


def line(standing: FillProgress) -> bytes:
    return json.dumps(standing.as_json()).encode() + b"\n"


def test_what_was_said_last_counts(tmp_path: Path) -> None:
    log = tmp_path / "bootstrap.log"
    filling = Filling(log)
    assert filling.progress() == []
    log.write_bytes(b'{"what": "answer", "signal": "x"}\n2026 [warning] something\n[1]\n' + line(TABLE) + line(STORE))
    assert filling.progress() == [TABLE, STORE]
    done = FillProgress("table", "public.orders", "done", 1000, 1000, 0.0)
    with log.open("ab") as file:
        file.write(line(done)[:20])
    assert filling.progress() == [TABLE, STORE], "a line that is not whole yet"
    with log.open("ab") as file:
        file.write(line(done)[20:])
    assert filling.progress() == [done, STORE]


def test_the_store_is_filled_when_its_sink_is_done(tmp_path: Path) -> None:
    log = tmp_path / "bootstrap.log"
    filling = Filling(log)
    log.write_bytes(line(FillProgress("table", "public.orders", "done", 9, 9, 0.0)) + line(STORE))
    filling.progress()
    assert not filling.is_filled
    with log.open("ab") as file:
        file.write(line(FillProgress("sink", "warehouse", "done", 90, 90, 10.0)))
    filling.progress()
    assert filling.is_filled
