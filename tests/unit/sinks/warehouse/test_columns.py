"""Which Iceberg type a PostgreSQL type becomes, and what of a record's values it holds."""

from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, isnan
from typing import Any

import pytest

from cdc.model.events import Column
from sinks.json_values import Unholdable
from sinks.warehouse.columns import ColumnType, column_type


def numeric(precision: int, scale: int) -> int:
    """pg_attribute.atttypmod of numeric(precision, scale)."""
    return (precision << 16 | scale & 0x7FF) + 4


def kind(oid: int, type_name: str = "", modifier: int = -1, base: int | None = None) -> ColumnType:
    return column_type(Column("c", oid, modifier, type_name, True, "b", oid if base is None else base))


@pytest.mark.parametrize(
    ("oid", "type_name", "modifier", "sql"),
    [
        (16, "boolean", -1, "boolean"),
        (21, "smallint", -1, "int"),
        (23, "integer", -1, "int"),
        (20, "bigint", -1, "bigint"),
        (26, "oid", -1, "bigint"),
        (700, "real", -1, "float"),
        (701, "double precision", -1, "double"),
        (1700, "numeric(10,2)", numeric(10, 2), "decimal(10,2)"),
        (1700, "numeric(38,0)", numeric(38, 0), "decimal(38,0)"),
        (1700, "numeric(2,2)", numeric(2, 2), "decimal(2,2)"),
        (1700, "numeric", -1, "string"),
        (1700, "numeric(39,2)", numeric(39, 2), "string"),
        (1700, "numeric(3,5)", numeric(3, 5), "string"),
        (1700, "numeric(5,-2)", numeric(5, -2), "string"),
        (790, "money", -1, "string"),
        (1082, "date", -1, "date"),
        (1083, "time without time zone", -1, "string"),
        (1114, "timestamp without time zone", -1, "timestamp_ntz"),
        (1184, "timestamp with time zone", -1, "timestamp"),
        (17, "bytea", -1, "binary"),
        (25, "text", -1, "string"),
        (2950, "uuid", -1, "string"),
        (3802, "jsonb", -1, "string"),
        (50001, "mood", -1, "string"),
        (1007, "integer[]", -1, "array<int>"),
        (1231, "numeric(10,2)[]", numeric(10, 2), "array<decimal(10,2)>"),
        (1231, "numeric[]", -1, "array<string>"),
        (1185, "timestamp with time zone[]", -1, "array<timestamp>"),
        (1009, "text[]", -1, "array<string>"),
        (50002, "mood[]", -1, "array<string>"),
    ],
)
def test_types(oid: int, type_name: str, modifier: int, sql: str) -> None:
    assert kind(oid, type_name, modifier).sql == sql


def test_an_array_of_a_domain_is_an_array_of_its_base_type() -> None:
    column = Column("c", 50003, -1, "positive[]", True, "b", 50003, element_oid=23)
    assert column_type(column).sql == "array<int>"
    assert column_type(column).convert([1, None]) == [1, None]


def test_a_domain_is_its_base_type() -> None:
    assert kind(60000, "positive", base=23).sql == "int"
    assert kind(60001, "tags", base=1009).sql == "string", "a domain's name does not say that it is an array"


@pytest.mark.parametrize(
    ("oid", "modifier", "value", "held"),
    [
        (16, -1, True, True),
        (21, -1, -32768, -32768),
        (20, -1, 2**63 - 1, 2**63 - 1),
        (26, -1, 2**32 - 1, 2**32 - 1),
        (700, -1, 0.1, 0.1),
        (700, -1, 3.4028235e38, 3.4028235e38),
        (701, -1, 3, 3.0),
        (701, -1, "-Infinity", -inf),
        (1700, numeric(10, 2), "-12345678.90", Decimal("-12345678.90")),
        (1700, numeric(2, 2), "0.00", Decimal("0.00")),
        (1700, numeric(2, 2), "0.99", Decimal("0.99")),
        (1700, numeric(38, 10), "9" * 28 + "." + "9" * 10, Decimal("9" * 28 + "." + "9" * 10)),
        (1700, -1, "NaN", "NaN"),
        (1082, -1, "0001-01-01", date(1, 1, 1)),
        (1082, -1, "9999-12-31", date(9999, 12, 31)),
        (1114, -1, "2024-02-29T23:59:59.999999", datetime(2024, 2, 29, 23, 59, 59, 999999)),
        (1114, -1, "2024-02-29T00:00:00.5", datetime(2024, 2, 29, 0, 0, 0, 500000)),
        (1184, -1, "2024-02-29T12:00:00Z", datetime(2024, 2, 29, 12, tzinfo=UTC)),
        (17, -1, "AAECAwT//g==", b"\x00\x01\x02\x03\x04\xff\xfe"),
        (17, -1, "", b""),
        (25, -1, "any \x01 text", "any \x01 text"),
        (1007, -1, [1, None, 3], [1, None, 3]),
        (1007, -1, [], []),
        (1182, -1, ["2024-01-31"], [date(2024, 1, 31)]),
    ],
)
def test_values_are_held(oid: int, modifier: int, value: Any, held: Any) -> None:
    column = kind(oid, modifier=modifier)
    assert column.convert(value) == held
    # Beside values that Arrow converts in bulk, and beside some that it does not.
    for values in ([value], [None, value], [value, None, value]):
        array = column.array(values)
        assert array.type == column.arrow
        expected = pytest.approx(held) if oid == 700 else held
        assert array.to_pylist() == [None if given is None else expected for given in values]


def test_nan_is_a_double() -> None:
    assert isnan(kind(701).convert("NaN"))


@pytest.mark.parametrize(
    ("oid", "modifier", "value"),
    [
        (16, -1, 1),
        (21, -1, True),
        (23, -1, 2**31),
        (20, -1, 2**63),
        (20, -1, 1.0),
        (20, -1, "1"),
        (700, -1, 1e39),
        (701, -1, "many"),
        (701, -1, True),
        (1700, numeric(10, 2), "NaN"),
        (1700, numeric(10, 2), "Infinity"),
        (1700, numeric(10, 2), "1.234"),
        (1700, numeric(10, 2), "123456789.00"),
        (1700, numeric(10, 2), 1.5),
        (1082, -1, "infinity"),
        (1082, -1, "0044-03-15 BC"),
        (1082, -1, "12024-01-01"),
        (1114, -1, "-infinity"),
        (1114, -1, "10000-01-01 00:00:00"),
        (1114, -1, "2024-01-31T12:00:00Z"),
        (1184, -1, "infinity"),
        (1184, -1, "0044-03-15 12:00:00+00 BC"),
        (1184, -1, "2024-01-31T12:00:00"),
        (1184, -1, "2024-01-31T12:00:00+02"),
        (17, -1, "no base64!"),
        (25, -1, 1),
        (25, -1, ["a"]),
        (1007, -1, [[1], [2]]),
        (1007, -1, "[0:1]={1,2}"),
        (1007, -1, [2**31]),
    ],
)
def test_what_a_column_cant_hold_is_refused_without_telling_it(oid: int, modifier: int, value: Any) -> None:
    for convert in (kind(oid, modifier=modifier).convert, lambda one: kind(oid, modifier=modifier).array([None, one])):
        with pytest.raises(Unholdable) as refused:
            convert(value)
        assert str(value) not in str(refused.value)
