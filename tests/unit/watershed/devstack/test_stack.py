"""The stack without servers: a process that sleeps stands for one."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cdc.model.errors import StackError
from watershed.devstack.docker import DockerStack
from watershed.devstack.endpoints import DEFAULT_PORTS
from watershed.devstack.processes import identify, runs
from watershed.devstack.stack import Stack, open_stack
from watershed.devstack.state import STATE_FILE, StackState, read_state


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Redis, as far as the stack's state tells; what the state of a detached stack looks like."""
    with subprocess.Popen(["sleep", "60"]) as process:
        running = identify(process.pid)
        assert running
        StackState("identity", {"redis": {"redis": 20_001}}, {"redis": running}, 18).write(tmp_path)
        yield process
        process.kill()


def detached(folder: Path, postgres_version: int = 18) -> Stack:
    return Stack(folder, detached=True, given={}, postgres_version=postgres_version)


def test_a_folder_that_never_had_a_stack_has_nothing_running_and_stays_as_it_is(tmp_path: Path) -> None:
    stack = detached(tmp_path / "stack")
    assert {server.state for server in stack.status()} == {"stopped"}
    stack.stop()
    assert not (tmp_path / "stack").exists()


def test_names_and_versions_that_do_not_exist_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="the stack has no 'rabbitmq'"):
        detached(tmp_path / "stack").start("redis", "rabbitmq")
    with pytest.raises(StackError, match="there is no PostgreSQL 12"):
        detached(tmp_path / "stack", postgres_version=12).start("postgres")
    assert not (tmp_path / "stack").exists()


def test_what_does_not_run_can_be_neither_addressed_nor_killed(tmp_path: Path) -> None:
    stack = detached(tmp_path)
    with pytest.raises(StackError, match="redis is not running"):
        _ = stack.endpoints.redis_url
    with pytest.raises(StackError, match="redis is not running"):
        stack.kill("redis")


def test_another_process_sees_what_runs(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    stack = detached(tmp_path)
    assert stack.pid("redis") == sleeper.pid
    assert stack.endpoints.redis_url == "redis://127.0.0.1:20001/0"
    (redis,) = (server for server in stack.status() if server.service == "redis")
    assert (redis.state, redis.pid, redis.address) == ("running", sleeper.pid, "redis://127.0.0.1:20001/0")


def test_what_runs_is_not_started_again(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    assert detached(tmp_path).start("redis").redis_url == "redis://127.0.0.1:20001/0"
    state = read_state(tmp_path)
    assert state
    assert state.servers["redis"].pid == sleeper.pid


def test_default_ports_are_refused_for_a_server_that_has_others(tmp_path: Path) -> None:
    StackState("identity", {"redis": {"redis": 20_001}}, {}, 18).write(tmp_path)
    with pytest.raises(StackError, match="was started on port 20001, and keeps it") as refused:
        Stack(tmp_path, detached=True, given={}, default_ports=True).start("redis")
    assert "leave out --default-ports" in refused.value.hint


def test_a_default_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        with suppress(OSError):  # another server of this machine has it already: the same to the stack
            other.bind(("127.0.0.1", 6379))
            other.listen()
        with pytest.raises(StackError, match="port 6379, which belongs to Redis in this stack, is used") as refused:
            Stack(tmp_path, detached=True, given={}, default_ports=True).start("redis")
    assert "leave out --default-ports" in refused.value.hint
    state = read_state(tmp_path)
    assert state is not None and state.ports == {"redis": DEFAULT_PORTS["redis"]}


def test_a_killed_server_has_died_and_a_stopped_one_is_forgotten(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    stack = detached(tmp_path)
    stack.kill("redis")
    assert sleeper.wait(10) == -9
    assert "died" in {server.state for server in stack.status()}
    stack.stop()
    assert {server.state for server in stack.status()} == {"stopped"}
    state = read_state(tmp_path)
    assert state
    assert (state.servers, state.ports) == ({}, {"redis": {"redis": 20_001}})  # the ports stay


def test_stop_asks_first(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    detached(tmp_path).stop()
    assert sleeper.wait(10) == -15


def test_erase_leaves_no_folder(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    stack = detached(tmp_path)
    stack.stop()
    stack.erase()
    assert not tmp_path.exists()
    assert sleeper.wait(10) == -15


def test_an_owner_does_not_take_over_a_detached_stack(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    with pytest.raises(StackError, match=r"`cdc stack up` run in .*: redis"):
        Stack(tmp_path, given={}).start("redis")
    assert sleeper.poll() is None
    detached(tmp_path).start("redis")  # the folder is free again


def test_one_postgres_at_a_time(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    running = identify(sleeper.pid)
    assert running
    StackState("identity", {"postgres": {"postgres": 20_001}}, {"postgres": running}, 18).write(tmp_path)
    with pytest.raises(StackError, match=r"PostgreSQL 18 runs in .*, not 16"):
        detached(tmp_path, postgres_version=16).start("postgres")
    assert runs(running)


def test_given_services_are_never_started_and_their_addresses_not_shown(tmp_path: Path) -> None:
    secret = "redis://user:password@elsewhere:6379/0"
    stack = Stack(tmp_path / "stack", given={"redis": secret})
    assert stack.start("redis").redis_url == secret
    assert [(s.state, s.address) for s in stack.status() if s.service == "redis"] == [("given", None)]
    with pytest.raises(StackError, match="redis is named by WATERSHED_REDIS"):
        stack.kill("redis")
    stack.stop()
    assert not (tmp_path / "stack" / STATE_FILE).exists()


def test_a_state_that_is_not_ours_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text("{}")
    with pytest.raises(StackError, match=r"stack\.json can't be read"):
        detached(tmp_path).start("redis")


@pytest.mark.parametrize(("kind", "expected"), [(None, Stack), ("native", Stack), ("docker", DockerStack)])
def test_the_environment_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, expected: type
) -> None:
    if kind is None:
        monkeypatch.delenv("WATERSHED_STACK", raising=False)
    else:
        monkeypatch.setenv("WATERSHED_STACK", kind)
    with open_stack(tmp_path, given={"redis": "somewhere"}) as servers:
        assert type(servers) is expected
        assert servers.start("redis").redis_url == "somewhere"


def test_another_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATERSHED_STACK", "dcoker")
    with pytest.raises(StackError, match="WATERSHED_STACK is 'dcoker'"), open_stack(tmp_path):
        pass
