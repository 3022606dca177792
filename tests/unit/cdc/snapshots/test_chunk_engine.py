"""Which rows of a chunk are published, when, and what a restart finds. Schedules at random: tests/models."""

import json
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.model.control import RangeRecord
from cdc.model.errors import SourceError
from cdc.model.events import TableId, pack_version
from cdc.ports.chunk_reader import BarrierPassed, Chunk, DescribeTable, ReadFailed, TableDescribed, TransactionBarrier
from cdc.snapshots.ranges import RETRY_S
from tests.unit.cdc.capture.loops import SCHEMA
from tests.unit.cdc.snapshots.loops import Beside, rows, snapshot, states, sweeps, wanted


def beside_begun(*, seq: int = 0, keys_max: int = 1_000, **limits: Any) -> Beside:
    """Barrier passed, table described: the next request is a chunk."""
    made = Beside(wanted(), seq=seq, keys_max=keys_max, **limits)
    made.pass_barrier(snapshot(50))
    made.begin(snapshot(60))
    return made


# ---- what comes first


def test_nothing_is_asked_or_remembered_without_a_snapshot() -> None:
    made = Beside(wanted(status="done"))
    assert not made.engine.is_active
    assert made.asks() == []
    assert not made.engine.begin(10, 1)


def test_a_fence_comes_before_all_and_everything_is_remembered_from_then_on() -> None:
    made = Beside(wanted())
    assert made.engine.begin(10, 1)
    (barrier,) = made.asks()
    assert isinstance(barrier, TransactionBarrier)
    assert made.asks() == []
    assert made.engine.waits_for
    made.engine.take([BarrierPassed("another", snapshot(20))], made.now)
    assert made.asks() == []
    made.engine.take([BarrierPassed(barrier.nonce, snapshot(20))], made.now)
    assert isinstance(made.ask(), DescribeTable)
    assert not made.engine.waits_for


def test_chunks_wait_for_the_mark_of_the_beginning() -> None:
    made = Beside(wanted())
    made.pass_barrier(snapshot(50))
    begin = made.ask()
    assert isinstance(begin, DescribeTable) and begin.ranges == made.engine.limits.workers > 1
    assert made.asks() == []
    made.engine.take([TableDescribed(begin.nonce, snapshot(60), "shape", 10, 20, (), "order")], made.now)
    assert made.asks() == []
    made.transaction(900, watermarks=[begin.nonce])
    chunk = made.ask()
    assert isinstance(chunk, Chunk)
    assert (chunk.schema, chunk.fingerprint, chunk.after, chunk.up_to, chunk.where) == (
        SCHEMA,
        "shape",
        None,
        None,
        None,
    )


# ---- which rows


def test_rows_are_published_at_their_mark_with_the_next_versions_and_a_cursor() -> None:
    made = beside_begun(seq=7)
    nonce = made.read(made.ask(), snapshot(70), 1, 2)
    assert made.transaction(80, 9) == []
    records = made.transaction(901, watermarks=[nonce])
    assert rows(records) == [1, 2]
    value = json.loads(records[0].value or b"")
    assert value["op"] == "r"
    assert value["after"] == {"id": 1, "name": "x"}
    source = value["source"]
    assert (source["snapshot"], source["seq"], source["commit_lsn"], source["tx_index"]) == (
        "incremental",
        9,
        made.lsn,
        0,
    )
    (state,) = states(records)
    assert (state.status, state.rows, state.ranges) == ("running", 2, (RangeRecord(after=("2",), up_to=None),))
    assert made.seq == 10


def test_a_row_is_dropped_for_an_event_from_before_its_chunk_that_its_snapshot_does_not_see() -> None:
    """Decodable and not yet visible: the rule that looks only between two marks publishes the old row."""
    made = beside_begun()
    made.transaction(65, 2)  # received before the chunk is read
    nonce = made.read(made.ask(), snapshot(70, 65), 1, 2, 3)
    assert rows(made.transaction(901, watermarks=[nonce])) == [1, 3]


def test_a_row_stays_for_an_event_that_its_snapshot_sees() -> None:
    made = beside_begun()
    made.transaction(65, 2)
    nonce = made.read(made.ask(), snapshot(70), 1, 2)
    made.transaction(66, 1)  # arrives after the chunk was read, and was seen by it
    assert rows(made.transaction(901, watermarks=[nonce])) == [1, 2]


def test_a_row_is_dropped_for_an_event_between_reading_and_mark() -> None:
    made = beside_begun()
    nonce = made.read(made.ask(), snapshot(70), 1, 2)
    made.transaction(75, 1)
    assert rows(made.transaction(901, watermarks=[nonce])) == [2]


def test_all_rows_are_dropped_for_a_truncate_that_the_chunk_does_not_see() -> None:
    made = beside_begun()
    nonce = made.read(made.ask(), snapshot(70), 1, 2)
    made.transaction(75, truncates=True)
    assert rows(made.transaction(901, watermarks=[nonce])) == []


def test_events_stay_remembered_while_a_chunk_is_open_that_does_not_see_them() -> None:
    made = beside_begun()
    first = made.read(made.ask(), snapshot(70, 65), 1, 2)
    made.transaction(65, 3, 4)
    second = made.read(made.ask(), snapshot(71, 65), 3)
    assert rows(made.transaction(901, watermarks=[first])) == [1, 2]
    third = made.ask()
    assert rows(made.transaction(902, watermarks=[second])) == []
    assert rows(made.transaction(903, watermarks=[made.read(third, snapshot(72, 65), 4, 5)])) == [5]


def test_a_chunk_is_read_again_when_too_much_was_touched_to_remember() -> None:
    made = beside_begun(keys_max=5)
    nonce = made.read(made.ask(), snapshot(70), 1, 2)
    made.transaction(75, *range(100, 120))
    assert made.transaction(901, watermarks=[nonce]) == []
    assert made.asks() == []  # not at once
    made.now += 1
    again = made.ask()
    assert isinstance(again, Chunk)
    assert again.after is None
    assert rows(made.transaction(902, watermarks=[made.read(again, snapshot(80), 1, 2)])) == [1, 2]


def test_marks_of_others_mean_nothing() -> None:
    made = beside_begun()
    nonce = made.read(made.ask(), snapshot(70), 1)
    assert made.transaction(80, watermarks=["n99", "\xff", ""]) == []
    assert rows(made.transaction(901, watermarks=[nonce])) == [1]
    assert made.transaction(902, watermarks=[nonce]) == []


# ---- several chunks


def test_a_range_is_read_ahead_by_one_chunk_and_merged_in_key_order() -> None:
    made = beside_begun()
    first = made.read(made.ask(), snapshot(70), 1, 2)
    ahead = made.ask()
    assert isinstance(ahead, Chunk)
    assert ahead.after == ("2",)
    second = made.read(ahead, snapshot(71), 3, is_end=True)
    assert made.asks() == []
    assert made.transaction(901, watermarks=[second]) == []  # its mark may come first
    records = made.transaction(902, watermarks=[first])
    assert rows(records) == [1, 2, 3]
    assert [state.status for state in states(records)] == ["running", "done"]


def test_what_was_read_ahead_of_a_chunk_that_is_read_again_is_read_again() -> None:
    made = beside_begun(keys_max=5)
    first = made.read(made.ask(), snapshot(70), 1, 2)
    second = made.read(made.ask(), snapshot(90), 3)
    made.transaction(75, *range(100, 120))
    assert made.transaction(901, watermarks=[first]) == []
    assert made.transaction(902, watermarks=[second]) == []
    made.now += 1
    again = made.ask()
    assert isinstance(again, Chunk)
    assert again.after is None


def test_ranges_are_read_by_as_many_workers_as_there_are() -> None:
    made = Beside(wanted(), workers=2)
    made.pass_barrier(snapshot(50))
    made.begin(snapshot(60), ("10",), ("20",))
    chunks = made.asks()
    assert [(chunk.after, chunk.up_to) for chunk in chunks if isinstance(chunk, Chunk)] == [
        (None, ("10",)),
        (("10",), ("20",)),
    ]
    nonces = [made.read(chunks[0], snapshot(70), 1, is_end=True), made.read(chunks[1], snapshot(70), 11, is_end=True)]
    (third,) = made.asks()
    nonces.append(made.read(third, snapshot(70), is_end=True))
    records = made.transaction(901, watermarks=nonces)
    assert rows(records) == [1, 11]
    assert states(records)[-1].status == "done"


def test_the_stream_comes_first() -> None:
    made = beside_begun()
    assert made.asks(is_behind=True) == []
    assert isinstance(made.ask(), Chunk)


def test_chunks_that_wait_long_for_their_merge_are_followed_by_smaller_ones() -> None:
    made = beside_begun()
    nonce = made.read(made.ask(), snapshot(70), *range(1, 1_001))
    made.now += 5.01
    assert made.asks(is_behind=True) == []
    made.transaction(901, watermarks=[nonce])
    smaller = made.ask()
    assert isinstance(smaller, Chunk)
    assert smaller.rows_max == pytest.approx(50, abs=1)


def test_rows_per_second_are_limited() -> None:
    made = beside_begun(rows_per_s_max=100.0, chunk_rows_max=50)
    made.read(made.ask(), snapshot(70), 1)
    made.now += 0.4
    assert made.asks() == []
    made.now += 0.2
    assert isinstance(made.ask(), Chunk)


# ---- the end


def finished(made: Beside) -> list[tuple[int, int]]:
    """Read the rest in one chunk; the sweeps."""
    nonce = made.read(made.ask(), snapshot(990), 1, is_end=True)
    records = made.transaction(999, watermarks=[nonce])
    assert states(records)[-1].status == "done"
    return sweeps(records)


def test_a_sweep_ends_it_whose_floor_is_what_came_after_its_beginning() -> None:
    made = Beside(wanted(), seq=40)
    made.pass_barrier(snapshot(50))
    made.begin(snapshot(60))
    made.transaction(75, 5, 6)
    assert finished(made) == [(pack_version(1, 41), made.lsn + 1)]
    assert not made.engine.is_active


def test_the_floor_is_below_what_was_received_before_and_not_seen() -> None:
    """A row may be dropped in favour of such an event: its version must not be swept."""
    made = Beside(wanted(), seq=40)
    made.pass_barrier(snapshot(50))
    made.transaction(55, 7)  # 41
    made.transaction(56, 8)  # 42
    begin = made.ask()
    made.engine.take([TableDescribed(begin.nonce, snapshot(60, 56), "shape", 10, 20, (), "order")], made.now)
    made.transaction(57, 9)  # 43, seen
    made.transaction(900, watermarks=[begin.nonce])
    assert finished(made)[0][0] == pack_version(1, 42)


def test_a_floor_that_was_fixed_stays_and_one_that_is_higher_is_repeated() -> None:
    made = Beside(wanted(floor=pack_version(1, 3)), seq=40)
    made.sweeps.record(SCHEMA.table, pack_version(1, 20), 500)  # a TRUNCATE meanwhile
    made.pass_barrier(snapshot(50))
    made.begin(snapshot(60))
    assert finished(made)[0][0] == pack_version(1, 20)
    assert made.engine.jobs[SCHEMA.table].record().floor == pack_version(1, 3)


def test_a_condition_or_a_range_sweeps_nothing() -> None:
    made = Beside(wanted(sweeps=False, where="id < 5", ranges=({"after": ("2",), "up_to": ("9",)},)))
    made.pass_barrier(snapshot(50))
    made.begin(snapshot(60), ("4",))
    chunk = made.ask()
    assert isinstance(chunk, Chunk)
    assert (chunk.where, chunk.after, chunk.up_to) == ("id < 5", ("2",), ("9",))
    records = made.transaction(901, watermarks=[made.read(chunk, snapshot(70), 3, is_end=True)])
    assert sweeps(records) == []
    assert states(records)[-1].status == "done"


def test_an_empty_table_is_done_with_its_first_chunk() -> None:
    made = beside_begun()
    records = made.transaction(901, watermarks=[made.read(made.ask(), snapshot(70), is_end=True)])
    assert rows(records) == []
    assert len(sweeps(records)) == 1
    assert states(records)[-1].status == "done"


# ---- a restart


def test_a_restart_goes_on_at_the_cursor_behind_a_fence_of_its_own() -> None:
    made = beside_begun(seq=40)
    (state,) = states(made.transaction(901, watermarks=[made.read(made.ask(), snapshot(70), 1, 2)]))
    assert state.floor == pack_version(1, 41)
    again = Beside(state, seq=made.seq)
    again.pass_barrier(snapshot(100))
    again.begin(snapshot(101), ("1",))
    chunk = again.ask()
    assert isinstance(chunk, Chunk)
    assert chunk.after == ("2",)
    records = again.transaction(902, watermarks=[again.read(chunk, snapshot(102), 3, is_end=True)])
    assert sweeps(records) == [(pack_version(1, 41), again.lsn + 1)]
    assert states(records)[-1].rows == 3


# ---- failures


def failed(made: Beside, nonce: str, *, is_permanent: bool) -> None:
    made.engine.take([ReadFailed(nonce, SourceError("the table is locked", "wait"), is_permanent)], made.now)


def test_a_chunk_that_failed_is_read_again_after_a_new_look() -> None:
    made = beside_begun()
    chunk = made.ask()
    failed(made, chunk.nonce, is_permanent=False)
    assert made.asks() == []
    made.now += 1
    made.begin(snapshot(80))
    again = made.ask()
    assert isinstance(again, Chunk)
    assert again.nonce != chunk.nonce
    assert again.after is None


def delays_of_failures(made: Beside, count: int) -> list[float]:
    """Seconds from each failed look at the table to the next one."""
    delays = []
    (begin,) = made.asks()
    for _ in range(count):
        assert isinstance(begin, DescribeTable)
        failed(made, begin.nonce, is_permanent=False)
        failed_at = made.now
        while not (asked := made.asks()):
            made.now += 0.125
        (begin,) = asked
        delays.append(made.now - failed_at)
    return delays


def test_what_fails_again_and_again_is_tried_less_and_less_often_and_said_once() -> None:
    """A catalog that is ahead of the log refuses the table until the log has come there."""
    made = Beside(wanted())
    made.pass_barrier(snapshot(50))
    with capture_logs() as logs:
        delays = delays_of_failures(made, 7)
    assert delays == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert [line["error"] for line in logs if line["log_level"] == "warning"] == ["the table is locked"]


def test_a_table_that_the_stream_has_described_again_is_read_without_delay() -> None:
    made = Beside(wanted())
    made.pass_barrier(snapshot(50))
    with capture_logs():
        delays_of_failures(made, 6)
    made.engine.alter(replace(SCHEMA, version=2))
    made.now += RETRY_S
    (begin,) = made.asks()
    assert isinstance(begin, DescribeTable)
    assert begin.schema.version == 2
    with capture_logs() as logs:
        failed(made, begin.nonce, is_permanent=False)
    assert len(logs) == 1  # it is said again
    made.now += RETRY_S
    assert len(made.asks()) == 1


def test_what_can_not_be_read_fails_its_snapshot_alone_and_says_so_once() -> None:
    other = replace(SCHEMA, table=TableId("public", "other"), topic="shop.public.other", oid=11)
    made = Beside(wanted(), wanted(other, requested_us=2), schemas=[SCHEMA, other])
    made.pass_barrier(snapshot(50))
    first, second = made.asks()
    failed(made, first.nonce, is_permanent=True)
    (state,) = states(made.engine.endings())
    assert (state.table, state.status, state.message) == (SCHEMA.table, "failed", "the table is locked")
    assert made.engine.endings() == []
    made.engine.take([TableDescribed(second.nonce, snapshot(60), "shape", 10, 20, (), "order")], made.now)
    made.transaction(900, watermarks=[second.nonce])
    assert isinstance(made.ask(), Chunk)


def test_a_fence_that_failed_is_asked_for_again() -> None:
    made = Beside(wanted())
    failed(made, made.ask().nonce, is_permanent=False)
    assert made.asks() == []
    made.now += 1
    assert isinstance(made.ask(), TransactionBarrier)


# ---- operators


def test_paused_nothing_is_read_and_resumed_it_goes_on_behind_a_fence() -> None:
    made = beside_begun()
    made.transaction(901, watermarks=[made.read(made.ask(), snapshot(70), 1, 2)])
    ahead = made.ask()
    records = made.engine.set_status(SCHEMA.table, "paused")
    assert states(records)[0].ranges == (RangeRecord(after=("2",), up_to=None),)
    assert made.asks() == []
    assert made.transaction(902, watermarks=[made.read(ahead, snapshot(71), 3)]) == []
    assert made.engine.set_status(SCHEMA.table, "paused") == []
    assert made.engine.set_status(SCHEMA.table, "running") != []
    made.pass_barrier(snapshot(200))
    made.begin(snapshot(201))
    chunk = made.ask()
    assert isinstance(chunk, Chunk)
    assert chunk.after == ("2",)


def test_cancelled_it_ends_without_a_sweep() -> None:
    made = beside_begun()
    nonce = made.read(made.ask(), snapshot(70), 1, is_end=True)
    records = made.engine.set_status(SCHEMA.table, "cancelled")
    assert states(records)[0].status == "cancelled"
    assert made.transaction(901, watermarks=[nonce]) == []
    assert made.engine.set_status(SCHEMA.table, "running") == []
    assert not made.engine.is_active


def test_a_snapshot_begun_anew_forgets_the_one_that_runs() -> None:
    made = beside_begun()
    nonce = made.read(made.ask(), snapshot(70), 1, 2)
    (state,) = states(made.engine.add(wanted(request="again")))
    assert (state.request, state.ranges, state.rows) == ("again", (), 0)
    assert made.transaction(901, watermarks=[nonce]) == []
    with pytest.raises(KeyError):
        made.engine.add(wanted(table_name="unknown"))
