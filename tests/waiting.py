"""Waiting for a condition, with a deadline: the one place in the tests that sleeps."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.05


def eventually(
    condition: Callable[[], T], deadline_s: float = 30.0, describe: str | Callable[[], str] = "the condition"
) -> T:
    """The condition's first truthy result. Raises AssertionError after the deadline, with `describe` (called then, if
    it is a function, so that it can say what was seen last). Exceptions of the condition go through."""
    deadline = time.monotonic() + deadline_s
    while True:
        if result := condition():
            return result
        if time.monotonic() > deadline:
            told = describe if isinstance(describe, str) else describe()
            raise AssertionError(f"not within {deadline_s:g} s: {told}")
        time.sleep(POLL_S)
