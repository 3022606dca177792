"""The values that a Python function gets and returns, from and to the form of records. Pure."""

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from cdc.config.row_functions import RETURN_TYPES
from cdc.formats.kinds import value_type
from cdc.model.events import Column
from sinks.contract import Json
from sinks.shaping.expressions import types
from sinks.shaping.expressions.types import SqlType, integer, number, reader, to_json, type_of

READ_AS: Final = "text, varchar, char(n), json, jsonb, enums, uuid, numbers, boolean, date and timestamps"
DOUBLE: Final = SqlType("double precision", 701, "float", "float8")
_REAL: Final = SqlType("real", 700, "float", "float4")
_TEXTS: Final = frozenset({114, 3802, 1042})  # json, jsonb, char(n): a text in records, as PostgreSQL prints it
_READ: Final = {one.name: one for one in (*types.TYPES, DOUBLE, _REAL)}
RETURNED: Final[Mapping[str, SqlType]] = {
    **{one.name: one for one in (*types.TYPES, DOUBLE) if one.name in RETURN_TYPES},
    "timestamp": types.TIMESTAMP,
    "timestamptz": types.TIMESTAMPTZ,
}


class WrongValueError(ValueError):
    """A function has returned something else than it declares. The text does not have the value."""


def read_type(column: Column) -> str | None:
    """Returns the name of the type as which a function reads a column, for `readers`; None for a type that none can
    read."""
    oid, found = value_type(column).oid, type_of(column)
    is_array = bool(column.element_oid) or column.type_name.endswith("[]")
    if found.family == "label" or (not is_array and oid in _TEXTS):
        return types.TEXT.name
    if found.family != "other":
        return found.name
    return None if is_array else {DOUBLE.oid: DOUBLE.name, _REAL.oid: _REAL.name}.get(oid)


def readers(columns: Mapping[str, str]) -> dict[str, Callable[[Json], Any]]:
    """Returns what converts a value of records, by column. `columns`: their types, from `read_type`. The functions
    raise ComputationError."""
    return {name: _reader(_READ[type_name], name) for name, type_name in columns.items()}


def returned_column(name: str, type_name: str) -> Column:
    """Returns the column that holds what a function returns as `type_name`."""
    type_ = RETURNED[type_name]
    return Column(name, type_.oid, -1, type_.name, nullable=True, base_type_oid=type_.oid)


def to_record(returns: Mapping[str, str], returned: object) -> dict[str, Json]:
    """Returns a function's columns in the form of records. Raises WrongValueError."""
    if not isinstance(returned, dict):
        raise WrongValueError(f"it returned {_kind(returned)}, not a dict or None")
    if lacking := [name for name in returns if name not in returned]:
        raise WrongValueError(f"it returned no column {lacking[0]}")
    if more := [name for name in returned if name not in returns]:
        raise WrongValueError(f"it returned a column that it does not declare: {more[0]!r:.100}")
    return {name: _column(name, type_name, returned[name]) for name, type_name in returns.items()}


def float_text(value: float) -> str:
    """Returns NaN and the infinities as records have them."""
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _reader(type_: SqlType, name: str) -> Callable[[Json], Any]:
    if type_ is DOUBLE:
        return lambda value: float(value) + 0.0  # zero without a sign: JSON readers give -0 as the integer 0
    if type_ is _REAL:
        return lambda value: _single(float(value))
    read = reader(type_, name)
    return (lambda value: read(value).replace(tzinfo=UTC)) if type_ is types.TIMESTAMPTZ else read


def _single(value: float) -> float:
    """Returns the value of a real: records have its shortest digits."""
    is_finite = value - value == 0
    return float(struct.unpack("f", struct.pack("f", value))[0]) + 0.0 if is_finite else value


def _column(name: str, type_name: str, value: object) -> Json:
    if value is None:
        return None
    try:
        return _value(type_name, value)
    except (ArithmeticError, UnicodeEncodeError) as error:
        raise WrongValueError(f"column {name}: {error}") from None
    except TypeError:
        raise WrongValueError(f"column {name} is {_kind(value)}, not {RETURN_TYPES[type_name]}") from None


def _value(type_name: str, value: Any) -> Json:
    """Converts values of Python's own types only: of a class of another package it is not known what else they say.
    Raises TypeError, ComputationError, and UnicodeEncodeError for a text that is no Unicode."""
    type_, kind = RETURNED[type_name], type(value)
    if type_ in types.INTEGER_BITS and kind is int:
        return integer(type_, value)
    if type_ is types.NUMERIC and (kind is int or (kind is Decimal and value.is_finite())):
        return to_json(type_, number(Decimal(value)))
    if type_ is DOUBLE and kind is float:
        return value if value - value == 0 else float_text(value)
    if type_ is types.TEXT and kind is str:
        value.encode()
        return value
    if type_ is types.BOOLEAN and kind is bool:
        return value
    if type_ is types.DATE and kind is date:
        return to_json(type_, value)
    if type_ is types.TIMESTAMP and kind is datetime and value.tzinfo is None:
        return to_json(type_, value)
    if type_ is types.TIMESTAMPTZ and kind is datetime and value.utcoffset() is not None:
        return to_json(type_, value.astimezone(UTC).replace(tzinfo=None))
    raise TypeError


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"
