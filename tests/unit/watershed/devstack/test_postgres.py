"""How PostgreSQL is run; what it then does is in tests/integration/test_stack.py."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.model.errors import StackError
from watershed.devstack.instance import ServerInstance
from watershed.devstack.postgres import PID_FILE, SETTINGS, Postgres, dsn, end_orphans, superuser_dsn


def instance(folder: Path) -> ServerInstance:
    return ServerInstance(folder / "postgres", {"postgres": 20_001}, "identity", None, folder)


@pytest.mark.parametrize(("version", "programs"), [(18, "pginstall18"), (16, "pginstall")])
def test_each_version_has_its_programs_and_its_data(tmp_path: Path, version: int, programs: str) -> None:
    data = instance(tmp_path).own() / f"data-{version}"
    data.mkdir()  # as if it were made
    command = Postgres(version).prepare(instance(tmp_path))
    assert Path(command.argv[0]).parts[-3:] == (programs, "bin", "postgres")
    assert list(command.argv[1:3]) == ["-D", str(data)]
    assert "port=20001" in command.argv
    assert "listen_addresses=127.0.0.1" in command.argv
    assert command.end_signal == signal.SIGQUIT


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that works in the data folder."""
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as process:
        yield process
        process.kill()


def test_what_a_killed_server_left_is_ended(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    (tmp_path / PID_FILE).write_text(f"{os.getpid()}\n{tmp_path}\n")  # this process works elsewhere
    end_orphans(tmp_path)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not (tmp_path / PID_FILE).exists()


def test_a_server_that_runs_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    (tmp_path / PID_FILE).write_text(f"{sleeper.pid}\n{tmp_path}\n")
    end_orphans(tmp_path)
    assert sleeper.poll() is None
    assert (tmp_path / PID_FILE).exists()


def test_what_works_in_a_folder_without_a_lock_file_is_left_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    end_orphans(tmp_path)
    assert sleeper.poll() is None


def test_a_commit_that_was_acknowledged_is_in_the_log() -> None:
    """With `off` a slot that is read right after COMMIT misses it."""
    assert SETTINGS["synchronous_commit"] == "on"
    assert SETTINGS["wal_level"] == "logical"


def test_the_versions_are_told() -> None:
    with pytest.raises(StackError, match="there is no PostgreSQL 9") as caught:
        Postgres(9)
    wanted = "choose from 18, 16, or set WATERSHED_POSTGRES to the folder that contains 9/bin/postgres"
    assert caught.value.hint == wanted


def test_the_usual_role_is_not_the_superuser(tmp_path: Path) -> None:
    assert dsn(instance(tmp_path)) == "postgresql://watershed@127.0.0.1:20001/watershed"
    assert superuser_dsn(instance(tmp_path)) == "postgresql://postgres@127.0.0.1:20001/postgres"
