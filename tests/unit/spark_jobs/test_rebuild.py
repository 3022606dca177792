"""Requests for a rebuild: begun, gone on with, cancelled, refused; with a store and a builder of dictionaries."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.job_records import RebuildRecord
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import DELETES_KEPT_S
from sinks.errors import FullError, RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import NOTHING, Applied
from spark_jobs.building import Builder
from spark_jobs.rebuild import NEXT_FULL, SERVING_SILENT_S, Rebuild, swap_goal


@dataclass
class Store:
    """Implements sinks.slots.Slots."""

    held: dict[str, int | None] = field(default_factory=lambda: {"": 1})
    now: str = ""
    in_place: bool = False
    is_full: bool = False
    checked: Collection[TableId] | None = None  # the tables that room was looked for
    adopts: bool = False  # whether the last swap did

    def serving(self) -> str:
        return self.now

    def others(self) -> dict[str, int | None]:
        return {slot: generation for slot, generation in self.held.items() if slot != self.now}

    def generation(self, slot: str) -> int | None:
        return self.held.get(slot)

    def check_room(self, tables: Collection[TableId] | None = None) -> None:
        self.checked = tables
        if self.is_full:
            raise SinkError("the disk is full", "make room")

    def remove_unmet(self, slot: str, version: int, tables: Collection[TableId] | None = None) -> int:
        raise AssertionError((slot, version, tables))

    def serve(self, slot: str, *, adopts: bool = False) -> None:
        self.now, self.adopts = slot, adopts

    def drop(self, slot: str) -> None:
        assert slot != self.now
        self.held.pop(slot, None)

    def close(self) -> None: ...


class Fake:
    """A builder that does nothing."""

    def __init__(self, store: Store, target: tuple[str, int], request: RebuildRecord) -> None:
        self.refusal: WatershedError | None = None
        self.is_ready = False
        self.is_stopped = False
        self.ends = True
        self.target, self.request = target, request
        store.held[target[0]] = target[1]

    def start(self) -> None: ...

    def stop(self) -> None:
        self.is_stopped = True

    def join(self, timeout_s: float) -> bool:
        return self.ends and timeout_s > 0

    def reaches(self, goal: Applied, timeout_s: float) -> bool:
        return goal == NOTHING and timeout_s > 0


class World:
    """A sink's job, and what its topic says."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sinks: dict[str, SinkRecord] = {}
        self.rebuilds: dict[str, RebuildRecord] = {}
        self.schema_histories: dict[TableId, SchemaHistory] = {}
        self.builders: list[Fake] = []
        self.adopted: list[RebuildRecord] = []
        self.record(1, "serving")
        self.rebuild = self.restarted()

    def restarted(self) -> Rebuild:
        def builder(target: tuple[str, int], on_error: object, request: RebuildRecord) -> Fake:
            del on_error
            self.builders.append(Fake(self.store, target, request))
            return self.builders[-1]

        self.rebuild = Rebuild("search", self.store, self.publish, builder, DELETES_KEPT_S / 2, self.adopted.append)
        return self.rebuild

    def publish(self, record: RebuildRecord) -> None:
        self.rebuilds["search"] = record

    def record(self, generation: int, role: str, days_ago: float = 0) -> None:
        applied_ts_us = round((time.time() - days_ago * 86_400) * 1e6)
        fields = {"sink": "search", "generation": generation, "end_offsets": {}, "applied_lsn": 1, "epoch": 1}
        fields |= {
            "commit_ts_us": 0,
            "applied_ts_us": applied_ts_us,
            "sweeps": {},
            "written": 0,
            "stale": 0,
            "role": role,
        }
        self.sinks[SinkRecord.key_of("search", generation)] = SinkRecord.model_validate(fields)

    def ask(self, action: str = "rebuild", **fields: object) -> bool:
        asked = {"sink": "search", "request": "r1", "action": action, "status": "asked", "asked_us": 1}
        self.publish(RebuildRecord.model_validate(asked | fields))
        return self.rebuild.follow(self)

    @property
    def said(self) -> RebuildRecord:
        return self.rebuilds["search"]


@pytest.fixture
def world() -> World:
    return World(Store())


def swapped(world: World) -> None:
    """Generation 2 is built, and serves."""
    world.ask()
    world.builders[-1].is_ready = True
    assert world.rebuild.follow(world)
    world.rebuild.complete()
    world.record(1, "kept")
    world.record(2, "serving")


def test_a_generation_is_built_beside_the_serving_one_and_takes_its_place(world: World) -> None:
    assert not world.ask()
    assert (world.said.status, world.said.generation) == ("running", 2)
    assert world.store.now == ""
    world.builders[0].is_ready = True
    assert world.rebuild.follow(world)
    assert world.rebuild.reaches(NOTHING, 1.0)
    world.rebuild.complete()
    assert (world.store.now, world.store.held, world.builders[0].is_stopped) == ("g2", {"": 1, "g2": 2}, True)
    assert (world.said.status, world.said.message) == ("done", "generation 2 serves; generation 1 is kept")
    assert not world.rebuild.follow(world)
    assert len(world.builders) == 1


def test_only_some_tables_are_built_and_the_others_go_over_to_the_new_generation(world: World) -> None:
    world.ask(tables=["public.a"], keeps_old=False)
    assert world.store.checked == {TableId("public", "a")}
    world.builders[0].is_ready = True
    world.rebuild.follow(world)
    assert world.adopted == []
    world.rebuild.complete()
    assert [one.generation for one in world.adopted] == [2], "before it serves"
    assert (world.store.now, world.store.adopts, world.store.held) == ("g2", True, {"g2": 2})
    assert (world.said.status, world.said.message) == ("done", "generation 2 serves; built for it: public.a")
    world.ask(request="r2")
    world.rebuild.complete()
    assert not world.store.adopts and len(world.adopted) == 1


def test_tables_that_can_not_be_built_leave_the_serving_generation_alone(world: World) -> None:
    """Their former rows are kept up to date, which an error of the attempt would end."""
    world.store.is_full = True
    world.ask(tables=["public.a"], keeps_old=False)
    assert (world.said.status, world.said.message, world.said.next) == ("failed", "the disk is full", "make room")
    assert world.rebuild.refusal is not None, "for a job that writes nothing until they are built"
    with pytest.raises(SinkError, match="the disk is full"):
        world.ask(keeps_old=False, request="r2")


def test_all_tables_that_can_not_be_built_leave_a_generation_alone_that_is_kept_up_to_date(world: World) -> None:
    world.store.is_full = True
    world.ask(request="r0")
    world.publish(world.said.model_copy(update={"request": "r1", "status": "asked", "keeps_old": False}))
    assert not world.rebuild.follow(world, is_needed=False)
    assert (world.said.status, world.said.message) == ("failed", "the disk is full")


def test_a_job_that_was_killed_goes_on_with_the_generation_that_it_had_begun(world: World) -> None:
    world.ask()
    world.restarted().follow(world)
    assert [builder.target for builder in world.builders] == [("g2", 2), ("g2", 2)]


def test_a_job_that_was_killed_behind_the_swap_only_says_that_it_is_done(world: World) -> None:
    world.ask()
    world.store.serve("g2")
    world.restarted().follow(world)
    assert (world.said.status, len(world.builders)) == ("done", 1)


def test_a_builder_that_does_not_end_swaps_nothing(world: World) -> None:
    world.ask()
    world.builders[0].ends = False
    with pytest.raises(SinkError, match="last batch does not end"):
        world.rebuild.complete()
    assert (world.store.now, world.said.status) == ("", "running")


def test_a_swap_that_the_store_refuses_is_told_and_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ask()

    def refuse(_: str, **__: object) -> None:
        raise SinkError("another session holds a lock", "end it")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "serve", refuse)
        with pytest.raises(SinkError, match="holds a lock"):
            world.rebuild.complete()
    assert (world.said.status, world.said.message, world.said.next) == (
        "running",
        "another session holds a lock",
        "end it",
    )
    world.restarted().follow(world)
    world.rebuild.complete()
    assert (world.store.now, world.said.message) == ("g2", "generation 2 serves; generation 1 is kept")


def test_a_kept_generation_serves_again_and_can_be_dropped(world: World) -> None:
    swapped(world)
    world.ask("rollback", request="r2")
    assert (world.builders[-1].target, world.builders[-1].request.action) == (("", 1), "rollback")
    world.rebuild.complete()
    assert (world.store.now, world.store.held) == ("", {"": 1, "g2": 2})
    world.ask("drop", request="r3")
    assert (world.said.status, world.said.message, world.store.held) == ("done", "dropped: generation 2", {"": 1})
    world.ask("rollback", request="r4")
    assert (world.said.status, "no former generation is kept" in world.said.message) == ("failed", True)


def test_a_rebuild_is_refused_while_one_is_kept_unless_nobody_asked_for_it(world: World) -> None:
    swapped(world)
    world.ask(request="r2")
    assert (world.said.status, "still kept" in world.said.message) == ("failed", True)
    assert world.store.held == {"": 1, "g2": 2}
    world.ask(request="r3", keeps_old=False)
    assert (world.said.status, world.said.generation, world.store.held) == ("running", 3, {"g2": 2, "g3": 3})
    world.rebuild.complete()
    assert world.store.held == {"g3": 3}


def test_what_is_cancelled_is_deleted_and_what_was_kept_is_not(world: World) -> None:
    world.ask()
    world.publish(world.said.model_copy(update={"status": "cancelled"}))
    assert not world.rebuild.follow(world)
    assert (world.builders[0].is_stopped, world.store.held, world.said.status) == (True, {"": 1}, "cancelled")
    world.record(2, "building")
    world.ask(request="r2")
    assert world.builders[-1].target == ("g3", 3), "a number is not used twice"
    world.rebuild.complete()
    world.record(1, "kept")
    world.ask("rollback", request="r3")
    world.publish(world.said.model_copy(update={"status": "cancelled"}))
    world.rebuild.follow(world)
    assert world.store.held == {"": 1, "g3": 3}


def test_a_builder_that_can_not_go_on_fails_the_request_only(world: World) -> None:
    world.ask()
    world.builders[0].refusal = RefusedError("a column can't be held", "rename it")
    assert not world.rebuild.follow(world)
    assert (world.said.status, world.said.message, world.said.next) == ("failed", "a column can't be held", "rename it")
    assert (world.store.held, world.rebuild.refusal is not None) == ({"": 1}, True)


def test_a_store_that_fills_up_loses_what_was_built_and_says_what_to_do(world: World) -> None:
    world.ask()
    world.builders[0].refusal = FullError("Redis is full and refuses writes", "raise its maxmemory; it tries again")
    assert not world.rebuild.follow(world)
    assert (world.said.status, world.said.message, world.said.next) == (
        "failed",
        "Redis is full and refuses writes",
        NEXT_FULL,
    )
    assert world.store.held == {"": 1}


def test_a_generation_need_not_be_ahead_of_the_one_that_readers_see(world: World) -> None:
    """But of the published position where nobody writes the serving generation."""
    published, serving = Applied(1, 500, 0), world.sinks[SinkRecord.key_of("search", 1)]
    now_s = serving.applied_ts_us / 1e6
    assert swap_goal(published, None, now_s) == (1, 500)
    assert swap_goal(published, serving, now_s + SERVING_SILENT_S - 1) == (1, 1)
    assert swap_goal(published, serving, now_s + SERVING_SILENT_S + 1) == (1, 500)
    ahead = serving.model_copy(update={"applied_lsn": 900})
    assert swap_goal(published, ahead, now_s) == (1, 500), "its record is newer than what was read of capture's"
    nothing = serving.model_copy(update={"applied_lsn": 0, "epoch": 0})
    assert swap_goal(published, nothing, now_s) == (1, 500), "a store that says nothing of itself is no measure"


def test_a_full_store_refuses_before_anything_is_made(world: World) -> None:
    world.store.is_full = True
    assert not world.ask()
    assert (world.said.status, world.said.message, world.said.next) == ("failed", "the disk is full", "make room")
    with pytest.raises(SinkError, match="the disk is full"):
        world.ask(request="r2", keeps_old=False)
    assert (world.builders, world.store.held) == ([], {"": 1})


def test_a_store_that_is_rebuilt_in_place_has_no_former_generation() -> None:
    world = World(Store(in_place=True))
    world.ask("rollback")
    assert (world.said.status, "rebuilt in place" in world.said.message) == ("failed", True)


def test_a_generation_that_stood_still_for_too_long_is_not_put_back(world: World) -> None:
    swapped(world)
    world.record(1, "kept", days_ago=4)
    world.ask("rollback", request="r2")
    assert (world.said.status, "was not updated for longer" in world.said.message) == ("failed", True)
    world.record(1, "kept", days_ago=3)
    world.ask("rollback", request="r3")
    assert world.said.status == "running"


@pytest.mark.promise(2)
@pytest.mark.parametrize("has_read_out", [True, False])
def test_a_generation_lacks_no_rows_of_tables_that_left_when_it_is_ready(has_read_out: bool) -> None:
    builder = cast("Any", Builder.__new__(Builder))
    builder.name, builder._goal = "search", None
    at = Applied(1, 500, 0)
    sync = SimpleNamespace(state=SimpleNamespace(applied=at, published=at, has_read_out=has_read_out, refused={}))
    connections = SimpleNamespace(control=SimpleNamespace(sinks={}))
    assert builder._has_caught_up(sync, connections) is has_read_out
