"""The commands that the demo runs as a user would: processes with a log each, which are killed and started again."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from cdc.model.errors import WatershedError
from watershed.devstack.keeper import Command, Keeper
from watershed.devstack.processes import Process, identify, send, wait_until_gone, with_descendants
from watershed.devstack.server import see_log

STOP_TIMEOUT_S = 20.0  # capture promises 10 s


class Programs:
    """Processes by name. They end with this process, however it ends. Not thread-safe, except `pids`."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self._folder = folder
        self._logs = logs
        self._argv: dict[str, Sequence[str]] = {}
        self._running: dict[str, Process] = {}
        self._keeper = Keeper()

    def close(self) -> None:
        """Ends all programs."""
        try:
            self.stop(*self._running)
        finally:
            self._keeper.close()

    def start(self, name: str, argv: Sequence[str]) -> None:
        """Runs this command; its output goes to `<name>.log`."""
        self._argv[name] = argv
        self.restart(name)

    def restart(self, name: str) -> int:
        """Starts a killed program again with the same arguments. Returns its new pid."""
        assert name not in self._running, f"{name} runs"
        command = Command(self._argv[name], self._folder, self._log(name), dict(os.environ))
        process = identify(self._keeper.spawn(command, bound=True))
        if process is None:
            raise WatershedError(f"{name} ended at once", self.see_log(name))
        self._running[name] = process
        return process.pid

    def kill(self, name: str) -> int:
        """Sends SIGKILL to the program and all its descendants. Returns the pid that it had when all have ended."""
        process = self._running.pop(name)
        _kill(with_descendants(process))
        return process.pid

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
        return see_log(self._log(name))

    def stop(self, *names: str) -> None:
        """Sends SIGTERM to these programs, and SIGKILL to those that do not end in time and to processes that they
        left.
        """
        ended = [self._running.pop(name) for name in names]
        families = [with_descendants(process) for process in ended]
        for process in ended:
            send(process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for family in families:
            wait_until_gone(family, max(0.0, deadline - time.monotonic()))
            _kill(family)

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def _kill(family: list[Process]) -> None:
    for member in family:
        send(member, signal.SIGKILL)
    if not wait_until_gone(family):
        raise WatershedError(f"process {family[0].pid} does not end, not even by SIGKILL")
