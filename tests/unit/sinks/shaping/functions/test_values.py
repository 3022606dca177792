"""What functions get of a row, and what they may return."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest

from cdc.model.events import Column
from sinks.contract import Json
from sinks.shaping.expressions.types import ComputationError
from sinks.shaping.functions.values import RETURNED, WrongValueError, read_type, readers, returned_column, to_record
from sinks.sql.types import postgres_form
from sinks.warehouse.columns import column_type


class Color(StrEnum):
    RED = "red"


def column(oid: int, name: str = "type", **more: Any) -> Column:
    return Column("c", oid, -1, name, True, **more)


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (column(25), "ünï", "ünï"),
        (column(1043), "a", "a"),
        (column(1042), "a  ", "a  "),
        (column(20), 2**62, 2**62),
        (column(21), -1, -1),
        (column(16), True, True),
        (column(1700), "1.50", Decimal("1.50")),
        (column(701), "NaN", None),
        (column(701), 0.1, 0.1),
        (column(701), "-Infinity", float("-inf")),
        (column(700), 0.1, 0.10000000149011612),
        (column(700), "Infinity", float("inf")),
        (column(1082), "2024-02-29", date(2024, 2, 29)),
        (column(1114), "2024-02-29T12:00:00.5", datetime(2024, 2, 29, 12, 0, 0, 500_000)),
        (column(1184), "2024-02-29T12:00:00Z", datetime(2024, 2, 29, 12, tzinfo=UTC)),
        (column(3802), '{"a": 1.10}', '{"a": 1.10}'),
        (column(114), "[1 ]", "[1 ]"),
        (column(2950), "123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
        (column(70_000, "public.mood", type_kind="e", labels=("ok",)), "ok", "ok"),
        (column(70_001, "public.amount", base_type_oid=1700), "7", Decimal(7)),
    ],
)
def test_a_value_has_python_s_type(read: Column, value: Json, expected: object) -> None:
    type_name = read_type(read)
    assert type_name is not None
    found = readers({"c": type_name})["c"](value)
    if expected is None:
        assert found != found
    else:
        assert (type(found), found) == (type(expected), expected)


def test_zero_has_no_sign() -> None:
    """JSON readers give -0 as the integer 0, and verification reads PostgreSQL's text: both must give the same."""
    assert [str(readers({"c": name})["c"](-0.0)) for name in ("double precision", "real")] == ["0.0", "0.0"]


@pytest.mark.parametrize("oid", [17, 1009, 1007, 3807, 1186, 600, 142])
def test_other_types_can_t_be_read(oid: int) -> None:
    elements = {1009: 25, 1007: 23, 3807: 3802}
    assert read_type(column(oid, "type[]" if oid in elements else "type", element_oid=elements.get(oid, 0))) is None


def test_a_value_that_python_s_type_lacks_has_no_result() -> None:
    for oid, value in ((1700, "NaN"), (1082, "infinity"), (1184, "infinity"), (1114, "0044-03-15 BC")):
        type_name = read_type(column(oid))
        assert type_name is not None
        with pytest.raises(ComputationError, match="column c has a value that is"):
            readers({"c": type_name})["c"](value)


@pytest.mark.parametrize(
    ("type_name", "value", "expected"),
    [
        ("text", "ünï", "ünï"),
        ("bigint", 2**63 - 1, 2**63 - 1),
        ("boolean", False, False),
        ("numeric", Decimal("1E+2"), "100"),
        ("numeric", 3, "3"),
        ("numeric", Decimal("-0.00"), "0.00"),
        ("double precision", 0.1, 0.1),
        ("double precision", float("nan"), "NaN"),
        ("double precision", float("-inf"), "-Infinity"),
        ("date", date(2024, 2, 29), "2024-02-29"),
        ("timestamp", datetime(2024, 2, 29, 12, 0, 0, 500_000), "2024-02-29T12:00:00.5"),
        ("timestamptz", datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=2))), "2024-02-29T10:00:00Z"),
        *((name, None, None) for name in RETURNED),
    ],
)
def test_a_column_has_the_form_of_records(type_name: str, value: object, expected: Json) -> None:
    found = to_record({"c": type_name}, {"c": value})["c"]
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("type_name", "value", "reported"),
    [
        ("text", 1, "column c is of type int, not str"),
        ("text", "\ud800", "column c: "),
        ("text", Color.RED, "column c is of type Color, not str"),
        ("integer", True, "column c is of type bool, not int"),
        ("integer", 1.0, "column c is of type float, not int"),
        ("smallint", 2**15, "column c: smallint out of range"),
        ("bigint", 2**63, "column c: bigint out of range"),
        ("numeric", 1.5, "column c is of type float, not Decimal or int, finite"),
        ("numeric", Decimal("NaN"), "column c is of type Decimal, not Decimal or int, finite"),
        ("numeric", Decimal("1E-20000"), "column c: a number has more digits than numeric can have"),
        ("double precision", 1, "column c is of type int, not float"),
        ("boolean", 1, "column c is of type int, not bool"),
        ("date", datetime(2024, 2, 29), "column c is of type datetime, not date"),
        ("timestamp", datetime(2024, 2, 29, tzinfo=UTC), "column c is of type datetime, not datetime without tzinfo"),
        ("timestamptz", datetime(2024, 2, 29), "column c is of type datetime, not datetime with tzinfo"),
        ("timestamptz", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "column c: "),
    ],
)
def test_a_value_of_another_type_is_named_without_it(type_name: str, value: object, reported: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        to_record({"c": type_name}, {"c": value})
    assert str(caught.value).startswith(reported)


def test_a_function_returns_its_columns_and_no_other() -> None:
    for returned, reported in (
        ([1], "it returned of type list, not a dict or None"),
        ({}, "it returned no column c"),
        ({"c": "x", "d": 1}, "it returned a column that it does not declare: 'd'"),
    ):
        with pytest.raises(WrongValueError, match=reported):
            to_record({"c": "text"}, returned)


def test_each_returned_type_has_one_in_every_store() -> None:
    sql = {
        name: (postgres_form(made).ddl, column_type(made).sql)
        for name in RETURNED
        if (made := returned_column("c", name))
    }
    assert sql == {
        "boolean": ("boolean", "boolean"),
        "smallint": ("smallint", "int"),
        "integer": ("integer", "int"),
        "bigint": ("bigint", "bigint"),
        "numeric": ("numeric", "string"),
        "text": ("text", "string"),
        "date": ("date", "date"),
        "double precision": ("double precision", "double"),
        "timestamp": ("timestamp", "timestamp_ntz"),
        "timestamptz": ("timestamptz", "timestamp"),
    }
