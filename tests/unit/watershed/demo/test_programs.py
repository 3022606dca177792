"""Processes with a log each: killed with all they started, started again, never left behind."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cdc.model.errors import WatershedError
from tests.support.waiting import eventually
from watershed.demo import programs as module
from watershed.demo.programs import Programs
from watershed.devstack.processes import Process, identify, runs

# Starts a child that sleeps, says both pids, and sleeps.
FAMILY = """
import subprocess, sys, os, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child of FAMILY has to be killed at the end of most tests."""
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 1.0)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with closing(Programs(tmp_path, tmp_path)) as made:
        yield made


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def family(log: Path, line: int = 0) -> list[Process]:
    """The processes that FAMILY names in a line of its log."""
    eventually(lambda: log.exists() and log.read_text().count("\n") > line, 20, "the pids are in the log")
    found = [identify(int(pid)) for pid in log.read_text().splitlines()[line].split()]
    assert None not in found
    return [process for process in found if process]


def test_a_kill_ends_all_that_the_program_started(programs: Programs, tmp_path: Path) -> None:
    programs.start("family", python(FAMILY))
    parent, child = family(tmp_path / "family.log")
    assert programs.pids() == {"family": parent.pid}
    assert programs.kill("family") == parent.pid
    assert not runs(parent) and not runs(child)
    assert programs.pids() == {}


def test_a_killed_program_starts_again_with_the_same_arguments_and_log(programs: Programs, tmp_path: Path) -> None:
    programs.start("family", python(FAMILY))
    first, _ = family(tmp_path / "family.log")
    programs.kill("family")
    pid = programs.restart("family")
    second, _ = family(tmp_path / "family.log", line=1)
    assert (second.pid, runs(second), runs(first)) == (pid, True, False)
    programs.check()


def test_a_program_that_ends_by_itself_is_reported_with_its_last_lines(programs: Programs) -> None:
    programs.start("short", python("print('the reason'); raise SystemExit(3)"))

    def is_reported() -> WatershedError | None:
        try:
            programs.check()
        except WatershedError as error:
            return error
        return None

    error = eventually(is_reported, 20, "the end is reported")
    assert error and error.message == "short ended by itself (exit code 3)"
    assert error.hint.splitlines()[-1].strip() == "the reason"


def test_nothing_is_left_when_the_programs_are_left(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), closing(Programs(tmp_path, tmp_path)) as programs:
        programs.start("family", python(FAMILY))
        members = family(tmp_path / "family.log")
        raise RuntimeError
    assert not any(map(runs, members))


def test_stop_asks_before_it_kills(programs: Programs, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('drained', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(600)"
    )
    programs.start("polite", python(code))
    log = tmp_path / "polite.log"
    eventually(lambda: log.exists() and "ready" in log.read_text(), 20, "it runs")
    programs.stop("polite")
    assert programs.pids() == {}
    assert log.read_text().splitlines() == ["ready", "drained"]
