"""What the stack asks of each kind of server, and the wait until one is ready."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from cdc.model.errors import StackError
from devstack.keeper import Command
from devstack.place import Place

LOG_LINES = 12  # of a dead server's log, in the error
POLL_S = 0.05


class Server(Protocol):
    """One kind of server. Holds no state: that is in its place."""

    name: ClassVar[str]
    title: ClassVar[str]  # as its makers write it
    port_names: ClassVar[tuple[str, ...]]
    stop_signal: ClassVar[signal.Signals]  # asks it to end in good order
    start_timeout_s: ClassVar[float]
    jar_sets: ClassVar[tuple[str, ...]]

    def prepare(self, place: Place) -> Command:
        """Lay out what is missing in the place, and say how to run the server. Raises StackError."""

    def answering_pid(self, place: Place) -> int | None:
        """The pid of the server that answers on the place's ports and is ready; 0 if it is known by other means to be
        this place's; None if none is ready yet. May raise anything while it is not."""


def base_environment(folder: Path) -> dict[str, str]:
    """Servers get no variable of ours: what is in them (credentials, options) is none of their business."""
    return {"PATH": os.defpath, "HOME": str(folder), "LANG": "C.UTF-8", "TZ": "UTC"}


def wait_until_ready(
    server: Server,
    place: Place,
    pid: int,
    log_start: int,
    exit_code: Callable[[], int | None],
    abandoned: Callable[[], bool],
) -> None:
    """Raises StackError if the server ends, is not ready in time, the wait is abandoned, or another server answers in
    its stead. `log_start`: the log's size in bytes before the start."""
    deadline = time.monotonic() + server.start_timeout_s
    obstacle = ""
    while True:
        if abandoned():
            raise StackError(f"the start of {server.title} was abandoned", "see what else went wrong")
        code = exit_code()
        if code is not None:
            raise StackError(f"{server.title} ended while it started ({_ending(code)})", see_log(place.log, log_start))
        try:
            answering = server.answering_pid(place)
        except StackError:
            raise
        except ImportError as error:
            raise StackError(
                f"the client that asks {server.title} whether it is ready is missing: {error}",
                "pip install 'watershed-cdc[stack,search,cache]'",
            ) from error
        except Exception as error:  # noqa: BLE001 - any failure of a client's library means "not ready"
            answering, obstacle = None, f": {type(error).__name__}"
        if answering is not None:
            if answering not in (0, pid):
                raise StackError(
                    f"another {server.title} (process {answering}) answers on port {min(place.ports.values())}",
                    "stop it, then start the stack again",
                )
            return
        if time.monotonic() > deadline:
            raise StackError(
                f"{server.title} was not ready within {server.start_timeout_s:.0f} s{obstacle}",
                see_log(place.log, log_start),
            )
        time.sleep(POLL_S)


def see_log(log: Path, start: int = 0) -> str:
    """The last lines that were written after the byte `start`, and the log's place."""
    try:
        text = log.read_bytes()[start:].decode(errors="replace")
    except FileNotFoundError:
        text = ""
    lines = text.rstrip().splitlines()[-LOG_LINES:]
    if not lines:
        return f"its log {log} is empty"
    return f"see its log {log}; the last lines:\n" + "\n".join(f"    {line}" for line in lines)


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
