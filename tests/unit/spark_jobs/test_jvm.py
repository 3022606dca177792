"""What is said of a Java process that ended; a child process stands for it."""

import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs.jvm import jvm_failure, jvm_process


@dataclass
class Session:
    """As much of a Spark session as is looked at."""

    process: Any
    sparkContext: Any = field(init=False)  # noqa: N815

    def __post_init__(self) -> None:
        self.sparkContext = SimpleNamespace(_gateway=SimpleNamespace(proc=self.process))


def child(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9"),
    ],
)
def test_an_end_is_said_with_its_reason(code: str, message: str) -> None:
    session: Any = Session(child(code))
    failure = jvm_failure(session, wait_s=20.0)
    assert failure is not None
    assert failure.message == f"Spark's Java process ended by itself ({message})"
    assert "continues where it was" in failure.hint


def test_nothing_is_said_of_one_that_runs() -> None:
    process = child("input()")
    try:
        session: Any = Session(process)
        assert jvm_failure(session) is None
        assert jvm_process(session) is process
    finally:
        process.kill()
        process.wait()


def test_nothing_is_known_of_one_that_something_else_started() -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace()))
    assert jvm_process(session) is None
    assert jvm_failure(session) is None
