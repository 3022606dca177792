"""Chance, time and the point of death: what all fakes of one simulated run share.

One seed is one run. Every call that capture makes to the outside is a step; a process can die at any of them. While the
world is calm nothing goes wrong any more, so that a run ends.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass


class Crash(BaseException):
    """kill -9: no handler may stop it, and nothing that handlers do on its way reaches the outside."""


class Stuck(AssertionError):  # noqa: N818
    """The run does not come to an end."""


STEPS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class Rates:
    """How often something goes wrong, for each opportunity."""

    lost_connection: float = 0.004  # PostgreSQL hangs up
    server_crash: float = 0.3  # of those: PostgreSQL forgets the newest confirmed position
    queue_full: float = 0.05
    lost_produce: float = 0.01
    commit_slow: float = 0.1
    commit_aborted: float = 0.05
    answer_lost: float = 0.05  # the commit succeeded
    lost_offsets: float = 0.02
    pause: float = 0.004  # the process is frozen, and another takes over meanwhile
    stop: float = 0.01  # SIGTERM


class World:
    """`crash_at` counts steps down; None: nobody dies."""

    def __init__(self, seed: int, rates: Rates, steps_max: int = STEPS_MAX) -> None:
        self.chance = random.Random(seed)
        self.rates = rates
        self.is_calm = False
        self.is_dying = False  # between a Crash and its being caught
        self.now_s = 1_000.0
        self.steps = 0
        self._steps_max = steps_max
        self._crash_at: int | None = None
        self.on_pause: Callable[[], None] | None = None  # what happens while a process is frozen

    def arm(self, steps: int | None) -> None:
        """Die after so many steps from now."""
        self._crash_at = None if steps is None else self.steps + steps

    def step(self) -> None:
        """Each call to the outside, before and after its effect. Raises Crash."""
        self.steps += 1
        self.now_s += 0.001
        if self.steps > self._steps_max:
            raise Stuck(f"{self._steps_max} steps and no end")
        if self._crash_at is not None and self.steps >= self._crash_at and not self.is_dying:
            self._crash_at = None
            self.is_dying = True
            raise Crash
        if self.on_pause is not None and self.happens(self.rates.pause):
            meanwhile, self.on_pause = self.on_pause, None
            meanwhile()
            self.on_pause = meanwhile

    def happens(self, rate: float) -> bool:
        return not self.is_calm and self.chance.random() < rate

    # ---- cdc.ports.stream.Clock

    def monotonic(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return int(self.now_s * 1_000_000)

    def probe(self, _name: str) -> None:
        """A failpoint is a step like any other."""
        self.step()
