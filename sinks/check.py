"""Helpers of the findings of `cdc check` about stores."""

from collections.abc import Callable
from typing import Final

from sinks.retries import Retries

ONE_ATTEMPT: Final = Retries(attempt_count_max=2)  # the second for a connection that was closed meanwhile


def held(generation: Callable[[], int | None]) -> str:
    """Returns what a store holds, as a finding says it."""
    number = generation()
    return "empty" if number is None else f"holds generation {number}"
