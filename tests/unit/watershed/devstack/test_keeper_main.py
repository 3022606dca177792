"""The keeper's program, run as it is run: as a file, by an owner that goes away."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import eventually
from watershed.devstack import keeper_main
from watershed.devstack.processes import Process, identify, runs


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """Any process; the keeper watches it."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


class Asked:
    """A keeper whose standard input we hold, and whose owner is somebody else."""

    def __init__(self, owner: int) -> None:
        program = [sys.executable, "-I", keeper_main.__file__, str(owner)]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def spawn(self, folder: Path, *, bound: bool = True) -> Process:
        answer = self.ask(
            do="spawn",
            argv=["/bin/sleep", "60"],
            cwd="/",
            env={},
            log=str(folder / "log"),
            uid=None,
            end_signal=int(signal.SIGKILL),
            bound=bound,
        )
        process = identify(answer["pid"])
        assert process
        return process


@pytest.fixture
def asked(owner: subprocess.Popen[bytes]) -> Iterator[Asked]:
    made = Asked(owner.pid)
    yield made
    made.process.kill()
    made.process.wait()
    for pipe in (made.process.stdin, made.process.stdout):
        assert pipe
        pipe.close()


def test_it_ends_with_its_owner_though_its_input_stays_open(
    owner: subprocess.Popen[bytes], asked: Asked, tmp_path: Path
) -> None:
    server = asked.spawn(tmp_path)
    owner.kill()
    assert asked.process.wait(15) == 0
    assert not runs(server)


def test_it_ends_with_its_input(asked: Asked, tmp_path: Path) -> None:
    server = asked.spawn(tmp_path)
    assert asked.process.stdin
    asked.process.stdin.close()
    assert asked.process.wait(15) == 0
    assert not runs(server)


def test_it_ends_its_servers_when_it_is_asked_to_terminate_itself(asked: Asked, tmp_path: Path) -> None:
    server = asked.spawn(tmp_path)
    asked.process.terminate()
    assert asked.process.wait(15) == 0
    assert not runs(server)


def test_a_bound_server_dies_with_it_and_another_does_not(asked: Asked, tmp_path: Path) -> None:
    bound, free = asked.spawn(tmp_path), asked.spawn(tmp_path, bound=False)
    asked.process.kill()
    eventually(lambda: not runs(bound), 10, "the bound server dies")
    assert runs(free)
    os.kill(free.pid, signal.SIGKILL)


def test_several_requests_in_one_piece_are_each_answered(asked: Asked) -> None:
    assert asked.process.stdin and asked.process.stdout
    asked.process.stdin.write(b'{"do":"hum"}\n{"do":"erase","folder":"/no/such"}\n{"do":"release"}\n')
    asked.process.stdin.flush()
    answers = [json.loads(asked.process.stdout.readline()) for _ in range(3)]
    assert answers == [{"error": "unknown request 'hum'"}, {}, {}]
    assert asked.process.wait(15) == 0
