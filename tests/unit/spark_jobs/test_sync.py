"""A batch, and what happens beside it, on a fake store and scripted batches."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import pytest

from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.errors import UnreachableError
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.rejected_rows import RejectedRow
from cdc.model.sink_records import SinkRecord
from sinks.contract import Change, Result, lost_writes
from sinks.errors import RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import AppliedPosition, FoundTopic, Offsets
from spark_jobs.batches import BatchReport, OnReport
from spark_jobs.control_reader import ControlUpdate
from spark_jobs.publishing import CutMarks, JobEnvironment
from spark_jobs.rejections import DeadLetterUpdates
from spark_jobs.source.reading import Partition
from spark_jobs.sync import (
    GENERATION_CHECK_S,
    SCHEMA_WAIT_S,
    SCHEMA_WAIT_S_MAX,
    QueryStopped,
    RunningBatch,
    SinkSync,
)
from spark_jobs.sync_state import BEHIND_S, SyncState
from spark_jobs.task_report import Blocked
from tests.unit.spark_jobs.records import PARTITION, TOPIC, schema

NO_NEWS = ControlUpdate((), (), ())
TABLE = TableId("public", "a")
JOB = (3, "m")
DEAD_LETTERS_MAX = 2
OTHER_TOPIC = "shop.public.b"
ID = "id1"


class FakeSink:
    """Says in `calls` what was done, in order."""

    name = "search"

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.marker: int | None = 1
        self.text: str | None = None
        self.while_readable: list[Callable[[], object]] = []  # what happens in the next calls of make_readable
        self.prepared: set[str] = set()

    def generation(self) -> int | None:
        self.calls.append("generation")
        return self.marker

    def begin_generation(self, generation: int) -> None:
        self.marker = generation

    def discard(self, _: TableId) -> None:
        raise AssertionError("the worker discards, before there is a SinkSync")

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        versions = [str(known.version) for known in (*earlier, schema)]
        self.calls.append(f"prepare {schema.table.name} {' '.join(versions)}")
        self.prepared.add(schema.table.name)

    def reset_versions(self, table: TableId) -> None:
        self.calls.append(f"reset {table.name}")

    def save_position(self, text: str, before: str | None) -> None:
        if before is not None and before != self.text:
            raise lost_writes("the store")
        self.text = text

    def saved_position(self) -> str | None:
        return self.text

    def attach(self, _: TableSchema) -> None:
        raise AssertionError("the driver's sink prepares")

    def apply(self, _: Sequence[Change]) -> list[Result]:
        raise AssertionError("tasks write, not the driver")

    def sweep(self, table: TableId, floor: int) -> int:
        assert table.name in self.prepared, "as in the cache"
        self.calls.append(f"sweep {table.name} {floor}")
        return 0

    def make_readable(self, tables: Collection[TableId]) -> None:
        self.calls.append(f"readable {' '.join(sorted(table.name for table in tables))}")
        if self.while_readable:
            self.while_readable.pop(0)()

    def rows(self, _: TableId) -> object:
        raise AssertionError("a job reads no rows")

    def close(self) -> None:
        """Nothing to release."""


class FakeLetters:
    """Implements spark_jobs.dead_letters.DeadLetterTopic."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.open: dict[str, int] = {}
        self.others: set[str] = set()  # what an operator has discarded
        self.while_published: list[Callable[[], None]] = []  # what happens in the next calls of publish
        self.late: dict[str, int] = {}  # published by tasks, and not fetched yet

    def follow(self) -> None:
        for key in self.others:
            self.open.pop(key, None)

    def read_to_end(self) -> None:
        self.follow()
        self.open |= self.late
        self.late.clear()

    def publish(self, dead_letters: DeadLetterUpdates) -> None:
        if dead_letters and self.while_published:
            self.while_published.pop(0)()
        if dead_letters:
            self.calls.append(f"letters {' '.join(dead_letters)}")
        for key, dead_letter in dead_letters.items():
            if isinstance(dead_letter, RejectedRow):
                self.open[key] = dead_letter.version
            else:
                self.open.pop(key, None)


class _InTurn:
    """A client of the store or the brokers: one thread at a time calls it, and not with the lock of the state."""

    def __init__(self, bench: "Bench", client: object) -> None:
        self._bench, self._client = bench, client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return partial(self._call, name, found) if callable(found) else found

    def _call(self, name: str, method: Callable[..., Any], *given: Any) -> Any:
        environment, sync = self._bench.environment, self._bench.sync
        assert not sync.state.lock.locked(), f"{name} with the lock of the state"
        has_turn = environment.turn._is_owned()  # type: ignore[attr-defined]
        assert has_turn != (name == "run"), f"{name}: with the turn {has_turn}"
        return method(*given)


def in_turn(bench: "Bench", client: object) -> Any:
    return _InTurn(bench, client)


class _Locked:
    """A position that is used with the lock of the state only."""

    def __init__(self, position: AppliedPosition, state: SyncState) -> None:
        vars(self).update(_position=position, _state=state)

    def __getattr__(self, name: str) -> Any:
        assert self._state.lock.locked(), f"{name} without the lock"
        return getattr(self._position, name)

    def __setattr__(self, name: str, value: object) -> None:
        assert self._state.lock.locked(), f"{name} without the lock"
        setattr(self._position, name, value)


@dataclass
class Bench:
    """A SinkSync with all that it touches. Batches are scripted; without a script they find nothing."""

    calls: list[str] = field(default_factory=list)
    update: list[ControlUpdate] = field(default_factory=list)
    reports: Sequence[BatchReport | Callable[[], BatchReport]] = ()
    meanwhile: Sequence[BatchReport] = ()  # what tasks report while a batch runs
    is_live: bool = False
    went_on: Sequence[bool] = ()
    published: list[SinkRecord] = field(default_factory=list)
    starts: list[Offsets] = field(default_factory=list)
    now_us: int = 1_000_000
    topic_ends: int = 0
    has_lost_records: bool = False
    topic_id: str = ID
    missing: set[str] = field(default_factory=set)
    dead_letters_max: int = DEAD_LETTERS_MAX
    sinks: dict[str, SinkRecord] = field(default_factory=dict)
    may_hold_more: bool = False
    at_cuts: bool = False
    marks: CutMarks | None = None
    waited: list[float] = field(default_factory=list)
    remembered: list[Mapping[str, int]] = field(default_factory=list)  # open letters, at each batch's beginning

    def __post_init__(self) -> None:
        self.dead_letters = FakeLetters(self.calls)
        self.sink = FakeSink(self.calls)
        self.publish_record = self._publish
        self.environment = JobEnvironment(
            in_turn(self, self.sink),
            1,
            in_turn(self, self),
            in_turn(self, self),
            in_turn(self, self.dead_letters),
            lambda record: record,
            lambda record: self.publish_record(record),
            lambda: self.now_us,
            self._wait,
            JOB,
            self.dead_letters_max,
            may_hold_more=self.may_hold_more,
            at_cuts=self.at_cuts,
            marks=self.marks,
        )
        self.position = AppliedPosition()
        self.sync = SinkSync(self.environment, self.position)
        self.sync.state.position = _Locked(self.position, self.sync.state)  # type: ignore[assignment]
        with pytest.raises(QueryStopped):
            self.sync.batch_runner.apply_batch(1)  # no query was admitted yet
        self.sync.housekeeper.begin([SchemaHistory((schema(),))])
        self.begun = tuple(self.calls)
        self.query_number = self.sync.state.start_query()
        self.calls.clear()

    # ---- the world

    def read(self) -> ControlUpdate:
        return self.update.pop(0) if self.update else NO_NEWS

    def _publish(self, record: SinkRecord) -> None:
        self.calls.append("publish")
        self.published.append(record)
        self.sinks["sink/search/1"] = record

    def _wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        self.now_us += int(seconds * 1_000_000)
        return False

    # ---- batches

    def set_open_dead_letters(self, open_dead_letters: Mapping[str, int]) -> None:
        self.remembered.append(dict(open_dead_letters))

    def set_tables(self, schema_histories: Mapping[str, SchemaHistory]) -> None:
        self.calls.append(f"learn {len(schema_histories)}")

    def find_topics(self) -> Mapping[str, FoundTopic]:
        # A script's batches are about records that exist, unless the topic has lost some.
        written = 0 if self.has_lost_records else self.position.written.get(TOPIC, (0,))[0]
        found = {TOPIC: FoundTopic(self.topic_id, (max(self.topic_ends, written),)), OTHER_TOPIC: FoundTopic("b", (0,))}
        return {topic: there for topic, there in found.items() if topic not in self.missing}

    def run(self, micro_batch: object, ends: Offsets, take: OnReport) -> BatchReport:
        del micro_batch, ends
        self.calls.append("batch")
        meanwhile, self.meanwhile = self.meanwhile, ()
        self.went_on = [*self.went_on, *(take(report) for report in meanwhile)]
        self.starts.append(dict(self.position.written))
        self.now_us += 1_000_000
        report, *self.reports = self.reports or [BatchReport()]
        return report if isinstance(report, BatchReport) else report()

    def batch(self, count: int = 1) -> None:
        for _ in range(count):
            self.sync.batch_runner.apply_batch(self.query_number)

    def report(self, report: BatchReport, invalidations: Mapping[str, int] | None = None, query: int = 0) -> bool:
        """Tasks of a running batch have written something; says whether they may continue. `query`: 0: the present
        one."""
        return RunningBatch(self.sync.state, query or self.query_number, self.is_live, invalidations or {}).add_report(
            report
        )


def wrote(end: int, records: int = 1, written: int = 1) -> BatchReport:
    return BatchReport({TOPIC: {0: end}}, records=records, written=written, stale=records - written)


def progress(lsn: int, end: int) -> ProgressRecord:
    ends = {TOPIC: (end,)}
    return ProgressRecord(epoch=1, seq=0, lsn=lsn, commit_ts_us=5, published_ts_us=0, end_offsets=ends)


def test_what_tasks_report_while_they_run_is_published_before_they_end() -> None:
    bench = Bench(reports=[BatchReport()], meanwhile=[wrote(3), wrote(5)])
    bench.update = [ControlUpdate((progress(100, 3),), (), ())]
    bench.batch()
    assert bench.went_on == [True, True]
    assert (bench.published[-1].end_offsets, bench.published[-1].written) == ({TOPIC: (5,)}, 2)
    assert bench.published[-1].applied_lsn == 100


@pytest.mark.promise(2)
def test_a_table_that_capture_publishes_no_more_is_read_out_before_a_generation_is_complete() -> None:
    """Its rows stay in stores, and no position that is published says that they were read."""
    bench = Bench(reports=[wrote(3), wrote(5)], topic_ends=5)
    left = progress(100, 0).model_copy(update={"end_offsets": {OTHER_TOPIC: (0,)}})
    bench.update = [ControlUpdate((left,), (), ())]
    bench.batch()
    assert (bench.sync.state.applied.lsn, bench.sync.state.has_read_out) == (100, False)
    bench.batch()
    assert bench.sync.state.has_read_out
    bench.missing = {TOPIC}  # whoever needs neither topic nor rows deletes both
    bench.batch()
    assert bench.sync.state.has_read_out


def test_running_tasks_are_ended_for_a_stop_and_for_a_table_that_is_not_prepared() -> None:
    bench = Bench()
    assert bench.report(wrote(4))
    bench.sync.state.stop_query()
    assert not bench.report(wrote(4))
    bench.query_number = bench.sync.state.start_query()
    assert not bench.report(wrote(4), query=bench.query_number - 1), "an earlier query's"
    assert bench.report(wrote(5))
    bench.sync.state.unprepared = (SchemaHistory((schema(),)),)
    assert not bench.report(wrote(5))


def test_a_backlog_is_over_when_no_task_has_said_for_a_while_that_there_is_more() -> None:
    bench = Bench()
    assert not bench.sync.state.is_behind
    for report in (replace(wrote(4), is_behind=True), wrote(5)):  # another task has nothing more for a moment
        bench.report(report)
        assert bench.sync.state.is_behind
    bench.now_us += int(BEHIND_S * 1_000_000)
    assert not bench.sync.state.is_behind


@pytest.mark.invariant(11)
def test_what_was_written_is_published_after_it_is_readable() -> None:
    bench = Bench(
        reports=[wrote(4, records=4, written=3)], update=[NO_NEWS, NO_NEWS, ControlUpdate((progress(500, 4),), (), ())]
    )
    bench.batch()
    bench.sync.housekeeper.work()
    assert bench.calls[0] == "batch"
    assert [call for call in bench.calls if call != "batch"] == ["readable a", "publish", "publish"]
    record = bench.published[-1]
    assert (record.written, record.stale, record.end_offsets) == (3, 1, {TOPIC: (4,)})
    assert (record.applied_lsn, record.epoch, record.commit_ts_us) == (500, 1, 5)


def test_a_batch_begins_where_the_last_one_ended_readable_or_not() -> None:
    bench = Bench(reports=[wrote(4), wrote(7)])
    bench.batch(3)
    assert bench.starts == [{}, {TOPIC: (4,)}, {TOPIC: (7,)}]


def test_what_tasks_reported_before_one_of_them_failed_is_kept() -> None:
    def fail() -> BatchReport:
        raise SinkError("the store is away", "wait")

    bench = Bench(meanwhile=[wrote(4)], reports=[fail], update=[ControlUpdate((progress(500, 4),), (), ())])
    with pytest.raises(SinkError, match="away"):
        bench.batch()
    assert isinstance(bench.sync.batch_runner.failure, SinkError)
    bench.sync.housekeeper.work()
    assert bench.published[-1].end_offsets == {TOPIC: (4,)}


def test_a_refused_row_is_named_with_its_sink() -> None:
    def refuse() -> BatchReport:
        raise RefusedError("a row of public.a can't be stored", "correct it")

    bench = Bench(reports=[refuse])
    with pytest.raises(RefusedError, match=r"search: a row of public\.a can't be stored") as refused:
        bench.batch()
    assert refused.value.hint == "correct it"


def test_a_schema_that_is_not_there_yet_is_waited_for() -> None:
    """Seen: a row's record was readable before the control record with its schema, and the sink stopped for good."""
    first = schema()
    second = replace(first, version=2, columns=(*first.columns, Column("name", 25, -1, "text", True, "b", 25)))
    unknown = BatchReport(blocked={PARTITION: Blocked(2, "record at …: schema version 2", "", may_follow=True)})
    known = ControlUpdate((), (), (SchemaHistory((first, second)),))
    # Control is read at the beginning of each batch and at its end.
    bench = Bench(reports=[unknown, unknown, unknown, wrote(3)], update=[NO_NEWS] * 5 + [known])
    bench.batch(4)
    assert [call for call in bench.calls if call != "publish"][:6] == [
        *("batch", "batch", "batch", "prepare a 1 2", "learn 1", "batch")
    ]
    assert bench.waited == [SCHEMA_WAIT_S] * 2, "not when it has come"
    assert bench.sync.batch_runner.failure is None


def test_a_schema_that_never_comes_stops_its_table_alone() -> None:
    """Seen: the sink stopped for all of its tables, and began again every half minute."""
    unknown = BatchReport(blocked={PARTITION: Blocked(7, "offset 7: schema version 2", "look", may_follow=True)})
    bench = Bench(reports=[unknown] * 32, update=[ControlUpdate((progress(500, 9),), (), ())])
    bench.batch(28)
    assert bench.published[-1].refused == {} and bench.published[-1].applied_lsn == 0
    bench.batch(4)
    record = bench.published[-1]
    assert (record.applied_lsn, record.owed) == (500, {"public.a": "offset 7: schema version 2"})
    assert (record.refused[TOPIC].places, record.refused[TOPIC].next) == ({0: 7}, "look")
    assert sum(bench.waited) <= SCHEMA_WAIT_S_MAX


def test_a_record_without_a_known_schema_in_a_topic_of_no_table_is_an_error() -> None:
    unknown = BatchReport(blocked={Partition("x", 0): Blocked(7, "no schema record names x", "look", may_follow=True)})
    bench = Bench(reports=[unknown] * 1000)
    with pytest.raises(SinkError, match=f"no schema record names x, for {SCHEMA_WAIT_S_MAX:.0f} s") as lost:
        bench.batch(1000)
    assert lost.value.hint == "look"


def test_a_table_that_is_altered_is_prepared_between_batches() -> None:
    bench = Bench(update=[NO_NEWS, ControlUpdate((), (), (SchemaHistory((schema("b"),)),))])

    def watched() -> BatchReport:
        bench.sync.housekeeper.work()  # by the other thread, while tasks write
        assert not bench.report(wrote(1)), "the tasks are to end"
        return wrote(1)

    bench.reports = [watched, wrote(2)]
    bench.batch(2)
    order = [call for call in bench.calls if call.startswith(("batch", "prepare", "learn"))]
    assert order == ["batch", "prepare b 1", "learn 2", "batch"]
    assert bench.sync.state.topics == {TOPIC, "shop.public.b"}


def test_without_a_batch_the_watching_thread_prepares() -> None:
    bench = Bench(update=[ControlUpdate((), (), (SchemaHistory((schema("b"),)),))])
    bench.sync.housekeeper.work()
    assert "prepare b 1" in bench.calls and "learn 2" in bench.calls
    bench.batch()
    assert bench.calls.count("batch") == 1


@pytest.mark.invariant(11)
def test_a_due_sweep_is_done_before_the_position_is_published() -> None:
    sweep = SweepRecord(table_schema="public", table_name="a", floor=9, as_of_lsn=400, epoch=1)
    bench = Bench(reports=[wrote(1)], update=[ControlUpdate((progress(300, 1), progress(500, 1)), (sweep,), ())])
    bench.batch()
    bench.calls.clear()
    bench.sync.housekeeper.work()
    assert bench.calls[-3:] == ["sweep a 9", "readable a", "publish"]
    assert bench.published[-1].sweeps == {"public.a": 9}
    assert bench.published[-1].applied_lsn == 500


def with_b(*sweeps: SweepRecord) -> ControlUpdate:
    """Table b joins, and is empty: capture's newest position covers it from the beginning."""
    newest = progress(500, 0).model_copy(update={"end_offsets": {TOPIC: (0,), OTHER_TOPIC: (0,)}})
    return ControlUpdate((newest,), sweeps, (SchemaHistory((schema("b"),)),))


@pytest.mark.invariant(11)
def test_an_empty_table_is_prepared_before_its_sweep() -> None:
    """What a busy job reads at once: a table that joined, its sweep, and a position at which the sweep is due."""
    sweep = SweepRecord(table_schema="public", table_name="b", floor=9, as_of_lsn=400, epoch=1)
    bench = Bench(update=[with_b(sweep)])
    bench.sync.housekeeper.work()
    assert "sweep b 9" not in bench.calls and bench.published[-1].applied_lsn == 0
    bench.sync.housekeeper.work()
    assert bench.calls[-3:] == ["sweep b 9", "readable b", "publish"]
    assert bench.published[-1].applied_lsn == 500


@pytest.mark.invariant(11)
def test_a_table_that_joins_may_have_rows_of_former_topics_in_a_store_that_is_filled_in_place() -> None:
    """They must not win against its rows, and are removed before anything of it counts as shown."""
    bench = Bench(update=[with_b(), NO_NEWS], may_hold_more=True)
    bench.sync.housekeeper.work()
    assert [call for call in bench.calls if call.endswith(("reset b", "b 1"))] == ["reset b", "prepare b 1"]
    assert bench.published[-1].applied_lsn == 0
    bench.sync.housekeeper.work()
    assert bench.calls[-3:] == ["sweep b 1", "readable b", "publish"]
    assert (bench.published[-1].applied_lsn, bench.published[-1].sweeps) == (500, {"public.b": 1})
    bench.update = [with_b()]
    bench.sync.housekeeper.work()
    assert bench.calls.count("reset b") == 1


def test_the_store_is_checked_every_few_seconds_and_not_reported_on_when_its_data_was_deleted() -> None:
    bench = Bench()
    bench.sync.housekeeper.work()
    assert "generation" not in bench.calls
    bench.now_us += int(GENERATION_CHECK_S * 1_000_000) + 1
    bench.sync.housekeeper.work()
    assert bench.calls.count("generation") == 1
    bench.now_us += int(GENERATION_CHECK_S * 1_000_000)
    bench.sync.housekeeper.work()
    assert bench.calls.count("generation") == 1, "not before the time is over again"
    bench.now_us += 1
    bench.sink.marker = None
    bench.calls.clear()
    with pytest.raises(SinkError, match="no longer holds generation 1"):
        bench.sync.housekeeper.work()
    assert "publish" not in bench.calls


def test_a_batch_of_a_query_that_was_dismissed_is_not_begun() -> None:
    bench = Bench()
    bench.sync.state.stop_query()
    with pytest.raises(QueryStopped):
        bench.batch()
    bench.sync.state.start_query()
    with pytest.raises(QueryStopped):
        bench.batch()
    assert bench.calls == [] and bench.sync.batch_runner.failure is None


def test_what_a_dismissed_batch_wrote_is_published() -> None:
    bench = Bench()

    def dismissed() -> BatchReport:
        bench.sync.state.stop_query()
        assert not bench.report(BatchReport()), "the tasks are to end"
        return wrote(3)

    bench.reports = [dismissed]
    bench.batch()
    assert bench.published[-1].end_offsets == {TOPIC: (3,)}
    with pytest.raises(QueryStopped):
        bench.batch()


def test_what_did_not_change_is_published_once() -> None:
    bench = Bench(update=[ControlUpdate((progress(500, 0),), (), ())])
    bench.sync.housekeeper.work()
    bench.sync.housekeeper.work()
    assert bench.calls.count("publish") == 1
    assert (bench.published[-1].applied_lsn, bench.sync.state.published.lsn) == (500, 500)


def test_the_beginning_of_a_generation_is_published() -> None:
    """So that a waiter waits for it, and not for the last one."""
    bench = Bench()
    (first,) = bench.published
    # An earlier job may have been killed between a write and making it readable.
    assert bench.begun == ("prepare a 1", "learn 1", "readable a", "publish")
    assert (first.generation, first.applied_lsn, first.end_offsets) == (1, 0, {})


def test_the_first_position_owes_a_table_that_can_not_be_read() -> None:
    """A waiter would be answered before the first batch looks for the topics."""
    (first,) = Bench(missing={TOPIC}).published
    assert first.owed == {"public.a": f"topic {TOPIC} does not exist"}


def test_the_watching_thread_is_woken_when_something_was_written() -> None:
    bench = Bench()
    assert (bench.sync.state.has_new_writes.is_set(), bench.sync.state.report_count) == (False, 0)
    bench.sync.state.add_report(BatchReport(), {})
    assert not bench.sync.state.has_new_writes.is_set()
    bench.sync.state.add_report(wrote(1), {})
    assert (bench.sync.state.has_new_writes.is_set(), bench.sync.state.report_count) == (True, 1)
    bench.sync.housekeeper.work()
    assert not bench.sync.state.has_new_writes.is_set()


def test_a_partition_without_records_begins_at_its_first() -> None:
    bench = Bench(reports=[BatchReport({TOPIC: {2: 7}}, records=1, written=1)])
    bench.batch()
    assert bench.published[-1].end_offsets == {TOPIC: (0, 0, 7)}


@pytest.mark.parametrize("other", [(4, "a"), (3, "n")])
def test_a_job_that_was_overtaken_stops(other: tuple[int, str]) -> None:
    bench = Bench()
    bench.sinks["sink/search/1"] = bench.published[-1].model_copy(update={"job": other})
    with pytest.raises(RefusedError, match=f"another job writes to this store now .job {other[0]}"):
        bench.sync.housekeeper.work()


def test_a_job_that_was_overtaken_during_a_batch_publishes_nothing() -> None:
    """Its process was stopped, and the later job's position may be far ahead."""
    bench = Bench(reports=[wrote(1)] * 20)
    bench.sinks["sink/search/1"] = bench.published[-1].model_copy(update={"job": (4, "a")})
    published = len(bench.published)
    with pytest.raises(RefusedError, match="another job writes to this store now"):
        bench.batch()
    assert len(bench.published) == published


@pytest.mark.parametrize(("late", "lsn", "end"), [((400, 3), 500, 4), ((600, 9), 600, 9)])
def test_what_an_earlier_job_published_late_is_published_over_and_adopted_where_it_is_ahead(
    late: tuple[int, int], lsn: int, end: int
) -> None:
    """It was stopped between looking for a later job and publishing; on an idle system nothing else would follow."""
    bench = Bench(update=[ControlUpdate((progress(500, 4),), (), ())], reports=[wrote(4)])
    bench.batch()
    fields = {"job": (2, "z"), "applied_lsn": late[0], "end_offsets": {TOPIC: (late[1],)}, "sweeps": {"a.b": 3}}
    bench.sinks["sink/search/1"] = bench.published[-1].model_copy(update=fields)
    bench.sync.housekeeper.work()
    record = bench.sinks["sink/search/1"]
    assert (record.job, record.applied_lsn, record.end_offsets) == (JOB, lsn, {TOPIC: (end,)})
    assert record.sweeps == {"a.b": 3}
    bench.batch()
    assert bench.starts[-1] == {TOPIC: (end,)}


def test_a_job_that_has_overtaken_another_goes_on() -> None:
    bench = Bench()
    bench.sinks["sink/search/1"] = bench.published[-1].model_copy(update={"job": (2, "z")})
    bench.sync.housekeeper.work()


def with_topic(record: ProgressRecord, incarnation: str = ID, **fields: object) -> ProgressRecord:
    return record.model_copy(update={"history": "h", "incarnations": {TOPIC: incarnation}, **fields})


def test_a_topic_that_was_created_again_is_read_from_its_beginning_and_covers_nothing_before() -> None:
    """Seen: 60 of 200 live rows were deleted by the sweep of the heal, and waits were answered at once."""
    sweep = SweepRecord(table_schema="public", table_name="a", floor=9, as_of_lsn=400, epoch=2)
    healed = with_topic(progress(500, 3), "id2", epoch=2)
    bench = Bench(reports=[wrote(60)], update=[ControlUpdate((with_topic(progress(300, 60)),), (), ())])
    bench.batch()
    assert (bench.published[-1].applied_lsn, bench.published[-1].incarnations) == (300, {TOPIC: ID})
    bench.update = [ControlUpdate((healed,), (sweep,), ())]
    bench.calls.clear()
    bench.sync.housekeeper.work()
    assert "sweep a 9" not in bench.calls, "the new topic's rows are not there yet"
    record = bench.published[-1]
    assert (record.applied_lsn, record.epoch, record.end_offsets) == (300, 1, {})
    bench.topic_id, bench.topic_ends, bench.reports = "id2", 3, [wrote(3)]
    bench.batch()
    assert bench.starts[-1] == {}, "read from the beginning"
    bench.sync.housekeeper.work()
    assert "sweep a 9" in bench.calls
    assert (bench.published[-1].applied_lsn, bench.published[-1].epoch) == (500, 2)


def test_work_on_a_topic_that_was_created_again_meanwhile_does_not_count() -> None:
    bench = Bench(update=[ControlUpdate((with_topic(progress(300, 0)),), (), ())])
    went_on: list[bool] = []

    def read_meanwhile() -> BatchReport:
        bench.update = [ControlUpdate((with_topic(progress(500, 50), "id2"),), (), ())]
        bench.sync.housekeeper.work()
        went_on.append(bench.report(wrote(50)))
        bench.topic_id = "id2"
        return wrote(60)

    bench.sync.housekeeper.work()
    bench.reports = [wrote(2), read_meanwhile]
    bench.batch(2)
    assert went_on == [False], "tasks end, and begin again at the new topic's beginning"
    assert bench.published[-1].end_offsets == {} and bench.published[-1].applied_lsn == 300


def test_a_topic_that_lost_records_is_read_from_its_beginning() -> None:
    bench = Bench(reports=[wrote(60)], update=[ControlUpdate((with_topic(progress(300, 60)),), (), ())])
    bench.batch()
    bench.has_lost_records, bench.topic_ends = True, 40
    bench.starts.clear()
    bench.reports = [wrote(40)]
    bench.batch()
    assert bench.starts[0] == {}
    assert bench.published[-1].end_offsets == {TOPIC: (40,)}


def test_a_topic_that_tasks_can_not_read_on_is_read_from_its_beginning() -> None:
    lost = BatchReport(lost={TOPIC: "records that were not read yet are gone"})
    bench = Bench(reports=[wrote(60), lost, wrote(5)])
    bench.batch(3)
    assert bench.starts[1:3] == [{TOPIC: (60,)}, {}]
    assert bench.published[-1].end_offsets == {TOPIC: (5,)}


@pytest.mark.parametrize("trouble", ["missing", "another"])
def test_a_topic_in_trouble_concerns_its_own_table(trouble: str) -> None:
    bench = Bench(update=[ControlUpdate((with_topic(progress(300, 0)),), (), (SchemaHistory((schema("b"),)),))])
    bench.sync.housekeeper.work()
    bench.batch()
    if trouble == "missing":
        bench.missing = {TOPIC}
    else:
        bench.topic_id = "id2"
    bench.batch()
    assert bench.sync.state.topics == {OTHER_TOPIC}
    (reason,) = bench.published[-1].owed.values()
    assert bench.published[-1].owed.keys() == {"public.a"} and TOPIC in reason
    bench.missing, bench.topic_id = set(), ID
    bench.batch()
    assert bench.sync.state.topics == {TOPIC, OTHER_TOPIC} and bench.published[-1].owed == {}


def test_what_is_owed_is_published_until_it_is_covered() -> None:
    owing = with_topic(progress(300, 1), owed={"public.a": "its initial snapshot is running"})
    bench = Bench(reports=[wrote(1)], update=[ControlUpdate((owing,), (), ())])
    bench.batch()
    assert bench.published[-1].owed == {"public.a": "its initial snapshot is running"}
    assert bench.published[-1].applied_lsn == 300
    bench.update = [ControlUpdate((with_topic(progress(300, 7)),), (), ())]
    bench.sync.housekeeper.work()
    assert bench.published[-1].owed == {"public.a": "its initial snapshot is running"}, "published, not applied"
    bench.reports = [wrote(7)]
    bench.batch()
    assert bench.published[-1].owed == {}


def test_the_position_is_noted_in_the_store_before_it_is_published() -> None:
    bench = Bench(reports=[wrote(4)], update=[ControlUpdate((with_topic(progress(500, 4)),), (), ())])
    saved: list[str | None] = []

    def publish(record: SinkRecord) -> None:
        saved.append(bench.sink.text)
        bench._publish(record)

    bench.publish_record = publish
    bench.batch()
    assert saved == [record.encode().decode() for record in bench.published[1:]]


def test_a_store_that_lost_its_last_writes_is_not_reported_on() -> None:
    bench = Bench(reports=[wrote(4)], update=[ControlUpdate((with_topic(progress(500, 4)),), (), ())])
    before = bench.sink.text
    bench.batch()
    bench.sink.text = before  # it failed over to a replica that lacks the last writes
    bench.now_us += int(GENERATION_CHECK_S * 1_000_000) + 1
    bench.calls.clear()
    with pytest.raises(SinkError, match="the store may have lost its last writes"):
        bench.sync.housekeeper.work()
    assert "publish" not in bench.calls


@pytest.mark.parametrize("trouble", ["missing", "another", "lost records"])
def test_a_batch_ends_when_it_reads_a_topic_that_has_gone(trouble: str) -> None:
    bench = Bench(is_live=True, reports=[wrote(60)], update=[ControlUpdate((with_topic(progress(300, 60)),), (), ())])
    bench.batch(2)
    bench.missing = {TOPIC} if trouble == "missing" else set()
    bench.topic_id = "id2" if trouble == "another" else ID
    bench.has_lost_records, bench.topic_ends = trouble == "lost records", 40
    bench.sync.housekeeper.work()
    assert bench.report(BatchReport()), "it was looked for a moment ago"
    bench.now_us += int(GENERATION_CHECK_S * 1_000_000) + 1
    bench.sync.housekeeper.work()
    assert not bench.report(BatchReport())
    bench.batch()  # it ends, and the next one does not read the topic, or from its beginning
    assert bench.report(BatchReport()) == (trouble != "lost records")
    assert bench.report(BatchReport(), dict(bench.position.invalidations))


def test_brokers_that_do_not_answer_do_not_end_the_job() -> None:
    bench = Bench(is_live=True, reports=[wrote(60)])
    bench.batch()
    bench.now_us += int(GENERATION_CHECK_S * 1_000_000) + 1
    with mock.patch.object(bench, "find_topics", side_effect=UnreachableError("the brokers do not answer", "wait")):
        bench.sync.housekeeper.work()
    assert bench.published[-1].end_offsets == {TOPIC: (60,)} and bench.sync.state.topics == {TOPIC}


def test_a_new_history_of_topics_ends_the_job() -> None:
    bench = Bench(update=[ControlUpdate((with_topic(progress(300, 0)),), (), ())])
    bench.sync.housekeeper.work()
    bench.update = [ControlUpdate((with_topic(progress(100, 0), history="other"),), (), ())]
    with pytest.raises(SinkError, match="capture has begun again with new topics"):
        bench.sync.housekeeper.work()


def test_a_refresh_that_fails_is_repeated_before_its_position_is_published() -> None:
    """Seen: the set of written tables was emptied first, so the next position was published without a refresh."""
    bench = Bench(reports=[wrote(4)], update=[NO_NEWS, ControlUpdate((progress(500, 4),), (), ())])

    def fail(_: Collection[TableId]) -> None:
        raise SinkError("the store is away", "wait")

    bench.sink.make_readable = fail  # type: ignore
    with pytest.raises(SinkError, match="away"):
        bench.batch()
    del bench.sink.make_readable
    bench.calls.clear()
    bench.sync.housekeeper.work()
    assert [call for call in bench.calls if call != "generation"] == ["readable a", "publish"]
    assert bench.published[-1].end_offsets == {TOPIC: (4,)}


def test_a_report_whose_task_began_behind_what_is_written_does_not_count() -> None:
    """The topic was found void after the batch had been planned: records between may not be written."""
    bench = Bench(reports=[wrote(4)])
    bench.batch()
    later = BatchReport({TOPIC: {0: 9}}, {TOPIC: {0: 6}}, records=3, written=3)
    assert not bench.report(later), "the batch is planned again"
    bench.sync.housekeeper.work()
    assert bench.published[-1].end_offsets == {TOPIC: (4,)}
    assert bench.report(replace(later, start_offsets={TOPIC: {0: 4}}))
    bench.sync.housekeeper.work()
    assert bench.published[-1].end_offsets == {TOPIC: (9,)}


def test_a_batch_ends_when_there_are_partitions_that_it_does_not_read() -> None:
    bench = Bench()
    bench.batch()
    assert bench.report(BatchReport())
    grown = progress(500, 0).model_copy(update={"end_offsets": {TOPIC: (0, 3)}})
    bench.update = [ControlUpdate((grown,), (), ())]
    bench.sync.housekeeper.work()
    assert not bench.report(BatchReport())
