"""`cdc stack` without servers; with them, it is in tests/integration/test_stack.py."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cdc.model.errors import ConfigError, StackError
from watershed.cli.stack import app
from watershed.devstack.endpoints import VARIABLES
from watershed.devstack.instance import servers_home
from watershed.devstack.processes import identify
from watershed.devstack.state import StackState


def stack(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(autouse=True)
def nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Redis, as far as the stack's state tells."""
    with subprocess.Popen(["sleep", "60"]) as process:
        running = identify(process.pid)
        assert running
        StackState("identity", {"redis": {"redis": 20_001}}, {"redis": running}, 18).write(tmp_path)
        yield process
        process.kill()


def test_status_of_nothing_is_green_and_makes_no_folder(tmp_path: Path) -> None:
    done = stack("status", "--folder", tmp_path / "none")
    assert done.exit_code == 0
    assert done.stdout.count("stopped") == 4
    assert not (tmp_path / "none").exists()


def test_status_tells_machines_what_it_tells_people(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    people = stack("status", "--folder", tmp_path)
    assert f"redis://127.0.0.1:20001/0  {sleeper.pid}" in people.stdout
    machine = json.loads(stack("status", "--json", "--folder", tmp_path).stdout)
    assert machine["folder"] == str(tmp_path)
    (redis,) = (server for server in machine["servers"] if server["service"] == "redis")
    assert redis == {
        "service": "redis",
        "state": "running",
        "address": "redis://127.0.0.1:20001/0",
        "pid": sleeper.pid,
        "log": str(servers_home(tmp_path) / "redis" / "server.log"),
        "superuser": None,
    }


def test_a_server_that_died_turns_status_red(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    done = stack("status", "--folder", tmp_path)
    assert (done.exit_code, "died" in done.stdout) == (1, True)
    assert stack("status", "--json", "--folder", tmp_path).exit_code == 1


def test_a_server_that_the_environment_names_is_shown_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATERSHED_DSN", "postgresql://user:password@elsewhere/db")
    for done in (stack("status", "--folder", tmp_path), stack("status", "--json", "--folder", tmp_path)):
        assert "given" in done.stdout
        assert "password" not in done.stdout


def test_down_ends_what_runs_and_can_be_repeated(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    assert stack("down", "--folder", tmp_path).exit_code == 0
    assert sleeper.wait(10) == -15
    assert stack("down", "--erase", "--folder", tmp_path).exit_code == 0
    assert not tmp_path.exists()
    assert stack("down", "--folder", tmp_path).exit_code == 0


def test_up_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    for words, problem in (
        (["up", "mysql"], "the stack has no 'mysql'"),
        (["up", "--postgres-version", 9], "there is no PostgreSQL 9"),
    ):
        error = stack(*words, "--folder", tmp_path / "stack").exception
        assert isinstance(error, StackError)
        assert problem in error.message


@pytest.mark.parametrize("services", [[], ["postgres"], ["kafka", "redis"]])
def test_a_configuration_that_can_not_be_written_is_refused_before_anything_starts(
    tmp_path: Path, services: list[str]
) -> None:
    file = tmp_path / "watershed.yml"
    if not services:
        file.write_text("mine", encoding="utf-8")
    error = stack("up", *services, "--write-config", file, "--folder", tmp_path / "stack").exception
    assert isinstance(error, ConfigError)
    assert ("exists and is not overwritten" if not services else "a configuration needs") in error.message
    assert not (tmp_path / "stack").exists()
