"""Each kind of difference is found, named and counted; equal tables have none."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from cdc.model.events import TableId
from sinks.contract import StoredRow
from watershed.verify.comparison import SourceRows, compare
from watershed.verify.model import VALUE_CHARS_MAX, ColumnDifference, DriftKind, RowDifference, TableResult

LINES = TableId("public", "order_lines")
COLUMNS = {"order_id": "int8", "line_no": "int4", "price": "numeric", "note": "text", "tags": "text[]"}
KEY = ("order_id", "line_no")
ROWS: list[tuple[str | None, ...]] = [
    ("1", "1", "9.90", None, "{}"),
    ("1", "2", "10.00", "fragile", "{red,NULL}"),
    ("11", "1", "0.00", "", "{}"),
]


@pytest.fixture
def source() -> Iterator[SourceRows]:
    with SourceRows(LINES, COLUMNS, KEY, ROWS) as rows:
        yield rows


def stored(order_id: int, line_no: int, **values: Any) -> StoredRow:
    key = {"order_id": order_id, "line_no": line_no}
    return StoredRow(key, {**key, **values}, 1)


def equal_store() -> list[StoredRow]:
    """What a store holds for ROWS, in another order; one row as a typed store gives it."""
    return [
        stored(11, 1, price=Decimal("0.00"), note="", tags=[]),
        stored(1, 2, price="10.00", note="fragile", tags=["red", None]),
        stored(1, 1, price="9.90", note=None, tags=[]),
    ]


def counts(result: TableResult) -> dict[DriftKind, int]:
    """The kinds of difference that were found."""
    return {kind: count for kind, count in result.counts.items() if count}


def test_equal_tables_have_no_difference(source: SourceRows) -> None:
    result = compare("cache", source, equal_store())
    assert (result.sink, result.source_rows, result.store_rows, result.drift) == ("cache", 3, 3, 0)
    assert result.differences == []


def test_a_source_can_be_compared_with_one_store_after_another(source: SourceRows) -> None:
    assert counts(compare("cache", source, [])) == {DriftKind.MISSING: 3}
    assert compare("search", source, equal_store()).drift == 0


def test_only_a_column_that_was_added_later_may_be_absent_and_only_for_null(source: SourceRows) -> None:
    before = [StoredRow(held.key, {n: v for n, v in held.row.items() if n != "note"}, 1) for held in equal_store()]
    assert counts(compare("cache", source, before)) == {DriftKind.WRONG: 3}
    result = compare("cache", source, before, added={"note"})
    assert list(result.lines(9)) == [
        """cache: public.order_lines {"order_id":11,"line_no":1}: wrong column""",
        "  note is absent in the store, '' in the source",
        """cache: public.order_lines {"order_id":1,"line_no":2}: wrong column""",
        "  note is absent in the store, 'fragile' in the source",
    ]
    assert compare("cache", source, equal_store(), added={"note"}).drift == 0


def test_a_row_that_the_store_lacks_is_named(source: SourceRows) -> None:
    result = compare("cache", source, equal_store()[:2])
    assert counts(result) == {DriftKind.MISSING: 1}
    assert result.differences == [RowDifference(b'{"order_id":1,"line_no":1}', DriftKind.MISSING)]


def test_a_row_that_the_source_lacks_is_named(source: SourceRows) -> None:
    extra = stored(1, 3, price="1", note=None, tags=[])
    result = compare("cache", source, [*equal_store(), extra])
    assert (counts(result), result.store_rows) == ({DriftKind.EXTRA: 1}, 4)
    assert result.differences == [RowDifference(b'{"order_id":1,"line_no":3}', DriftKind.EXTRA, version=1)]


def test_a_key_that_the_store_has_twice_is_named(source: SourceRows) -> None:
    result = compare("cache", source, [*equal_store(), equal_store()[0]])
    assert counts(result) == {DriftKind.TWICE: 1}
    assert result.differences == [RowDifference(b'{"order_id":11,"line_no":1}', DriftKind.TWICE, version=1)]


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("price", "10.0", ("'10.00'", "'10.0'")),
        ("note", None, ("'fragile'", "null")),
        ("note", "fragile ", ("'fragile'", "'fragile '")),
        ("tags", ["red"], ("['red', None]", "['red']")),
        ("line_no", 3, ("2", "3")),  # the row's own copy of its key
    ],
)
def test_a_column_that_differs_is_named_with_both_values(
    source: SourceRows, column: str, value: object, shown: tuple[str, str]
) -> None:
    store = equal_store()
    store[1].row[column] = value
    result = compare("cache", source, store)
    assert counts(result) == {DriftKind.WRONG: 1}
    columns = (ColumnDifference(column, *shown),)
    assert result.differences == [RowDifference(b'{"order_id":1,"line_no":2}', DriftKind.WRONG, columns, 1)]


def test_a_column_that_is_absent_is_not_null(source: SourceRows) -> None:
    store = equal_store()
    del store[2].row["note"]
    result = compare("cache", source, store)
    assert [one.columns for one in result.differences] == [(ColumnDifference("note", "null", "absent"),)]


def test_a_column_that_the_source_does_not_have_is_a_difference(source: SourceRows) -> None:
    store = equal_store()
    store[0].row["ghost"] = 1
    result = compare("cache", source, store)
    assert [one.columns for one in result.differences] == [(ColumnDifference("ghost", "absent", "1"),)]


def test_a_row_with_two_wrong_columns_counts_once_and_shows_both(source: SourceRows) -> None:
    store = equal_store()
    store[0].row.update(price="1", note="x")
    result = compare("cache", source, store)
    assert counts(result) == {DriftKind.WRONG: 1}
    assert [column.column for column in result.differences[0].columns] == ["price", "note"]


@pytest.mark.parametrize(
    "key", [{}, {"order_id": 1}, {"order_id": 1, "line_no": None}, {"order_id": "1", "line_no": 1}]
)
def test_a_store_row_under_a_wrong_key_matches_nothing(source: SourceRows, key: dict[str, Any]) -> None:
    store = equal_store()
    store[2] = StoredRow(key, store[2].row, 1)
    assert counts(compare("cache", source, store)) == {DriftKind.MISSING: 1, DriftKind.EXTRA: 1}


def test_values_are_cut_and_lines_bounded_and_counts_are_whole() -> None:
    rows = [(str(number), "x" * 500) for number in range(1000)]
    store = [StoredRow({"id": n}, {"id": n, "name": "y" * 500}, 1) for n in range(500)]
    with SourceRows(TableId("public", "t"), {"id": "int4", "name": "text"}, ("id",), rows) as source:
        result = compare("cache", source, store)
    assert counts(result) == {DriftKind.WRONG: 500, DriftKind.MISSING: 500}
    assert result.remark == "500 missing, 500 wrong column"
    assert len(list(result.lines(7))) == 14, "a line for each row, and one for its column"
    assert all(len(column.source) == VALUE_CHARS_MAX for one in result.differences for column in one.columns)


def test_an_empty_table_equals_an_empty_store() -> None:
    with SourceRows(LINES, COLUMNS, KEY, []) as source:
        assert compare("cache", source, []).drift == 0
        assert counts(compare("cache", source, equal_store())) == {DriftKind.EXTRA: 3}
