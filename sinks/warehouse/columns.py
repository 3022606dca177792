"""The conversion of PostgreSQL's types to Iceberg's, and of a record's JSON values to the columns of an Arrow table.
Pure.

| PostgreSQL                         | Iceberg (Spark's name)              | Arrow               |
|------------------------------------|-------------------------------------|---------------------|
| boolean                            | boolean                             | bool                |
| smallint, integer                  | int                                 | int32               |
| bigint, oid                        | bigint                              | int64               |
| real, double precision             | float, double                       | float32, float64    |
| numeric(p,s), 0 ≤ s ≤ p ≤ 38       | decimal(p,s)                        | decimal128(p,s)     |
| date                               | date                                | date32              |
| timestamp, timestamp with time zone| timestamp_ntz, timestamp            | µs, µs in UTC       |
| bytea                              | binary                              | binary              |
| an array of these                  | array of it                         | list                |
| everything else                    | string, as PostgreSQL prints it     | string              |

A value that its column can't hold exactly is refused, never changed: infinity, NaN in a decimal, a date outside the
years 1 to 9999, an array with more than one dimension.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.events import Column
from sinks.contract import Json
from sinks.json_values import Unholdable, as_binary, as_boolean, as_text

_STRINGS: Final = frozenset({str})
_INTEGERS: Final = frozenset({int})
DECIMAL_PRECISION_MAX: Final = 38  # of Iceberg and Spark
_TYPMOD_HEADER: Final = 4  # PostgreSQL's type modifiers count from here (VARHDRSZ)
_REAL_MAX: Final = 3.4028235677973366e38  # the least number that rounds to infinity in 32 bits


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type in which a column is stored, with its conversions."""

    sql: str  # Spark's name of the type
    arrow: pa.DataType
    convert: Callable[[Json], Any]  # from the record's JSON value, not None; raises Unholdable
    # The types of JSON values that Arrow converts like `convert`, or refuses. Arrow takes a tenth of the time.
    in_bulk: frozenset[type] = frozenset()
    text_end: str = ""  # the ending that every text must have

    def array(self, values: Sequence[Json]) -> pa.Array:
        """Returns the values as a column. Raises Unholdable."""
        if {*map(type, values)} <= {*self.in_bulk, type(None)}:
            try:
                read = pa.array(values, pa.string() if str in self.in_bulk else self.arrow)
                if not self.text_end or pc.all(pc.ends_with(read, self.text_end), min_count=0).as_py():
                    return read if read.type == self.arrow else read.cast(self.arrow)
            except (pa.ArrowException, OverflowError):
                pass  # `convert` finds the value, and raises with the reason
        try:
            return pa.array([None if value is None else self.convert(value) for value in values], self.arrow)
        except (pa.ArrowException, TypeError, ValueError, ArithmeticError):
            raise Unholdable("not a value of this type") from None


def column_type(column: Column) -> ColumnType:
    """Returns the type of a published column."""
    oid = column.base_type_oid or column.type_oid
    if element := column.element_oid or _ELEMENT_OF.get(oid):
        return _array_of(_scalar(element, column.type_modifier))
    if column.type_name.endswith("[]"):
        return _array_of(_TEXT)
    return _scalar(oid, column.type_modifier)


def unheld_values(column: Column) -> str:
    """Returns which values of the column's type the warehouse can't hold; empty where it holds every one."""
    oid = column.base_type_oid or column.type_oid
    is_array = bool(column.element_oid) or oid in _ELEMENT_OF or column.type_name.endswith("[]")
    scalar = column.element_oid or _ELEMENT_OF.get(oid, oid)
    found = ["arrays of several dimensions or with explicit bounds"] if is_array else []
    if scalar == _NUMERIC and _numeric(column.type_modifier) is not _TEXT:
        found.append("NaN")
    if scalar in _MOMENTS:
        found.append("infinity, years outside 1 to 9999")
    return ", ".join(found)


def _scalar(oid: int, modifier: int) -> ColumnType:
    if oid == _NUMERIC:
        return _numeric(modifier)
    return _SCALARS.get(oid, _TEXT)


def _numeric(modifier: int) -> ColumnType:
    """Returns the type for a numeric column. The modifier is (precision << 16 | scale) + 4, with a signed scale of 11
    bits; without a modifier, values can have any length.
    """
    if modifier < _TYPMOD_HEADER:
        return _TEXT
    packed = modifier - _TYPMOD_HEADER
    precision, scale = packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 1024) - 1024
    if not 0 <= scale <= precision <= DECIMAL_PRECISION_MAX:
        return _TEXT

    def convert(value: Json) -> Decimal:
        try:
            number = Decimal(as_text(value))
        except InvalidOperation:
            raise Unholdable("not a number") from None
        if not number.is_finite():
            raise Unholdable("not a finite number")
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int), "a finite decimal"
        if -exponent > scale or (number and number.adjusted() >= precision - scale):
            raise Unholdable(f"more digits than decimal({precision},{scale}) has")
        return number

    return ColumnType(f"decimal({precision},{scale})", pa.decimal128(precision, scale), convert, _STRINGS)


def _array_of(element: ColumnType) -> ColumnType:
    def convert(value: Json) -> list[Any]:
        if not isinstance(value, list):
            raise Unholdable("an array column can't hold an array with explicit lower bounds")
        if any(isinstance(item, list) for item in value):
            raise Unholdable("the column holds arrays of one dimension")
        return [None if item is None else element.convert(item) for item in value]

    return ColumnType(f"array<{element.sql}>", pa.list_(element.arrow), convert)


def _integer(bits: int) -> Callable[[Json], int]:
    limit = 1 << bits - 1

    def convert(value: Json) -> int:
        if type(value) is not int:
            raise Unholdable("not an integer")
        if not -limit <= value < limit:
            raise Unholdable(f"outside {bits} bits")
        return value

    return convert


def _double(value: Json) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise Unholdable("not a number")


def _real(value: Json) -> float:
    number = _double(value)
    if _REAL_MAX <= abs(number) != float("inf"):
        raise Unholdable("outside 32 bits")
    return number


def _date(value: Json) -> date:
    try:
        return date.fromisoformat(as_text(value))
    except ValueError:
        raise Unholdable("not a date in the years 1 to 9999") from None


def _timestamp(value: Json) -> datetime:
    try:
        moment = datetime.fromisoformat(as_text(value))
    except ValueError:
        raise Unholdable("no moment in the years 1 to 9999") from None
    if moment.tzinfo is not None:
        raise Unholdable("a timestamp with a time zone")
    return moment


def _timestamp_utc(value: Json) -> datetime:
    text = as_text(value)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Unholdable("no moment in the years 1 to 9999") from None
    if not text.endswith("Z"):
        raise Unholdable("not in UTC")
    return moment


_TEXT: Final = ColumnType("string", pa.string(), as_text, _STRINGS)
_NUMERIC: Final = 1700
_MOMENTS: Final = frozenset({1082, 1114, 1184})  # date, timestamp, timestamp with time zone

# pg_type.oid of PostgreSQL's own types, which never change.
_SCALARS: Final[dict[int, ColumnType]] = {
    16: ColumnType("boolean", pa.bool_(), as_boolean, frozenset({bool})),
    17: ColumnType("binary", pa.binary(), as_binary),
    20: ColumnType("bigint", pa.int64(), _integer(64), _INTEGERS),
    21: ColumnType("int", pa.int32(), _integer(32), _INTEGERS),
    23: ColumnType("int", pa.int32(), _integer(32), _INTEGERS),
    26: ColumnType("bigint", pa.int64(), _integer(64), _INTEGERS),  # oid: 32 bits without a sign
    700: ColumnType("float", pa.float32(), _real),
    701: ColumnType("double", pa.float64(), _double, frozenset({int, float})),
    1082: ColumnType("date", pa.date32(), _date, _STRINGS),
    1114: ColumnType("timestamp_ntz", pa.timestamp("us"), _timestamp, _STRINGS),
    1184: ColumnType("timestamp", pa.timestamp("us", tz="UTC"), _timestamp_utc, _STRINGS, "Z"),
}
# Array type → element type. Arrays of other types hold text; they are recognized by the `[]` of format_type().
_ELEMENT_OF: Final[dict[int, int]] = {
    1000: 16,
    1001: 17,
    1016: 20,
    1005: 21,
    1007: 23,
    1028: 26,
    1021: 700,
    1022: 701,
    1231: _NUMERIC,
    1182: 1082,
    1115: 1114,
    1185: 1184,
}
