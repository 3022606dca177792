"""Conditions that the parts of a process report about themselves, for its status."""

import threading

from cdc.model.condition import Condition


class Conditions:
    """The last condition of each part. Called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], Condition] = {}

    def report(self, condition: Condition) -> None:
        with self._lock:
            self._last[condition.part, condition.name] = condition

    def all(self) -> tuple[Condition, ...]:
        with self._lock:
            return tuple(self._last.values())
