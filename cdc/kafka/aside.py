"""Calls that block, while PostgreSQL still hears from us."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final, TypeVar

from cdc.ports import WhileWaiting

Result = TypeVar("Result")
WAIT_S: Final = 0.2


def aside(call: Callable[[], Result], while_waiting: WhileWaiting) -> Result:
    """What `call` returns or raises, in a thread of its own; `while_waiting` is called several times a second."""
    with ThreadPoolExecutor(1, "aside") as pool:
        asked = pool.submit(call)
        while not wait([asked], WAIT_S).done:
            while_waiting()
    return asked.result()


def nobody_waits() -> None:
    """For who has nobody to keep informed."""
