"""The type of each column in the SQL store, and the conversion of a record's values. Pure.

PostgreSQL gets the source's own types. SQLite, which has few types, gets types that hold every value exactly: values
that it would round or refuse (`numeric`, times, arrays) are text there.
"""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ARRAY, ColumnElement, Text, case, cast, func

from cdc.model.events import Column
from sinks.contract import Json
from sinks.json_values import Unholdable, as_binary, as_boolean, as_text
from sinks.records import decode_json, encode_json
from sinks.schema_history import numeric_digits

_NUMERIC: Final = 1700
_JSON: Final = frozenset({114, 3802})
_INET: Final = 869
_TIMESTAMP: Final = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)(\+00)?")


Selected = ColumnElement[Any]


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """The form in which one column is stored."""

    ddl: str  # the type in CREATE TABLE
    write: Callable[[Json], Any]  # from the record's value, not None; raises Unholdable
    read: Callable[[Any], Json]  # from what the driver returns for `shown`, not None
    read_as: str = ""  # PostgreSQL only: the type as which json_to_recordset reads the value
    shown: Callable[[Selected], Selected] = lambda column: column  # the expression that readers select


# ---- PostgreSQL

_POSTGRES: Final[Mapping[int, str]] = {
    16: "boolean",
    17: "bytea",
    20: "bigint",
    21: "smallint",
    23: "integer",
    26: "bigint",  # oid: 32 bits without a sign
    114: "json",
    142: "xml",
    600: "point",
    601: "lseg",
    602: "path",
    603: "box",
    604: "polygon",
    628: "line",
    650: "cidr",
    700: "real",
    701: "double precision",
    718: "circle",
    774: "macaddr8",
    829: "macaddr",
    869: "inet",
    1082: "date",
    1083: "time",
    1114: "timestamp",
    1184: "timestamptz",
    1186: "interval",
    1266: "timetz",
    1560: "bit varying",
    1562: "bit varying",
    2950: "uuid",
    3220: "pg_lsn",
    3614: "tsvector",
    3615: "tsquery",
    3802: "jsonb",
    3904: "int4range",
    3906: "numrange",
    3908: "tsrange",
    3910: "tstzrange",
    3912: "daterange",
    3926: "int8range",
}
# Array type → element type, for columns without a known element type.
_ELEMENTS: Final[Mapping[int, int]] = {
    199: 114,
    1000: 16,
    1001: 17,
    1005: 21,
    1007: 23,
    1009: 25,
    1014: 1042,
    1015: 1043,
    1016: 20,
    1021: 700,
    1022: 701,
    1028: 26,
    1115: 1114,
    1182: 1082,
    1183: 1083,
    1185: 1184,
    1187: 1186,
    1231: _NUMERIC,
    2951: 2950,
    3807: 3802,
}
# Types whose values the driver and to_json() return as the record has them.
_NATIVE: Final = frozenset({16, 20, 21, 23, 26, 700, 701})


def postgres_form(column: Column, chosen: str | None = None) -> ColumnForm:
    """Returns the form of a column in PostgreSQL. `chosen`: the configured type that replaces the derived one."""
    oid, element = column.base_type_oid or column.type_oid, _element(column)
    if element is not None:
        return _postgres_array(element, chosen)
    ddl = chosen or _postgres_ddl(column, oid)
    if oid == 17 and chosen is None:
        return ColumnForm(ddl, _hexadecimal, bytes, read_as=ddl)
    # JSON is passed as text. Other values are read as their type: a cast would truncate a text that is too long for
    # varchar(n).
    read_as = "text" if oid in _JSON or ddl in ("json", "jsonb") else ddl
    if oid in _NATIVE and chosen is None:
        return ColumnForm(ddl, _same, _same, read_as)
    write = _hexadecimal if oid == 17 else _same
    read = _json_or_text if oid in _NATIVE else _iso if oid in (1114, 1184) else _same
    return ColumnForm(ddl, write, read, read_as, _printed if oid == _INET and chosen is None else _as_text)


def _postgres_array(element: int, chosen: str | None) -> ColumnForm:
    ddl = chosen or f"{_POSTGRES.get(element, 'numeric' if element == _NUMERIC else 'text')}[]"

    def shown(column: Selected) -> Selected:
        """Returns the array as JSON; as text, which begins differently, if its lower bounds are not 1, because a JSON
        array can't express them.
        """
        items = column if element in _NATIVE or element == _INET else cast(column, ARRAY(Text))
        return case(
            (_as_text(column).like("[%"), _as_text(func.to_json(_as_text(column)))),
            else_=_as_text(func.to_json(items)),
        )

    read_item = {17: _base64_of_hexadecimal, 1114: _iso, 1184: _iso}.get(element, _same)
    return ColumnForm(
        ddl,
        _items(_hexadecimal) if element == 17 else _same,
        lambda text: _items(read_item)(decode_json(text)),
        "text[]" if element in _JSON else ddl,
        shown,
    )


def _postgres_ddl(column: Column, oid: int) -> str:
    if oid != _NUMERIC:
        return "text" if column.type_kind == "e" else _POSTGRES.get(oid, "text")
    digits = numeric_digits(column)
    return "numeric" if digits is None else f"numeric({sum(digits)},{digits[1]})"


def _element(column: Column) -> int | None:
    """Returns the type of an array's elements, 0 if it is not known; None if the column is not an array."""
    oid = column.base_type_oid or column.type_oid
    if known := column.element_oid or _ELEMENTS.get(oid):
        return known
    return 0 if column.type_name.endswith("[]") else None


# ---- SQLite


def sqlite_form(column: Column, chosen: str | None = None) -> ColumnForm:
    """Returns the form of a column in SQLite. A configured type `chosen` only replaces the name, since SQLite's types
    restrict little.
    """
    oid = column.base_type_oid or column.type_oid
    if _element(column) is not None:
        return ColumnForm(chosen or "TEXT", lambda value: encode_json(value).decode(), decode_json)
    match oid:
        case 16:
            return ColumnForm(chosen or "BOOLEAN", as_boolean, bool)
        case 17:
            return ColumnForm(chosen or "BLOB", as_binary, bytes)
        case 20 | 21 | 23 | 26:
            return ColumnForm(chosen or "BIGINT", _integer, _same)
        case 700 | 701:
            # No type, because a column of type REAL changes -0.0 to 0.0. SQLite stores NaN as NULL, so it is text.
            return ColumnForm(chosen or "", _float, _same)
        case _:
            return ColumnForm(chosen or "TEXT", as_text, _same)


# ---- values


def _as_text(column: Selected) -> Selected:
    return cast(column, Text)


def _printed(column: Selected) -> Selected:
    """Returns the text that PostgreSQL prints, where a cast to text prints another one. It is not empty."""
    return func.nullif(func.concat(column), "", type_=Text)


def _same(value: Any) -> Any:
    return value


def _json_or_text(text: str) -> Json:
    """Returns the number or boolean that a column of another type holds; other texts as they are."""
    try:
        return decode_json(text.encode())
    except ValueError:  # NaN
        return text


def _items(convert: Callable[[Any], Any]) -> Callable[[Json], Json]:
    """Returns a conversion of each element of an array of any depth, which leaves values that are no array as they
    are.
    """

    def each(value: Json) -> Json:
        if not isinstance(value, list):
            return value
        return [each(item) if isinstance(item, list) else None if item is None else convert(item) for item in value]

    return each


def _integer(value: Json) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise Unholdable("not an integer of 64 bits")
    return value


def _float(value: Json) -> float | str:
    if value == "NaN":
        return "NaN"
    if type(value) not in (int, float) and value not in ("Infinity", "-Infinity"):
        raise Unholdable("not a number")
    return float(value)


def _hexadecimal(value: Json) -> str:
    return "\\x" + as_binary(value).hex()


def _base64_of_hexadecimal(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))).decode()


def _iso(text: str) -> str:
    """Returns a timestamp in the records' form. Years above 9999 or before Christ, and infinity, stay as PostgreSQL
    prints them.
    """
    plain = _TIMESTAMP.fullmatch(text)
    return f"{plain[1]}T{plain[2]}{'Z' if plain[3] else ''}" if plain else text
