"""Processes, on real ones that do nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from watershed.devstack.processes import Process, identify, runs, send, wait_until_gone, with_descendants, within


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def identified(pid: int) -> Process:
    process = identify(pid)
    assert process
    return process


def test_a_process_runs_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    process = identified(sleeper.pid)
    assert runs(process)
    send(process, signal.SIGKILL)
    assert wait_until_gone([process], 10)
    assert not runs(process)
    assert identify(sleeper.pid) is None  # though nobody has waited for it yet
    assert sleeper.wait() == -signal.SIGKILL


def test_processes_are_found_by_the_folder_that_they_work_in(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as process:
        assert within(tmp_path) == [identified(process.pid)]
        assert within(tmp_path / "elsewhere") == []
        process.kill()


def test_a_later_process_with_the_same_pid_is_another(sleeper: subprocess.Popen[bytes]) -> None:
    earlier = Process(sleeper.pid, "some-boot/1")
    assert not runs(earlier)
    send(earlier, signal.SIGKILL)
    assert sleeper.poll() is None


def test_a_name_with_blanks_and_parentheses_is_no_obstacle(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as process:
        assert runs(identified(process.pid))
        process.kill()


def test_a_family_is_found_whole() -> None:
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 60; true' & wait"]) as parent:
        ancestor = identified(parent.pid)
        eventually(lambda: len(with_descendants(ancestor)) == 3, 10, "parent, child and grandchild run")
        family = with_descendants(ancestor)
        assert family[0] == ancestor
        for member in family:
            send(member, signal.SIGKILL)
        assert wait_until_gone(family, 10)


def test_the_wait_for_an_end_has_an_end(sleeper: subprocess.Popen[bytes]) -> None:
    assert not wait_until_gone([identified(sleeper.pid)], 0.05)


def test_this_process_runs() -> None:
    assert runs(identified(os.getpid()))
    assert identify(2**22 + 1) is None  # above any pid


def test_a_process_whose_main_thread_has_ended_runs_until_its_last_one_has() -> None:
    """Killed servers end thread by thread, and hold their ports until the last."""
    program = (
        "import ctypes, sys, threading; threading.Thread(target=sys.stdin.read).start();"
        "print(flush=True); ctypes.CDLL(None).syscall(60, 0)"  # exit, of this thread only
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        stat = Path(f"/proc/{process.pid}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", 10, "the main thread has ended")
        known = identified(process.pid)
        assert runs(known)
        process.kill()
        assert wait_until_gone([known], 10)
