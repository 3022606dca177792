"""Bounded retries of calls to a store that is temporarily unavailable."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retries:
    """The number of attempts of a call, and the pauses between them: each pause is twice the previous one.

    The default gives a store about 12 s to come back: enough for a restart of Redis or the move of a shard, and a job
    that is requested to stop still ends soon. Longer outages are retried by the supervisor, with the whole batch.
    """

    attempt_count_max: int = 8
    delay_s_first: float = 0.1
    delay_s_max: float = 5.0
    sleep: Callable[[float], None] = time.sleep

    def attempts(self) -> Iterator[int]:
        """Yields attempt numbers from 1, and pauses before each but the first."""
        delay_s = self.delay_s_first
        for attempt in range(1, self.attempt_count_max + 1):
            if attempt > 1:
                self.sleep(min(delay_s, self.delay_s_max))
                delay_s *= 2
            yield attempt

    def call(self, work: Callable[[], T], transient: Callable[[Exception], bool]) -> T:
        """Returns what `work` returns. Repeats it after an exception that is `transient`, and raises the exception
        after the last attempt."""
        for attempt in self.attempts():
            try:
                return work()
            except Exception as error:
                if attempt == self.attempt_count_max or not transient(error):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")
