"""The state that a stack stores in its folder: identity, ports, and the processes of its servers."""

import base64
import fcntl
import json
import os
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from cdc.model.errors import StackError
from watershed.devstack.processes import Process

STATE_FILE = "stack.json"
LOCK_FILE = "lock"
LOCK_TIMEOUT_S = 10.0


@dataclass(slots=True)
class StackState:
    identity: str
    ports: dict[str, dict[str, int]] = field(default_factory=dict)  # server → port's name → port
    servers: dict[str, Process] = field(default_factory=dict)
    postgres_version: int | None = None  # of the server that was started last

    def write(self, folder: Path) -> None:
        """Writes the file atomically."""
        content = {
            "identity": self.identity,
            "ports": self.ports,
            "servers": {name: {"pid": p.pid, "started": p.started} for name, p in self.servers.items()},
            "postgres_version": self.postgres_version,
        }
        partial = folder / f"{STATE_FILE}.{os.getpid()}"
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        partial.replace(folder / STATE_FILE)


def read_state(folder: Path) -> StackState | None:
    """Returns the stored state; None if there is none. Raises StackError for a file that can't be read."""
    path = folder / STATE_FILE
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        return StackState(
            content["identity"],
            content["ports"],
            {name: Process(int(p["pid"]), str(p["started"])) for name, p in content["servers"].items()},
            content["postgres_version"],
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = f"use another --folder for the stack; its data is in {folder}"
        raise StackError(f"{path} can't be read: {error}", hint) from error


def new_state() -> StackState:
    """Returns the state of a new stack."""
    while True:
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not identity.startswith("-"):  # Kafka's storage tool would read it as an option
            return StackState(identity)


class FolderLock:
    """A lock that is held until it is released, and by each process that inherited its descriptor."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def release(self) -> None:
        self._file.close()


def take_lock(folder: Path, timeout_s: float = LOCK_TIMEOUT_S) -> FolderLock:
    """Locks the folder: one command at a time, and one owner. Raises StackError if another process holds the lock for
    longer than `timeout_s`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / LOCK_FILE).open("a+", encoding="ascii")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                file.seek(0)
                owner = file.read().strip()
                file.close()
                raise StackError(
                    f"process {owner} is using the stack in {folder}", "wait for it, or end it; or name another folder"
                ) from error
            time.sleep(0.05)
    file.seek(0)
    file.truncate()
    file.write(str(os.getpid()))
    file.flush()
    return FolderLock(file)
