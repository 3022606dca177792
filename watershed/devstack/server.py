"""The interface of each kind of server, and the wait until one is ready."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from cdc.model.errors import StackError
from watershed.devstack.instance import ServerInstance
from watershed.devstack.keeper import Command

LOG_LINES = 12  # of a dead server's log, in the error
POLL_S = 0.05


class Server(Protocol):
    """One kind of server. It has no state; that is in the server's place."""

    name: ClassVar[str]
    title: ClassVar[str]  # the product's name
    port_names: ClassVar[tuple[str, ...]]
    stop_signal: ClassVar[signal.Signals]  # requests a clean shutdown
    start_timeout_s: ClassVar[float]
    jar_sets: ClassVar[tuple[str, ...]]

    def prepare(self, instance: ServerInstance) -> Command:
        """Creates missing files in the place, and returns the command that runs the server. Raises StackError."""

    def answering_pid(self, instance: ServerInstance) -> int | None:
        """Returns the pid of the server that answers on the place's ports and is ready; 0 if other evidence shows that
        it is this place's server; None if none is ready yet. May raise anything while none is ready.
        """


def base_environment(folder: Path) -> dict[str, str]:
    """Returns the environment of a server, without this process's variables, which may contain credentials."""
    return {"PATH": os.defpath, "HOME": str(folder), "LANG": "C.UTF-8", "TZ": "UTC"}


def wait_until_ready(
    server: Server,
    instance: ServerInstance,
    pid: int,
    log_start: int,
    exit_code: Callable[[], int | None],
    abandoned: Callable[[], bool],
) -> None:
    """Waits until the server is ready. `log_start`: the log's size in bytes before the start. Raises StackError if the
    server ends or is not ready in time, if `abandoned` becomes true, or if another server answers instead.
    """
    deadline = time.monotonic() + server.start_timeout_s
    obstacle = ""
    while True:
        if abandoned():
            raise StackError(f"the start of {server.title} was abandoned", "see the failure of the other server")
        code = exit_code()
        if code is not None:
            raise StackError(
                f"{server.title} ended while it started ({_ending(code)})", see_log(instance.log, log_start)
            )
        try:
            answering = server.answering_pid(instance)
        except StackError:
            raise
        except ImportError as error:
            raise StackError(
                f"the client library for {server.title} is not installed: {error}",
                "pip install 'watershed-cdc[stack,search,cache]'",
            ) from error
        except Exception as error:  # noqa: BLE001 - any failure of a client's library means "not ready"
            answering, obstacle = None, f": {type(error).__name__}"
        if answering is not None:
            if answering not in (0, pid):
                raise StackError(
                    f"another {server.title} (process {answering}) answers on port {min(instance.ports.values())}",
                    "stop it, then start the stack again",
                )
            return
        if time.monotonic() > deadline:
            raise StackError(
                f"{server.title} was not ready within {server.start_timeout_s:.0f} s{obstacle}",
                see_log(instance.log, log_start),
            )
        time.sleep(POLL_S)


def see_log(log: Path, start: int = 0) -> str:
    """Returns the path of the log, and its last lines after the byte `start`."""
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
