"""A judge that lets one wrong record of millions pass would let the mistake pass."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.checker.large import Judge, Plan
from tests.checker.records import Record, partition_of

PLAN = Plan(blocks=3, inserts=4, updates=2, below=100)
XID, BEFORE, PARTITIONS = 77, 40, 3


def records() -> Iterator[Record]:
    """As they should be, behind one of another transaction."""
    yield made(0, seq=BEFORE, xid=XID - 1)
    for index in range(PLAN.changes):
        yield made(index)


def made(index: int, *, xid: int = XID, seq: int | None = None, **changed: Any) -> Record:
    op, row = PLAN.change(index)
    source = {"epoch": 1, "commit_lsn": 900, "seq": BEFORE + 1 + index if seq is None else seq}
    value = {"op": op, "before": None, "after": row, "source": source | {"tx_index": index, "txId": xid}} | changed
    key = b'{"id":%d}' % row["id"]
    return Record("t", partition_of(key, PARTITIONS), index, key, json.dumps(value).encode())


def complaints(found: Iterator[Record] | list[Record]) -> list[str]:
    judge = Judge(PLAN, XID, BEFORE)
    for record in found:
        judge.take(record, PARTITIONS)
    return judge.complaints()


def test_a_plan_says_what_each_change_is() -> None:
    assert (PLAN.changes, PLAN.rows) == (18, 12)
    assert PLAN.change(3) == ("c", {"id": 104, "block": 0, "touched": 0, "note": "row 104"})
    assert PLAN.change(5) == ("u", {"id": 102, "block": 0, "touched": 1, "note": "row 102"})
    assert PLAN.change(6) == ("c", {"id": 105, "block": 1, "touched": 0, "note": "row 105"})


@pytest.mark.parametrize("changes", [1_000, 200_000, 10_000_000])
def test_a_plan_has_about_so_many_changes_more_inserts_than_updates(changes: int) -> None:
    plan = Plan.of(changes)
    assert plan.changes == changes
    assert 0 < plan.updates < plan.inserts


def test_a_transaction_that_is_there_whole_and_once_is_not_complained_of() -> None:
    judge = Judge(PLAN, XID, BEFORE)
    for record in records():
        judge.take(record, PARTITIONS)
    assert judge.complaints() == []
    assert judge.ops == {"c": 12, "u": 6}


def test_each_mistake_is_found() -> None:
    right = list(records())
    later = json.loads(right[-1].value or b"")["source"] | {"epoch": 2}
    wrong = {
        "1 changes of 18 are lost": [r for r in right if r != made(7)],
        "there twice": [*right, made(17)],
        "stands behind": [*right[:-1], *(replace(r, partition=right[-1].partition) for r in right[-1:]), made(2)],
        "phantom": [*right, made(3, xid=XID + 1)],
        "has seq": [*right[:-1], made(17, seq=99)],
        "not the c that was written": [*right[:1], made(0, after=PLAN.change(1)[1]), *right[2:]],
        "not the u that was written": [*right[:-1], made(17, op="c")],
        "another key": [*right[:-1], replace(right[-1], key=b'{"id":1}')],
        "another partition": [*right[:-1], replace(right[-1], partition=(right[-1].partition + 1) % PARTITIONS)],
        "tombstone": [*right, replace(right[-1], value=None)],
        "several epochs or commit LSNs": [*right[:-1], made(17, source=later)],
    }
    for words, found in wrong.items():
        assert any(words in complaint for complaint in complaints(found)), words
