"""Any changes of a few rows, cut into batches anywhere, read at any moment: against a model that knows all there was.

The model gives each row a number of its own, from its insert to its delete, wherever it moves; so it knows without any
key whose large value is whose.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.capture.toast_batch import ToastBatch
from cdc.model.topic_record import TopicRecord
from cdc.ports.row_reader import FoundRows, RowsRequest, Unreadable
from cdc.ports.transaction_snapshot import TransactionSnapshot
from tests.support.holes import OID, U, consumed, delete, insert, update
from tests.support.wire import truncate

KEYS: Final = range(4)
XID: Final = 100  # of the first transaction

Table = dict[int, tuple[int, str]]  # key → the row's number and its large value


@dataclass(frozen=True)
class Event:
    """A record with a row that the batch must have, and what is true of it."""

    key: int
    row: int  # its number
    big: str
    is_logged: bool
    transaction: int


@dataclass
class Story:
    """Transactions: their messages, their events, and the table after each."""

    messages: list[list[bytes]]
    events: list[Event]
    tables: list[Table]


def story(chance: Random, count: int) -> Story:
    table: Table = {}
    reported = Story([], [], [dict(table)])
    rows = values = 0
    for transaction in range(count):
        messages: list[bytes] = []
        for _ in range(chance.choice((1, 1, 2, 5))):
            key, values = chance.choice(KEYS), values + 1
            if chance.random() < 0.02:
                table.clear()
                messages.append(truncate([OID]))
                continue
            if key not in table:
                rows += 1
                table[key] = rows, f"big {values}"
                messages.append(insert(key, "v", f"big {values}", None))
                reported.events.append(Event(key, rows, f"big {values}", True, transaction))
                continue
            if chance.random() < 0.2:
                del table[key]
                messages.append(delete(key))
                continue
            row, big = table.pop(key)
            is_logged = chance.random() < 0.3
            big = f"big {values}" if is_logged else big
            free = [other for other in KEYS if other not in table and other != key]
            to = chance.choice(free) if free and chance.random() < 0.3 else key
            table[to] = row, big
            messages.append(update(to, "v", big if is_logged else U, None, was=None if to == key else key))
            reported.events.append(Event(to, row, big, is_logged, transaction))
        reported.messages.append(messages)
        reported.tables.append(dict(table))
    return reported


def snapshot(chance: Random, visible: int) -> TransactionSnapshot:
    """That sees the first so many transactions; the next ones may be running, or not have begun for it."""
    xmax = XID + visible + chance.randrange(3)
    return TransactionSnapshot(XID + visible, xmax, frozenset(range(XID + visible, xmax)))


def answer(chance: Random, wanted: RowsRequest, table: Table, visible: int) -> FoundRows | Unreadable:
    if chance.random() < 0.05:
        return Unreadable("no privilege")
    rows = [table.get(int(row.key[0])) for row in wanted.rows]
    assert wanted.columns == ("big",)
    found = tuple(None if row is None else (row[1].encode(),) for row in rows)
    return FoundRows(snapshot(chance, visible), found[: chance.choice((1, len(found)))])


def fill(chance: Random, batch: ToastBatch, reported: Story, at_least: int) -> list[TopicRecord]:
    """Until it is done; the log is ahead of what is visible, and now and then nobody waits for it."""
    records: list[TopicRecord] = []
    visible = chance.randrange(at_least, len(reported.messages) + 1)
    while True:
        records += batch.ready()
        if batch.is_done:
            return records
        for wanted in batch.wanted(chance.choice((1, 2, 500))):
            batch.take(wanted, answer(chance, wanted, reported.tables[visible], visible))
            if chance.random() < 0.1:
                batch.give_up([row.place for row in wanted.rows])
        visible = chance.randrange(visible, len(reported.messages) + 1)


def check(records: Sequence[TopicRecord], reported: Story, events: Sequence[Event]) -> None:
    """`events`: those of the batch."""
    written: dict[int, str] = {}  # in this batch, by the row's number
    found = [json.loads(r.value) for r in records if r.value is not None and r.topic.endswith("pages")]
    rows = [value for value in found if value["after"] is not None]
    assert len(rows) == len(events)
    for value, event in zip(rows, events, strict=True):
        after, source = value["after"], value["source"]
        assert (after["id"], after["v"], after["huge"]) == (event.key, "v", None)
        if event.is_logged:
            written[event.row] = event.big
        if event.row in written:
            assert after["big"] == event.big and "filled" not in source and "unchanged" not in source
        elif "unchanged" in source:
            assert source["unchanged"] == ["big"] and "big" not in after and "filled" not in source
        else:
            # Perhaps a later row's, but then it was there under this key after the event.
            later = {table[event.key][1] for table in reported.tables[event.transaction + 1 :] if event.key in table}
            assert source["filled"] == ["big"] and after["big"] in later | {event.big}


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 14))
@pytest.mark.invariant(7)
def test_every_hole_is_filled_with_what_the_row_had_or_has_later(seed: int, count: int) -> None:
    chance = Random(seed)
    reported = story(chance, count)
    begins = chance.randrange(count)
    transactions = [(XID + number, reported.messages[number]) for number in range(begins, count)]
    batch = ToastBatch(consumed(*transactions))
    events = [event for event in reported.events if event.transaction >= begins]
    check(fill(chance, batch, reported, chance.choice((0, begins))), reported, events)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 10))
def test_when_all_is_visible_only_what_is_gone_or_can_not_be_read_stays_unfilled(seed: int, count: int) -> None:
    chance = Random(seed)
    reported = story(chance, count)
    begins = chance.randrange(count)
    batch = ToastBatch(consumed(*((XID + number, reported.messages[number]) for number in range(begins, count))))
    records = batch.ready()
    while not batch.is_done:
        for wanted in batch.wanted(chance.choice((1, 3, 500))):
            rows = tuple(reported.tables[-1].get(int(row.key[0])) for row in wanted.rows)
            batch.take(wanted, FoundRows(snapshot(chance, count), tuple(row and (row[1].encode(),) for row in rows)))
        records += batch.ready()
    assert batch.unfilled == []
    last = {r.key: json.loads(r.value) for r in records if r.value is not None and r.topic.endswith("pages")}
    for key, (_, big) in reported.tables[-1].items():
        value = last.get(b'{"id":%d}' % key)
        assert value is None or value["after"]["big"] == big, "the last record of a key that is there is whole and true"
