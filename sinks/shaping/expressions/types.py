"""The types of expressions: their values in records, and between the parts of an expression. Pure.

Within an expression a number of an integer type is an int, a numeric a finite Decimal whose exponent is minus its
scale, a text a str, a boolean a bool, a date a date, a timestamp a datetime without zone (one with time zone: in UTC).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any, Final

from cdc.formats.kinds import value_type
from cdc.model.events import Column
from sinks.contract import Json

Value = Any  # None: NULL

NUMERIC_DIGITS_MAX: Final = 131_072  # before the decimal point
NUMERIC_SCALE_MAX: Final = 16_383
# Sums and products are exact in it: it is never the limit.
EXACT: Final = Context(prec=4 * (NUMERIC_DIGITS_MAX + NUMERIC_SCALE_MAX), Emax=10**9, Emin=-(10**9))


class ExpressionError(ValueError):
    """An expression that can't be evaluated for any row of the table. The text says what and why."""


class ComputationError(ArithmeticError):
    """A row for which the expression has no value, as PostgreSQL would fail. The text has no value of the row."""


class MissingColumnError(Exception):
    """The row lacks a column that an update did not change, and the value depends on it."""


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type; `family`: types of which have common types and comparisons."""

    name: str  # as format_type() prints it
    oid: int
    family: str
    pg_name: str  # pg_type.typname


BOOLEAN: Final = SqlType("boolean", 16, "boolean", "bool")
SMALLINT: Final = SqlType("smallint", 21, "number", "int2")
INTEGER: Final = SqlType("integer", 23, "number", "int4")
BIGINT: Final = SqlType("bigint", 20, "number", "int8")
NUMERIC: Final = SqlType("numeric", 1700, "number", "numeric")
TEXT: Final = SqlType("text", 25, "text", "text")
DATE: Final = SqlType("date", 1082, "date", "date")
TIMESTAMP: Final = SqlType("timestamp without time zone", 1114, "timestamp", "timestamp")
TIMESTAMPTZ: Final = SqlType("timestamp with time zone", 1184, "timestamptz", "timestamptz")
UNKNOWN: Final = SqlType("unknown", 705, "unknown", "unknown")  # of NULL, and of a text in quotes

TYPES: Final = (BOOLEAN, SMALLINT, INTEGER, BIGINT, NUMERIC, TEXT, DATE, TIMESTAMP, TIMESTAMPTZ)
NUMBERS: Final = (SMALLINT, INTEGER, BIGINT, NUMERIC)  # each is converted to those behind it
INTEGER_BITS: Final = {SMALLINT: 16, INTEGER: 32, BIGINT: 64}
_BY_OID: Final = {one.oid: one for one in TYPES} | {1043: TEXT}  # varchar
_UUID_OID: Final = 2950


def type_of(column: Column) -> SqlType:
    """Returns the type of a column. One of family `label` has text in records, and can be cast to text; one of family
    `other` can only be tested with IS NULL."""
    found = value_type(column)
    is_array = bool(column.element_oid) or column.type_name.endswith("[]")
    if not is_array and (known := _BY_OID.get(found.oid)) is not None:
        return known
    is_label = not is_array and (column.type_kind == "e" or found.oid == _UUID_OID)
    return SqlType(column.type_name, found.oid, "label" if is_label else "other", "")


def numeric_column_modifier(column: Column) -> int:
    """Returns the modifier that the values of a column of type numeric keep to."""
    return value_type(column).modifier if value_type(column).oid == NUMERIC.oid else -1


def reader(type_: SqlType, name: str) -> Callable[[Json], Value]:
    """Returns what converts a record's value, never NULL, of the column with this name. It raises ComputationError."""
    read = _READ.get(type_, _same)

    def checked(value: Json) -> Value:
        try:
            return read(value)
        except (ValueError, ArithmeticError):
            what = "NaN or infinite" if type_ is NUMERIC else "infinite or outside the years 1 to 9999"
            raise ComputationError(f"column {name} has a value that is {what}") from None

    return _same if read is _same else checked


def to_json(type_: SqlType, value: Value) -> Json:
    """Returns a value in the form that records have."""
    if value is None:
        return None
    if type_ is NUMERIC:
        return f"{value:f}"
    if type_ is DATE:
        return value.isoformat()
    if type_ in (TIMESTAMP, TIMESTAMPTZ):
        return _seconds(value) + ("Z" if type_ is TIMESTAMPTZ else "")
    return value


def number(value: Decimal) -> Decimal:
    """Returns a number as a value of numeric: no positive exponent, no negative zero, within PostgreSQL's limits.
    Raises ComputationError."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int), "it is finite"
    if exponent < -NUMERIC_SCALE_MAX or value.adjusted() >= NUMERIC_DIGITS_MAX:
        raise ComputationError("a number has more digits than numeric can have")
    if exponent > 0:
        value = value.quantize(Decimal(1), context=EXACT)
    return value.copy_abs() if value.is_zero() else value


def integer(type_: SqlType, value: int) -> int:
    """Returns a number if the integer type can have it. Raises ComputationError."""
    bits = INTEGER_BITS[type_]
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ComputationError(f"{type_.name} out of range")
    return value


def _same(value: Json) -> Value:
    return value


def _read_numeric(value: Json) -> Decimal:
    read = Decimal(value)
    if not read.is_finite():
        raise ValueError
    return number(read)


def _read_timestamp(value: Json) -> datetime:
    read = datetime.fromisoformat(value)
    return read.astimezone(UTC).replace(tzinfo=None) if read.tzinfo is not None else read


def _seconds(value: datetime) -> str:
    text = value.isoformat()
    return text.rstrip("0") if value.microsecond else text


_READ: Final[dict[SqlType, Callable[[Json], Value]]] = {
    NUMERIC: _read_numeric,
    DATE: date.fromisoformat,
    TIMESTAMP: _read_timestamp,
    TIMESTAMPTZ: _read_timestamp,
}
