"""Waits for stores over HTTP, without a thread for each waiter."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import anyio
from anyio.to_thread import run_sync

from watershed.client.applied import Positions, WaitTarget, ended_epoch, tables_of, target_of
from watershed.client.source_facts import SourceEnd
from watershed.client.waiting import WaitTimeoutError, obstacles, read_lsn, sinks_of, too_late
from watershed.http.answers import BusyError

TIMEOUT_S: Final = 30.0
TIMEOUT_S_MAX: Final = 300.0
WAITING_MAX: Final = 100
# All waiters together read the topics at most this often in a second.
LOOKS_PER_S: Final = 500.0
LOOK_S_MIN: Final = 0.02
QUESTIONS_MAX: Final = 4  # to the source at once


@dataclass(frozen=True, slots=True)
class Question:
    """A client's wait; see watershed.Waiter.wait_for."""

    sinks: tuple[str, ...]  # none: every sink that has published a position
    lsn: str
    timeline: int | None = None
    system_identifier: str | None = None
    tables: frozenset[str] = frozenset()
    accepts_rejected: bool = False
    epoch: int | None = None  # that of an earlier question about the LSN, which this one continues


class NotShownError(WaitTimeoutError):
    """The stores did not show the LSN in time. A question about the same LSN with the epoch continues this one."""

    def __init__(self, error: WaitTimeoutError, epoch: int) -> None:
        super().__init__(error.message, error.hint)
        self.epoch = epoch


class Waits:
    """Waits of one server. Its queries to the source use one connection."""

    def __init__(self, read_end: Callable[[], SourceEnd], positions: Callable[[], Positions]) -> None:
        self._read_end = read_end
        self._positions = positions
        self._asking = threading.Lock()
        self._waiting = 0
        self._limiter: anyio.CapacityLimiter | None = None  # is made in the server's event loop

    def positions(self) -> Positions:
        """Returns the published positions of a few milliseconds ago. Raises WatershedError."""
        return self._positions()

    async def wait_for(self, question: Question, timeout_s: float) -> tuple[str, ...]:
        """Returns the sinks when all of them show the LSN. Raises NotShownError after the timeout, and WatershedError
        as watershed.wait_for does."""
        if self._waiting >= WAITING_MAX:
            raise BusyError(f"{WAITING_MAX} requests are waiting already", "try again in a moment")
        self._waiting += 1
        try:
            return await self._wait(question, timeout_s)
        finally:
            self._waiting -= 1

    async def _wait(self, question: Question, timeout_s: float) -> tuple[str, ...]:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(QUESTIONS_MAX)
        deadline = time.monotonic() + timeout_s
        target = await run_sync(self._target, question, limiter=self._limiter)
        while True:
            positions = self._positions()
            sinks = sinks_of(question.sinks or None, [record.sink for record in positions.sinks])
            late = obstacles(target, sinks, positions)
            if not late:
                return tuple(sinks)
            if time.monotonic() >= deadline:
                raise NotShownError(too_late(target, late, timeout_s), target.epoch)
            await anyio.sleep(max(LOOK_S_MIN, self._waiting / LOOKS_PER_S))

    def _target(self, question: Question) -> WaitTarget:
        lsn = read_lsn(question.lsn)
        with self._asking:
            end = self._read_end()
        target = target_of(lsn, end, self._positions().capture, question.timeline, question.system_identifier)
        if question.epoch is not None and question.epoch != target.epoch:
            raise ended_epoch(question.epoch)
        return replace(target, tables=tables_of(question.tables), accepts_rejected=question.accepts_rejected)
