"""From frames to records: what is skipped, what is published, where a restart begins."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from cdc.capture.assembler import Assembler
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.capture.toast_batch import DraftRecord
from cdc.config.format_options import FormatOptions
from cdc.config.masking import Mask
from cdc.formats.records import EnvelopeContext
from cdc.formats.unpublishable import Unpublishable
from cdc.model.control import PartialTransaction, SweepRecord
from cdc.model.errors import GapError, ProtocolError, UnsupportedChangeError
from cdc.model.events import Column, TableId, TableSchema, pack_version
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.messages import NULL, UNCHANGED
from tests.support import wire
from tests.support.holes import finished
from tests.support.snapshot_ports import UnfollowedTables, engine_of

COLUMNS = (Column("id", 23, -1, "integer", False), Column("name", 25, -1, "text", True))
CUSTOMERS, CUSTOMERS_RELATION = wire.schema_and_relation(COLUMNS, ["id"], table=TableId("public", "customers"), oid=10)
ORDERS, ORDERS_RELATION = wire.schema_and_relation(COLUMNS, ["id"], table=TableId("public", "orders"), oid=11)
_, ELSEWHERE_RELATION = wire.schema_and_relation(COLUMNS, ["id"], table=TableId("public", "elsewhere"), oid=12)
CONTEXT = EnvelopeContext("shop", "shop", epoch=2, connector_version="0")
NOW_US, TS_US = 1_767_323_080_000_000, 1_767_323_079_000_000
START = StreamState(Lsn(1_000), None, seq=0, commit_ts_us=0)


def assembler(resume: StreamState = START, *leaving: TableSchema) -> Assembler:
    tables = [schema for schema in (CUSTOMERS, ORDERS) if schema not in leaving]
    engine = engine_of(tables, CONTEXT)
    return Assembler(CapturedTables(tables, leaving=leaving), CONTEXT, resume, engine, UnfollowedTables())


MASKING: Final = FormatOptions(masks=(Mask(CUSTOMERS.table, "phone", "asterisks", 3),))


def test_a_masked_column_that_is_gone_stops_its_table_alone() -> None:
    """Seen: the configuration's error ended the process."""
    context = replace(CONTEXT, format=MASKING)
    engine = engine_of([CUSTOMERS, ORDERS], context)
    made = Assembler(CapturedTables([CUSTOMERS, ORDERS]), context, START, engine, UnfollowedTables())
    _, failure = made.consume(transaction(2_000, insert(1)), NOW_US)
    assert failure is not None and (failure.table, failure.is_held) == (CUSTOMERS.table, False)
    assert "masking names column phone" in failure.message


def test_the_rest_of_a_transaction_is_counted_where_masks_do_not_fit_a_stopped_table_any_more() -> None:
    context, begun = replace(CONTEXT, format=MASKING), PartialTransaction(commit_lsn=2_000, xid=7, next_index=1)
    engine = engine_of([ORDERS], context)
    tables = CapturedTables([ORDERS], leaving=[CUSTOMERS])
    made = Assembler(tables, context, replace(START, partial=begun), engine, UnfollowedTables())
    records, failure = made.consume(transaction(2_000, insert(1), insert(2), insert(3, 11)), NOW_US)
    assert failure is None and made.state.partial is None
    assert places(finished(records)) == [("c", 3, 1, 2)]


def frames(*messages: bytes, lsn: int = 0) -> list[bytes]:
    return [wire.xlog_data(message, lsn) for message in messages]


def insert(number: int, oid: int = 10) -> bytes:
    return wire.insert(oid, [str(number).encode(), b"x"])


RELATIONS = [wire.relation_bytes(r) for r in (CUSTOMERS_RELATION, ORDERS_RELATION, ELSEWHERE_RELATION)]


def transaction(commit_lsn: int, *changes: bytes, xid: int = 7) -> list[bytes]:
    """Begin, relations, changes, commit; ends 48 bytes after its commit record."""
    return frames(
        wire.begin(commit_lsn, TS_US, xid), *RELATIONS, *changes, wire.commit(commit_lsn, commit_lsn + 48, TS_US)
    )


def consume(made: Assembler, payloads: Sequence[bytes]) -> list[TopicRecord]:
    records, failure = made.consume(payloads, NOW_US)
    assert failure is None
    return finished(records)


def places(records: Sequence[TopicRecord]) -> list[tuple[str, int, int, int]]:
    """(op, id, seq, tx_index) of each; a tombstone is left out."""
    found = []
    for record in records:
        if record.value is not None and record.topic != "shop.control":
            value = json.loads(record.value)
            source = value["source"]
            found.append((value["op"], json.loads(record.key)["id"], source["seq"], source["tx_index"]))
    return found


# ---- counting


def test_a_transaction_becomes_records_and_moves_the_position_to_its_end() -> None:
    made = assembler()
    records = consume(made, transaction(1_100, insert(1), insert(2, oid=11)))
    assert places(records) == [("c", 1, 1, 0), ("c", 2, 2, 1)]
    assert [record.topic for record in records] == ["shop.public.customers", "shop.public.orders"]
    assert made.state == StreamState(Lsn(1_148), None, seq=2, commit_ts_us=TS_US)
    assert made.received_lsn == 1_148


def test_changes_of_tables_that_are_not_captured_do_not_count() -> None:
    """Whether they are sent can differ from one time to the next."""
    records = consume(assembler(), transaction(1_100, insert(1), insert(5, oid=12), insert(2)))
    assert places(records) == [("c", 1, 1, 0), ("c", 2, 2, 1)]


def test_a_moved_key_takes_two_seq_and_one_index() -> None:
    move = wire.update(10, [b"9", b"x"], [b"1", NULL])
    records = consume(assembler(), transaction(1_100, move, insert(2)))
    assert places(records) == [("d", 1, 1, 0), ("c", 9, 2, 0), ("c", 2, 3, 1)]
    assert len(records) == 4  # and the tombstone


def test_seq_goes_on_where_the_position_stands() -> None:
    made = assembler(StreamState(Lsn(1_000), None, seq=41, commit_ts_us=0))
    assert places(consume(made, transaction(1_100, insert(1)))) == [("c", 1, 42, 0)]
    assert made.state.seq == 42


def test_what_is_consumed_frame_by_frame_is_the_same() -> None:
    payloads = transaction(1_100, insert(1), insert(2)) + transaction(1_200, insert(3))
    whole, split = assembler(), assembler()
    records = consume(whole, payloads)
    assert [r for payload in payloads for r in consume(split, [payload])] == records
    assert split.state == whole.state


def test_messages_that_hold_no_row_have_no_index() -> None:
    others = [
        wire.logical_message("anybody", b"content"),
        b"Y" + (16_400).to_bytes(4) + b"public\0mood\0",
        b"O" + (5).to_bytes(8) + b"upstream\0",
        b"A" + (7).to_bytes(4) + (8).to_bytes(4),  # version 18 sends an abort of a subtransaction now and then
    ]
    records = consume(assembler(), transaction(1_100, insert(1), *others, insert(2)))
    assert places(records) == [("c", 1, 1, 0), ("c", 2, 2, 1)]


def test_the_sequence_names_the_commit_before() -> None:
    records = consume(assembler(), transaction(1_100, insert(1)) + transaction(1_200, insert(2)))
    sequences = [json.loads(record.value or b"")["source"]["sequence"] for record in records]
    assert [json.loads(sequence)[0] for sequence in sequences] == [None, "1100"]


# ---- skipping what is published


def test_transactions_that_commit_before_the_position_are_skipped() -> None:
    made = assembler()
    assert consume(made, transaction(900, insert(1)) + transaction(999, insert(2))) == []
    assert made.state == START
    assert places(consume(made, transaction(1_000, insert(3)))) == [("c", 3, 1, 0)]


@pytest.mark.parametrize("next_index", range(7))
def test_a_half_published_transaction_goes_on_at_its_index(next_index: int) -> None:
    partial = PartialTransaction(commit_lsn=1_100, xid=7, next_index=next_index)
    made = assembler(StreamState(Lsn(1_000), partial, seq=next_index, commit_ts_us=0))
    assert made.state.partial == partial
    records = consume(made, transaction(1_100, *map(insert, range(6))))
    assert places(records) == [("c", i, i + 1, i) for i in range(next_index, 6)]
    assert made.state == StreamState(Lsn(1_148), None, seq=6, commit_ts_us=TS_US)


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_crash_anywhere_inside_a_transaction_loses_and_repeats_nothing(cut: int) -> None:
    changes = [insert(1), insert(2, oid=12), insert(3, oid=12), insert(4), insert(5, oid=11), insert(6)]
    payloads = transaction(1_100, *changes)
    before = assembler()
    records = consume(before, payloads[:cut])
    after = assembler(before.state)
    records += consume(after, payloads)
    assert places(records) == [("c", 1, 1, 0), ("c", 4, 2, 1), ("c", 5, 3, 2), ("c", 6, 4, 3)]


@pytest.mark.parametrize("cut", range(1, 10))
def test_what_is_sent_of_other_tables_may_differ_after_a_crash(cut: int) -> None:
    before = assembler()
    records = consume(before, transaction(1_100, insert(1), insert(2, oid=12), insert(3))[:cut])
    after = assembler(before.state)
    records += consume(after, transaction(1_100, insert(9, oid=12), insert(1), insert(3)))
    assert places(records) == [("c", 1, 1, 0), ("c", 3, 2, 1)]


def test_the_position_says_nothing_of_a_transaction_without_published_records() -> None:
    made = assembler()
    payloads = transaction(1_100, insert(5, oid=12), insert(1))
    consume(made, payloads[:5])  # up to the change that is not captured
    assert made.in_transaction
    assert made.state == START


def test_what_is_counted_again_after_a_crash_is_not_counted_back() -> None:
    partial = PartialTransaction(commit_lsn=1_100, xid=7, next_index=3)
    made = assembler(StreamState(Lsn(1_000), partial, seq=3, commit_ts_us=0))
    payloads = transaction(1_100, *map(insert, range(6)))
    consume(made, payloads[:5])  # only the first change again
    assert made.state.partial == partial


@pytest.mark.parametrize(("commit_lsn", "xid"), [(1_101, 7), (1_100, 8)])
def test_another_transaction_in_place_of_the_half_published_one_is_a_gap(commit_lsn: int, xid: int) -> None:
    partial = PartialTransaction(commit_lsn=1_100, xid=7, next_index=1)
    made = assembler(StreamState(Lsn(1_000), partial, seq=1, commit_ts_us=0))
    with pytest.raises(GapError, match="is published only in part"):
        made.consume(transaction(commit_lsn, insert(1), xid=xid), NOW_US)


def test_a_half_published_transaction_that_has_become_shorter_is_a_gap() -> None:
    partial = PartialTransaction(commit_lsn=1_100, xid=7, next_index=3)
    made = assembler(StreamState(Lsn(1_000), partial, seq=3, commit_ts_us=0))
    with pytest.raises(GapError, match="has 2 changes now, but 3 were published"):
        made.consume(transaction(1_100, insert(1), insert(2)), NOW_US)


# ---- what can't be followed


def failing(made: Assembler, payloads: Sequence[bytes]) -> tuple[list[TopicRecord], UnsupportedChangeError]:
    records, failure = made.consume(payloads, NOW_US)
    assert failure is not None
    return finished(records), failure


KEYLESS = wire.update(10, [NULL, b"x"])  # no record can have this key


def test_a_change_that_can_not_be_followed_stops_after_what_is_whole_before_it() -> None:
    made = assembler()
    records, failure = failing(made, transaction(1_100, insert(1)) + transaction(1_200, insert(2), KEYLESS, insert(3)))
    assert places(records) == [("c", 1, 1, 0)]
    assert "public.customers at 0/4B0#1" in failure.message
    assert failure.hint
    assert not made.in_transaction
    assert made.state == StreamState(Lsn(1_148), None, seq=1, commit_ts_us=TS_US)


def test_of_a_first_transaction_that_can_not_be_followed_nothing_is_published() -> None:
    made = assembler()
    records, _ = failing(made, transaction(1_100, insert(1), insert(2), KEYLESS))
    assert records == []
    assert made.state == START


def test_a_row_that_no_record_can_hold_is_published_as_the_options_say_and_counted() -> None:
    topics = Topics("shop")
    unpublishable = Unpublishable(topics, "dead_letter", {"shop.public.customers": 1_000})
    engine = engine_of([CUSTOMERS], CONTEXT)
    made = Assembler(CapturedTables([CUSTOMERS]), CONTEXT, START, engine, UnfollowedTables(), unpublishable)
    assert made.unpublished == {}
    records = consume(made, transaction(1_100, insert(1), wire.insert(10, [b"2", b"x" * 1_000]), insert(3)))
    rows = [record for record in records if record.topic == "shop.public.customers"]
    assert places(rows) == [("c", 1, 1, 0), ("c", 3, 2, 2)], "it keeps its index"
    assert [record.key for record in records if record.topic == topics.dead_letter] == [b'{"id":2}']
    assert made.unpublished == {"public.customers": 1}


def test_truncate_is_a_sweep_of_all_rows_so_far_and_of_none_that_follow() -> None:
    made = assembler()
    records = consume(made, transaction(1_100, insert(1), wire.truncate([10, 11]), insert(2)))
    assert [record.topic for record in records] == [
        "shop.public.customers",
        "shop.control",
        "shop.control",
        "shop.public.customers",
    ]
    assert [(record.key, SweepRecord.decode(record.value or b"", "control")) for record in records[1:3]] == [
        (
            f"sweep/public.{name}".encode(),
            SweepRecord(table_schema="public", table_name=name, floor=pack_version(2, seq), as_of_lsn=1_101, epoch=2),
        )
        for seq, name in ((2, "customers"), (3, "orders"))
    ]
    assert places(records) == [("c", 1, 1, 0), ("c", 2, 4, 3)]  # above both floors: these are versions of their own
    assert made.state.seq == 4


def test_a_truncate_that_is_published_is_not_published_again() -> None:
    half = StreamState(Lsn(1_000), PartialTransaction(commit_lsn=1_100, xid=7, next_index=2), seq=1, commit_ts_us=0)
    records = consume(assembler(half), transaction(1_100, insert(1), wire.truncate([10]), insert(2)))
    assert places(records) == [("c", 2, 2, 2)]
    assert len(records) == 1


def test_truncate_counts_one_for_each_captured_table() -> None:
    records = consume(assembler(), transaction(1_100, wire.truncate([12, 10, 11, 12]), insert(1)))
    assert places(records) == [("c", 1, 3, 2)]


# ---- tables that join and leave

SMALLER = wire.schema_and_relation(COLUMNS[:1], ["id"], table=ORDERS.table, oid=11)[1]


def joined(since: int, resume: StreamState = START) -> Assembler:
    """Orders joined at this LSN."""
    engine = engine_of([CUSTOMERS, ORDERS], CONTEXT)
    return Assembler(
        CapturedTables([CUSTOMERS, ORDERS], since={ORDERS.table: since}),
        CONTEXT,
        resume,
        engine,
        UnfollowedTables(),
    )


def test_what_commits_before_a_table_joined_is_not_published_and_does_not_count() -> None:
    made = joined(1_200)
    early = transaction(1_100, insert(5, oid=11), wire.truncate([11]), insert(1), insert(6, oid=11))
    # The relations are described once in a session.
    later = frames(wire.begin(1_200, TS_US, 8), insert(7, oid=11), insert(2), wire.commit(1_200, 1_248, TS_US))
    assert places(consume(made, early)) == [("c", 1, 1, 0)]
    assert places(consume(made, later)) == [("c", 7, 2, 0), ("c", 2, 3, 1)]


def test_a_table_may_have_been_altered_before_it_joined() -> None:
    made = joined(1_200)
    begun = frames(wire.begin(1_100, TS_US, 7), wire.relation_bytes(SMALLER), wire.insert(11, [b"5"]))
    assert consume(made, begun + frames(wire.commit(1_100, 1_148, TS_US))) == []
    assert places(consume(made, transaction(1_200, insert(6, oid=11)))) == [("c", 6, 1, 0)]


def test_a_table_that_is_altered_after_it_joined_stops() -> None:
    made = joined(1_200)
    consume(made, transaction(1_100, insert(5, oid=11)))
    begun = frames(wire.begin(1_200, TS_US, 8), wire.relation_bytes(SMALLER), wire.insert(11, [b"5"]))
    assert "column name was dropped" in failing(made, begun)[1].message


def test_truncate_after_a_table_joined_is_its_first_change() -> None:
    made = joined(1_200)
    consume(made, transaction(1_100, insert(5, oid=11)))
    emptied = frames(wire.begin(1_200, TS_US, 8), wire.truncate([11]), wire.commit(1_200, 1_248, TS_US))
    assert [record.topic for record in consume(made, emptied)] == ["shop.control"]


def leaving() -> Assembler:
    half = replace(START, partial=PartialTransaction(commit_lsn=1_100, xid=7, next_index=2), seq=2)
    return assembler(half, ORDERS)


def test_a_table_leaves_when_the_half_published_transaction_has_ended() -> None:
    made = leaving()
    begun = transaction(1_100, insert(1, oid=11), insert(2), insert(3, oid=11), insert(4))
    assert places(consume(made, begun)) == [("c", 3, 3, 2), ("c", 4, 4, 3)]
    later = frames(wire.begin(1_200, TS_US, 8), insert(5, oid=11), insert(6), wire.commit(1_200, 1_248, TS_US))
    assert places(consume(made, later)) == [("c", 6, 5, 0)]
    assert places(consume(made, transaction(1_300, insert(7, oid=11), insert(8)))) == [("c", 8, 6, 0)]


def test_a_table_that_leaves_may_have_been_created_anew_in_the_half_published_transaction() -> None:
    again = wire.relation_bytes(replace(ORDERS_RELATION, oid=13))
    begun = transaction(1_100, insert(1), insert(2), again, insert(3, oid=13), wire.truncate([13]), insert(4))
    assert places(consume(leaving(), begun)) == [("c", 4, 3, 4)]


def test_truncate_of_a_table_that_was_never_described_is_refused() -> None:
    begun = frames(wire.begin(1_100, TS_US, 7), wire.truncate([10]))
    with pytest.raises(ProtocolError, match="never described"):
        assembler().consume(begun, NOW_US)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([*COLUMNS, Column("more", 25, -1, "text", True)], "column more was added"),
        (COLUMNS[:1], "column name was dropped"),
        ([COLUMNS[0], Column("name", 1043, 14, "varchar", True)], "column name has type oid 1043, it was 25"),
    ],
)
def test_an_altered_table_stops_before_its_first_row(columns: Sequence[Column], expected: str) -> None:
    _, altered = wire.schema_and_relation(columns, ["id"], table=CUSTOMERS.table, oid=10)
    made = assembler()
    payloads = transaction(1_100, insert(1)) + frames(
        wire.begin(1_200, TS_US, 8), wire.relation_bytes(altered), wire.insert(10, [b"2"])
    )
    records, failure = failing(made, payloads)
    assert places(records) == [("c", 1, 1, 0)]
    assert failure.message.startswith("table public.customers was altered: ")
    assert expected in failure.message
    assert made.state.resume_lsn == 1_148


def test_a_table_created_anew_under_its_name_stops() -> None:
    _, again = wire.schema_and_relation(COLUMNS, ["id"], table=CUSTOMERS.table, oid=99)
    _, failure = failing(assembler(), frames(wire.begin(1_100, TS_US, 7), wire.relation_bytes(again)))
    assert "the table was recreated" in failure.message


def test_a_renamed_table_stops() -> None:
    _, renamed = wire.schema_and_relation(COLUMNS, ["id"], table=TableId("public", "clients"), oid=10)
    _, failure = failing(assembler(), frames(wire.begin(1_100, TS_US, 7), wire.relation_bytes(renamed)))
    assert "it is called public.clients now" in failure.message


def test_the_same_relation_again_changes_nothing() -> None:
    records = consume(assembler(), transaction(1_100, insert(1), RELATIONS[0], insert(2)))
    assert places(records) == [("c", 1, 1, 0), ("c", 2, 2, 1)]


def test_a_large_value_that_is_not_in_the_log_is_a_hole_among_the_records() -> None:
    made = assembler()
    here, moved = wire.update(10, [b"1", UNCHANGED]), wire.update(10, [b"2", UNCHANGED], [b"1", NULL])
    frames = transaction(1_100, insert(1), here, xid=7) + transaction(1_200, moved, insert(3), xid=8)
    holes = {i: record for i, record in enumerate(made.consume(frames, NOW_US)[0]) if isinstance(record, DraftRecord)}
    found = [(i, hole.key, hole.draft.columns, hole.draft.former_key) for i, hole in holes.items()]
    assert found == [(1, b'{"id":1}', ("1", None), None), (4, b'{"id":2}', ("2", None), b'{"id":1}')]
    assert [hole.draft.xid for hole in holes.values()] == [7, 8]
    assert json.loads(holes[4].draft.finished(("2", '"x"'), [1]))["source"]["seq"] == 4  # a record like any other


def test_holes_behind_a_failure_are_forgotten() -> None:
    made = assembler()
    hole = wire.update(10, [b"1", UNCHANGED])
    records, _ = made.consume(transaction(1_100, insert(1), hole) + transaction(1_200, hole, KEYLESS), NOW_US)
    assert [type(record) for record in records] == [TopicRecord, DraftRecord]


def test_a_failure_in_a_transaction_that_began_earlier_asks_for_an_abort() -> None:
    """Its first records may be in the open Kafka transaction: all of that is given up."""
    made = assembler()
    payloads = transaction(1_100, insert(1), KEYLESS)
    consume(made, payloads[:5])
    records, _ = failing(made, payloads[5:])
    assert records == []
    assert made.in_transaction


# ---- bytes that can't be


@pytest.mark.parametrize(
    ("payloads", "expected"),
    [
        (frames(insert(1)), "outside a transaction"),
        (frames(wire.commit(1_100, 1_148, TS_US)), "Commit at 0/44C outside a transaction"),
        (frames(wire.truncate([10])), "Truncate outside a transaction"),
        (frames(wire.begin(1_100, TS_US, 7), wire.begin(1_200, TS_US, 8)), "Begin inside the transaction"),
        (frames(wire.begin(1_100, TS_US, 7), wire.commit(1_101, 1_148, TS_US)), "ends a transaction that began with"),
        (frames(wire.begin(1_100, TS_US, 7), insert(1)), "for relation 10, never described"),
        (frames(wire.begin(1_100, TS_US, 7), b"S\0\0\0\1\1"), "not a message type"),
        ([b"x"], "not a frame"),
        ([b"w"], "XLogData"),
        (frames(wire.begin(1_100, TS_US, 7), b"I\0"), "never described"),
    ],
)
def test_a_stream_that_is_none_is_refused(payloads: Sequence[bytes], expected: str) -> None:
    with pytest.raises(ProtocolError, match=expected):
        assembler().consume(payloads, NOW_US)


def test_nothing_published_yet_begins_at_zero() -> None:
    made = assembler(StreamState(Lsn(0), None, 0, 0))
    assert places(consume(made, transaction(1, insert(1)))) == [("c", 1, 1, 0)]
