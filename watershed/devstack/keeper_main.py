"""The keeper process: parent of the servers, so that they end when their owner does, however it ends.

It is run as a file and only uses the standard library, because it must start fast and must not depend on the owner's
paths. Requests and answers are JSON, one per line, on standard input and output:

    {"do": "spawn", "argv", "cwd", "env", "log", "uid", "end_signal", "bound"}  →  {"pid": n}
    {"do": "exit_code", "pid": n}   →  {"exit_code": n or null}
    {"do": "erase", "folder": path} →  {}      delete this folder when everything has ended
    {"do": "release"}               →  {}      end without ending the servers

When standard input or the owner's process ends, each server gets its end signal, then SIGKILL. A server that is bound
also dies with the keeper itself.
"""

import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

END_GRACE_S = 5.0  # an immediate shutdown of PostgreSQL takes a fraction of it
_PR_SET_PDEATHSIG = 1


class ChildProcesses:
    """The keeper's child processes."""

    def __init__(self) -> None:
        self._children: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
        self._erase: list[str] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "spawn":
                return self._spawn(request)
            case "exit_code":
                return {"exit_code": self._children[request["pid"]][0].poll()}
            case "erase":
                self._erase.append(request["folder"])
                return {}
            case other:
                return {"error": f"unknown request {other!r}"}

    def _spawn(self, request: dict[str, Any]) -> dict[str, Any]:
        uid = request["uid"]
        account = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        try:
            with open(request["log"], "ab") as log:  # noqa: PTH123 - keep the imports few
                child = subprocess.Popen(
                    request["argv"],
                    cwd=request["cwd"],
                    env=request["env"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # the terminal's Ctrl-C is for the owner
                    preexec_fn=_die_with_parent() if request["bound"] else None,
                    **account,
                )
        except (OSError, subprocess.SubprocessError) as error:
            return {"error": str(error)}
        self._children[child.pid] = (child, request["end_signal"])
        return {"pid": child.pid}

    def end(self) -> None:
        alive = [child for child, _ in self._children.values() if child.poll() is None]
        for child in alive:
            child.send_signal(self._children[child.pid][1])
        deadline = time.monotonic() + END_GRACE_S
        for child in alive:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for folder in self._erase:
            shutil.rmtree(folder, ignore_errors=True)

    def reap(self) -> None:
        for child, _ in self._children.values():
            child.poll()


def _die_with_parent() -> Callable[[], None] | None:
    """Returns a function that makes Linux send SIGKILL when the parent dies. It must run after a change of user, which
    would reset the request.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return ask


def _wait_points(owner: int) -> tuple[selectors.BaseSelector, int]:
    """Returns a selector for requests, ended children and the owner's end, and the pipe that reports ended children."""
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ, "request")
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector.register(woken, selectors.EVENT_READ, "child")
    if hasattr(os, "pidfd_open"):
        # Standard input may end late, because a process that the owner forked may hold the other end.
        selector.register(os.pidfd_open(owner), selectors.EVENT_READ, "owner ended")
    return selector, woken


def main() -> None:
    servers = ChildProcesses()
    pending = b""
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        selector, woken = _wait_points(int(sys.argv[1]))
        while True:
            ready = {key.data for key, _ in selector.select()}
            if "child" in ready:
                os.read(woken, 4096)
                servers.reap()
            if "request" in ready:
                piece = os.read(sys.stdin.fileno(), 65536)
                if not piece:
                    return
                *lines, pending = (pending + piece).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    answer = {} if request["do"] == "release" else servers.answer(request)
                    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
                    if request["do"] == "release":
                        servers = ChildProcesses()
                        return
            if "owner ended" in ready:
                return
    finally:
        servers.end()


if __name__ == "__main__":
    main()
