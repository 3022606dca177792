"""Work of requests in threads: a few at a time, each with a deadline.

A thread can't be ended from outside. One that is not done by its deadline answers nobody, and keeps its place until it
ends, so that a server that does not answer costs a bounded number of threads. They are daemons: none keeps the process
from ending.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from cdc.model.errors import UnreachableError
from watershed.http.answers import BusyError

T = TypeVar("T")
WAITING_MAX: Final = 20
LATE: Final = "try again; the log says which server is slow"


class BoundedWork:
    """Places for one kind of work. Used by the server's event loop only."""

    def __init__(
        self, what: str, places: int, deadline_s: float, waiting_max: int = WAITING_MAX, late: str = LATE
    ) -> None:
        """`what`: the work, for errors. `waiting_max`: requests, with those in work. `late`: the next step after the
        deadline."""
        self._late = late
        self._what = what
        self._places = asyncio.Semaphore(places)
        self._deadline_s = deadline_s
        self._waiting_max = waiting_max
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns in a thread. Raises what it raises, BusyError if too many are waiting, and
        UnreachableError after the deadline."""
        if self._waiting >= self._waiting_max:
            raise BusyError(f"{self._what}: {self._waiting} requests are waiting already", "try again in a moment")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._places.acquire()
                return await self._started(work)
        except TimeoutError:
            raise UnreachableError(f"{self._what}: not done in {self._deadline_s:g} s", self._late) from None
        finally:
            self._waiting -= 1

    def _started(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def end(result: T | None, error: BaseException | None) -> None:
            self._places.release()
            if future.done():  # its deadline has passed
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as raised:  # noqa: BLE001 goes to the waiter
                error = raised
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(end, result, error)

        threading.Thread(target=run, name=f"http: {self._what}", daemon=True).start()
        return future
