"""Which generation a job continues or begins, and what it does to the store for that."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from cdc.config.config_file import load_config
from cdc.daemon.conditions import Conditions
from cdc.model.control import ProgressRecord
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.job_records import MappingsRecord, RebuildRecord
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import DELETES_KEPT_S
from sinks.errors import RefusedError
from sinks.schema_history import SchemaHistory
from spark_jobs import serving
from spark_jobs.applied import BUILT_AGAIN
from spark_jobs.control_reader import ControlUpdate
from spark_jobs.serving import ServingThread
from spark_jobs.sink_thread import PipelineConnections
from spark_jobs.starting import (
    INCLUDED,
    LOST_WRITES,
    RESHAPED,
    TOO_OLD,
    first_position,
    parse_position,
    too_old_s,
)
from tests.support.sink_job import write_config

NOW_US = 10**15
OLD_US = NOW_US - int(too_old_s(DELETES_KEPT_S) * 1_000_000) - 1
A, B = TableId("public", "a"), TableId("public", "b")
PUBLISHED = ProgressRecord(
    epoch=1, seq=1, lsn=1, commit_ts_us=1, published_ts_us=1, end_offsets={"shop.public.a": (9,)}, history="h"
)


def schema_history(table: TableId) -> SchemaHistory:
    column = Column("id", 20, -1, "bigint", False, "b", 20)
    return SchemaHistory((TableSchema(table, 1, 0, (column,), ("id",), f"shop.{table}"),))


class Started:
    """A job at its start: its store, what was published, and all that it does, in one list."""

    def __init__(
        self, folder: Path, marker: int | None = None, *, in_place: bool | None = None, held: int | None = None
    ) -> None:
        """`in_place`: of the store's slots; None: it has none. `held`: the generation that the slots name."""
        config = load_config(write_config(folder, "127.0.0.1:1", "shop", {"cache": {"url": "redis://c"}}))
        self.calls: list[str] = []
        self.stop = threading.Event()
        self.worker = ServingThread("cache", config, cast("Any", None), cast("Any", None), self.stop, Conditions())
        self.worker._checkpoints = cast("Any", SimpleNamespace(keep_only=self.keep_only))
        cast("Any", self.worker)._begin_sync = lambda _opened, _link, start: start
        self.marker, self.text = marker, ""
        fingerprints = self.worker._section.fingerprints([A, B])
        self.record = first_position("cache", marker or 0, "h", [], NOW_US).model_copy(
            update={"end_offsets": {"shop.public.a": (5,), "shop.public.b": (0,)}, "mappings": fingerprints}
        )
        self.noted: SinkRecord | None = None if marker is None else self.record
        self.in_place, self.held = in_place, held
        self.rebuilds: dict[str, RebuildRecord] = {}
        self.sinks: dict[str, SinkRecord] = {}
        self.mappings: dict[str, MappingsRecord] = {}
        self.schema_histories = {A: schema_history(A), B: schema_history(B)}
        self.excluded: set[TableId] = set()
        self.progress: tuple[ProgressRecord, ...] = (PUBLISHED,)
        self.later: list[tuple[ProgressRecord, ...]] = []

    def begin(self) -> SinkRecord | None:
        """Returns the position from which the job begins."""
        control = cast("Any", self)
        connections = PipelineConnections(control, control, cast("Any", None), ControlUpdate(self.progress, (), ()))
        slots = (
            None if self.in_place is None else SimpleNamespace(in_place=self.in_place, generation=self.generation_of)
        )
        begun = self.worker._begin(cast("Any", SimpleNamespace(sink=self.store, slots=slots, slot="s")), connections)
        if begun is None:
            return None
        start, generation = cast("tuple[SinkRecord, int]", begun)
        assert start.generation == generation == self.worker._generation
        return start

    # ---- the store

    @property
    def store(self) -> Any:
        return SimpleNamespace(
            generation=lambda: self.marker,
            saved_position=lambda: None if self.noted is None else self.noted.encode().decode(),
            begin_generation=lambda number: self.calls.append(f"begin {number}"),
            discard=lambda table: self.calls.append(f"discard {table}"),
            reset_versions=lambda table: self.calls.append(f"disown {table}"),
            save_position=self.note,
        )

    def note(self, text: str, before: str | None) -> None:
        assert before is None
        record = parse_position(text)
        assert record is not None
        self.calls.append(f"note {record.generation}")

    def generation_of(self, slot: str) -> int | None:
        assert slot == "s"
        return self.held

    # ---- topics and checkpoints

    def read(self) -> ControlUpdate:
        return ControlUpdate(self.later.pop(0), (), ())

    def publish(self, record: SinkRecord) -> None:
        self.calls.append(f"publish {record.generation} {record.applied_lsn}")

    def send(self, record: RebuildRecord) -> None:
        self.calls.append(f"want {record.message}")
        assert (record.sink, record.action, record.status, record.keeps_old) == ("cache", "rebuild", "running", False)
        assert abs(time.time_ns() // 1000 - record.asked_us) < 60_000_000

    def keep_only(self, generations: Sequence[int]) -> None:
        self.calls.append(f"keep {sorted(generations)}")


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_now_us", lambda: NOW_US)
    monkeypatch.setattr(serving, "WATCH_S", 0.0)


def test_an_empty_store_begins_with_a_generation_that_never_was(tmp_path: Path) -> None:
    """Its position is published before the store is touched: no waiter is answered by a former one."""
    job = Started(tmp_path)
    start = job.begin()
    assert start is not None and (start.sweeps, start.job[0], start.history) == ({}, 1, "h")
    assert job.calls == ["publish 1 0", "begin 1", "note 1", "keep [1]"]
    job = Started(tmp_path)
    job.sinks = {
        record.record_key: record
        for record in (
            job.record.model_copy(update={"generation": 8, "job": (5, "")}),
            job.record.model_copy(update={"generation": 6, "job": (2, "")}),
            job.record.model_copy(update={"generation": 50, "job": (50, ""), "sink": "another"}),
        )
    }
    start = job.begin()
    assert start is not None and (start.generation, start.job[0]) == (9, 6)


def test_a_store_goes_on_where_it_is(tmp_path: Path) -> None:
    job = Started(tmp_path, 3)
    assert job.begin() == job.record
    assert job.calls == ["keep [3]"]
    for status, kept in (("running", [3, 4]), ("done", [3])):
        job = Started(tmp_path, 3, in_place=False)
        rebuild_request = {
            "sink": "cache",
            "request": "r",
            "action": "rebuild",
            "status": status,
            "generation": 4,
            "asked_us": 1,
        }
        job.rebuilds["cache"] = RebuildRecord.model_validate(rebuild_request)
        assert job.begin() == job.record
        assert job.calls == [f"keep {kept}"]


def test_a_filled_store_waits_until_its_topics_are_known(tmp_path: Path) -> None:
    """Or it would be taken for one of other topics, and filled again."""
    job = Started(tmp_path, 3)
    job.progress, job.later = (), [(), (PUBLISHED,)]
    assert job.begin() == job.record
    assert job.later == [] and job.calls == ["keep [3]"]
    job = Started(tmp_path, 3)
    job.progress = ()
    job.stop.set()
    assert job.begin() is None
    assert job.calls == [], "it was to stop meanwhile"
    job = Started(tmp_path)
    job.progress = ()
    assert job.begin() is not None, "an empty one does not wait"


def test_a_store_of_other_topics_is_filled_again_in_its_place(tmp_path: Path) -> None:
    for in_place in (None, True):
        job = Started(tmp_path, 3, in_place=in_place, held=3)
        job.noted = job.record.model_copy(update={"history": "former"})
        start = job.begin()
        assert start is not None and start.sweeps == {"public.a": 0, "public.b": 0}
        assert job.calls == ["publish 4 0", "begin 4", "disown public.a", "disown public.b", "note 4", "keep [4]"]


def test_a_table_that_joined_while_no_job_ran_may_have_rows_of_former_topics(tmp_path: Path) -> None:
    """Seen in simulation (seed 25008): topics were removed and set up again with fewer tables, then the other ones were
    added; where a store is filled in place, its former rows of these stayed, and refused the new ones."""
    for in_place, disowned in ((None, ["disown public.b"]), (True, ["disown public.b"]), (False, [])):
        job = Started(tmp_path, 3, in_place=in_place, held=3)
        job.noted = job.record.model_copy(update={"end_offsets": {"shop.public.a": (5,)}})
        start = job.begin()
        assert job.calls == [*disowned, "keep [3]"]
        assert start is not None and start.sweeps == ({"public.b": 0} if disowned else {})
    for known in ({"shown": {"shop.public.b": "id"}}, {"sweeps": {"public.b": 7}}):
        job = Started(tmp_path, 3)
        job.noted = job.record.model_copy(update={"end_offsets": {"shop.public.a": (5,)}, **known})
        assert job.begin() == job.noted, "the generation has read it"


def test_a_store_that_lost_writes_owes_rows_until_they_are_repeated(tmp_path: Path) -> None:
    """Seen in simulation (seed 22769): a lost write had closed the dead letter of a row that the older copy lacks."""
    job = Started(tmp_path, 3)
    job.noted = job.record.model_copy(update={"owed": {"public.b": "its snapshot"}})
    later = job.record.model_copy(update={"applied_ts_us": NOW_US + 1})
    job.sinks[later.record_key] = later
    start = job.begin()
    assert start is not None and start.owed == {"public.a": LOST_WRITES, "public.b": "its snapshot"}


def test_rows_of_another_shape_are_discarded_and_not_disowned(tmp_path: Path) -> None:
    job = Started(tmp_path, 3)
    job.noted = job.record.model_copy(update={"history": "former"})
    published = job.record.model_copy(update={"mappings": {"public.a": "another"}})
    job.sinks[published.record_key] = published
    start = job.begin()
    assert start is not None and start.sweeps == {"public.b": 0}
    assert job.calls == ["publish 4 0", "begin 4", "discard public.a", "disown public.b", "note 4", "keep [4]"]


def test_a_store_that_can_hold_two_generations_is_built_beside(tmp_path: Path) -> None:
    job = Started(tmp_path, 3, in_place=False)
    job.noted = job.record.model_copy(update={"history": "former"})
    assert job.begin() is None
    assert job.calls == ["want it was filled from topics that no longer exist", "keep [0, 3]"]
    assert job.rebuilds["cache"].is_open and job.worker._generation == 3
    job = Started(tmp_path, None, in_place=False, held=7)
    assert job.begin() is None, "its tables are gone, or of another shape"
    assert job.calls == ["want tables are gone, or their shapes have changed", "keep [0, 7]"]
    job = Started(tmp_path, None, in_place=False)
    assert job.begin() is not None, "there is nothing to serve meanwhile"


def test_a_rebuild_that_is_running_is_not_requested_twice(tmp_path: Path) -> None:
    for action, status, count in (
        ("rebuild", "running", 0),
        ("rebuild", "asked", 0),
        ("rebuild", "done", 1),
        ("drop", "running", 1),
    ):
        job = Started(tmp_path, 3, in_place=False)
        job.noted = job.record.model_copy(update={"history": "former"})
        rebuild_request = {
            "sink": "cache",
            "request": "r",
            "action": action,
            "status": status,
            "generation": 4,
            "asked_us": 1,
        }
        job.rebuilds["cache"] = RebuildRecord.model_validate(rebuild_request)
        job.begin()
        assert sum(call.startswith("want") for call in job.calls) == count, (action, status)


def test_tables_of_another_shape_are_filled_again(tmp_path: Path) -> None:
    for in_place, calls, begins in (
        (None, ["publish 4 0", "begin 4", "discard public.a", "disown public.b", "note 4", "keep [4]"], 4),
        (False, [f"want {RESHAPED}", "keep [0, 3]"], None),
        (True, [f"want {RESHAPED}", "keep [0, 3]"], 3),
    ):
        job = Started(tmp_path, 3, in_place=in_place)
        mappings = job.record.mappings | {"public.a": "another"}
        job.noted = job.record.model_copy(update={"mappings": mappings})
        start = job.begin()
        assert (None if start is None else start.generation) == begins
        assert job.calls == calls
        assert job.worker._mappings == (mappings if in_place is not None else job.record.mappings), "of the rows there"


def test_a_store_that_may_have_missed_deletes_owes_rows_until_it_is_built_again(tmp_path: Path) -> None:
    job = Started(tmp_path, 3)
    job.noted = job.record.model_copy(update={"applied_ts_us": OLD_US})
    start = job.begin()
    assert start is not None and start.sweeps == {"public.a": 0, "public.b": 0}
    assert job.calls[:2] == ["publish 4 0", "begin 4"], "there is no other place"
    for in_place in (True, False):
        job = Started(tmp_path, 3, in_place=in_place)
        job.noted = job.record.model_copy(update={"applied_ts_us": OLD_US})
        start = job.begin()
        reason = f"{BUILT_AGAIN}{TOO_OLD}"
        assert start is not None and start.owed == {"public.a": reason, "public.b": reason}
        assert job.calls == [f"want {TOO_OLD}", "keep [0, 3]"]


def test_tables_that_are_included_again_are_filled_from_nothing(tmp_path: Path) -> None:
    for in_place, calls in (
        (None, ["publish 4 0", "begin 4", "disown public.a", "disown public.b", "note 4", "keep [4]"]),
        (True, ["publish 4 0", "begin 4", "disown public.b", "note 4", "keep [4]"]),
        (False, [f"want {INCLUDED}", "keep [0, 3]"]),
    ):
        job = Started(tmp_path, 3, in_place=in_place)
        job.noted = job.record.model_copy(update={"excluded": ("public.b",)})
        start = job.begin()
        assert (start is None) == (in_place is False)
        assert start is None or start.sweeps == ({"public.b": 0} if in_place else {"public.a": 0, "public.b": 0})
        assert job.calls == calls


def test_a_store_without_another_place_is_filled_again_over_rows_that_lose(tmp_path: Path) -> None:
    """Seen in simulation (seeds 30529, 63762): a row had been rejected at the version of a sweep's floor, and the row
    before it was deleted at that version; the next generation found the record stale, and had no dead letter for it."""
    job = Started(tmp_path, 3)
    job.noted = job.record.model_copy(update={"generation": 2})
    start = job.begin()
    assert start is not None and start.sweeps == {"public.a": 0, "public.b": 0}
    job = Started(tmp_path, None, in_place=True)
    job.noted = job.record
    start = job.begin()
    assert start is not None and start.sweeps == {}, "a cache that restarted with its rows keeps them"


def test_a_job_with_another_mapping_is_stopped_when_it_meets_the_first(tmp_path: Path) -> None:
    job = Started(tmp_path, 3)
    job.noted = job.record.model_copy(update={"mappings": {"public.a": "another"}})
    job.worker._generation = 2
    with pytest.raises(RefusedError, match=r"another job fills the store with a different mapping \(generation 3\)"):
        job.begin()
    assert job.calls == []
    job.worker._generation = 3
    assert job.begin() is not None
    job = Started(tmp_path, 3)
    job.worker._generation = 2
    assert job.begin() is not None, "with the same mapping it is continued"


@pytest.mark.parametrize(("applied_ts_us", "is_lost"), [(NOW_US, False), (NOW_US + 1, True)])
def test_a_store_that_lost_its_last_writes_is_said(tmp_path: Path, applied_ts_us: int, is_lost: bool) -> None:
    job = Started(tmp_path, 3)
    later = job.record.model_copy(update={"applied_ts_us": applied_ts_us, "applied_lsn": 16})
    job.sinks[later.record_key] = later
    with capture_logs() as logs:
        start = job.begin()
    assert start is not None and start.model_copy(update={"owed": {}}) == job.record
    lost = [line for line in logs if "lost its last writes" in line["event"]]
    assert [(line["published"], line["held"]) for line in lost] == ([("0/10", "0/0")] if is_lost else [])
