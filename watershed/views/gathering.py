"""The moments at which a view is written to its target."""

import math
import time
from collections.abc import Callable


class Gathering:
    """Decides when the keys that wait are computed and written, and how many of them together. For most targets that is
    at once. Where each write costs as much as many rows do (a commit of a warehouse), keys are gathered for a while."""

    def __init__(self, keys_max: int, interval_s: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        """`keys_max`: of one write; `interval_s`: from the beginning of one write to that of the next."""
        self.keys_max = keys_max
        self._interval_s = interval_s
        self._now = now
        self._due_at = -math.inf

    def is_due(self) -> bool:
        """Says whether keys may be written now."""
        return self._now() >= self._due_at

    def begin(self, key_count: int) -> None:
        """Records that so many keys are written now. If more keys are waiting, the next write follows at once."""
        self._due_at = -math.inf if key_count >= self.keys_max else self._now() + self._interval_s
