"""The swap of generations: what is published, and in which order."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.config.config_file import load_config
from cdc.daemon.conditions import Conditions
from cdc.model.control import ProgressRecord
from cdc.model.events import TableId
from cdc.model.job_records import RebuildRecord
from cdc.model.sink_records import SinkRecord, newest
from sinks.errors import SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs import serving
from spark_jobs.applied import Applied
from spark_jobs.serving import ServingThread, SinkFile
from spark_jobs.sinks_file import SinkConfig
from spark_jobs.starting import LOST_WRITES, first_position, with_rows_owed
from tests.support.sink_job import write_config
from tests.unit.spark_jobs.records import schema

SHOWN = Applied(1, 500, 5)
B = schema("b")


class Swap:
    """A serving job whose rebuild is ready, with all that it calls."""

    def __init__(self, folder: Path, *, reaches: bool = True, generation: int | None = 1) -> None:
        self.calls: list[str] = []
        self.reaches_goal = reaches
        self.record = first_position("cache", 1, "h", [], 1).model_copy(update={"job": (2, "this")})
        self.sinks = {self.record.record_key: self.record}
        config = load_config(write_config(folder, "127.0.0.1:1", "shop", {"cache": {"url": "redis://c"}}))
        stop = threading.Event()
        opener = cast("Any", None)
        self.worker = ServingThread("cache", config, cast("Any", None), opener, stop, Conditions())
        self.worker._generation = generation

    def work(self) -> None:
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
        connections = cast("Any", SimpleNamespace(control=self, progress=self))
        sync = SimpleNamespace(housekeeper=self, state=SimpleNamespace(applied=SHOWN))
        self.worker._replace(cast("Any", self), cast("Any", sync if is_written else None), connections)


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


def test_a_generation_that_the_store_has_lost_answers_nobody_when_another_one_is_replaced(tmp_path: Path) -> None:
    """A store was restored from an older copy: the record of the generation that it lost still says `serving`."""
    swap = Swap(tmp_path)
    lost = swap.record.model_copy(update={"generation": 2, "applied_lsn": 900, "job": (1, "former")})
    swap.sinks[lost.record_key] = lost
    swap.replace()
    assert swap.calls == ["tend", "read", "publish 2 kept 900", "publish 1 kept 500", "reaches 500", "complete"]


class Kept:
    """A job whose store holds a generation that it can't continue: another one is built beside it."""

    def __init__(self, folder: Path, saved: SinkRecord | None) -> None:
        worker = Swap(folder).worker
        worker._checkpoints = cast("Any", SimpleNamespace(keep_only=lambda _: None))
        sink = SimpleNamespace(generation=lambda: 1, saved_position=lambda: saved and saved.encode().decode())
        slots = SimpleNamespace(in_place=False, generation=lambda _: 1)
        control = SimpleNamespace(sinks={}, schema_histories={B.table: SchemaHistory((B,))}, rebuilds={}, mappings={})
        self.record = first_position("cache", 1, "h", [], 1).model_copy(update={"epoch": 1, "excluded": ("public.a",)})
        self.answers: list[SinkRecord] = []
        shown = self.record.model_copy(update={"applied_lsn": 500, "job": (4, "former")})
        control.sinks[shown.record_key] = shown
        writer = SimpleNamespace(publish=self.answers.append, send=lambda _: None)
        connections = SimpleNamespace(control=control, progress=writer, history="h", published=True)
        assert (
            worker._begin(cast("Any", SimpleNamespace(sink=sink, slots=slots, slot="")), cast("Any", connections))
            is None
        )


def test_a_generation_that_is_not_written_any_more_promises_what_its_store_says(tmp_path: Path) -> None:
    """The store may have been restored from an older copy since the former job published."""
    record = first_position("cache", 1, "h", [], 1)
    saved = record.model_copy(update={"epoch": 1, "applied_lsn": 300, "excluded": ("public.a",), "job": (3, "older")})
    (answer,) = Kept(tmp_path, saved).answers
    assert (answer.generation, answer.role, answer.epoch, answer.applied_lsn) == (1, "serving", 1, 300)
    assert answer.owed == {"public.b": LOST_WRITES}, (
        "a lost write may have closed a dead letter (simulation, seed 28308)"
    )
    assert answer.job > (4, "former"), "it is the newest"


def test_a_generation_whose_store_says_nothing_promises_nothing(tmp_path: Path) -> None:
    (answer,) = Kept(tmp_path, None).answers
    assert (answer.generation, answer.role, answer.epoch, answer.applied_lsn) == (1, "serving", 0, 0)


def test_rows_that_a_former_generation_was_to_remove_are_removed_by_the_next_one(tmp_path: Path) -> None:
    """Their topics no longer exist, and the generation that should have removed them was replaced before it did."""
    worker, on_error, reset = Swap(tmp_path).worker, list[SinkRecord](), list[TableId]()
    items, other = TableId("public", "items"), TableId("public", "other")
    saved = first_position("cache", 1, "h", [items], time.time_ns() // 1000)
    sink = SimpleNamespace(
        generation=lambda: 1,
        begin_generation=lambda _: None,
        reset_versions=reset.append,
        save_position=lambda *_: None,
    )
    control = SimpleNamespace(sinks={}, schema_histories={items: None, other: None}, excluded=())
    setattr(worker, "_complete", lambda _, record: record)  # noqa: B010 - a method
    connections = SimpleNamespace(control=control, progress=SimpleNamespace(publish=on_error.append), history="h")
    opened = SimpleNamespace(sink=sink, slots=SimpleNamespace(in_place=True))
    worker._begin_again(cast("Any", opened), cast("Any", connections), saved, [], [other])
    assert reset == [items, other]
    assert on_error[0].sweeps == {"public.items": 0, "public.other": 0}


def test_a_store_that_must_be_built_again_is_at_each_start_until_it_is(tmp_path: Path) -> None:
    """The request that the job made when it found that was cancelled, or failed."""
    worker, asked = Swap(tmp_path).worker, list[RebuildRecord]()
    items, now_us = TableId("public", "items"), time.time_ns() // 1000
    saved = with_rows_owed(first_position("cache", 1, "h", [], now_us), [items])
    sink = SimpleNamespace(generation=lambda: 1, saved_position=saved.encode().decode)
    opened = SimpleNamespace(sink=sink, slots=SimpleNamespace(in_place=False, generation=lambda _: 1), slot="")
    control = SimpleNamespace(sinks={}, schema_histories={}, rebuilds={}, mappings={})
    published = ProgressRecord(epoch=1, seq=1, lsn=1, commit_ts_us=1, published_ts_us=now_us, end_offsets={})
    connections = SimpleNamespace(
        control=control, progress=SimpleNamespace(send=asked.append), history="h", published=published
    )
    worker._checkpoints = cast("Any", SimpleNamespace(keep_only=lambda _: None))
    setattr(worker, "_begin_sync", lambda *_: None)  # noqa: B010 - a method
    worker._begin(cast("Any", opened), cast("Any", connections))
    assert [(request.action, request.keeps_old) for request in asked] == [("rebuild", False)]


# ---- an attempt


class Attempt:
    """A serving job with a rebuild, of which only the order of its steps is looked at."""

    def __init__(self, folder: Path, *, has_rebuild: bool = True, begins: bool = True) -> None:
        self.calls: list[str] = []
        self.follows = [False, False, True]  # whether the rebuild is ready, one look after another
        self.ended_count = 0
        self.refusal: SinkError | None = None
        self.is_idle = False
        self.rebuilds: dict[str, RebuildRecord] = {}
        self.stop = threading.Event()
        config = load_config(write_config(folder, "127.0.0.1:1", "shop", {"cache": {"url": "redis://c"}}))
        opener = cast("Any", lambda _: self)
        self.reload_us = 7
        self.numbers = [0]  # of the configuration, one look after another; the last one stays
        self.config = config
        file = SinkFile(self.configured, lambda now: cast("Any", ("opens", now)), self.calls_follow)
        self.worker = ServingThread("cache", config, cast("Any", None), opener, self.stop, Conditions(), file)
        self.slots = SimpleNamespace(others=lambda: {"2": 6}, in_place=True)
        self.sink = self
        self.schema_histories: dict[TableId, SchemaHistory] = {}
        worker = cast("Any", self.worker)
        worker._rebuild_of = lambda _opened, _link: self if has_rebuild else None
        worker._begin = lambda _opened, _link: ("sync", 3) if begins else None
        worker._maintained = self.maintained
        worker._open_dead_letters = self.open_dead_letters
        worker._report = lambda state: self.calls.append(f"report {state}")
        worker._run_queries = self.keep_in_step
        worker._replace = lambda _rebuild, sync, _link: self.calls.append(f"replace {sync}")

    def work(self) -> list[str]:
        with ExitStack() as stack:
            self.worker._work(stack, cast("Any", SimpleNamespace(control=self)))
        return [call for call in self.calls if call != "close"]

    def configured(self) -> SinkConfig:
        return SinkConfig(self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0], self.config)

    def calls_follow(self, reload_us: int) -> None:
        assert reload_us == 7, "what the control topic says"

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

    def follow(self, _: object, *, is_needed: bool) -> bool:
        assert is_needed, "it has its own mapping"
        self.calls.append("follow")
        if self.follows.pop(0):
            self.ended_count += 1
            return True
        return False

    @property
    def is_ready(self) -> bool:
        return not self.follows

    def read(self) -> None:
        self.calls.append("read")

    def open_dead_letters(self, generation: int) -> "Attempt":
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
    stopped.worker._run_queries = cast("Any", lambda *_, **__: None)  # type: ignore[method-assign]
    stopped.stop.set()
    assert not any(call.startswith(("replace", "follow")) for call in stopped.work())


def test_a_store_with_slots_can_be_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)
    sent: list[RebuildRecord] = []
    connections = cast("Any", SimpleNamespace(progress=SimpleNamespace(send=sent.append)))
    rebuild_of = ServingThread._rebuild_of
    assert rebuild_of(attempt.worker, cast("Any", SimpleNamespace(slots=None)), connections) is None
    monkeypatch.setattr(serving, "Builder", lambda *fields: (fields[0], *fields[4:7]))
    rebuild = rebuild_of(attempt.worker, cast("Any", attempt), connections)
    assert rebuild is not None
    rebuild_request = RebuildRecord(sink="cache", request="r", action="rebuild", status="running", asked_us=1)
    builder: Any = rebuild._open_builder(("2", 7), cast("Any", None), rebuild_request)
    assert builder == ("cache", ("2", 7), None, rebuild_request)
    rebuild._publish(rebuild_request)
    assert sent == [rebuild_request]


def test_letters_of_every_generation_that_the_store_holds_stay(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    connections = cast("Any", SimpleNamespace(control=attempt))
    attempt.worker._generation = 3
    for status, held in (("running", [3, 4, 6]), ("done", [3, 6])):
        rebuild_request = {
            "sink": "cache",
            "request": "r",
            "action": "rebuild",
            "status": status,
            "generation": 4,
            "asked_us": 1,
        }
        attempt.rebuilds["cache"] = RebuildRecord.model_validate(rebuild_request)
        attempt.worker._close_other_dead_letters(cast("Any", attempt), connections)
        assert attempt.calls[-3:] == ["letters of 3", f"close all but {held}", "close"]
    attempt.worker._close_other_dead_letters(cast("Any", SimpleNamespace(slots=None)), connections)
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
    sync = SimpleNamespace(state=SimpleNamespace(stop_query=lambda: attempt.calls.append("dismiss")))
    attempt.worker._end(cast("Any", query), cast("Any", sync))
    assert attempt.calls == ["stop rebuild"] * (is_stopped and has_rebuild) + ["dismiss", "stop query"]


def test_positions_have_microseconds() -> None:
    assert abs(serving._now_us() - time.time_ns() // 1000) < 60_000_000
