"""Rows that went out with holes: when they are read again, what a restart finds, and what ends it."""

import json

import pytest

from cdc.model.control import IncompleteRowsRecord, RangeRecord
from cdc.ports.chunk_reader import Chunk, DescribeTable, Key, Lookup, TableDescribed, TransactionBarrier
from cdc.snapshots import completion
from cdc.snapshots.completion import NOTED_BYTES_MAX, UNSEEN_RETRY_S, CompletionJob
from cdc.snapshots.jobs import BATCH_KEYS_MAX
from cdc.snapshots.ranges import RETRY_S
from tests.unit.cdc.capture.loops import SCHEMA
from tests.unit.cdc.snapshots.loops import Beside, deletes, key, noted, rows, snapshot, sweeps, wanted


def record(*numbers: int, is_whole: bool = False, ranges: tuple[RangeRecord, ...] = ()) -> IncompleteRowsRecord:
    keys = tuple((str(number),) for number in numbers)
    return IncompleteRowsRecord(
        table_schema="public", table_name="customers", keys=keys, is_whole=is_whole, ranges=ranges
    )


def look(made: Beside, *seen: int) -> None:
    """The table is looked at by a snapshot that sees the transactions up to the first, but not the others."""
    made.begin(snapshot(seen[0] + 1, *seen[1:]))


def test_they_are_noted_and_read_behind_a_fence_by_their_keys() -> None:
    made = Beside()
    assert made.unfilled(7, 3, 1, 3) == [record(1, 3)]
    assert isinstance(made.ask(), TransactionBarrier)
    made = Beside(holes=[record(1, 3)])
    made.pass_barrier(snapshot(8))
    begin = made.ask()
    assert isinstance(begin, DescribeTable) and begin.ranges == 1
    made = Beside(holes=[record(1, 3)])
    made.pass_barrier(snapshot(8))
    look(made, 9)
    chunk = made.ask()
    assert isinstance(chunk, Chunk)
    assert (chunk.keys, chunk.after, chunk.up_to, chunk.where) == ((("1",), ("3",)), None, None, None)
    assert chunk.rows_max == 3  # one more than there are: the reader sees that it was all
    records = made.transaction(901, watermarks=[made.read(chunk, snapshot(10), 1, 3, is_end=True)])
    assert rows(records) == [1, 3]
    assert json.loads(records[0].value or b"")["op"] == "r"
    assert noted(records) == [record()]
    assert sweeps(records) == [], "the other rows stay"
    assert not made.engine.is_active


def test_a_row_that_is_gone_or_was_touched_since_needs_nothing_more() -> None:
    made = Beside(holes=[record(1, 2, 3)])
    made.pass_barrier(snapshot(8))
    look(made, 9)
    nonce = made.read(made.ask(), snapshot(10), 1, 2, is_end=True)
    made.transaction(20, 2)  # whole, or noted again
    records = made.transaction(901, watermarks=[nonce])
    assert rows(records) == [1]
    assert noted(records) == [record()]


def test_what_is_noted_while_it_is_read_is_read_again() -> None:
    made = Beside(holes=[record(1)])
    made.pass_barrier(snapshot(8))
    look(made, 9)
    nonce = made.read(made.ask(), snapshot(10), 1, is_end=True)
    assert made.unfilled(20, 1) == [record(1)]
    assert noted(made.transaction(901, watermarks=[nonce])) == [record(1)]
    look(made, 20)
    chunk = made.ask()
    assert isinstance(chunk, Chunk) and chunk.keys == (("1",),)


def test_it_waits_for_the_transactions_that_left_the_holes() -> None:
    made = Beside()
    made.unfilled(7, 1)
    made.unfilled(8, 2)
    made.pass_barrier(snapshot(9, 7, 8))  # which does not happen: a fence waits for them
    look(made, 9, 7, 8)
    assert made.asks() == []
    made.now += UNSEEN_RETRY_S
    look(made, 9, 7)  # one of them is visible by now, and its row is not kept waiting
    chunk = made.ask()
    assert isinstance(chunk, Chunk) and chunk.keys == (("2",),)
    records = made.transaction(901, watermarks=[made.read(chunk, snapshot(10, 7), 2, is_end=True)])
    assert noted(records) == [record(1)]
    look(made, 9)
    chunk = made.ask()
    assert isinstance(chunk, Chunk) and chunk.keys == (("1",),)


def test_they_come_before_a_tables_own_snapshot_and_leave_it_alone() -> None:
    made = Beside(wanted(), workers=1)
    made.pass_barrier(snapshot(8))
    made.begin(snapshot(9))
    made.unfilled(7, 1)
    completion, first = made.asks()
    assert isinstance(completion, DescribeTable) and isinstance(first, Chunk) and first.keys is None
    assert made.engine.jobs[SCHEMA.table].is_active


def test_many_keys_are_read_in_several_batches() -> None:
    made = Beside(holes=[record(*range(BATCH_KEYS_MAX + 1))])
    made.pass_barrier(snapshot(8))
    look(made, 9)
    chunk = made.ask()
    assert isinstance(chunk, Chunk) and chunk.keys is not None and len(chunk.keys) == BATCH_KEYS_MAX
    nonce = made.read(chunk, snapshot(10), is_end=True)
    (left,) = noted(made.transaction(901, watermarks=[nonce]))
    assert len(left.keys) == 1


def test_a_failed_chunk_is_read_again_from_where_publishing_stands() -> None:
    made = Beside(holes=[record(1, 2, 3)], chunk_rows_max=2)
    made.pass_barrier(snapshot(8))
    look(made, 9)
    chunk = made.ask()
    assert isinstance(chunk, Chunk) and chunk.rows_max == 2
    (half,) = noted(made.transaction(901, watermarks=[made.read(chunk, snapshot(10), 1, 2)]))
    assert half == record(1, 2, 3)  # all are still noted: reading one twice does no harm
    for job in list(made.engine._completions.values()):
        job.rewind(made.now)
    made.now += RETRY_S
    look(made, 9)
    chunk = made.ask()
    assert isinstance(chunk, Chunk)
    assert (chunk.after, chunk.keys) == (("2",), (("1",), ("2",), ("3",)))


def test_where_there_are_too_many_the_whole_table_is_read_without_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "NOTED_MAX", 2)
    made = Beside()
    made.unfilled(7, 1, 2)
    assert made.unfilled(8, 3) == [record(is_whole=True)]
    made.pass_barrier(snapshot(9, 8))
    look(made, 9, 8)
    assert made.asks() == []  # all of the transactions have to be seen
    made.now += UNSEEN_RETRY_S
    made.begin(snapshot(10), ("5",))
    first, second = made.asks()
    assert isinstance(first, Chunk) and isinstance(second, Chunk)
    assert [(c.keys, c.after, c.up_to) for c in (first, second)] == [(None, None, ("5",)), (None, ("5",), None)]
    assert made.unfilled(20, 4)[0].keys == (("4",),)  # perhaps behind the cursors: read afterwards
    (half,) = noted(made.transaction(901, watermarks=[made.read(first, snapshot(10), 1, 3, is_end=True)]))
    assert half.is_whole and [part.is_done for part in half.ranges] == [True, False]
    last = made.transaction(902, watermarks=[made.read(second, snapshot(10), 6, is_end=True)])
    assert noted(last) == [record(4)]
    assert sweeps(last) == []


def test_a_restart_goes_on_at_the_cursors_of_a_table_that_is_read_whole() -> None:
    ranges = (RangeRecord(after=("3",), up_to=None),)
    made = Beside(holes=[record(is_whole=True, ranges=ranges)])
    made.pass_barrier(snapshot(8))
    look(made, 9)
    chunk = made.ask()
    assert isinstance(chunk, Chunk) and chunk.after == ("3",) and chunk.keys is None


def test_keys_are_bounded_in_bytes_too() -> None:
    job = CompletionJob(SCHEMA)
    job.note(("x" * NOTED_BYTES_MAX,), 7)
    assert not job.is_too_long
    job.note(("y",), 7)
    assert job.is_too_long


LONG = ("x" * NOTED_BYTES_MAX,)  # as much as may be noted


def test_asked_keys_count_once_among_the_bytes() -> None:
    job = CompletionJob(SCHEMA)
    job.ask({LONG: b"k"})
    job.ask({LONG: b"k"})
    assert not job.is_too_long
    job.ask({("y",): b"l"})
    assert job.is_too_long


def test_keys_that_were_read_do_not_count_among_the_bytes() -> None:
    job = CompletionJob(SCHEMA)
    job.note(LONG, 7)
    assert job.may_begin(snapshot(8), 0.0)
    job.end()
    job.note(LONG, 8)
    assert not job.is_too_long
    job.note(("y",), 8)
    job.rewind(0.0)
    assert job.splits and not job.is_too_long, "the whole table is read"
    job.note(LONG, 9)
    assert not job.is_too_long


def test_keys_that_are_being_read_count_and_a_whole_table_is_read_instead_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completion, "NOTED_MAX", 3)
    made = Beside(holes=[record(1, 2)])
    made.pass_barrier(snapshot(8))
    look(made, 9)
    chunk = made.ask()
    assert isinstance(chunk, Chunk) and chunk.keys == (("1",), ("2",))
    assert made.unfilled(20, 3) == [record(1, 2, 3)]
    assert made.unfilled(21, 4) == [record(is_whole=True)]
    made.now += UNSEEN_RETRY_S
    made.begin(snapshot(30), ("5",))
    asks = made.asks()
    assert [(c.keys, c.after, c.up_to) for c in asks if isinstance(c, Chunk)] == [
        (None, None, ("5",)),
        (None, ("5",), None),
    ]


def test_of_too_many_transactions_the_whole_range_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few, each by itself."""
    monkeypatch.setattr(completion, "NOTED_MAX", 1)
    for transactions_max in (2, 1):
        monkeypatch.setattr(completion, "TRANSACTIONS_MAX", transactions_max)
        job = CompletionJob(SCHEMA)
        job.note(("1",), 7)
        job.note(("2",), 10)
        job.rewind(0.0)
        assert not job.may_begin(snapshot(11, 7), 0.0)
        assert job.may_begin(snapshot(11, 8), 0.0) == (transactions_max == 2)
        assert job.may_begin(snapshot(11), 0.0)


def test_rows_are_owed_while_they_are_noted_and_while_they_are_read() -> None:
    owed = {SCHEMA.table: "rows whose large values were not in the log are still to be read"}
    made = Beside(holes=[record(1, 2)])
    assert made.engine.owed() == owed
    made.pass_barrier(snapshot(8))
    look(made, 9)
    assert made.engine.owed() == owed
    made.transaction(901, watermarks=[made.read(made.ask(), snapshot(10), 1, 2, is_end=True)])
    assert made.engine.owed() == {}
    assert Beside(holes=[record(is_whole=True)]).engine.owed() == owed
    some = asked(1, 2).model_copy(update={"keys": (("1",), ("2",), ("3",))})
    assert Beside(holes=[some]).engine.owed() == owed, "the third was not asked for"


def test_what_waits_for_a_frozen_transaction_does_not_keep_all_others_in_memory() -> None:
    made = Beside()
    made.unfilled(7, 1)
    made.pass_barrier(snapshot(8, 7))
    for xid in range(10, 60):
        made.transaction(xid, xid)
    begin = made.ask()
    made.engine.take([TableDescribed(begin.nonce, snapshot(60, 7), "shape", 1, 1, (), "order")], made.now)
    made.transaction(900, watermarks=[begin.nonce])
    assert not made.engine.begin(10, 1), "a transaction that every later snapshot sees is not remembered"


def asked(*numbers: int) -> IncompleteRowsRecord:
    return record(*numbers).model_copy(update={"asked": tuple(key(number).decode() for number in numbers)})


def test_asked_keys_are_published_again_and_those_without_a_row_are_deleted() -> None:
    made = Beside()
    keys: dict[Key, bytes] = {(str(number),): key(number) for number in (3, 1, 2)}
    assert noted(made.engine.republish(SCHEMA.table, keys)) == [asked(1, 2, 3)]
    made = Beside(holes=[asked(1, 2, 3)])  # also behind a restart
    made.pass_barrier(snapshot(8))
    look(made, 9)
    chunk, lookup = made.asks()
    assert isinstance(chunk, Chunk) and isinstance(lookup, Lookup)
    assert (chunk.keys, lookup.keys) == ((("1",), ("2",), ("3",)), (key(1), key(2), key(3)))
    first = made.transaction(901, watermarks=[made.look_up(lookup, snapshot(10), 2, 3)])
    assert (deletes(first), noted(first)) == ([2, 3], [asked(1, 2, 3)])
    last = made.transaction(902, watermarks=[made.read(chunk, snapshot(11), 1, is_end=True)])
    assert (rows(last), noted(last), made.engine.is_active) == ([1], [record()], False)


def test_an_asked_key_that_a_transaction_touched_meanwhile_is_not_deleted() -> None:
    made = Beside(holes=[asked(1, 2)])
    made.pass_barrier(snapshot(8))
    look(made, 9)
    chunk, lookup = made.asks()
    nonce = made.look_up(lookup, snapshot(10), 1, 2)
    made.transaction(20, 2)  # inserted behind the lookup's snapshot
    assert deletes(made.transaction(901, watermarks=[nonce])) == [1]
    assert rows(made.transaction(902, watermarks=[made.read(chunk, snapshot(11), is_end=True)])) == []
    assert not made.engine.is_active


def test_asked_keys_are_looked_up_with_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "BATCH_KEYS_MAX", 1)
    made = Beside(holes=[asked(1, 2)])
    made.pass_barrier(snapshot(8))
    for number, left in ((1, asked(2)), (2, record())):
        look(made, 9)
        chunk, lookup = made.asks()
        assert isinstance(chunk, Chunk) and isinstance(lookup, Lookup)
        assert (chunk.keys, lookup.keys) == (((str(number),),), (key(number),))
        made.transaction(901, watermarks=[made.look_up(lookup, snapshot(10))])
        assert noted(made.transaction(902, watermarks=[made.read(chunk, snapshot(10), number, is_end=True)])) == [left]
    assert not made.engine.is_active


def test_asked_keys_are_looked_up_beside_a_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "NOTED_MAX", 2)
    made = Beside(holes=[asked(1, 2)])
    (whole,) = made.unfilled(7, 3)
    assert (whole.is_whole, whole.keys, whole.asked) == (True, (), asked(1, 2).asked)
    made.pass_barrier(snapshot(8))
    made.now += UNSEEN_RETRY_S
    look(made, 9)
    chunk, lookup = made.asks()
    assert isinstance(chunk, Chunk) and isinstance(lookup, Lookup)
    assert (chunk.keys, lookup.keys) == (None, (key(1), key(2)))
    assert deletes(made.transaction(901, watermarks=[made.look_up(lookup, snapshot(10), 2)])) == [2]
    assert noted(made.transaction(902, watermarks=[made.read(chunk, snapshot(10), 1, 3, is_end=True)])) == [record()]
    assert not made.engine.is_active
