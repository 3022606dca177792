"""Decides whether a value in a derived store is the value that PostgreSQL printed: by type, exactly, without capture's
own codec.

The source's side is PostgreSQL's text (as COPY writes it, session pinned: ISO dates, UTC, shortest floats). The
store's side is a decoded JSON value (search, cache) or a Python value of the column's type (warehouse). Both are
converted to one form, each by its own code, and the forms are compared. No code is shared with the encoder of records,
so that an error there can't stay hidden here.

Types are named as in `pg_catalog.pg_type.typname` (`int4`, `timestamptz`), domains resolved, an array as its
element's name with `[]`; a type outside pg_catalog (an enum) compares as text.
"""

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

Form = Any  # None, bool, int, float, str, Decimal, bytes, list, Unlike


class Unlike:
    """A store's value that no value of the type can have. It equals nothing."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0


UNLIKE = Unlike()
_PLAIN = frozenset({str, int, bool, bytes, type(None)})  # one type on both sides: equal is the same

_INTEGERS = frozenset({"int2", "int4", "int8", "oid"})
_PRINTED = frozenset({"numeric", "date", "time", "uuid"})
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)")
_TIMESTAMP_UTC = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)\+00")


def same(pg_type: str, text: str | None, value: object) -> bool:
    """Returns whether the store's `value` is the one that PostgreSQL printed as `text` (None: NULL)."""
    if text is None or value is None:
        return text is None and value is None
    if pg_type in _INTEGERS:
        return type(value) is int and text == str(value)
    if pg_type not in _STORE and not pg_type.endswith("[]"):
        return text == value
    # Most values travel as PostgreSQL prints them; a float never does as a string.
    if text == value and pg_type in _PRINTED:
        return True
    return _equal(source_form(pg_type, text), store_form(pg_type, value))


def same_value(pg_type: str, expected: object, value: object) -> bool:
    """Returns whether both values, each a store's or in the form of records, are the same."""
    if expected is None or value is None:
        return expected is None and value is None
    return _equal(store_form(pg_type, expected), store_form(pg_type, value))


def key_form(forms: list[Form]) -> str:
    """Returns a key as text, the same from the forms of either side."""
    return "\x00".join(_key_part(form) for form in forms)


def source_form(pg_type: str, text: str) -> Form:
    """Converts PostgreSQL's text of one value, not NULL, to the form that is compared."""
    if pg_type.endswith("[]"):
        # A JSON array can't represent explicit lower bounds: such a value is published as text.
        return text if text.startswith("[") else _array(pg_type[:-2], text)
    read = _SOURCE.get(pg_type)
    return read(text) if read else text


def store_form(pg_type: str, value: object) -> Form:
    """Converts a store's value (not None) to the form that is compared; UNLIKE for one that the type can't have."""
    if pg_type.endswith("[]"):
        if isinstance(value, list):
            return [_store_item(pg_type, item) for item in value]
        return value if isinstance(value, str) else UNLIKE
    return _STORE.get(pg_type, _text)(value)


def _store_item(pg_type: str, item: object) -> Form:
    if item is None:
        return None
    return store_form(pg_type if isinstance(item, list) else pg_type[:-2], item)


def _equal(source: Form, store: Form) -> bool:
    kind = type(source)
    if kind is type(store) and kind in _PLAIN:
        return bool(source == store)
    match source, store:
        case list(), list():
            return len(source) == len(store) and all(map(_equal, source, store))
        case float(), float():
            # For PostgreSQL all NaN are equal; the sign of a zero is part of its text.
            if math.isnan(source):
                return math.isnan(store)
            return source == store and math.copysign(1, source) == math.copysign(1, store)
        case float(), int():
            return source == store  # JSON readers give -0 as the integer 0: its sign is not known
        case str(), Decimal():
            return _same_number(source, store)  # a decimal column of fixed scale: the number counts
    return False


def _same_number(text: str, number: Decimal) -> bool:
    try:
        source = Decimal(text)
    except InvalidOperation:
        return False
    return number.is_nan() if source.is_nan() else source == number


def _key_part(form: Form) -> str:
    match form:
        case float() if form.is_integer():
            return str(int(form))  # JSON readers give 1.0 as the integer 1, and -0 as 0
        case Decimal():
            return f"{form:f}"
        case bytes():
            return form.hex()
        case list():
            return "[" + "\x01".join("null" if item is None else _key_part(item) for item in form) + "]"
    return str(form)


# ---- the source's side: PostgreSQL's text


def _real(text: str) -> float:
    return _rounded_real(float(text))


def _rounded_real(value: float) -> float:
    """Returns the nearest value of PostgreSQL's real: JSON has its shortest digits, a typed store its 32 bits."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _hex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


def _timestamp(text: str) -> str:
    plain = _TIMESTAMP.fullmatch(text)
    return f"{plain[1]}T{plain[2]}" if plain else text


def _timestamp_utc(text: str) -> str:
    plain = _TIMESTAMP_UTC.fullmatch(text)
    return f"{plain[1]}T{plain[2]}Z" if plain else text


_SOURCE: dict[str, Callable[[str], Form]] = {
    "bool": lambda text: text == "t",
    "int2": int,
    "int4": int,
    "int8": int,
    "oid": int,
    "float4": _real,
    "float8": float,
    "bytea": _hex,
    "timestamp": _timestamp,
    "timestamptz": _timestamp_utc,
}


def _array(element: str, text: str) -> list[Form]:
    """Reads PostgreSQL's array text (manual 8.15.6): braces nest, quotes and backslashes protect, NULL is not
    quoted.
    """
    delimiter = ";" if element == "box" else ","
    stack: list[list[Form]] = []
    position = 0
    while True:
        match text[position]:
            case "{":
                inner: list[Form] = []
                if stack:
                    stack[-1].append(inner)
                stack.append(inner)
                position += 1
            case "}":
                done = stack.pop()
                position += 1
                if not stack:
                    return done
            case mark if mark == delimiter:
                position += 1
            case '"':
                item, position = _quoted(text, position + 1)
                stack[-1].append(source_form(element, item))
            case _:
                end = position
                while text[end] not in (delimiter, "}"):
                    end += 1
                item = text[position:end]
                stack[-1].append(None if item == "NULL" else source_form(element, item))
                position = end


def _quoted(text: str, position: int) -> tuple[str, int]:
    """Returns the element that starts after its opening quote, and the position after it."""
    parts: list[str] = []
    while text[position] != '"':
        if text[position] == "\\":
            position += 1
        parts.append(text[position])
        position += 1
    return "".join(parts), position + 1


# ---- the store's side: JSON values, or Python values of the column's type


def _text(value: object) -> Form:
    return value if isinstance(value, str) else UNLIKE


def _store_bool(value: object) -> Form:
    return value if isinstance(value, bool) else UNLIKE


def _store_int(value: object) -> Form:
    return value if isinstance(value, int) and not isinstance(value, bool) else UNLIKE


def _store_float(value: object) -> Form:
    match value:
        case bool():
            return UNLIKE
        case float() | int():
            return value
        case "NaN" | "Infinity" | "-Infinity":
            return float(value)
    return UNLIKE


def _store_real(value: object) -> Form:
    form = _store_float(value)
    return _rounded_real(form) if isinstance(form, float) else form


def _store_numeric(value: object) -> Form:
    return value if isinstance(value, str | Decimal) else UNLIKE


def _store_bytes(value: object) -> Form:
    match value:
        case bytes():
            return value
        case str():
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                return UNLIKE
    return UNLIKE


def _store_date(value: object) -> Form:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    return _text(value)


def _clock(value: datetime | time) -> str:
    """Returns hh:mm:ss with the fraction as PostgreSQL prints it: no trailing zeros."""
    whole = f"{value.hour:02}:{value.minute:02}:{value.second:02}"
    return f"{whole}.{value.microsecond:06}".rstrip("0") if value.microsecond else whole


def _store_time(value: object) -> Form:
    if isinstance(value, time):
        return _clock(value) if value.tzinfo is None else UNLIKE
    return _text(value)


def _store_timestamp(value: object) -> Form:
    if isinstance(value, datetime):
        return f"{value.date().isoformat()}T{_clock(value)}" if value.tzinfo is None else UNLIKE
    return _text(value)


def _store_timestamp_utc(value: object) -> Form:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return UNLIKE
        utc = value.astimezone(UTC)
        return f"{utc.date().isoformat()}T{_clock(utc)}Z"
    return _text(value)


def _store_uuid(value: object) -> Form:
    return str(value) if isinstance(value, UUID) else _text(value)


_STORE: dict[str, Callable[[object], Form]] = {
    "bool": _store_bool,
    "int2": _store_int,
    "int4": _store_int,
    "int8": _store_int,
    "oid": _store_int,
    "float4": _store_real,
    "float8": _store_float,
    "numeric": _store_numeric,
    "bytea": _store_bytes,
    "date": _store_date,
    "time": _store_time,
    "timestamp": _store_timestamp,
    "timestamptz": _store_timestamp_utc,
    "uuid": _store_uuid,
}
