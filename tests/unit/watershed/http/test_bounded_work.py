"""Work in threads that is bounded in number and in time."""

import asyncio
import threading
from typing import NoReturn

import pytest

from cdc.model.errors import UnreachableError, WatershedError
from watershed.http.answers import BusyError
from watershed.http.bounded_work import BoundedWork


def fail() -> NoReturn:
    raise WatershedError("refused", "ask otherwise")


def test_what_the_work_returns_or_raises_is_passed_on() -> None:
    async def main() -> None:
        work = BoundedWork("the work", 1, 5.0)
        assert await work.run(lambda: 7) == 7
        with pytest.raises(WatershedError, match="refused"):
            await work.run(fail)
        assert await work.run(lambda: 8) == 8, "its place is free again"

    asyncio.run(main())


def test_work_that_is_late_answers_nobody_and_keeps_its_place_until_it_ends() -> None:
    goes_on = threading.Event()

    async def main() -> None:
        work = BoundedWork("the work", 1, 0.05, late="look again")
        for _ in range(2):  # the second finds no place
            with pytest.raises(UnreachableError, match=r"the work: not done in 0\.05 s") as late:
                await work.run(lambda: goes_on.wait(10))
            assert late.value.hint == "look again"
        assert [one.name for one in threading.enumerate()].count("http: the work") == 1
        goes_on.set()
        async with asyncio.timeout(5):
            while "http: the work" in [one.name for one in threading.enumerate()]:
                await asyncio.sleep(0.01)
        assert await work.run(lambda: 7) == 7

    asyncio.run(main())


def test_of_too_many_requests_the_last_ones_are_refused_at_once() -> None:
    goes_on = threading.Event()

    async def main() -> None:
        work = BoundedWork("the work", 1, 5.0, waiting_max=3)
        waiting = [asyncio.create_task(work.run(lambda: goes_on.wait(10))) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="the work: 3 requests are waiting already"):
            await work.run(lambda: True)
        goes_on.set()
        assert await asyncio.gather(*waiting) == [True] * 3

    asyncio.run(main())
