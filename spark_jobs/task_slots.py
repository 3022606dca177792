"""Whether the application has a task slot for each query that needs one for good.

A live batch holds its slots for as long as it lasts: `spark.live_batch_s` after its first record, and four times as
long if none arrives. Queries that share too few slots still get their turns, but each waits for batches of others, and
a change takes minutes instead of milliseconds to be readable. Bounded batches, those of warehouses, take turns.
"""

import math
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import structlog

log = structlog.get_logger(__name__)

CHECK_S: Final = 2.0
# On a cluster executors come, go and are replaced. The threads of a local master do not.
GRACE_S: Final = 20.0
_LOCAL: Final = "local"


class Shortage(NamedTuple):
    """Too few slots, as text."""

    message: str
    next: str


def needed_slots(sinks: Collection[str], bounded: Collection[str]) -> int:
    """Returns how many slots the running queries need at once. `sinks`: the sink of each query; `bounded`: those whose
    batches take turns."""
    live = sum(sink not in bounded for sink in sinks)
    return live + (live < len(sinks))


def shortage(slots: int, needed: int, master: str) -> Shortage | None:
    """Returns None if there are enough slots."""
    if slots >= needed:
        return None
    have = f"Spark has {slots} task slot{'' if slots == 1 else 's'}" if slots else "Spark has no task slot"
    if master.startswith(_LOCAL):
        more = f"remove spark.master from spark.options, or write local[{needed}] or more there"
    else:
        more = (
            f"give the application {needed} cores or more: --conf spark.cores.max={needed} (standalone cluster), or "
            "spark.executor.instances times spark.executor.cores, or a higher spark.dynamicAllocation.maxExecutors"
        )
    return Shortage(
        f"{have}, and the running queries of sinks need {needed}: they wait for each other's batches, for minutes when "
        "there is little to do",
        f"{more}; or run some of the sinks in an application of their own",
    )


class SlotWatch:
    """Compares slots and queries now and then, and reports a shortage, and its end. Not thread-safe."""

    def __init__(
        self,
        slots: Callable[[], int | None],
        needed: Callable[[], int],
        master: str,
        report: Callable[[Shortage | None], None],
    ) -> None:
        """`slots`: None if it is not known."""
        self._slots = slots
        self._needed = needed
        self._master = master
        self._report = report
        self._next_s = -math.inf
        self._since_s: float | None = None  # since when there have been too few
        self._reported: Shortage | None = None

    def check(self, now_s: float) -> None:
        """Looks, unless it has done so a moment ago. `now_s`: monotonic seconds."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + CHECK_S
        slots = self._slots()
        if slots is None:
            return
        found = shortage(slots, self._needed(), self._master)
        self._since_s = None if found is None else now_s if self._since_s is None else self._since_s
        grace_s = 0.0 if self._master.startswith(_LOCAL) else GRACE_S
        if self._since_s is not None and now_s - self._since_s < grace_s:
            return
        if found == self._reported:
            return
        self._reported = found
        self._report(found)
        if found is None:
            log.info("there are enough task slots again", slots=slots)
        else:
            log.warning("too few task slots", because=found.message, next=found.next)
