"""Each kind of difference is found, named and counted; equal tables have none."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from cdc.model.events import TableId
from sinks.comparison import VALUE_CHARS_MAX, Difference, Kind, SourceRows, compare
from sinks.contract import StoredRow

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


def test_equal_tables_have_no_difference(source: SourceRows) -> None:
    result = compare(source, equal_store())
    assert (result.source_rows, result.store_rows, result.differences) == (3, 3, 0)
    assert result.examples == ()


def test_a_source_can_be_compared_with_one_store_after_another(source: SourceRows) -> None:
    assert compare(source, []).missing == 3
    assert compare(source, equal_store()).differences == 0


def test_only_a_column_that_was_added_later_may_be_absent_and_only_for_null(source: SourceRows) -> None:
    before = [StoredRow(held.key, {n: v for n, v in held.row.items() if n != "note"}, 1) for held in equal_store()]
    assert compare(source, before).differing == 3
    result = compare(source, before, added={"note"})
    assert [str(example) for example in result.examples] == [
        """public.order_lines {"order_id":11,"line_no":1}: note is '' in the source, absent in the store""",
        """public.order_lines {"order_id":1,"line_no":2}: note is 'fragile' in the source, absent in the store""",
    ]
    assert compare(source, equal_store(), added={"note"}).differences == 0


def test_a_row_that_the_store_lacks_is_named(source: SourceRows) -> None:
    result = compare(source, equal_store()[:2])
    assert (result.missing, result.extra, result.differing) == (1, 0, 0)
    assert result.examples == (Difference(LINES, '{"order_id":1,"line_no":1}', Kind.MISSING),)


def test_a_row_that_the_source_lacks_is_named(source: SourceRows) -> None:
    extra = stored(1, 3, price="1", note=None, tags=[])
    result = compare(source, [*equal_store(), extra])
    assert (result.missing, result.extra, result.store_rows) == (0, 1, 4)
    assert result.examples == (Difference(LINES, '{"order_id":1,"line_no":3}', Kind.EXTRA),)


def test_a_key_that_the_store_has_twice_is_named(source: SourceRows) -> None:
    result = compare(source, [*equal_store(), equal_store()[0]])
    assert (result.missing, result.extra) == (0, 1)
    assert result.examples == (Difference(LINES, '{"order_id":11,"line_no":1}', Kind.TWICE),)


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
    result = compare(source, store)
    assert (result.missing, result.extra, result.differing) == (0, 0, 1)
    assert result.examples == (Difference(LINES, '{"order_id":1,"line_no":2}', Kind.DIFFERS, column, *shown),)


def test_a_column_that_is_absent_is_not_null(source: SourceRows) -> None:
    store = equal_store()
    del store[2].row["note"]
    result = compare(source, store)
    assert result.differing == 1
    assert (result.examples[0].column, result.examples[0].source, result.examples[0].store) == (
        "note", "null", "absent",
    )  # fmt: skip


def test_a_column_that_the_source_does_not_have_is_a_difference(source: SourceRows) -> None:
    store = equal_store()
    store[0].row["ghost"] = 1
    result = compare(source, store)
    assert result.differing == 1
    assert str(result.examples[0]) == (
        'public.order_lines {"order_id":11,"line_no":1}: ghost is absent in the source, 1 in the store'
    )


def test_a_row_with_two_wrong_columns_counts_once_and_shows_both(source: SourceRows) -> None:
    store = equal_store()
    store[0].row.update(price="1", note="x")
    result = compare(source, store)
    assert result.differing == result.differences == 1
    assert [example.column for example in result.examples] == ["price", "note"]


@pytest.mark.parametrize(
    "key", [{}, {"order_id": 1}, {"order_id": 1, "line_no": None}, {"order_id": "1", "line_no": 1}]
)
def test_a_store_row_under_a_wrong_key_matches_nothing(source: SourceRows, key: dict[str, Any]) -> None:
    store = equal_store()
    store[2] = StoredRow(key, store[2].row, 1)
    result = compare(source, store)
    assert (result.missing, result.extra) == (1, 1)


def test_examples_are_bounded_and_counts_are_whole() -> None:
    rows = [(str(number), "x" * 500) for number in range(1000)]
    store = [StoredRow({"id": n}, {"id": n, "name": "y" * 500}, 1) for n in range(500)]
    with SourceRows(TableId("public", "t"), {"id": "int4", "name": "text"}, ("id",), rows) as source:
        result = compare(source, store, examples_max=7)
    assert (result.differing, result.missing, len(result.examples)) == (500, 500, 7)
    assert all(len(example.source) <= VALUE_CHARS_MAX for example in result.examples)


def test_an_empty_table_equals_an_empty_store() -> None:
    with SourceRows(LINES, COLUMNS, KEY, []) as source:
        assert compare(source, []).differences == 0
        assert compare(source, equal_store()).extra == 3
