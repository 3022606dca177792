"""A record that can't be read stops its table: the position goes on without the topic, until the topic was read on."""

import json
from collections.abc import Mapping
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.sink_records import RefusedTopic, SinkRecord
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import BUILT_AGAIN, UNREAD_FOR_LONG, AppliedPosition, FoundTopic
from spark_jobs.batches import BatchReport
from spark_jobs.building import Builder
from spark_jobs.control_reader import ControlUpdate
from spark_jobs.source.piece import PieceRecord
from spark_jobs.starting import must_be_built_again, of_tables
from spark_jobs.sync import SinkSync
from spark_jobs.sync_state import TRY_S_FIRST, TRY_S_MAX
from spark_jobs.task_report import Blocked
from tests.unit.spark_jobs.records import PARTITION, TOPIC, schema
from tests.unit.spark_jobs.source.test_sink_plan import OTHER_TOPIC, World, plan, position, world  # noqa: F401
from tests.unit.spark_jobs.test_cuts import A, B, Store, cut, store, transfers  # noqa: F401
from tests.unit.spark_jobs.test_sync import Bench

FOREIGN = RefusedTopic(table="public.t", reason="not a change record", next="mend it", places={0: 5}, is_left_out=True)


def progress(lsn: int, **ends: int) -> ProgressRecord:
    found = {topic: (end,) for topic, end in ends.items()}
    return ProgressRecord(epoch=1, seq=0, lsn=lsn, commit_ts_us=5, published_ts_us=0, end_offsets=found)


def sweep(as_of: int, floor: int, table: str) -> SweepRecord:
    return SweepRecord(table_schema="public", table_name=table, floor=floor, as_of_lsn=as_of, epoch=1)


def refused_at_5() -> AppliedPosition:
    """Topic t has a foreign record at offset 5; topic u goes on, and both tables have a sweep."""
    applied = AppliedPosition()
    applied.add_published([progress(100, t=5, u=5)], ())
    applied.mark_readable({"t": (5,), "u": (5,)})
    applied.add_published([progress(200, t=9, u=9)], [sweep(150, 7, "t"), sweep(150, 7, "u")])
    applied.refuse("t", FOREIGN)
    return applied


# ---- the position


def test_a_refused_topic_holds_up_no_other_and_its_table_is_owed_and_not_swept() -> None:
    applied = refused_at_5()
    assert applied.applied.lsn == 100
    applied.mark_readable({"u": (9,)})
    (due,) = applied.due_sweeps()
    assert due.table.name == "u" and applied.applied.lsn == 100, "the other table's sweep comes first"
    applied.finish(due)
    assert (applied.applied.lsn, applied.owed) == (200, {"public.t": "not a change record"})
    assert applied.due_sweeps() == [] and applied.refused["t"].owed_ends == (9,)


def test_what_was_passed_over_stays_owed_until_it_is_read_and_swept() -> None:
    applied = refused_at_5()
    applied.mark_readable({"u": (9,)})
    applied.finish(applied.due_sweeps()[0])
    applied.read_again("t")
    applied.mark_readable({"t": (8,)})
    assert applied.due_sweeps() == [] and applied.owed, "one record is not there yet"
    applied.mark_readable({"t": (9,)})
    (due,) = applied.due_sweeps()
    assert (due.table.name, applied.owed) == ("t", {"public.t": "not a change record"})
    applied.finish(due)
    assert (applied.owed, applied.refused, applied.applied.lsn) == ({}, {}, 200)
    applied.add_published([progress(300, t=12, u=9)], ())
    assert applied.applied.lsn == 200, "the topic counts again"
    applied.mark_readable({"t": (12,)})
    assert applied.applied.lsn == 300


def test_a_topic_is_not_taken_for_mended_before_it_is_read_past_its_record() -> None:
    """Nothing was published since: the store has everything up to the position, and the record is still there."""
    applied = AppliedPosition()
    applied.add_published([progress(100, t=5)], ())
    applied.mark_readable({"t": (5,)})
    applied.refuse("t", FOREIGN)
    applied.read_again("t")
    applied.mark_readable({"t": (5,)})
    assert applied.refused
    applied.mark_readable({"t": (6,)})
    assert not applied.refused


def test_a_job_that_starts_again_knows_what_is_owed() -> None:
    before = refused_at_5()
    before.mark_readable({"u": (9,)})
    before.finish(before.due_sweeps()[0])
    record = position(before.offsets, incarnations={"t": ""}).model_copy(
        update={"applied_lsn": 200, "sweeps": before.sweeps, "refused": before.refused, "owed": before.owed}
    )
    after = AppliedPosition.of(SinkRecord.decode(record.encode(), "the store"))
    after.read_again("t")
    after.add_published([progress(200, t=9, u=9), progress(300, t=9, u=12)], [sweep(150, 7, "t"), sweep(150, 7, "u")])
    assert (after.due_sweeps(), after.owed) == ([], {"public.t": "not a change record"})
    after.mark_readable({"u": (12,)})
    assert after.applied.lsn == 300, "the other tables go on before the record is met again"
    after.mark_readable({"t": (9,)})
    assert [due.table.name for due in after.due_sweeps()] == ["t"]


def test_a_topic_that_was_created_again_is_read_from_its_beginning_before_its_table_is_no_more_owed() -> None:
    def published(lsn: int, end: int, incarnation: str) -> ProgressRecord:
        return progress(lsn, t=end).model_copy(update={"incarnations": {"t": incarnation}})

    applied = AppliedPosition()
    applied.add_published([published(100, 9, "a")], ())
    applied.mark_readable({"t": (5,)})
    applied.refuse("t", FOREIGN)
    assert applied.applied.lsn == 100
    applied.add_published([published(200, 3, "b")], ())
    assert applied.offsets == {} and not applied.refused["t"].is_left_out
    assert "created again" in applied.owed["public.t"]
    applied.mark_readable({"t": (2,)})
    assert applied.owed
    applied.mark_readable({"t": (3,)})
    assert (applied.owed, applied.applied.lsn) == ({}, 200)


def test_a_table_that_is_captured_no_more_is_not_owed() -> None:
    applied = refused_at_5()
    applied.add_published([progress(300, u=9)], ())
    applied.mark_readable({"u": (9,)})
    assert applied.owed == {}
    assert [due.table.name for due in applied.due_sweeps()] == ["u"], "the rows of the other one stay as they are"


def test_a_record_that_was_deleted_is_no_lost_record() -> None:
    applied = refused_at_5()
    applied.incarnations["t"] = "id"
    assert applied.check_topic("t", FoundTopic("id", (9,), (6,))) is None
    assert "were deleted before they were read" in (applied.check_topic("t", FoundTopic("id", (9,), (7,))) or "")


def test_another_jobs_refusals_are_adopted_with_its_position() -> None:
    applied = AppliedPosition()
    record = position({"t": (5,), "u": (9,)}).model_copy(update={"applied_lsn": 200, "refused": {"t": FOREIGN}})
    applied.adopt(record)
    assert applied.owed == {"public.t": "not a change record"} and not applied.refused["t"].is_left_out


@pytest.mark.parametrize("seed", range(200))
def test_in_any_order_nothing_is_claimed_early(seed: int) -> None:
    """Whatever is read, refused, tried again and published, in random order: a table that is not owed was read and
    swept up to the position, and no table is swept before."""
    random, applied = Random(seed), AppliedPosition()
    ends, held, swept = {"t": 0, "u": 0}, {"t": 0, "u": 0}, dict[str, int]()
    floors = dict[tuple[str, int], int]()  # (table, floor) → as of which LSN
    needed = dict[int, dict[str, int]]()
    for lsn in range(1, 60):
        match random.randrange(6):
            case 0 | 1:
                ends = {topic: end + random.randrange(3) for topic, end in ends.items()}
                sweeps = [sweep(lsn, lsn, table) for table in "tu" if random.random() < 0.2]
                floors |= {(one.table.name, one.floor): lsn for one in sweeps}
                needed[lsn] = dict(ends)
                applied.add_published([progress(lsn, **ends)], sweeps)
            case 2 | 3:
                topic = random.choice("tu")
                left_out = applied.refused.get(topic)
                if left_out is None or not left_out.is_left_out:
                    held[topic] = random.randint(held[topic], ends[topic])
                    applied.mark_readable({topic: (held[topic],)})
            case 4:
                topic = random.choice("tu")
                applied.refuse(topic, replace_at(topic, held[topic]))
            case _:
                for topic in applied.refused:
                    applied.read_again(topic)
        for due in applied.due_sweeps():
            name = due.table.name
            assert all(held[name] >= some[name] for at, some in needed.items() if at <= floors[name, due.floor])
            if random.random() < 0.7:
                applied.finish(due)
                swept[name] = due.floor
        at = needed.get(applied.applied.lsn, {"t": 0, "u": 0})
        for name in {"t", "u"} - {table.removeprefix("public.") for table in applied.owed}:
            assert held[name] >= at[name], (lsn, name)
            missing = {floor for (table, floor), of in floors.items() if table == name and of <= applied.applied.lsn}
            assert max(missing, default=0) <= swept.get(name, 0), (lsn, name)
    for topic in list(applied.refused):
        applied.read_again(topic)
    applied.add_published([progress(100, **{topic: end + 1 for topic, end in ends.items()})], ())
    applied.mark_readable({topic: (end + 1,) for topic, end in ends.items()})
    for due in applied.due_sweeps():
        applied.finish(due)
    assert (applied.owed, applied.applied.lsn) == ({}, 100)


def replace_at(topic: str, offset: int) -> RefusedTopic:
    return FOREIGN.model_copy(update={"table": f"public.{topic}", "places": {0: offset}})


def test_a_part_of_the_tables_has_its_refusals() -> None:
    record = position({TOPIC: (5,)}).model_copy(update={"refused": {TOPIC: FOREIGN, OTHER_TOPIC: FOREIGN}})
    assert of_tables(record, {"public.a": TOPIC}).refused.keys() == {TOPIC}


# ---- the job


def blocked(offset: int, reason: str = "not a change record", end: int | None = None) -> BatchReport:
    report = BatchReport({TOPIC: {0: offset if end is None else end}}, records=1, written=1)
    report.blocked = {PARTITION: Blocked(offset, reason, "mend it")}
    return report


class TwoTables(Bench):
    """Table a's topic has a foreign record at offset 4; table b goes on."""

    start_offset = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.update = [ControlUpdate((self.at(500, 9, 3),), (), (SchemaHistory((schema("b"),)),))]

    def at(self, lsn: int, end: int, other: int) -> ProgressRecord:
        ends = {TOPIC: (end,), OTHER_TOPIC: (other,)}
        return ProgressRecord(epoch=1, seq=0, lsn=lsn, commit_ts_us=5, published_ts_us=0, end_offsets=ends)

    def find_topics(self) -> Mapping[str, FoundTopic]:
        return {
            TOPIC: FoundTopic("id1", (100,), (self.start_offset,)),
            OTHER_TOPIC: FoundTopic("b", (100,), (0,)),
        }

    def wait(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)
        self.sync.housekeeper.work()


def wrote_b(end: int) -> BatchReport:
    return BatchReport({OTHER_TOPIC: {0: end}}, records=1, written=1)


def test_one_foreign_record_stops_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Seen: it stopped the sink for good, with all of its tables."""
    bench = TwoTables(reports=[blocked(4), wrote_b(3), wrote_b(6)])
    bench.batch(2)
    record = bench.published[-1]
    assert (record.applied_lsn, record.end_offsets) == (500, {TOPIC: (4,), OTHER_TOPIC: (3,)})
    assert record.owed == {"public.a": "not a change record"}
    refused = record.refused[TOPIC]
    assert (refused.table, refused.places) == ("public.a", {0: 4})
    assert refused.next.startswith("mend it; then delete") and "cdc table start public.a" in refused.next
    assert (refused.owed_ends, refused.is_left_out) == ((9,), True)
    assert bench.sync.state.topics == {OTHER_TOPIC}
    bench.update = [ControlUpdate((bench.at(600, 9, 6),), (), ())]
    bench.batch()
    assert bench.published[-1].applied_lsn == 600 and bench.published[-1].owed
    assert capsys.readouterr().out.count("table is not read on") == 1


def test_a_refused_topic_is_tried_again_after_pauses_that_grow() -> None:
    bench = TwoTables(reports=[blocked(4), wrote_b(3)])
    bench.batch(2)
    tried, began = list[float](), bench.now_us
    for _ in range(2000):
        bench.wait(3.1)
        if TOPIC in bench.sync.state.topics:
            tried.append((bench.now_us - began) / 1_000_000)
            began = bench.now_us
            assert not bench.report(wrote_b(3)), "the batch that leaves it out ends"
            bench.reports = [blocked(4), wrote_b(3)]
            bench.batch(2)
    pauses = [pause - TRY_S_FIRST * 2**number for number, pause in enumerate(tried[:5])]
    assert all(-3 < late < 5 for late in pauses), tried
    assert max(tried) < TRY_S_MAX + 5 and len(tried) < 20


def test_it_is_read_on_at_once_when_the_record_was_deleted() -> None:
    bench = TwoTables(reports=[blocked(4), wrote_b(3)])
    bench.batch(2)
    bench.start_offset = 5
    bench.wait(3.1)
    assert bench.sync.state.topics == {TOPIC, OTHER_TOPIC} and not bench.published[-1].refused[TOPIC].is_left_out
    assert bench.published[-1].owed == {"public.a": "not a change record"}, "it is not read yet"
    bench.reports = [BatchReport({TOPIC: {0: 9}}, {TOPIC: {0: 4}}, records=4, written=4)]
    bench.batch()
    assert (bench.published[-1].owed, bench.published[-1].refused) == ({}, {})


def test_a_job_that_starts_again_reads_the_topic_at_once() -> None:
    bench = TwoTables()
    sync = SinkSync(bench.environment, AppliedPosition(refused={TOPIC: FOREIGN}))
    sync.housekeeper.begin([SchemaHistory((schema(),)), SchemaHistory((schema("b"),))])
    assert sync.state.topics == {TOPIC, OTHER_TOPIC}
    assert (bench.published[-1].owed, bench.published[-1].refused[TOPIC].is_left_out) == (
        {"public.t": "not a change record"},
        False,
    )


def test_a_topic_that_was_not_read_for_long_may_lack_deletes() -> None:
    """Its records' tombstones may be compacted away: only a new filling shows which rows are gone."""
    bench = TwoTables(reports=[blocked(4), wrote_b(3)])
    bench.sync.state._unread_s_max = 1000.0
    bench.batch(2)
    bench.wait(1001)
    bench.reports = [BatchReport({TOPIC: {0: 9}}, {TOPIC: {0: 4}}, records=4, written=4)]
    bench.batch()
    assert bench.published[-1].owed == {"public.a": BUILT_AGAIN + UNREAD_FOR_LONG}
    assert must_be_built_again(bench.published[-1])


def test_a_topic_that_was_created_again_meanwhile_is_not_refused_for_its_former_records() -> None:
    bench = TwoTables()

    def other_topic() -> BatchReport:
        ids = {TOPIC: "id2"}
        bench.update = [ControlUpdate((bench.at(500, 9, 3).model_copy(update={"incarnations": ids}),), (), ())]
        bench.sync.housekeeper.work()
        return blocked(4)

    first = bench.at(400, 0, 0).model_copy(update={"incarnations": {TOPIC: "id1"}})
    bench.update = [ControlUpdate((first,), (), ()), *bench.update]
    bench.reports = [BatchReport({TOPIC: {0: 2}}), other_topic]
    bench.batch(2)
    assert bench.sync.state.refused == {}


def test_the_planner_leaves_out_what_is_refused_until_it_is_tried_again(world: World) -> None:  # noqa: F811
    refused = FOREIGN.model_copy(update={"table": "public.a"})
    record = position({TOPIC: (5,)}).model_copy(update={"refused": {TOPIC: refused}})
    assert plan(world, record).start_offsets == {OTHER_TOPIC: (0, 0)}
    again = record.model_copy(update={"refused": {TOPIC: refused.model_copy(update={"is_left_out": False})}})
    assert plan(world, again).start_offsets == {TOPIC: (5,), OTHER_TOPIC: (0, 0)}


@pytest.mark.promise(2)
def test_a_generation_without_a_part_of_a_table_waits_and_says_so() -> None:
    builder, said = cast("Any", Builder.__new__(Builder)), list[tuple[str, str]]()
    builder.name, builder._refusal, builder._on_failure = "search", "", lambda *what: said.append(what)
    sync = SimpleNamespace(state=SimpleNamespace(refused={TOPIC: FOREIGN}))
    assert not builder._has_all_tables(sync) and not builder._has_all_tables(sync)
    assert said == [("it waits for public.t: not a change record", "mend it")]
    sync.state.refused = {}
    assert builder._has_all_tables(sync)


# ---- a transactional sink


def foreign() -> PieceRecord:
    return PieceRecord(0, 0, json.dumps({"id": 1}).encode(), b"[]", 1)


def test_a_foreign_record_stops_one_table_of_a_sink_that_goes_from_cut_to_cut(store: Store) -> None:  # noqa: F811
    transfers(store, 3)
    store.log[A].insert(1, foreign())
    store.publish(cut(100, 3, 2))
    store.batch()
    assert store.rows() == {"a": [(1, 99)], "b": [(1, 102)]}
    record = store.published[-1]
    assert (record.applied_lsn, record.end_offsets) == (100, {A: (1,), B: (2,)})
    assert "public.a" in record.owed and record.refused[A].places == {0: 1}
    store.publish(cut(200, 4, 3))
    store.batch()
    assert store.rows() == {"a": [(1, 99)], "b": [(1, 103)]}
    assert (store.saved().applied_lsn, store.saved().refused[A].owed_ends) == (200, (4,))
    # Compaction has removed the record: the topic is read on.
    store.log[A][1] = replace(store.log[A][2])
    store.sync.state.position.read_again(A)
    store.sync.housekeeper.control.find_topics()
    store.publish()
    store.batch()
    assert store.rows() == {"a": [(1, 97)], "b": [(1, 103)]}
    assert (store.published[-1].owed, store.published[-1].end_offsets) == ({}, {A: (4,), B: (3,)})


def test_a_batch_that_does_not_end_at_its_cut_leaves_out_what_it_found_to_be_foreign(store: Store) -> None:  # noqa: F811
    transfers(store, 3)
    store.log[A].insert(0, foreign())
    store.publish(cut(100, 3, 2))
    store.ends = {A: 2, B: 1}
    store.batch()
    assert store.rows() == {"a": [], "b": []} and store.published[-1].refused[A].places == {0: 0}
