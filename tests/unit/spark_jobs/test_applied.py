"""Applied positions: small cases by hand, then every interleaving of a small world against the definition."""

from collections.abc import Iterator, Mapping
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.events import TableId
from cdc.model.sink_records import SinkRecord
from spark_jobs.applied import (
    BUILT_AGAIN,
    NOTHING,
    PENDING_MAX,
    Applied,
    AppliedPosition,
    FoundTopic,
    Offsets,
    covers,
    max_offsets,
)


def progress(lsn: int, epoch: int = 1, **ends: tuple[int, ...]) -> ProgressRecord:
    return ProgressRecord(epoch=epoch, seq=0, lsn=lsn, commit_ts_us=lsn * 10, published_ts_us=0, end_offsets=ends)


def sweep(as_of: int, floor: int, epoch: int = 1, table: str = "t") -> SweepRecord:
    return SweepRecord(table_schema="public", table_name=table, floor=floor, as_of_lsn=as_of, epoch=epoch)


def published(
    lsn: int, ends: Offsets, sweeps: Mapping[str, int] | None = None, incarnations: Mapping[str, str] | None = None
) -> SinkRecord:
    return SinkRecord(
        sink="search",
        generation=1,
        end_offsets=dict(ends),
        applied_lsn=lsn,
        epoch=1,
        commit_ts_us=lsn * 10,
        applied_ts_us=0,
        sweeps=dict(sweeps or {}),
        written=0,
        stale=0,
        incarnations=dict(incarnations or {}),
    )


def test_offsets_cover_what_lies_below_them() -> None:
    assert covers({"t": (3, 4)}, {"t": (3, 4)})
    assert covers({"t": (5, 4), "u": (1,)}, {"t": (3, 4)})
    assert not covers({"t": (5, 3)}, {"t": (3, 4)})
    assert not covers({"t": (5,)}, {"t": (3, 4)})
    assert not covers({}, {"t": (1,)})


def test_an_empty_partition_is_covered_unseen() -> None:
    """A table that was just created has no records, and the query may not know it yet."""
    assert covers({}, {"t": (0, 0)})
    assert covers({"t": (1,)}, {"t": (1, 0)})


def test_furthest_takes_the_greater_offset_of_each_partition() -> None:
    assert max_offsets({"t": (3, 1), "u": (9,)}, {"t": (2, 5, 7), "v": (1,)}) == {"t": (3, 5, 7), "u": (9,), "v": (1,)}


def test_a_partition_that_is_not_known_is_at_its_beginning() -> None:
    assert max_offsets({"t": (0,)}, {"t": (0, 0)}) == {"t": (0, 0)}
    assert max_offsets({"t": (0, 0)}, {"t": (0,)}) == {"t": (0, 0)}


def test_the_position_of_a_record_is_taken_as_a_whole() -> None:
    record = published(100, {"t": (5,)}, {"public.t": 7}, {"t": "a"})
    record = record.model_copy(update={"owed": {"public.t": "it"}, "history": "h", "shown": {"t": "a"}})
    position = AppliedPosition.of(record)
    assert (position.applied, position.published) == (Applied(1, 100, 1000), Applied(1, 100, 1000))
    assert (position.offsets, position.written, position.sweeps) == ({"t": (5,)}, {"t": (5,)}, {"public.t": 7})
    assert (position.incarnations, position.owed) == ({"t": "a"}, {"public.t": "it"})
    assert (position.history, position.shown) == ("h", {"t": "a"})


def test_an_adopted_position_is_taken_where_it_is_further_and_its_sweeps_are_done() -> None:
    position = AppliedPosition({"t": (5, 9)}, {"public.u": 7}, Applied(1, 100, 1000))
    position.add_published([progress(150, t=(6, 9))], [sweep(120, 30), sweep(140, 40)])
    position.adopt(published(130, {"t": (6, 8)}, {"public.t": 30, "public.u": 4}))
    assert position.offsets == {"t": (6, 9)} and position.sweeps == {"public.t": 30, "public.u": 7}
    assert position.applied == Applied(1, 130, 1300), "150 waits for the other sweep"
    assert position.due_sweeps() == [sweep(140, 40)]
    position.adopt(published(90, {"t": (1, 1)}, {"public.v": 0}))
    assert position.applied == Applied(1, 130, 1300) and position.offsets == {"t": (6, 9)}
    assert position.sweeps == {"public.t": 30, "public.u": 7, "public.v": 0}, "former rows of v are still there"


def test_sweeps_that_another_job_has_done_are_not_due_and_hold_nothing() -> None:
    position = AppliedPosition({"t": (5,)}, applied=Applied(1, 100, 1000))
    position.add_published([progress(150, t=(5,))], [sweep(120, 30), sweep(140, 40), sweep(140, 50, table="u")])
    position.adopt(published(100, {"t": (5,)}, {"public.t": 40, "public.u": 49}))
    assert position.due_sweeps() == [sweep(140, 50, table="u")]
    position.adopt(published(100, {"t": (5,)}, {"public.u": 50}))
    assert position.due_sweeps() == [] and position.applied == Applied(1, 150, 1500)


def test_nothing_is_applied_before_anything_is_known() -> None:
    position = AppliedPosition()
    position.mark_readable({"t": (10,)})
    assert position.applied == NOTHING


def test_the_largest_covered_lsn_is_applied() -> None:
    position = AppliedPosition()
    position.add_published([progress(100, t=(1,)), progress(200, t=(2,)), progress(300, t=(3,))], [])
    assert position.applied == NOTHING
    position.mark_readable({"t": (2,)})
    assert position.applied == Applied(1, 200, 2000)
    position.mark_readable({"t": (3,)})
    assert position.applied.lsn == 300


def test_offsets_that_are_reached_first_count_when_the_record_comes() -> None:
    position = AppliedPosition()
    position.mark_readable({"t": (5,)})
    position.add_published([progress(100, t=(4,))], [])
    assert position.applied.lsn == 100


def test_every_partition_of_every_topic_counts() -> None:
    position = AppliedPosition()
    position.add_published([progress(100, t=(1, 1), u=(1,))], [])
    for offsets in ({"t": (1, 0), "u": (1,)}, {"t": (0, 1)}):
        position.mark_readable(offsets)
    assert position.applied.lsn == 100
    other = AppliedPosition()
    other.add_published([progress(100, t=(1, 1), u=(1,))], [])
    other.mark_readable({"t": (1, 1)})
    assert other.applied == NOTHING


@pytest.mark.invariant(11)
def test_applied_never_passes_an_unfinished_sweep() -> None:
    position = AppliedPosition()
    wanted = sweep(as_of=150, floor=7)
    position.add_published([progress(100, t=(1,)), progress(150, t=(2,)), progress(200, t=(3,))], [wanted])
    assert position.due_sweeps() == []
    position.mark_readable({"t": (1,)})
    assert (position.applied.lsn, position.due_sweeps()) == (100, [])
    position.mark_readable({"t": (3,)})
    assert (position.applied.lsn, position.due_sweeps()) == (100, [wanted])
    position.finish(wanted)
    assert (position.applied.lsn, position.due_sweeps()) == (200, [])
    assert position.sweeps == {"public.t": 7}


def test_a_jump_over_a_sweep_stops_at_the_last_position_before_it() -> None:
    position = AppliedPosition()
    position.add_published(
        [progress(100, t=(1,)), progress(140, t=(2,)), progress(200, t=(3,))], [sweep(as_of=150, floor=7)]
    )
    position.mark_readable({"t": (3,)})
    assert position.applied.lsn == 140


def test_a_sweep_that_was_finished_before_is_not_due_again() -> None:
    position = AppliedPosition(offsets={"t": (1,)}, sweeps={"public.t": 7}, applied=Applied(1, 100, 0))
    position.add_published([progress(200, t=(1,))], [sweep(as_of=150, floor=7)])
    assert (position.applied.lsn, position.due_sweeps()) == (200, [])


def test_a_later_sweep_of_the_same_table_is_due_by_itself() -> None:
    position = AppliedPosition(sweeps={"public.t": 7})
    later = sweep(as_of=150, floor=9)
    position.add_published([progress(200, t=(1,))], [later])
    position.mark_readable({"t": (1,)})
    assert position.due_sweeps() == [later]


def test_of_each_tables_sweeps_only_the_highest_is_due_and_it_finishes_the_lower() -> None:
    """A sink that catches up meets every TRUNCATE since; to do each is to read the store through for each."""
    position = AppliedPosition()
    low, high, other = sweep(100, 5), sweep(100, 9), sweep(100, 7, table="u")
    position.add_published([progress(200, t=(1,))], [high, low, other])
    position.mark_readable({"t": (1,)})
    assert position.due_sweeps() == [other, high]
    position.finish(high)
    assert position.due_sweeps() == [other]


def test_a_sweep_does_not_wait_for_a_higher_one_whose_position_is_not_reached() -> None:
    position = AppliedPosition()
    low, high = sweep(100, 5), sweep(300, 9)
    position.add_published([progress(200, t=(1,)), progress(300, t=(2,))], [low, high])
    position.mark_readable({"t": (1,)})
    assert position.due_sweeps() == [low]
    position.finish(low)
    position.mark_readable({"t": (2,)})
    assert position.due_sweeps() == [high]


def test_a_new_epoch_is_later_whatever_its_lsn() -> None:
    """After a failover or a restore LSNs may be lower than before."""
    position = AppliedPosition()
    position.add_published([progress(900, t=(1,)), progress(50, epoch=2, t=(2,))], [sweep(as_of=40, floor=7, epoch=2)])
    position.mark_readable({"t": (1,)})
    assert position.applied[:2] == (1, 900)
    position.mark_readable({"t": (2,)})
    (due,) = position.due_sweeps()
    assert position.applied[:2] == (1, 900)
    position.finish(due)
    assert position.applied[:2] == (2, 50)


def test_offsets_of_a_topic_that_was_made_anew_do_not_hold_up_what_came_later() -> None:
    position = AppliedPosition()
    position.add_published([progress(100, t=(1000,)), progress(200, epoch=2, t=(5,))], [])
    position.mark_readable({"t": (5,)})
    assert position.applied[:2] == (2, 200)


def test_a_long_backlog_is_thinned_and_its_end_is_kept() -> None:
    position = AppliedPosition()
    last = PENDING_MAX * 5
    for lsn in range(1, last + 1):
        position.add_published([progress(lsn, t=(lsn,))], [])
    assert len(position._pending) <= PENDING_MAX
    position.mark_readable({"t": (last // 2,)})
    assert last // 2 - last // 50 <= position.applied.lsn <= last // 2
    position.mark_readable({"t": (last,)})
    assert position.applied.lsn == last and position._pending == []


def test_the_last_progress_record_is_kept_whenever_others_are_left_out() -> None:
    for count in (PENDING_MAX + 1, PENDING_MAX + 2, 4 * PENDING_MAX + 3):
        position = AppliedPosition()
        position.add_published([progress(lsn, t=(lsn,)) for lsn in range(1, count + 1)], [])
        assert len(position._pending) <= PENDING_MAX
        position.mark_readable({"t": (count,)})
        assert position.applied.lsn == count


# ---- every interleaving


def _truth(offsets: Offsets, records: list[ProgressRecord], open_sweeps: list[SweepRecord]) -> tuple[int, int]:
    """The definition: the largest LSN whose offsets are covered, and as of which no sweep is unfinished."""
    applied = (0, 0)
    for record in records:
        at = (record.epoch, record.lsn)
        if covers(offsets, record.end_offsets) and all((s.epoch, s.as_of_lsn) > at for s in open_sweeps):
            applied = max(applied, at)
    return applied


@pytest.mark.invariant(11)
def test_every_interleaving_of_a_small_world_ends_at_the_definition() -> None:
    records = [progress(100, t=(1,)), progress(200, t=(2,)), progress(10, epoch=2, t=(3,))]
    wanted = sweep(as_of=150, floor=7)
    for order in permutations(("learn", "one", "two", "three")):
        position = AppliedPosition()
        offsets: Offsets = {}
        known: list[ProgressRecord] = []
        for step in order:
            match step:
                case "learn":
                    position.add_published(records, [wanted])
                    known = records
                case name:
                    offsets = max_offsets(offsets, {"t": ({"one": 1, "two": 2, "three": 3}[name],)})
                    position.mark_readable(offsets)
            expected = _truth(offsets, known, [wanted])
            assert position.applied[:2] == expected, order
        assert position.applied[:2] == (1, 100)
        for due in position.due_sweeps():
            position.finish(due)
        assert position.applied[:2] == (2, 10), order


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[list[ProgressRecord], list[SweepRecord], list[Offsets]]:
    """Records in order of time, sweeps at any of their positions, batches that end anywhere."""
    lsn, epoch, ends = 0, 1, [0, 0]
    records = []
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.integers(0, 5)) == 0:
            epoch, lsn = epoch + 1, 0
        lsn += draw(st.integers(1, 3))
        ends = [end + draw(st.integers(0, 2)) for end in ends]
        records.append(progress(lsn, epoch, t=tuple(ends)))
    sweeps = [
        sweep(
            as_of=draw(st.integers(0, 10)),
            floor=floor,
            epoch=draw(st.integers(1, epoch)),
            table=draw(st.sampled_from("tu")),
        )
        for floor in range(1, 1 + draw(st.integers(0, 3)))
    ]
    steps = [{"t": (draw(st.integers(0, ends[0] + 1)), draw(st.integers(0, ends[1] + 1)))} for _ in range(5)]
    return records, sweeps, [*steps, {"t": tuple(ends)}]


@settings(deadline=None)
@given(_worlds(), st.randoms(use_true_random=False))
@pytest.mark.invariant(11)
def test_in_any_order_the_position_is_the_definitions(
    environment: tuple[list[ProgressRecord], list[SweepRecord], list[Offsets]], random: object
) -> None:
    """Progress comes in order, and a sweep before any record that reaches it; batches and finishing come whenever."""
    records, sweeps, steps = environment
    position = AppliedPosition()
    unfinished = {sweep.floor: sweep for sweep in sweeps}
    offsets: Offsets = {}
    known: list[ProgressRecord] = []
    best = (0, 0)
    position.add_published([], sweeps)
    for event in _shuffled(records, steps, random):
        match event:
            case ProgressRecord():
                position.add_published([event], [])
                known.append(event)
            case None:
                for due in position.due_sweeps():
                    position.finish(due)
                    for floor in [f for f, s in unfinished.items() if s.table == due.table and f <= due.floor]:
                        del unfinished[floor]
            case ends:
                position.mark_readable(ends)
                offsets = max_offsets(offsets, ends)
        # What was said stays said: positions known before a sweep was finished are not forgotten.
        best = max(best, _truth(offsets, known, list(unfinished.values())))
        assert position.applied[:2] <= best
        covered = max(((r.epoch, r.lsn) for r in known if covers(offsets, r.end_offsets)), default=(0, 0))
        if all((s.epoch, s.as_of_lsn) > covered for s in unfinished.values()):
            assert position.applied[:2] == max(best, covered)
    while position.due_sweeps():
        position.finish(position.due_sweeps()[0])
    assert position.applied[:2] == max((r.epoch, r.lsn) for r in records)


def _shuffled(
    records: list[ProgressRecord], steps: list[Offsets], random: object
) -> Iterator[ProgressRecord | Offsets | None]:
    events: list[ProgressRecord | Offsets | None] = [*steps, None, None]
    random.shuffle(events)  # type: ignore[attr-defined]
    places = sorted(random.randrange(len(events) + 1) for _ in records)  # type: ignore[attr-defined]
    for place, record in zip(reversed(places), reversed(records), strict=True):
        events.insert(place, record)
    yield from events


# ---- identity, and what is owed


def of_topic(lsn: int, end: int, incarnation: str, owes: str = "") -> ProgressRecord:
    owed = {"public.t": owes} if owes else {}
    record = progress(lsn, t=(end,))
    return record.model_copy(update={"incarnations": {"t": incarnation}, "history": "h", "owed": owed})


def test_offsets_of_a_former_incarnation_cover_nothing() -> None:
    position = AppliedPosition.of(published(100, {"t": (60,), "u": (5,)}, incarnations={"t": "a", "u": "b"}))
    position.add_published([of_topic(200, 20, "a#2")], [])
    assert position.offsets == position.written == {"u": (5,)} and position.applied.lsn == 100
    position.mark_readable({"t": (20,)})
    assert position.applied.lsn == 200


def test_offsets_of_an_unknown_incarnation_cover_nothing() -> None:
    """Of a record that does not name it."""
    position = AppliedPosition.of(published(100, {"t": (60,)}))
    position.add_published([of_topic(200, 20, "a")], [])
    assert position.offsets == position.written == {} and position.invalidations == {"t": 1}
    fresh = AppliedPosition()
    fresh.add_published([of_topic(200, 20, "a")], [])
    assert fresh.invalidations == {}, "nothing of it was read"


def test_progress_of_a_former_incarnation_is_not_reached_by_offsets_of_the_new_one() -> None:
    position = AppliedPosition()
    position.add_published([of_topic(100, 60, "a")], [])
    position.add_published([of_topic(90, 70, "b")], [])
    position.mark_readable({"t": (65,)})
    assert position.applied == NOTHING
    position.mark_readable({"t": (70,)})
    assert position.applied.lsn == 90


def test_the_history_is_that_of_the_newest_progress_record_that_names_one() -> None:
    position = AppliedPosition(history="former")
    position.add_published([progress(100, t=(1,))], [])
    assert position.history == "former"
    position.add_published([of_topic(200, 1, "a")], [])
    assert position.history == "h"


def test_older_progress_records_do_not_void_the_position_of_a_restarted_job() -> None:
    position = AppliedPosition.of(published(100, {"t": (20,)}, incarnations={"t": "b"}))
    position.add_published([of_topic(50, 60, "a"), of_topic(100, 20, "b")], [])
    assert position.offsets == {"t": (20,)}


def test_offsets_of_work_that_began_before_a_topic_was_void_are_ignored() -> None:
    position = AppliedPosition()
    position.add_published([of_topic(100, 60, "a")], [])
    invalidations = dict(position.invalidations)
    position.add_published([of_topic(200, 20, "b")], [])
    assert position.mark_written({"t": (60,)}, invalidations)
    position.mark_readable({"t": (60,)}, invalidations)
    assert position.written == {} and position.offsets == {}
    assert position.mark_written({"t": (7,)}, dict(position.invalidations))
    assert position.written == {"t": (7,)} and position.offsets == {}
    position.mark_readable({"t": (6,), "u": (1,)}, dict(position.invalidations))
    assert position.written == {"t": (7,), "u": (1,)} and position.offsets == {"t": (6,), "u": (1,)}


def test_work_that_began_behind_what_is_written_does_not_count() -> None:
    """Records between may be missing: of a batch that was planned with a position that is void by now."""
    position = AppliedPosition({"t": (20, 30)})
    assert not position.mark_written({"t": (50, 40)}, {}, {"t": (21, 30)})
    assert position.written == {"t": (20, 40)}, "each partition for itself"
    assert position.mark_written({"t": (50, 0)}, {}, {"t": (20,)}), "it began where the earlier work has ended"
    assert position.written == {"t": (50, 40)}
    assert position.mark_written({"t": (60, 70)}, {}, {"t": (10, 35)}), "or before"
    assert position.written == {"t": (60, 70)}
    assert position.mark_written({"t": (55,)}, {}, {"t": (10,)})
    assert position.written == {"t": (60, 70)}, "it never goes back"


def test_work_on_what_was_not_known_counts_from_the_first_record_on() -> None:
    position = AppliedPosition({"t": (20,)})
    assert not position.mark_written({"t": (0, 9), "u": (9,)}, {}, {"t": (0, 1), "u": (3,)})
    assert position.written == {"t": (20, 0), "u": (0,)}
    assert position.mark_written({"t": (0, 9), "u": (9,)}, {}, {"t": (0, 0), "u": (0,)})
    assert position.written == {"t": (20, 9), "u": (9,)}


def test_offsets_of_a_void_topic_are_ignored_and_are_no_gap() -> None:
    position = AppliedPosition({"t": (20,), "u": (1,)})
    invalidations = dict(position.invalidations)
    position.invalidate("t")
    assert position.mark_written({"t": (50,), "u": (2,)}, invalidations, {"t": (20,), "u": (1,)})
    assert position.written == {"u": (2,)}


def test_the_partitions_are_those_that_capture_has_published_last() -> None:
    position = AppliedPosition()
    position.add_published([progress(100, t=(1,)), progress(200, t=(1, 0), u=(3,))], [])
    assert position.partition_counts == {"t": 2, "u": 1}


def test_the_topic_that_the_brokers_have_must_be_the_published_one() -> None:
    position = AppliedPosition()
    assert position.check_topic("t", FoundTopic("a", (9,), (0,))) is None, "nothing was published yet"
    position.add_published([of_topic(100, 60, "a#7").model_copy(update={"starts": {"t": (20,)}})], [])
    assert position.check_topic("t", FoundTopic("a", (60,), (20,))) is None, "capture knows that it does not begin at 0"
    assert position.check_topic("t", FoundTopic("a", (60,), (21,))) is not None
    assert "another one" in (position.check_topic("t", FoundTopic("b", (60,))) or "")
    position.mark_readable({"t": (60,)})
    assert position.check_topic("t", FoundTopic("a", (60,), (0,))) is None
    assert position.offsets == {"t": (60,)}, "it goes on"
    assert position.check_topic("t", FoundTopic("a", (59,))) is None, "it is readable"
    assert position.offsets == {}, "but from the beginning"
    position.mark_readable({"t": (60, 5)})
    position.check_topic("t", FoundTopic("a", (99, 4)))
    assert position.offsets == {}, "one partition has lost a record"


def test_work_that_went_on_while_the_brokers_were_asked_is_no_loss() -> None:
    """Seen by reading: ends that were asked for before a task's report made the topic's offsets void."""
    position = AppliedPosition()
    position.add_published([of_topic(100, 60, "a")], [])
    position.mark_written({"t": (70, 3)}, {})
    assert position.check_topic("t", FoundTopic("a", (60, 3), (0, 0)), (60, 3)) is None
    assert position.written == {"t": (70, 3)}
    position.check_topic("t", FoundTopic("a", (59, 3), (0, 0)), (60, 3))
    assert position.written == {}, "a record that was written before is gone"


def test_records_that_were_deleted_before_they_were_read_are_not_jumped_over() -> None:
    position = AppliedPosition()
    position.add_published([of_topic(100, 60, "a")], [])
    assert "were deleted before they were read" in (position.check_topic("t", FoundTopic("a", (60,), (20,))) or "")
    assert position.check_topic("t", FoundTopic("a", (60,), (1,))) is not None, "one"
    assert position.check_topic("t", FoundTopic("a", (60, 5), (0, 1))) is not None, "of another partition"
    position.mark_readable({"t": (20,)})
    assert position.check_topic("t", FoundTopic("a", (60,), (20,))) is None, "all of them were read"


def test_an_adopted_position_of_another_incarnation_brings_no_offsets() -> None:
    position = AppliedPosition()
    position.add_published([of_topic(200, 20, "b")], [])
    position.adopt(published(100, {"t": (60,)}, incarnations={"t": "a"}))
    assert position.offsets == {} and position.applied.lsn == 100


def test_rows_are_owed_until_a_later_progress_record_is_covered() -> None:
    position = AppliedPosition()
    position.add_published([of_topic(100, 1, "a", "snapshot")], [])
    position.mark_readable({"t": (1,)})
    assert position.owed == {"public.t": "snapshot"}
    position.add_published([of_topic(100, 5, "a")], [])
    assert position.owed == {"public.t": "snapshot"}, "its rows are published, and not in the store"
    position.mark_readable({"t": (5,)})
    assert position.owed == {}


def test_rows_stay_owed_while_a_sweep_is_due() -> None:
    position = AppliedPosition()
    position.add_published([of_topic(100, 1, "a", "snapshot"), of_topic(150, 5, "a")], [sweep(120, 30)])
    position.mark_readable({"t": (5,)})
    assert position.owed == {"public.t": "snapshot"}
    position.finish(sweep(120, 30))
    assert position.owed == {} and position.applied.lsn == 150


def test_what_was_owed_at_a_restart_is_owed_until_what_was_published_then_is_covered() -> None:
    """Records in between may have been compacted."""
    restarted = published(100, {"t": (1,)}, incarnations={"t": "a"}).model_copy(update={"owed": {"public.t": "it"}})
    position = AppliedPosition.of(restarted)
    position.add_published([of_topic(50, 0, "a"), of_topic(200, 9, "a")], [])
    assert position.owed == {"public.t": "it"}, "the covered record is an older one"
    position.mark_readable({"t": (9,)})
    assert position.owed == {}


def test_what_was_owed_is_paid_by_a_progress_record_of_the_same_position() -> None:
    """An idle source has no later one."""
    restarted = published(100, {"t": (1,)}, incarnations={"t": "a"}).model_copy(update={"owed": {"public.t": "it"}})
    position = AppliedPosition.of(restarted)
    position.add_published([of_topic(100, 9, "a")], [])
    assert position.owed == {"public.t": "it"}, "its rows are published, and not in the store"
    position.mark_readable({"t": (9,)})
    assert position.owed == {}


def test_what_was_owed_is_paid_by_the_newest_progress_record_of_those_that_come_together() -> None:
    restarted = published(100, {"t": (1,)}, incarnations={"t": "a"}).model_copy(update={"owed": {"public.t": "it"}})
    position = AppliedPosition.of(restarted)
    position.add_published([of_topic(100, 5, "a", "it"), of_topic(200, 9, "a")], [])
    position.mark_readable({"t": (8,)})
    assert position.owed == {"public.t": "it"}
    position.mark_readable({"t": (9,)})
    assert position.owed == {}


def test_a_generation_that_must_be_built_again_owes_rows_for_ever() -> None:
    reason = f"{BUILT_AGAIN}too old"
    last = published(50, {"t": (1,)}, incarnations={"t": "a"}).model_copy(update={"owed": {"public.t": reason}})
    position = AppliedPosition.of(last)
    position.add_published([of_topic(200, 2, "a", "snapshot"), of_topic(300, 2, "a")], [])
    position.mark_readable({"t": (2,)})
    assert position.owed == {"public.t": reason} and position.applied.lsn == 300


def test_what_was_owed_is_not_paid_by_an_older_progress_record() -> None:
    """Of brokers that were restored from an older copy."""
    last = published(100, {"t": (9,)}, incarnations={"t": "a"}).model_copy(update={"owed": {"public.t": "it"}})
    position = AppliedPosition.of(last)
    position.add_published([of_topic(50, 5, "a")], [])
    assert position.owed == {"public.t": "it"}
    position.add_published([of_topic(120, 9, "a")], [])
    assert position.owed == {}


def test_the_topics_of_the_applied_position_are_known() -> None:
    """A table that is added is not shown by a position of before."""
    position = AppliedPosition()
    both = of_topic(200, 1, "a").model_copy(
        update={"incarnations": {"t": "a", "u": "b"}, "end_offsets": {"t": (1,), "u": (2,)}}
    )
    position.add_published([of_topic(100, 1, "a"), both], [])
    position.mark_readable({"t": (1,)})
    assert (position.applied.lsn, position.shown) == (100, {"t": "a"})
    position.mark_readable({"u": (2,)})
    assert (position.applied.lsn, position.shown) == (200, {"t": "a", "u": "b"})


def test_a_sweep_that_compaction_removed_holds_the_position() -> None:
    """Seen: of two TRUNCATEs control keeps the second; the position passed the first, whose rows were still there."""
    second = sweep(300, 40).model_copy(update={"previous_floor": 20})
    position = AppliedPosition(sweeps={"public.t": 10})
    position.add_published([of_topic(200, 5, "a")], [second])
    position.mark_readable({"t": (5,)})
    assert position.applied == NOTHING, "the first one may belong to an LSN below 200"
    position.add_published([of_topic(400, 6, "a")], [])
    position.mark_readable({"t": (6,)})
    assert position.due_sweeps() == [second]
    position.finish(second)
    assert position.applied.lsn == 400


def test_a_sweep_after_a_known_one_does_not_hold_the_position() -> None:
    second = sweep(300, 40).model_copy(update={"previous_floor": 20})
    for known in (AppliedPosition(sweeps={"public.t": 20}), AppliedPosition()):
        known.add_published([], [sweep(100, 20)])
        known.add_published([of_topic(50, 5, "a")], [second])
        known.mark_readable({"t": (5,)})
        assert known.applied.lsn == 50


def test_rows_at_version_0_are_removed_when_what_was_published_is_there() -> None:
    position = AppliedPosition(sweeps={"public.t": 0})
    position.add_published([of_topic(100, 5, "a")], [])
    assert position.due_sweeps() == []
    position.mark_readable({"t": (5,)})
    (removal,) = position.due_sweeps()
    assert (removal.table, removal.floor, removal.previous_floor) == (TableId("public", "t"), 1, 0)
    assert position.applied == NOTHING
    position.finish(removal)
    assert position.applied.lsn == 100 and position.sweeps == {"public.t": 1}


def test_nothing_is_applied_while_rows_at_version_0_may_be_there() -> None:
    """Positions from before their removal included."""
    position = AppliedPosition(sweeps={"public.t": 0})
    position.add_published([of_topic(100, 5, "a"), of_topic(200, 9, "a")], [])
    position.mark_readable({"t": (5,)})
    assert position.due_sweeps() == [] and position.applied == NOTHING
    position.mark_readable({"t": (9,)})
    (removal,) = position.due_sweeps()
    position.finish(removal)
    assert position.applied.lsn == 200


def cut(lsn: int, epoch: int = 1, **ends: tuple[int, ...]) -> ProgressRecord:
    return progress(lsn, epoch, **ends).model_copy(update={"is_cut": True})


def lsn_of(position: AppliedPosition) -> int | None:
    return None if position.cut is None else position.cut.lsn


def test_the_next_cut_is_the_newest_one_when_the_one_before_is_reached() -> None:
    position, topics = AppliedPosition(), ["t", "u"]
    position.add_published([progress(50, t=(1,), u=(1,))], ())
    position.choose_cut(topics)
    assert lsn_of(position) is None
    position.add_published([cut(100, t=(2,), u=(1,)), cut(200, t=(3,), u=(1,)), progress(250, t=(4,), u=(1,))], ())
    position.choose_cut(topics)
    assert lsn_of(position) == 200
    position.add_published([cut(300, t=(5,), u=(2,))], ())
    position.mark_written({"t": (3,)}, {})
    position.choose_cut(topics)
    assert lsn_of(position) == 200 and not position.is_at_cut(topics)
    position.mark_written({"t": (3,), "u": (1,)}, {})
    assert position.is_at_cut(topics)
    position.choose_cut(topics)
    assert lsn_of(position) == 300
    position.mark_written({"t": (5,), "u": (3,)}, {})
    assert not position.is_at_cut(topics), "beyond it is not at it"
    position.choose_cut(topics)
    assert lsn_of(position) == 300, "none is known that lies beyond"


def test_a_topic_that_can_not_be_read_holds_no_other_up() -> None:
    position = AppliedPosition()
    position.add_published([cut(100, t=(2,), u=(1,))], ())
    position.choose_cut(["t"])
    position.mark_written({"t": (2,)}, {})
    assert position.is_at_cut(["t"])
    position.add_published([cut(200, t=(3,), u=(1,))], ())
    position.choose_cut(["t"])
    assert lsn_of(position) == 200
    assert position.applied.lsn == 0, "but its rows are not applied"


def test_a_cut_of_a_former_incarnation_is_none() -> None:
    position = AppliedPosition({"t": (1,)}, incarnations={"t": "a"})
    former = cut(100, t=(5,)).model_copy(update={"incarnations": {"t": "a"}})
    position.add_published([former], ())
    position.choose_cut(["t"])
    assert lsn_of(position) == 100
    position.add_published([progress(200, t=(1,)).model_copy(update={"incarnations": {"t": "b"}})], ())
    assert lsn_of(position) is None
    position.choose_cut(["t"])
    assert lsn_of(position) is None


def test_no_cut_is_below_what_the_store_may_have() -> None:
    position = AppliedPosition({"t": (3,)}, cut_offsets={"t": (5,)})
    for lsn, end in ((100, 2), (200, 4)):
        position.add_published([cut(lsn, t=(end,))], ())
        position.choose_cut(["t"])
        assert lsn_of(position) is None
    position.add_published([cut(300, t=(5,))], ())
    position.choose_cut(["t"])
    assert lsn_of(position) == 300


@pytest.mark.parametrize("incarnations", [{"t": "a"}, {}])
def test_a_topic_that_was_created_again_does_not_need_the_offsets_of_its_former_log(
    incarnations: dict[str, str],
) -> None:
    """They may never be reached: the topic of a large table that was republished is shorter than it was. Of a topic of
    which nothing was read yet, the position has no incarnation."""
    offsets = {"t": (900,), "u": (3,)} if incarnations else {"u": (3,)}
    position = AppliedPosition(offsets, incarnations=incarnations, cut_offsets={"t": (1_000,), "u": (3,)})
    again = cut(200, t=(10,), u=(3,)).model_copy(update={"incarnations": {"t": "b"}})
    position.add_published([again], ())
    position.choose_cut(["t", "u"])
    assert lsn_of(position) == 200
    position = AppliedPosition({"t": (900,)}, incarnations={"t": "a"}, cut_offsets={"t": (1_000,)})
    position.check_topic("t", FoundTopic("a", (7,)))  # it has lost records
    position.add_published([cut(300, t=(8,))], ())
    position.choose_cut(["t"])
    assert lsn_of(position) == 300


def test_a_cut_in_use_is_not_thinned_out() -> None:
    """Else sweeps as of its LSN would not be due where the store is at it."""
    position = AppliedPosition()
    position.add_published([progress(1, t=(1,)), cut(2, t=(2,))], ())
    position.choose_cut(["t"])
    position.add_published([progress(lsn, t=(lsn,)) for lsn in range(3, 4 * PENDING_MAX)], [sweep(2, 7)])
    assert len(position._pending) <= PENDING_MAX + 2
    position.mark_readable({"t": (2,)})
    assert [each.floor for each in position.due_sweeps()] == [7]


def test_a_copy_changes_nothing() -> None:
    position = AppliedPosition()
    position.add_published([cut(10, t=(2,))], [sweep(10, 5)])
    made = position.copy()
    made.mark_readable({"t": (2,)})
    for each in made.due_sweeps():
        made.finish(each)
    made.invalidate("t")
    assert (made.applied.lsn, position.applied.lsn) == (10, 0)
    assert (position.offsets, position.written, position.sweeps, position.invalidations) == ({}, {}, {}, {})
    position.mark_readable({"t": (2,)})
    assert [each.floor for each in position.due_sweeps()] == [5]
