"""Our commands as processes that need not import anything: forked from one that has done it.

A capture takes a second of processor time to import what it needs, and the tests start hundreds. Here one process for
each of the test run's imports it once; every command is a fork of that, which goes on as `python -m <module>` does:
with arguments, environment, folder, output and signals of its own, and with the exit code or the deadly signal of a
process that was started in the ordinary way."""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from runpy import run_module
from typing import IO, Final

from tests.support.waiting import PATIENCE

CDC: Final = "watershed"
# What a command imports at once. Not the modules that are run: those are run as `__main__`.
IMPORTED: Final = ("watershed.cli.run", "watershed.cli.snapshot", "watershed.cli.snapshot_screen")
REQUEST_BYTES_MAX: Final = 1 << 17
STARTS_S_MAX: Final = 60.0


class Forked:
    """A command that was started, with the calls of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], answers: socket.socket) -> None:
        self.args = arguments
        self.returncode: int | None = None  # minus the signal's number if one ended it
        self._answers = answers
        self.pid = self._answer(STARTS_S_MAX)

    def poll(self) -> int | None:
        """None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self.returncode = self._answer(timeout)
            self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _answer(self, timeout: float | None) -> int:
        readable, _, _ = select.select([self._answers], [], [], timeout)
        if not readable:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        answer = self._answers.recv(32)
        assert answer, f"who waits for {self.args} has ended"
        return int(answer)


def start(
    arguments: Sequence[str],
    output: IO[bytes],
    errors: IO[bytes],
    *,
    module: str = CDC,
    environment: Mapping[str, str] | None = None,
) -> Forked:
    """`python -m module arguments…`, with no input. It takes all of our environment, or this one."""
    request = {
        "module": module,
        "arguments": [*arguments],
        "environment": dict(os.environ if environment is None else environment),
        "folder": str(Path.cwd()),
    }
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        socket.send_fds(_server(), [json.dumps(request).encode()], [output.fileno(), errors.fileno(), its.fileno()])
    return Forked(arguments, ours)


def run(
    arguments: Sequence[str], *, deadline_s: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """To its end; it is killed at the deadline (times PATIENCE), which raises subprocess.TimeoutExpired.
    `environment`: what goes before ours."""
    whole = None if environment is None else {**os.environ, **environment}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start(arguments, output, errors, environment=whole)
        try:
            code = process.wait(deadline_s * PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess([*arguments], code, _text(output), _text(errors))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


@cache
def _server() -> socket.socket:
    """To the process that forks, which ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked", str(its.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# ---- in the process that forks


def serve(requests: socket.socket) -> str | None:
    """Fork for every request; returns in each fork, with the module that it is to run, and None at the end."""
    for name in IMPORTED:
        import_module(name)
    gc.collect()
    gc.freeze()  # a fork shares what it does not look at
    while True:
        text, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        _forget_who_waited()
        if not text:
            return None
        threads = os.listdir("/proc/self/task")  # noqa: PTH208
        assert len(threads) == 1, f"who forks must not have threads, but has {len(threads)}: an import started some"
        if os.fork() == 0:
            requests.close()
            _wait_for_a_child(fds[2])
            request = json.loads(text)
            _become(request, fds)
            return str(request["module"])
        for fd in fds:
            os.close(fd)


def _wait_for_a_child(answers_fd: int) -> None:
    """Fork again, and tell the child's pid and its end. Returns in the child."""
    child = os.fork()
    if child == 0:
        return
    with socket.socket(fileno=answers_fd) as answers:
        try:
            answers.send(b"%d" % child)
            _, status = os.waitpid(child, 0)
            answers.send(b"%d" % os.waitstatus_to_exitcode(status))
        except BrokenPipeError:
            pass  # who asked has ended
        finally:
            os._exit(0)


def _forget_who_waited() -> None:
    """Of forks that have told the end of theirs."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _become(request: Mapping[str, object], fds: Sequence[int]) -> None:
    """What `python -m` would have found."""
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    time.tzset()
    sys.argv[1:] = request["arguments"]  # type: ignore[call-overload]
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    for fd in fds:
        os.close(fd)


if __name__ == "__main__":
    wanted = serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted is not None:
        run_module(wanted, run_name="__main__", alter_sys=True)
