"""What a comparison adds to its sink's history, and when the next one is due."""

from typing import Any

import pytest

from cdc.model.comparisons import RUNS_MAX, ComparisonRecord, RunRecord
from cdc.model.events import TableId
from watershed.verify.history import RETRY_S, due_us, run_of, with_run
from watershed.verify.model import DriftKind, RowDifference, TableResult

A, B = TableId("public", "a"), TableId("public", "b")


def result(table: TableId, drift: int = 0, **fields: Any) -> TableResult:
    made = TableResult("search", table, source_rows=100, **fields)
    for number in range(drift):
        made.add(RowDifference(b"%d" % number, DriftKind.WRONG if number % 2 else DriftKind.MISSING))
    return made


def run(begun_s: float = 0.0, **fields: Any) -> RunRecord:
    return RunRecord(begun_us=round(begun_s * 1e6), seconds=1.0, **fields)


def test_a_run_says_what_it_found() -> None:
    found = run_of(run(), [result(A, 3, undecided=2), result(B, why_not="it is stopped")])
    assert (found.tables, found.rows, found.undecided) == (1, 200, 2)
    assert found.drift == {"missing": 2, "wrong column": 1}
    assert found.not_compared == {"public.b": "it is stopped"}


def test_drift_stays_until_its_table_is_compared_whole_and_found_right() -> None:
    record = with_run(None, "search", run(1), [result(A, 3), result(B, 2)])
    assert record.drift == {"public.a": 3, "public.b": 2}
    record = with_run(record, "search", run(2), [result(A, why_not="it is stopped")])
    assert record.drift == {"public.a": 3, "public.b": 2}
    record = with_run(record, "search", run(3, is_sample=True), [result(A), result(B, 4)])
    assert record.drift == {"public.a": 3, "public.b": 4}
    record = with_run(record, "search", run(4), [result(A)])
    assert record.drift == {"public.b": 4}
    assert [one.begun_us for one in record.runs] == [4_000_000, 3_000_000, 2_000_000, 1_000_000]


def test_a_record_keeps_the_newest_runs() -> None:
    record: ComparisonRecord | None = None
    for number in range(RUNS_MAX + 5):
        record = with_run(record, "search", run(number), [result(A)])
    assert record is not None
    assert [round(one.begun_us / 1e6) for one in record.runs] == list(range(RUNS_MAX + 4, 4, -1))


@pytest.mark.parametrize(
    ("runs", "due_s"),
    [
        ((), 0),
        ((run(50, tables=1),), 0),  # by hand
        ((run(100, tables=1, is_scheduled=True),), 100 + 86_400),
        ((run(500, tables=1), run(100, tables=1, is_scheduled=True)), 100 + 86_400),
        ((run(100, is_scheduled=True),), 100 + RETRY_S),  # it could not compare anything
    ],
)
def test_a_scheduled_run_is_due_after_the_last_one(runs: tuple[RunRecord, ...], due_s: float) -> None:
    assert due_us(ComparisonRecord(sink="search", runs=runs), 86_400.0) == due_s * 1e6
    assert due_us(None, 86_400.0) == 0
