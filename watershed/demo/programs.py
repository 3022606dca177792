"""The `cdc` commands that the demo runs as a user would: processes with a log each, which are killed and started
again.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from cdc.model.errors import WatershedError
from watershed.devstack.keeper import Command, Keeper
from watershed.devstack.processes import Process, identify, send, wait_until_gone, with_descendants
from watershed.status.children import CDC

STOP_TIMEOUT_S = 20.0  # capture promises 10 s
LEFT_BEHIND_S = 2.0  # for processes that end when their parent has ended
LOG_LINES = 15  # of a program that failed, in the error


class Programs:
    """Processes by name. They end with this process, however it ends. Not thread-safe, except `pids`."""

    def __init__(self, folder: Path, logs: Path, command: Sequence[str] = CDC) -> None:
        self._command = command
        self._folder = folder
        self._logs = logs
        self._argv: dict[str, Sequence[str]] = {}
        self._running: dict[str, Process] = {}
        self._keeper = Keeper()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.stop()
        finally:
            self._keeper.close()

    def start(self, name: str, *arguments: str, command: Sequence[str] | None = None) -> None:
        """Runs the command, or another one, with these arguments; its output goes to `<name>.log`."""
        self._argv[name] = [*(self._command if command is None else command), *arguments]
        self._start(name)

    def kill(self, name: str) -> int:
        """Sends SIGKILL to the program and all its descendants. Returns the pid that it had when all have ended."""
        process = self._running.pop(name)
        family = with_descendants(process)
        for member in family:
            send(member, signal.SIGKILL)
        if not wait_until_gone(family):
            raise WatershedError(f"{name} (process {process.pid}) does not end, not even by SIGKILL")
        return process.pid

    def restart(self, name: str) -> int:
        """Starts a killed program again with the same arguments. Returns its new pid."""
        self._start(name)
        return self._running[name].pid

    def pids(self) -> dict[str, int]:
        """Returns the pids of the programs that should be running. Thread-safe."""
        return {name: process.pid for name, process in self._running.copy().items()}

    def check(self) -> None:
        """Raises WatershedError, with the log's last lines, if a program has ended by itself."""
        for name, process in self._running.items():
            code = self._keeper.exit_code(process.pid)
            if code is not None:
                raise WatershedError(f"{name} ended by itself (exit code {code})", self.see_log(name))

    def see_log(self, name: str) -> str:
        """Returns the path of the program's log, and its last lines."""
        path = self._log(name)
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        lines = text.rstrip().splitlines()[-LOG_LINES:]
        return "\n".join([f"see {path}" + ("; its last lines:" if lines else ", which is empty"), *lines])

    def stop(self, *names: str) -> None:
        """Sends SIGTERM to these programs, by default to all, and SIGKILL to those that do not end in time and to
        processes that they left.
        """
        ended = [self._running.pop(name) for name in names or tuple(self._running)]
        families = [with_descendants(process) for process in ended]
        for process in ended:
            send(process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for family in families:
            wait_until_gone(family[:1], max(0.0, deadline - time.monotonic()))
            if not wait_until_gone(family, LEFT_BEHIND_S):
                for member in family:
                    send(member, signal.SIGKILL)
                wait_until_gone(family)

    def _start(self, name: str) -> None:
        assert name not in self._running, f"{name} runs"
        command = Command(self._argv[name], self._folder, self._log(name), dict(os.environ))
        pid = self._keeper.spawn(command, bound=True)
        process = identify(pid)
        if process is None:
            raise WatershedError(f"{name} ended at once", self.see_log(name))
        self._running[name] = process

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"
