"""The swap of generations: what is published, and in which order."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.sink_records import SinkRecord, newest
from configuration.settings import load_config
from monitoring.conditions import Conditions
from monitoring.job_records import RebuildRecord
from sinks.errors import SinkError
from spark_jobs import serving
from spark_jobs.applied import Applied
from spark_jobs.serving import ServingWorker
from spark_jobs.starting import first_position
from tests.support.sink_job import write_config

SHOWN = Applied(1, 500, 5)


class Swap:
    """A serving job whose rebuild is ready, with all that it calls."""

    def __init__(self, folder: Path, *, reaches: bool = True, generation: int | None = 1) -> None:
        self.calls: list[str] = []
        self.reaches_goal = reaches
        self.record = first_position("cache", 1, "h", [], 1)
        self.sinks = {self.record.record_key: self.record}
        config = load_config(write_config(folder, "127.0.0.1:1", "shop", {"cache": {"url": "redis://c"}}))
        stop = threading.Event()
        opener = cast("Any", None)
        self.worker = ServingWorker("cache", config, cast("Any", None), opener, stop, Conditions())
        self.worker._generation = generation

    @property
    def applied(self) -> Applied:
        return SHOWN

    def tend(self) -> None:
        """The last batch is published while the generation still serves."""
        self.calls.append("tend")
        self.sinks[self.record.record_key] = self.record.model_copy(update={"applied_lsn": SHOWN.lsn})

    def read(self) -> None:
        self.calls.append("read")

    def publish(self, record: SinkRecord) -> None:
        self.calls.append(f"publish {record.generation} {record.role} {record.applied_lsn}")
        self.sinks[record.record_key] = record

    def reaches(self, goal: Applied, _: float) -> bool:
        self.calls.append(f"reaches {goal.lsn}")
        return self.reaches_goal

    def complete(self) -> None:
        self.calls.append("complete")
        assert newest(self.sinks.values(), "cache") is None, "no waiter is answered by the former generation"

    def replace(self, *, is_written: bool = True) -> None:
        link = cast("Any", SimpleNamespace(control=self, writer=self))
        self.worker._replace(cast("Any", self), cast("Any", self if is_written else None), link)


def test_readers_get_no_answer_from_the_former_generation_before_the_new_one_serves(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    swap.replace()
    assert swap.calls == ["tend", "read", "publish 1 kept 500", "reaches 500", "complete"]


def test_a_generation_that_does_not_reach_what_readers_saw_does_not_serve(tmp_path: Path) -> None:
    swap = Swap(tmp_path, reaches=False)
    with pytest.raises(SinkError, match="did not catch up"):
        swap.replace()
    assert swap.calls[-1] == "reaches 500"


def test_a_former_generation_that_is_not_written_is_kept_as_it_is(tmp_path: Path) -> None:
    swap = Swap(tmp_path)
    swap.replace(is_written=False)
    assert swap.calls == ["read", "publish 1 kept 0", "complete"]
    swap = Swap(tmp_path)
    swap.sinks.clear()
    swap.replace(is_written=False)
    assert swap.calls == ["read", "complete"], "nobody waits for it"


# ---- an attempt


class Attempt:
    """A serving job with a rebuild, of which only the order of its steps is looked at."""

    def __init__(self, folder: Path, *, has_rebuild: bool = True, begins: bool = True) -> None:
        self.calls: list[str] = []
        self.follows = [False, False, True]  # whether the rebuild is ready, one look after another
        self.ended = 0
        self.refusal: SinkError | None = None
        self.is_idle = False
        self.rebuilds: dict[str, RebuildRecord] = {}
        self.stop = threading.Event()
        config = load_config(write_config(folder, "127.0.0.1:1", "shop", {"cache": {"url": "redis://c"}}))
        opener = cast("Any", lambda _: self)
        self.worker = ServingWorker("cache", config, cast("Any", None), opener, self.stop, Conditions())
        self.slots = SimpleNamespace(others=lambda: {"2": 6})
        worker = cast("Any", self.worker)
        worker._rebuild_of = lambda _opened, _link: self if has_rebuild else None
        worker._begin = lambda _opened, _link: ("sync", 3) if begins else None
        worker._maintained = self.maintained
        worker._open_letters = self.open_letters
        worker._report = lambda state: self.calls.append(f"report {state}")
        worker._keep_in_step = self.keep_in_step
        worker._replace = lambda _rebuild, sync, _link: self.calls.append(f"replace {sync}")

    def work(self) -> list[str]:
        with ExitStack() as stack:
            self.worker._work(stack, cast("Any", SimpleNamespace(control=self)))
        return [call for call in self.calls if call != "close"]

    @contextmanager
    def maintained(self, _: object) -> Iterator[None]:
        self.calls.append("maintain")
        yield
        self.calls.append("close")

    def keep_in_step(self, sync: object, generation: int, is_over: Callable[[], bool]) -> None:
        looks = 1
        while not is_over() and looks < 5:
            looks += 1
        self.calls.append(f"kept {sync} {generation} for {looks}")

    def follow(self, _: object) -> bool:
        self.calls.append("follow")
        if self.follows.pop(0):
            self.ended += 1
            return True
        return False

    @property
    def is_ready(self) -> bool:
        return not self.follows

    def read(self) -> None:
        self.calls.append("read")

    def open_letters(self, generation: int) -> "Attempt":
        self.calls.append(f"letters of {generation}")
        return self

    def close_others(self, generations: list[int]) -> None:
        self.calls.append(f"close all but {sorted(generations)}")

    def close(self) -> None:
        self.calls.append("close")


LETTERS = ["letters of 0", "close all but [6]"]


@pytest.fixture
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "WATCH_S", 0.0)


@pytest.mark.usefixtures("_no_pause")
def test_a_generation_is_kept_in_step_until_the_one_that_is_built_replaces_it(tmp_path: Path) -> None:
    assert Attempt(tmp_path).work() == [
        *LETTERS,
        "maintain",
        *("follow", "follow", "follow", *LETTERS),  # the letters of the one that was deleted are closed
        *("kept sync 3 for 3", "replace sync"),
    ]
    assert Attempt(tmp_path, has_rebuild=False).work() == [*LETTERS, "maintain", "kept sync 3 for 5"]


@pytest.mark.usefixtures("_no_pause")
def test_a_generation_that_can_not_be_continued_serves_until_another_replaces_it(tmp_path: Path) -> None:
    assert Attempt(tmp_path, begins=False).work() == [
        *(*LETTERS, "report rebuilding", "follow", "read", "follow", "read", "follow", *LETTERS, "replace None")
    ]
    assert Attempt(tmp_path, begins=False, has_rebuild=False).work() == LETTERS


@pytest.mark.usefixtures("_no_pause")
def test_a_rebuild_that_a_store_needs_is_not_given_up_silently(tmp_path: Path) -> None:
    refused = Attempt(tmp_path, begins=False)
    refused.refusal = SinkError("no room", "free space")
    with pytest.raises(SinkError, match="no room"):
        refused.work()
    idle = Attempt(tmp_path, begins=False)
    idle.is_idle = True
    with pytest.raises(SinkError, match="the rebuild was cancelled, but the store can't be continued without one"):
        idle.work()
    assert refused.calls.count("follow") == idle.calls.count("follow") == 1
    assert not any(call.startswith("replace") for call in (*refused.calls, *idle.calls))
    assert refused.calls[-2:] == ["close", "close"], "the store and the rebuild"


@pytest.mark.usefixtures("_no_pause")
@pytest.mark.parametrize("begins", [True, False])
def test_nothing_is_replaced_after_a_request_to_stop(tmp_path: Path, begins: bool) -> None:
    stopped = Attempt(tmp_path, begins=begins)
    stopped.follows = []
    stopped.worker._keep_in_step = cast("Any", lambda *_, **__: None)  # type: ignore[method-assign]
    stopped.stop.set()
    assert not any(call.startswith(("replace", "follow")) for call in stopped.work())


def test_a_store_with_slots_can_be_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)
    sent: list[RebuildRecord] = []
    link = cast("Any", SimpleNamespace(writer=SimpleNamespace(send=sent.append)))
    rebuild_of = ServingWorker._rebuild_of
    assert rebuild_of(attempt.worker, cast("Any", SimpleNamespace(slots=None)), link) is None
    monkeypatch.setattr(serving, "Builder", lambda *fields, is_rollback: (fields[0], fields[4], is_rollback))
    rebuild = rebuild_of(attempt.worker, cast("Any", attempt), link)
    assert rebuild is not None
    builder: Any = rebuild._open_builder(("2", 7), cast("Any", None), True)
    assert builder == ("cache", ("2", 7), True)
    wish = RebuildRecord(sink="cache", request="r", action="rebuild", status="running", asked_us=1)
    rebuild._publish(wish)
    assert sent == [wish]


def test_letters_of_every_generation_that_the_store_holds_stay(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    link = cast("Any", SimpleNamespace(control=attempt))
    attempt.worker._generation = 3
    for status, held in (("running", [3, 4, 6]), ("done", [3, 6])):
        wish = {"sink": "cache", "request": "r", "action": "rebuild", "status": status, "generation": 4, "asked_us": 1}
        attempt.rebuilds["cache"] = RebuildRecord.model_validate(wish)
        attempt.worker._close_other_letters(cast("Any", attempt), link)
        assert attempt.calls[-3:] == ["letters of 3", f"close all but {held}", "close"]
    attempt.worker._close_other_letters(cast("Any", SimpleNamespace(slots=None)), link)
    assert attempt.calls[-2] == "close all but [3]"


@pytest.mark.parametrize(("is_stopped", "has_rebuild"), [(True, True), (False, True), (True, False)])
def test_a_rebuild_is_stopped_with_its_job_before_the_last_batch_is_waited_for(
    tmp_path: Path, is_stopped: bool, has_rebuild: bool
) -> None:
    """Both have few seconds."""
    attempt = Attempt(tmp_path)
    if is_stopped:
        attempt.stop.set()
    if has_rebuild:
        attempt.worker._rebuild = cast("Any", SimpleNamespace(stop=lambda: attempt.calls.append("stop rebuild")))
    query = SimpleNamespace(isActive=False, stop=lambda: attempt.calls.append("stop query"))
    sync = SimpleNamespace(dismiss=lambda: attempt.calls.append("dismiss"))
    attempt.worker._end(cast("Any", query), cast("Any", sync))
    assert attempt.calls == ["stop rebuild"] * (is_stopped and has_rebuild) + ["dismiss", "stop query"]


def test_positions_have_microseconds() -> None:
    assert abs(serving._now_us() - time.time_ns() // 1000) < 60_000_000
