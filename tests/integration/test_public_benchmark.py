"""`make bench QUICK=1`: each part that compares works end to end with both systems, and is not measured twice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.public.catchup import ARMS
from tests.bench.public.evaluation import CONTROL, COPY, DEBEZIUM, PRODUCER, WATERSHED
from tests.bench.public.raw_data import read_all
from tests.support.sources import ROOT

PARTS = ("catchup", "latency", "snapshot", "restart")
ENDS_S_MAX = 900.0


def run(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.public", *PARTS, "--quick", "--folder", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=ENDS_S_MAX,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.long
def test_a_quick_run_measures_both_systems_and_is_not_repeated(tmp_path: Path) -> None:
    run(tmp_path)
    ((runs,),) = [[*folder.iterdir()] for folder in tmp_path.iterdir()]
    files = {path: path.read_bytes() for path in runs.glob("*.jsonl")}
    data = read_all(runs)
    arms = {part: {run.arm for run in raw.runs} for part, raw in data.items()}
    systems = {WATERSHED, DEBEZIUM, CONTROL}
    assert arms == {
        "catchup": {*ARMS, PRODUCER},
        "latency": systems,
        "snapshot": {*systems, COPY},
        "restart": systems,
    }
    backlogs = [run for run in data["catchup"].runs if run.arm in systems]
    assert {
        (run.case, run.arm): run.figures["surplus_records"] for run in backlogs if run.figures["surplus_records"]
    } == {}
    found = {run.arm: run.figures for run in data["restart"].runs}
    assert {found[arm]["lost"] for arm in systems} == {0}
    assert found[WATERSHED]["duplicates"] == found[CONTROL]["duplicates"] == 0
    assert (runs / "page" / "index.md").is_file()
    assert " took " not in run(tmp_path)
    assert {path: path.read_bytes() for path in runs.glob("*.jsonl")} == files
