"""The owner's side of the keeper process, which is the parent of the servers (see keeper_main)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc.model.errors import StackError

_PROGRAM = Path(__file__).with_name("keeper_main.py")
EXIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Command:
    """A command for the keeper to run."""

    argv: Sequence[str]
    cwd: Path
    log: Path  # standard output and error are appended
    env: Mapping[str, str]
    uid: int | None = None  # the user and group of the process; None: those of this process
    end_signal: signal.Signals = signal.SIGKILL  # sent when the owner has ended


class Keeper:
    """Starts servers that end with this process. Thread-safe."""

    def __init__(self, *descriptors: int) -> None:
        """`descriptors` stay open in the keeper until it ends."""
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_PROGRAM), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            pass_fds=descriptors,
        )

    def spawn(self, command: Command, *, bound: bool) -> int:
        """Starts the command and returns its pid. Raises StackError if it can't be run."""
        answer = self._ask(
            do="spawn",
            argv=list(command.argv),
            cwd=str(command.cwd),
            log=str(command.log),
            env=dict(command.env),
            uid=command.uid,
            end_signal=int(command.end_signal),
            bound=bound,
        )
        if problem := answer.get("error"):
            raise StackError(
                f"{command.argv[0]} can't be run: {problem}", "install it again: pip install 'watershed-cdc[stack]'"
            )
        return int(answer["pid"])

    def exit_code(self, pid: int) -> int | None:
        """Returns the exit code of a server that this keeper started; None while it runs. A negative number is the
        signal that ended it.
        """
        code = self._ask(do="exit_code", pid=pid)["exit_code"]
        return None if code is None else int(code)

    def wait(self, pid: int, timeout_s: float) -> bool:
        """Returns whether the server ends in time."""
        deadline = time.monotonic() + timeout_s
        while self.exit_code(pid) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def erase_at_end(self, folder: Path) -> None:
        self._ask(do="erase", folder=str(folder))

    def release(self) -> None:
        """Ends the keeper; the servers go on running."""
        self._ask(do="release")
        self.close()

    def close(self) -> None:
        """Ends the keeper and the servers that still run."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except (OSError, ValueError):  # ValueError: closed
                line = b""
        if not line:
            raise StackError(
                "the parent process of the stack's servers has ended, and the servers with it", "start the stack again"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer
