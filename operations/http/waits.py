"""Waits for stores over HTTP, without a thread for each waiter."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import anyio
from anyio.to_thread import run_sync

from cdc.model.control import PositionRecord
from cdc.model.errors import UnreachableError
from cdc.model.lsn import format_lsn
from cdc.model.sink_records import SinkRecord
from watershed_client.applied import Target, is_shown, target_of
from watershed_client.source_facts import SourceEnd
from watershed_client.waiting import WaitTimeoutError, read_lsn, sinks_of

TIMEOUT_S: Final = 30.0
TIMEOUT_S_MAX: Final = 300.0
WAITING_MAX: Final = 100
# All waiters together read the topics at most this often in a second.
LOOKS_PER_S: Final = 500.0
LOOK_S_MIN: Final = 0.02
QUESTIONS_MAX: Final = 4  # to the source at once
Positions = tuple[Sequence[SinkRecord], PositionRecord | None]  # the published ones, of sinks and of capture


class Waits:
    """Waits of one server. Its queries to the source use one connection."""

    def __init__(self, read_end: Callable[[], SourceEnd], positions: Callable[[], Positions]) -> None:
        self._read_end = read_end
        self._positions = positions
        self._asking = threading.Lock()
        self._waiting = 0
        self._limiter: anyio.CapacityLimiter | None = None  # is made in the server's event loop

    async def wait_for(self, sink: str | None, lsn: str, timeout_s: float, timeline: int | None) -> None:
        """Return when the sink (None: every sink that has published a position) shows the LSN. Raises WatershedError as
        watershed_client.wait_for does."""
        if self._waiting >= WAITING_MAX:
            raise UnreachableError(f"{WAITING_MAX} requests are waiting already", "try again in a moment")
        self._waiting += 1
        try:
            await self._wait(sink, read_lsn(lsn), timeout_s, timeline)
        finally:
            self._waiting -= 1

    async def _wait(self, sink: str | None, lsn: int, timeout_s: float, timeline: int | None) -> None:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(QUESTIONS_MAX)
        deadline = time.monotonic() + timeout_s
        target = await run_sync(self._target, lsn, timeline, limiter=self._limiter)
        while not self._is_shown(target, sink):
            if time.monotonic() >= deadline:
                raise WaitTimeoutError(
                    f"LSN {format_lsn(target.lsn)} was not shown in {timeout_s:g} s",
                    "GET /v1/status shows whether capture and sinks make progress; wait again, or longer",
                )
            await anyio.sleep(max(LOOK_S_MIN, self._waiting / LOOKS_PER_S))

    def _target(self, lsn: int, timeline: int | None) -> Target:
        with self._asking:
            end = self._read_end()
        return target_of(lsn, end, self._positions()[1], timeline)

    def _is_shown(self, target: Target, sink: str | None) -> bool:
        records, position = self._positions()
        names = sinks_of(sink, [record.sink for record in records])
        return all(is_shown(target, name, records, position) for name in names)
