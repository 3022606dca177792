"""Time, and the call at which something fails: what all fakes of one run share."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Final

from cdc.model.errors import BrokerError
from sinks.errors import SinkError

CALL_S: Final = 0.01  # that each look at the clock takes
FIRST_S: Final = 1_700_000_000.0


class Crash(BaseException):
    """kill -9: no handler may stop it."""


@dataclass
class Fuse:
    """Fails one of the next calls to the outside."""

    calls: int  # before it
    kind: str  # "store", "brokers.letters": the beginning of the kind of call that raises an error; "kill": it dies
    after: bool  # behind the call's effect, not before it


class World:
    """The clock, which moves with each look at it, and the fuse."""

    def __init__(self) -> None:
        self.now_s = FIRST_S
        self.fuse: Fuse | None = None
        self.is_dying = False
        self.meanwhile: Callable[[], None] = lambda: None  # what other threads do while a task reports

    def call(self, kind: str, effect: Callable[[], None] = lambda: None) -> None:
        """Makes a call with this effect. `kind`: "store" or "brokers", with a dot and what it is for."""
        if self.is_dying:  # what handlers do on its way does not reach the outside
            raise Crash
        fuse = self.fuse
        if fuse is None or not (kind.startswith(fuse.kind) or fuse.kind == "kill"):
            effect()
            return
        fuse.calls -= 1
        if fuse.calls >= 0:
            effect()
            return
        self.fuse = None
        if fuse.after:
            effect()
        if fuse.kind == "kill":
            self.is_dying = True
            raise Crash
        raise (
            SinkError("the store is away", "wait")
            if kind.startswith("store")
            else BrokerError("brokers are away", "wait")
        )

    # ---- the module `time`

    def time(self) -> float:
        self.now_s += CALL_S
        return self.now_s

    def time_ns(self) -> int:
        return int(self.time() * 1_000_000_000)

    def monotonic(self) -> float:
        return self.time()

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Clock:
    """Stands for the module `time` in the product's modules. It is that of the run that is under way."""

    world: World

    def __getattr__(self, name: str) -> object:
        return getattr(self.world, name)


CLOCK: Final = Clock()


def numbered(prefix: str) -> SimpleNamespace:
    """Stands for the module `secrets`: texts in ascending order."""
    count = 0

    def token_hex(_: int) -> str:
        nonlocal count
        count += 1
        return f"{prefix}{count:08d}"

    return SimpleNamespace(token_hex=token_hex)
