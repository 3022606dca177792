"""Calls that block, while PostgreSQL still hears from us."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from cdc.ports.stream import WhileWaiting

Result = TypeVar("Result")
WAIT_S: Final = 0.2


def begin(call: Callable[[], Result]) -> Future[Result]:
    """What `call` will return or raise, in a thread of its own that no end of the process waits for."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return future


def call_in_thread(call: Callable[[], Result], while_waiting: WhileWaiting) -> Result:
    """What `call` returns or raises; `while_waiting` is called several times a second meanwhile."""
    future = begin(call)
    while not wait([future], WAIT_S).done:
        while_waiting()
    return future.result()


def nobody_waits() -> None:
    """For who has nobody to keep informed."""
