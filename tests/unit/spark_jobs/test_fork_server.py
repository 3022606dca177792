"""What a process of the fork server is like: as one that Python itself has started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs import fork_server
from spark_jobs.fork_server import PRELOADED
from tests.support.waiting import eventually

# Prints what it was given, and ends with a code.
MODULE = """
import os, sys
print(sys.argv[1:], os.environ.get("GIVEN"), os.getcwd(), sys.stdin.read(), __name__, os.environ.get("LEFT_OVER"))
print("to the other stream", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
LASTING = """
import time
print("begun", flush=True)
time.sleep(600)
"""
OWNER = """
import sys
from spark_jobs.fork_server import interpreter, server_number
print(interpreter(), server_number(), flush=True)
sys.stdin.read()
"""
END_S = 20.0


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, int]]:
    """(interpreter, process number of the server)."""
    environment = {**os.environ, "LEFT_OVER": "of the server"}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as owner:
        assert owner.stdout is not None
        path, number = owner.stdout.readline().split()
        yield path, int(number)
        owner.communicate("")
    eventually(lambda: not Path(f"/proc/{number}").exists(), END_S, "the server ends with its owner")
    assert not Path(path).parent.exists()


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    (tmp_path / "given_module.py").write_text(MODULE)
    (tmp_path / "lasting_module.py").write_text(LASTING)
    return tmp_path


def _run(python: str, folder: Path, code: int) -> subprocess.CompletedProcess[str]:
    environment = {"GIVEN": "a value", "PATH": os.environ["PATH"]}
    command = [python, "-m", "given_module", str(code), "a word"]
    return subprocess.run(
        command, cwd=folder, env=environment, input="the input", capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("code", [0, 3])
def test_a_forked_process_is_as_one_that_python_starts(served: tuple[str, int], modules: Path, code: int) -> None:
    forked, started = (_run(python, modules, code) for python in (served[0], sys.executable))
    assert (forked.returncode, forked.stdout, forked.stderr) == (code, started.stdout, started.stderr)
    assert forked.stdout == f"['{code}', 'a word'] a value {modules} the input __main__ None\n"


def test_the_process_ends_when_spark_ends_the_launcher(served: tuple[str, int], modules: Path) -> None:
    with subprocess.Popen(
        [served[0], "-m", "lasting_module"], cwd=modules, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline() == "begun\n"
        children = Path(f"/proc/{served[1]}/task/{served[1]}/children")
        assert len(children.read_text().split()) == 1
        launcher.kill()
    eventually(lambda: not children.read_text().split(), END_S, "the forked process has ended")


def test_other_arguments_are_for_python_itself(served: tuple[str, int]) -> None:
    found = subprocess.run([served[0], "-c", "print(6 * 7)"], capture_output=True, text=True, check=True)
    assert found.stdout == "42\n"


def test_without_a_server_python_itself_runs(modules: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        path, number = owner.stdout.readline().decode().split()
        os.kill(int(number), signal.SIGKILL)
        assert _run(path, modules, 3).returncode == 3
        owner.communicate(b"")


def test_where_programs_may_not_run_spark_uses_python_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("mounted without the right to run programs")

    monkeypatch.setattr(fork_server, "_running", [])
    monkeypatch.setattr("subprocess.run", refuse)
    assert fork_server.interpreter() == sys.executable
    assert fork_server.server_number() is None


def test_what_is_imported_beforehand_exists() -> None:
    """The server does not say what it could not import: each process would import it."""
    command = f"from importlib import import_module\nfor name in {PRELOADED}: import_module(name)"
    subprocess.run([sys.executable, "-c", command, "x"], check=True)
