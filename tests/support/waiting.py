"""Waits for a condition, with a deadline: the one place in the tests that sleeps."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# A look may cost both sides much, a consumer of its own for example: the longer the wait, the rarer the looks.
POLL_S_FIRST = 0.02
POLL_S_MAX = 0.25
POLL_GROWTH = 1.2
# Callers give deadlines for an idle machine. A shared CI machine has needed three times as long for the whole suite, so
# a deadline only ends a test that would otherwise hang; it never judges speed.
PATIENCE = 4.0


def eventually(
    condition: Callable[[], T], deadline_s: float = 90.0, describe: str | Callable[[], str] = "the condition"
) -> T:
    """The condition's first truthy result. Raises AssertionError after the deadline (times PATIENCE), with `describe`,
    which is called then if it is a function, so that it can say what was seen last. Exceptions of the condition go
    through."""
    deadline_s *= PATIENCE
    deadline = time.monotonic() + deadline_s
    pause_s = POLL_S_FIRST
    while True:
        if result := condition():
            return result
        if time.monotonic() > deadline:
            reported = describe if isinstance(describe, str) else describe()
            raise AssertionError(f"not within {deadline_s:g} s: {reported}")
        time.sleep(pause_s)
        pause_s = min(pause_s * POLL_GROWTH, POLL_S_MAX)
