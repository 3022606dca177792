"""Processes of this machine, distinguished from later ones with the same pid. Uses Linux's /proc."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cdc.model.errors import StackError

_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys/kernel/random/boot_id"
GONE_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Process:
    """A pid and the time at which the process started, which together are unique."""

    pid: int
    started: str  # boot id, and clock ticks since that boot


def identify(pid: int) -> Process | None:
    """Returns the process with this pid; None if it does not run, or has ended and waits for its parent."""
    stat = _stat(pid)
    if stat is None or (stat[0] in "ZX" and not _has_other_threads(pid)):
        return None
    return Process(pid, f"{_boot_id()}/{stat[19]}")


def runs(process: Process) -> bool:
    return identify(process.pid) == process


def with_descendants(process: Process) -> list[Process]:
    """Returns the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found = [process]
    for ancestor in found:
        found.extend(child for pid in children.get(ancestor.pid, ()) if (child := identify(pid)))
    return found


def within(folder: Path) -> list[Process]:
    """Returns the processes that work in this folder, as far as this account can see them."""
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                instance = (entry / "cwd").readlink()
            except OSError:  # it has ended, or belongs to another account
                continue
            if instance == folder and (process := identify(int(entry.name))):
                found.append(process)
    return found


def send(process: Process, number: signal.Signals) -> None:
    """Sends a signal to exactly this process, never to another process that has got its pid."""
    if runs(process):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise StackError(
                f"process {process.pid} belongs to another user", "run the command as the user who started the stack"
            ) from error


def wait_until_gone(processes: list[Process], timeout_s: float = GONE_TIMEOUT_S) -> bool:
    """Returns whether all processes have ended in time."""
    deadline = time.monotonic() + timeout_s
    while any(map(runs, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _parents() -> Iterator[tuple[int, int]]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            yield int(entry.name), int(stat[1])


def _stat(pid: int) -> list[str] | None:
    """Returns the fields of /proc/<pid>/stat from the third (state) on. The second, the command, can contain any
    text.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def _has_other_threads(pid: int) -> bool:
    """Returns whether other threads than the main thread run. Until the last one has ended, files, ports and locks are
    held.
    """
    try:
        return any(thread.name != str(pid) for thread in (_PROC / str(pid) / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return False


def _boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()
