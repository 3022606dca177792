"""A forked command is the command that a user types: same output, same exit code, same death."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forked import CDC, run, start
from tests.support.waiting import eventually


@pytest.mark.parametrize("arguments", [["--version"], ["run", "--config", "nowhere.yml"], ["snapshot", "--nonsense"]])
def test_it_ends_as_one_with_an_interpreter_of_its_own(arguments: list[str]) -> None:
    typed = subprocess.run([sys.executable, "-m", CDC, *arguments], capture_output=True, text=True, check=False)
    forked = run(arguments, deadline_s=60.0)
    assert (forked.returncode, forked.stdout, forked.stderr) == (typed.returncode, typed.stdout, typed.stderr)


def test_environment_and_folder_are_those_of_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for reported, zone in (("one", "UTC"), ("two", "CET")):
        with (tmp_path / "out").open("w+b") as out:
            words = ["-n1", "-r1", "import os, time; print(os.environ['TOLD'], time.tzname[0], os.getcwd())"]
            process = start(words, out, out, module="timeit", environment={"TOLD": reported, "TZ": zone})
            assert process.wait(60.0) == 0
        assert (tmp_path / "out").read_text().splitlines()[0] == f"{reported} {zone} {tmp_path}"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_that_ends_it_is_told(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = start(["0"], out, out, module="http.server")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    assert process.poll() is None
    process.send_signal(number)
    eventually(lambda: process.poll() is not None)
    assert process.returncode == -number
    process.kill()  # of one that has ended: nothing
