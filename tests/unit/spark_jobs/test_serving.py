"""The swap of generations: what is published, and in which order."""

import threading
import time
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
from spark_jobs.applied import Applied
from spark_jobs.serving import ServingWorker
from spark_jobs.starting import first_position, owing
from tests.support.sink_job import write_config

SHOWN = Applied(1, 500, 5)


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


def test_a_generation_that_the_store_has_lost_answers_nobody_when_another_one_is_replaced(tmp_path: Path) -> None:
    """A store was restored from an older copy: the record of the generation that it lost still says `serving`."""
    swap = Swap(tmp_path)
    lost = swap.record.model_copy(update={"generation": 2, "applied_lsn": 900, "job": (1, "former")})
    swap.sinks[lost.record_key] = lost
    swap.replace()
    assert swap.calls == ["tend", "read", "publish 2 kept 900", "publish 1 kept 500", "reaches 500", "complete"]


class Kept:
    """A job whose store holds a generation that it can't continue: another one is built beside it."""

    def __init__(self, folder: Path, noted: SinkRecord | None) -> None:
        worker = Swap(folder).worker
        worker._checkpoints = cast("Any", SimpleNamespace(keep_only=lambda _: None))
        sink = SimpleNamespace(generation=lambda: 1, noted=lambda: noted and noted.encode().decode())
        slots = SimpleNamespace(in_place=False, generation=lambda _: 1)
        control = SimpleNamespace(sinks={}, lineages={}, rebuilds={})
        self.record = first_position("cache", 1, "h", [], 1).model_copy(update={"epoch": 1, "excluded": ("public.a",)})
        self.answers: list[SinkRecord] = []
        shown = self.record.model_copy(update={"applied_lsn": 500, "job": (4, "former")})
        control.sinks[shown.record_key] = shown
        writer = SimpleNamespace(publish=self.answers.append, send=lambda _: None)
        link = SimpleNamespace(control=control, writer=writer, history="h", published=True)
        assert worker._begin(cast("Any", SimpleNamespace(sink=sink, slots=slots, slot="")), cast("Any", link)) is None


def test_a_generation_that_is_not_written_any_more_promises_what_its_store_says(tmp_path: Path) -> None:
    """The store may have been restored from an older copy since the former job published."""
    record = first_position("cache", 1, "h", [], 1)
    noted = record.model_copy(update={"epoch": 1, "applied_lsn": 300, "excluded": ("public.a",), "job": (3, "older")})
    (answer,) = Kept(tmp_path, noted).answers
    assert (answer.generation, answer.role, answer.epoch, answer.applied_lsn) == (1, "serving", 1, 300)
    assert answer.job > (4, "former"), "it is the newest"


def test_a_generation_whose_store_says_nothing_promises_nothing(tmp_path: Path) -> None:
    (answer,) = Kept(tmp_path, None).answers
    assert (answer.generation, answer.role, answer.epoch, answer.applied_lsn) == (1, "serving", 0, 0)


def test_rows_that_a_former_generation_was_to_remove_are_removed_by_the_next_one(tmp_path: Path) -> None:
    """Their topics no longer exist, and the generation that should have removed them was replaced before it did."""
    worker, told, disowned = Swap(tmp_path).worker, list[SinkRecord](), list[TableId]()
    items, other = TableId("public", "items"), TableId("public", "other")
    noted = first_position("cache", 1, "h", [items], time.time_ns() // 1000)
    sink = SimpleNamespace(
        generation=lambda: 1, begin_generation=lambda _: None, disown=disowned.append, note=lambda *_: None
    )
    control = SimpleNamespace(sinks={}, lineages={items: None, other: None}, excluded=())
    setattr(worker, "_complete", lambda _, record: record)  # noqa: B010 - a method
    link = SimpleNamespace(control=control, writer=SimpleNamespace(publish=told.append), history="h")
    worker._begin_again(cast("Any", SimpleNamespace(sink=sink)), cast("Any", link), noted, [], [other])
    assert disowned == [items, other]
    assert told[0].sweeps == {"public.items": 0, "public.other": 0}


def test_a_store_that_must_be_built_again_is_at_each_start_until_it_is(tmp_path: Path) -> None:
    """The request that the job made when it found that was cancelled, or failed."""
    worker, asked = Swap(tmp_path).worker, list[RebuildRecord]()
    items, now_us = TableId("public", "items"), time.time_ns() // 1000
    noted = owing(first_position("cache", 1, "h", [], now_us), [items])
    sink = SimpleNamespace(generation=lambda: 1, noted=noted.encode().decode)
    opened = SimpleNamespace(sink=sink, slots=SimpleNamespace(in_place=False, generation=lambda _: 1), slot="")
    control = SimpleNamespace(sinks={}, lineages={}, rebuilds={})
    published = ProgressRecord(epoch=1, seq=1, lsn=1, commit_ts_us=1, published_ts_us=now_us, end_offsets={})
    link = SimpleNamespace(control=control, writer=SimpleNamespace(send=asked.append), history="h", published=published)
    worker._checkpoints = cast("Any", SimpleNamespace(keep_only=lambda _: None))
    setattr(worker, "_begun", lambda *_: None)  # noqa: B010 - a method
    worker._begin(cast("Any", opened), cast("Any", link))
    assert [(request.action, request.keeps_old) for request in asked] == [("rebuild", False)]
