"""Blocking calls in a daemon thread, while the replication connection is kept alive."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from cdc.ports.stream import WhileWaiting

Result = TypeVar("Result")
WAIT_S: Final = 0.2


def start_thread(call: Callable[[], Result]) -> Future[Result]:
    """Runs `call` in a daemon thread, which does not keep the process from ending. Returns its future."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised to the caller of result()
            future.set_exception(error)

    threading.Thread(target=run, name="watershed call", daemon=True).start()
    return future


def call_in_thread(call: Callable[[], Result], while_waiting: WhileWaiting) -> Result:
    """Returns or raises what `call` does. Calls `while_waiting` several times a second meanwhile."""
    future = start_thread(call)
    while not wait([future], WAIT_S).done:
        while_waiting()
    return future.result()


def do_nothing() -> None:
    """The `while_waiting` of a caller without a connection to keep alive."""
