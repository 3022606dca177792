"""The wait for a server, and what is said when it was in vain."""

import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from cdc.model.errors import StackError
from watershed.devstack.instance import ServerInstance
from watershed.devstack.keeper import Command
from watershed.devstack.server import LOG_LINES, base_environment, see_log, wait_until_ready

PID = 4711


class FakeServer:
    """Answers with each of `answers` in turn; the last one again and again."""

    name: ClassVar[str] = "fake"
    title: ClassVar[str] = "Fake"
    port_names: ClassVar[tuple[str, ...]] = ("fake",)
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_timeout_s: ClassVar[float] = 0.3
    jar_sets: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *answers: int | Exception | None) -> None:
        self._answers: Iterator[int | Exception | None] = itertools.chain(answers, itertools.repeat(answers[-1]))

    def prepare(self, instance: ServerInstance) -> Command:  # noqa: ARG002 - the protocol's
        raise AssertionError("not asked for here")

    def answering_pid(self, instance: ServerInstance) -> int | None:  # noqa: ARG002 - the protocol's
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def wait(
    folder: Path, server: FakeServer, exit_code: Callable[[], int | None] = lambda: None, abandoned: bool = False
) -> None:
    instance = ServerInstance(folder, {"fake": 20_000}, "identity", None, folder)
    wait_until_ready(server, instance, PID, 0, exit_code, lambda: abandoned)


@pytest.mark.parametrize("pid", [PID, 0])
def test_a_server_is_ready_when_it_answers_itself(tmp_path: Path, pid: int) -> None:
    wait(tmp_path, FakeServer(ConnectionRefusedError(), ValueError("starting up"), None, pid))


def test_another_server_on_the_port_is_not_taken_for_it(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"another Fake \(process 815\) answers on port 20000"):
        wait(tmp_path, FakeServer(815))


def test_a_sentence_of_the_server_s_own_goes_through(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="a stranger"):
        wait(tmp_path, FakeServer(StackError("a stranger")))


@pytest.mark.parametrize(("code", "ending"), [(1, "exit code 1"), (0, "exit code 0"), (-9, "signal SIGKILL")])
def test_a_server_that_ends_is_told_with_how_and_with_its_log(tmp_path: Path, code: int, ending: str) -> None:
    (tmp_path / "server.log").write_text("bad option\n")
    with pytest.raises(StackError) as caught:
        wait(tmp_path, FakeServer(None), lambda: code)
    assert caught.value.message == f"Fake ended while it started ({ending})"
    assert caught.value.hint.endswith("the last lines:\n    bad option")


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="Fake was not ready within 0 s"):
        wait(tmp_path, FakeServer(None))
    with pytest.raises(StackError, match="Fake was not ready within 0 s: ConnectionRefusedError"):
        wait(tmp_path, FakeServer(ConnectionRefusedError()))


def test_a_missing_client_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="the client library for Fake is not installed: no module"):
        wait(tmp_path, FakeServer(ImportError("no module")))


def test_a_wait_ends_when_the_start_is_abandoned(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="the start of Fake was abandoned"):
        wait(tmp_path, FakeServer(None), abandoned=True)


def test_the_log_is_shown_from_this_start_on_and_not_all_of_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = "".join(f"before {n}\n" for n in range(3))
    log.write_text(before + "".join(f"line {n}\n" for n in range(40)))
    shown = see_log(log, len(before)).splitlines()[1:]
    assert [line.strip() for line in shown] == [f"line {n}" for n in range(40 - LOG_LINES, 40)]
    assert see_log(log, len(before) + 10_000) == f"its log {log} is empty"
    assert "is empty" in see_log(tmp_path / "missing")


def test_servers_get_none_of_our_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dx=y")
    assert set(base_environment(tmp_path)) == {"PATH", "HOME", "LANG", "TZ"}
