"""The newest version of each key: the table's present rows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.events import pack_version
from spark_jobs.source.errors import IncompleteTableError
from spark_jobs.source.state import ROWS_AT_ONCE, PresentRows
from tests.unit.spark_jobs.source.records import part, record


def present(*records: Any, **fields: Any) -> dict[int, Any]:
    found = PresentRows(part(**fields))
    found.add(records)
    return {row.change.key["id"]: (row.change.row or {}).get("name") for rows in found.rows() for row in rows}


def test_the_newest_version_counts_whatever_comes_last() -> None:
    assert present(record(0, "c", 1, 9, name="new"), record(1, "r", 1, 3, name="old")) == {1: "new"}
    assert present(record(0, "d", 1, 9), record(1, "t", 1, 9), record(2, "r", 1, 3, name="old")) == {}
    assert present(record(0, "t", 1, 5), record(1, "c", 1, 6, name="again")) == {1: "again"}


def test_rows_below_the_floor_of_a_sweep_are_gone() -> None:
    rows = [record(number, "c", number, number, name="x") for number in range(1, 5)]
    assert sorted(present(*rows, floor=pack_version(1, 3))) == [3, 4]
    assert present(*rows, floor=pack_version(2, 0)) == {}


def test_columns_that_a_record_lacks_come_from_earlier_records() -> None:
    whole = record(0, "c", 1, 1, name="long")
    assert present(whole, record(1, "u", 1, 2, unchanged=("name",))) == {1: "long"}
    assert present(record(0, "u", 1, 2, unchanged=("name",)), whole) == {1: "long"}
    lacking = record(3, "u", 1, 4, unchanged=("name",))
    assert present(whole, record(1, "u", 1, 2, name="longer"), lacking) == {1: "longer"}
    assert present(whole, lacking, record(4, "u", 1, 5, unchanged=("name",))) == {1: "long"}


@pytest.mark.parametrize(
    "records",
    [
        [record(0, "u", 1, 2, unchanged=("name",))],
        [record(0, "c", 1, 2, unchanged=("name",))],
    ],
)
def test_a_row_that_is_not_known_is_no_row(records: list[Any]) -> None:
    with pytest.raises(IncompleteTableError, match="partition 0, offset 0: large values"):
        present(*records)
    assert set(present(*records, may_be_incomplete=True).values()) <= {None}


def test_many_rows_come_in_batches() -> None:
    found = PresentRows(part())
    found.add([record(number, "c", number, number, name="x") for number in range(1, ROWS_AT_ONCE + 3)])
    assert [len(rows) for rows in found.rows()] == [ROWS_AT_ONCE, 2]


@given(st.permutations(range(1, 13)), st.data())
def test_any_order_has_the_same_result(order: list[int], data: st.DataObject) -> None:
    keys = [data.draw(st.integers(1, 3)) for _ in order]
    ops = [data.draw(st.sampled_from("cud")) for _ in order]
    records = {
        seq: record(seq, ops[seq - 1], keys[seq - 1], seq, name=f"v{seq}")
        if ops[seq - 1] != "d"
        else record(seq, "d", keys[seq - 1], seq)
        for seq in order
    }
    expected = {}
    for key in set(keys):
        last = max(seq for seq in order if keys[seq - 1] == key)
        if ops[last - 1] != "d":
            expected[key] = f"v{last}"
    assert present(*(records[seq] for seq in order)) == expected
