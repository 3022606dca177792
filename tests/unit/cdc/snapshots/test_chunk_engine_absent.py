"""Rows that vanished without an event: what a snapshot of a part deletes, and tombstones behind sweeps."""

from typing import Any

from cdc.model.control import RangeRecord, TombstonesRecord
from cdc.model.errors import SourceError
from cdc.model.events import pack_version
from cdc.model.topic_record import TopicRecord
from cdc.ports.chunk_reader import Chunk, DescribeTable, KeyPage, Lookup, ReadFailed, TableDescribed, TransactionBarrier
from tests.unit.cdc.capture.loops import CONTEXT, SCHEMA
from tests.unit.cdc.snapshots.loops import Beside, deletes, key, rows, snapshot, states, sweeps, wanted

WHOLE = RangeRecord(after=None, up_to=None)
ASKED = RangeRecord(after=("2",), up_to=("9",))


def of_range(**fields: Any) -> Beside:
    """The look is done; the one chunk of the range is asked for."""
    record: dict[str, Any] = {"sweeps": False, "ranges": [ASKED.model_dump()], "deletes_in": ASKED.model_dump()}
    made = Beside(wanted(**record | fields), seq=6, workers=1)
    made.pass_barrier(snapshot(50))
    made.begin(snapshot(60))
    return made


def with_rows_read() -> Beside:
    made = of_range()
    records = made.transaction(901, watermarks=[made.read(made.ask(), snapshot(70), 3, is_end=True)])
    assert rows(records) == [3]
    assert states(records)[0].status == "running"
    return made


def test_keys_of_the_topic_that_are_not_found_become_deletes() -> None:
    made = with_rows_read()
    page = made.ask()
    assert isinstance(page, KeyPage)
    assert (page.topic, page.below) == (SCHEMA.topic, None)
    made.pages(page, 3, 4, 5)
    lookup = made.ask()
    assert isinstance(lookup, Lookup)
    assert (lookup.keys, lookup.after, lookup.up_to) == ((key(3), key(4), key(5)), ("2",), ("9",))
    records = made.transaction(902, watermarks=[made.look_up(lookup, snapshot(71), 4, 5)])
    assert deletes(records) == [4, 5]
    assert (states(records)[-1].status, states(records)[-1].deleted) == ("done", 2)
    assert made.seq == 9
    assert not made.engine.is_active


def test_where_the_topic_holds_nothing_more_it_is_done_without_a_mark() -> None:
    made = with_rows_read()
    made.pages(made.ask())
    assert [state.status for state in states(made.engine.endings())] == ["done"]
    assert made.engine.endings() == []
    assert not made.engine.is_active


def test_a_key_that_was_touched_by_what_the_lookup_does_not_see_is_no_delete() -> None:
    made = with_rows_read()
    made.pages(made.ask(), 4, 5)
    lookup = made.ask()
    made.transaction(71, 4)
    assert deletes(made.transaction(902, watermarks=[made.look_up(lookup, snapshot(71), 4, 5)])) == [5]


def test_a_key_that_an_event_took_since_the_scan_began_did_not_vanish() -> None:
    """Also where the lookup sees the event: its delete is in the topic."""
    made = with_rows_read()
    made.pages(made.ask(), 4, 5)
    made.transaction(65, 4)
    records = made.transaction(902, watermarks=[made.look_up(made.ask(), snapshot(71), 4, 5)])
    assert deletes(records) == [5]
    assert states(records)[-1].deleted == 1


def test_rows_that_a_truncate_took_since_the_scan_began_did_not_vanish() -> None:
    made = with_rows_read()
    made.pages(made.ask(), 4)
    made.transaction(65, truncates=True)
    assert deletes(made.transaction(902, watermarks=[made.look_up(made.ask(), snapshot(71), 4)])) == []


def test_after_a_truncate_that_the_lookup_does_not_see_nothing_is_deleted() -> None:
    made = with_rows_read()
    made.pages(made.ask(), 4)
    lookup = made.ask()
    made.transaction(71, truncates=True)
    assert deletes(made.transaction(902, watermarks=[made.look_up(lookup, snapshot(71), 4)])) == []


def test_where_keys_were_forgotten_the_page_is_looked_up_again() -> None:
    record = wanted(sweeps=False, ranges=[ASKED.model_dump()], deletes_in=ASKED.model_dump())
    made = Beside(record, keys_max=2, workers=1)
    made.pass_barrier(snapshot(50))
    made.begin(snapshot(60))
    made.transaction(901, watermarks=[made.read(made.ask(), snapshot(70), is_end=True)])
    made.pages(made.ask(), 4, 5)
    lookup = made.ask()
    made.transaction(71, 1, 2, 3, 6)
    assert made.transaction(902, watermarks=[made.look_up(lookup, snapshot(71), 4)]) == []
    made.now += 1.0
    again = made.ask()
    assert isinstance(again, Lookup)
    assert again.keys == (key(4), key(5))
    assert deletes(made.transaction(903, watermarks=[made.look_up(again, snapshot(80), 4)])) == [4]


def test_pages_follow_each_other() -> None:
    made = with_rows_read()
    first = made.ask()
    assert isinstance(first, KeyPage)
    made.pages(first, 4, is_end=False)
    lookup, second = made.ask(), None
    made.now += 0.1
    second = made.ask()
    assert isinstance(second, KeyPage)
    assert (second.scan, second.nonce) != (first.scan, first.nonce)
    assert second.scan == first.scan
    records = made.transaction(902, watermarks=[made.look_up(lookup, snapshot(71), 4)])
    assert (deletes(records), states(records)[-1].status) == ([4], "running")
    made.pages(second)
    assert [state.status for state in states(made.engine.endings())] == ["done"]


def test_a_scan_that_failed_begins_anew_behind_a_new_look() -> None:
    made = with_rows_read()
    page = made.ask()
    assert isinstance(page, KeyPage)
    made.engine.take([ReadFailed(page.nonce, SourceError("away", "wait"), is_permanent=False)], made.now)
    assert made.asks() == []
    made.now += 1.0
    made.begin(snapshot(72), xid=903)
    again = made.ask()
    assert isinstance(again, KeyPage)
    assert again.scan != page.scan


def test_a_restart_goes_on_with_what_vanished() -> None:
    part = {"after": ["3"], "up_to": ["9"], "is_done": True}
    made = of_range(ranges=[part], rows=1)
    page = made.ask()
    assert isinstance(page, KeyPage)
    made.pages(page, 4)
    records = made.transaction(902, watermarks=[made.look_up(made.ask(), snapshot(71), 4)])
    assert (deletes(records), states(records)[-1].status) == ([4], "done")


def test_a_lookup_that_failed_is_done_again_behind_a_new_look_with_the_scan_it_has() -> None:
    made = with_rows_read()
    made.pages(made.ask(), 4)
    lookup = made.ask()
    assert isinstance(lookup, Lookup)
    made.engine.take([ReadFailed(lookup.nonce, SourceError("away", "wait"), is_permanent=False)], made.now)
    made.now += 1.0
    made.begin(snapshot(72), xid=903)
    again = made.ask()
    assert isinstance(again, Lookup)
    assert again.keys == lookup.keys
    assert deletes(made.transaction(904, watermarks=[made.look_up(again, snapshot(73), 4)])) == [4]


def test_during_a_long_scan_transactions_are_forgotten() -> None:
    made = with_rows_read()
    page = made.ask()
    made.now += 60.0
    lookup = made.ask()
    assert isinstance(lookup, Lookup)
    assert lookup.keys == ()
    for xid in range(100, 110):
        made.transaction(xid, 1)
    assert deletes(made.transaction(902, watermarks=[made.look_up(lookup, snapshot(200))])) == []
    assert made.engine.memory.unseen(SCHEMA.topic, snapshot(100)).is_forgotten
    assert made.engine.memory.lowest_unseen_seq(SCHEMA.topic, snapshot(200)) is None
    made.pages(page)
    assert [state.status for state in states(made.engine.endings())] == ["done"]


# ---- tombstones behind sweeps


def tombstones(records: list[TopicRecord]) -> list[int]:
    """Floors that are recorded as done."""
    found = [r for r in records if r.key.startswith(b"tombstones/")]
    return [TombstonesRecord.decode(r.value or b"", "state").floor for r in found]


def test_a_truncate_is_followed_by_tombstones_where_they_are_wanted() -> None:
    made = Beside(seq=6, tombstones={}, workers=1)
    assert made.asks() == []
    floor = pack_version(CONTEXT.epoch, 7)
    made.seq = 7
    made.sweeps.record(SCHEMA.table, floor, 1_000)
    made.engine.tombstones.on_committed()
    made.pass_barrier(snapshot(50))
    made.begin(snapshot(60))
    page = made.ask()
    assert isinstance(page, KeyPage)
    assert page.below == floor
    made.pages(page, 1, 2)
    records = made.transaction(902, watermarks=[made.look_up(made.ask(), snapshot(71), 1, 2)])
    assert deletes([r for r in records if r.topic == SCHEMA.topic]) == [1, 2]
    assert tombstones(records) == [floor]
    assert made.asks() == []
    assert not made.engine.is_active
    assert made.engine.jobs == {}, "it is nobody's snapshot"


def test_a_snapshot_that_sweeps_is_done_before_its_tombstones_are() -> None:
    made = Beside(wanted(), seq=6, tombstones={}, workers=1)
    made.pass_barrier(snapshot(50))
    made.begin(snapshot(60))
    records = made.transaction(901, watermarks=[made.read(made.ask(), snapshot(70), 3, is_end=True)])
    assert states(records)[-1].status == "done"
    assert len(sweeps(records)) == 1
    assert isinstance(made.ask(), TransactionBarrier | DescribeTable)
    assert made.engine.is_active


def test_without_the_wish_there_are_none() -> None:
    made = Beside(seq=6)
    made.sweeps.record(SCHEMA.table, pack_version(CONTEXT.epoch, 7), 1_000)
    assert made.asks() == []


# ---- an index of another order


def test_ranges_of_another_order_are_read_from_the_beginning() -> None:
    part = RangeRecord(after=("5",), up_to=None).model_dump()
    made = Beside(wanted(ranges=[part], key_order="before", rows=5, floor=3), workers=1)
    made.pass_barrier(snapshot(50))
    begin = made.ask()
    assert isinstance(begin, DescribeTable)
    made.engine.take([TableDescribed(begin.nonce, snapshot(60), "shape", 10, 20, (), "now")], made.now)
    made.transaction(900, watermarks=[begin.nonce])
    request = made.ask()
    assert isinstance(request, Chunk)
    assert request.after is None
    (state,) = states(made.transaction(901, watermarks=[made.read(request, snapshot(70), 1)]))
    assert (state.key_order, state.rows, state.floor) == ("now", 1, 3)
