"""The keeper process, with servers that only sleep."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.model.errors import StackError
from tests.support.waiting import eventually
from watershed.devstack.keeper import Command, Keeper
from watershed.devstack.processes import Process, identify, runs


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    made = Keeper()
    yield made
    made.close()


def command(folder: Path, script: str, uid: int | None = None) -> Command:
    return Command(["/bin/sh", "-c", script], folder, folder / "log", {"PATH": os.defpath, "ANSWER": "42"}, uid)


def spawn(keeper: Keeper, ordered: Command, bound: bool = True) -> Process:
    process = identify(keeper.spawn(ordered, bound=bound))
    assert process
    return process


def test_a_server_gets_its_folder_its_environment_and_its_log(keeper: Keeper, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    pid = keeper.spawn(command(tmp_path, "pwd; echo $ANSWER; echo problem >&2; env | grep -c HOME; exit 3"), bound=True)
    assert eventually(lambda: keeper.exit_code(pid), 10, "it ends") == 3
    assert (tmp_path / "log").read_text() == f"before\n{tmp_path}\n42\nproblem\n0\n"


def test_exit_code_is_none_while_it_runs_and_negative_for_a_signal(keeper: Keeper, tmp_path: Path) -> None:
    pid = keeper.spawn(command(tmp_path, "exec sleep 60"), bound=True)
    assert keeper.exit_code(pid) is None
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: keeper.exit_code(pid), 10, "it ends") == -signal.SIGKILL


def test_a_program_that_is_not_there_is_a_sentence(keeper: Keeper, tmp_path: Path) -> None:
    with pytest.raises(StackError, match="/no/such/program can't be run"):
        keeper.spawn(Command(["/no/such/program"], tmp_path, tmp_path / "log", {}), bound=True)


def test_closing_ends_the_servers_also_one_that_does_not_listen(tmp_path: Path) -> None:
    keeper = Keeper()
    deaf = Command(
        ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"],
        tmp_path,
        tmp_path / "log",
        {"PATH": os.defpath},
        end_signal=signal.SIGTERM,
    )
    servers = [spawn(keeper, deaf), spawn(keeper, command(tmp_path, "exec sleep 60"))]
    eventually(lambda: (tmp_path / "log").read_text() == "ready\n", 10, "it has set its trap")
    keeper.close()
    assert not any(map(runs, servers))


def test_a_released_server_lives_on(tmp_path: Path) -> None:
    keeper = Keeper()
    server = spawn(keeper, command(tmp_path, "exec sleep 60"), bound=False)
    keeper.release()
    assert runs(server)
    os.kill(server.pid, signal.SIGKILL)


def test_folders_are_erased_at_the_end(tmp_path: Path) -> None:
    keeper = Keeper()
    (tmp_path / "data" / "inner").mkdir(parents=True)
    keeper.erase_at_end(tmp_path / "data")
    assert (tmp_path / "data").exists()
    keeper.close()
    assert not (tmp_path / "data").exists()
    assert tmp_path.exists()


def test_a_keeper_that_ended_is_told_to_who_asks(tmp_path: Path) -> None:
    keeper = Keeper()
    keeper.close()
    with pytest.raises(StackError, match="the parent process of the stack's servers has ended"):
        keeper.spawn(command(tmp_path, "true"), bound=True)
    keeper.close()


def test_a_server_may_run_under_another_account(keeper: Keeper, tmp_path: Path) -> None:
    """Only root can have it so; for others, their own."""
    uid = 65534 if os.geteuid() == 0 else None
    pid = keeper.spawn(command(tmp_path, "id -u; id -G; exit 1", uid), bound=True)
    eventually(lambda: keeper.exit_code(pid), 10, "it ends")
    user, groups = (tmp_path / "log").read_text().splitlines()
    if uid is not None:
        assert (user, groups) == ("65534", "65534")
    else:
        assert user == str(os.getuid())
