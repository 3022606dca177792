"""PostgreSQL's text of a value → JSON text, by type: the `readable` profile.

| type                          | JSON                                                                       |
|-------------------------------|----------------------------------------------------------------------------|
| boolean                       | true, false                                                                |
| smallint, integer, bigint, oid| number                                                                     |
| real, double precision        | number (-0 as -0.0); "NaN", "Infinity", "-Infinity"                        |
| date                          | "2024-01-31"                                                               |
| timestamp                     | "2024-01-31T12:00:00.123"; PostgreSQL's text if infinite, BC or after 9999 |
| timestamp with time zone      | the same with Z; the session is in UTC                                     |
| bytea                         | base64                                                                     |
| array                         | array, nested for dimensions, of its element's form; PostgreSQL's text if  |
|                               | its subscripts do not start at 1. An element that is an array itself, by a |
|                               | domain, is PostgreSQL's text: it would look like another dimension        |
| domain                        | as its base type, in an array too                                          |
| numeric and every other type  | PostgreSQL's text                                                          |

Text goes in and comes out as a *latin-1 view*: the UTF-8 bytes decoded as latin-1, one character for each byte. That
costs nothing, slices in constant time, and encoding it as latin-1 gives the same bytes back. It is safe because every
character with a meaning here or in JSON is ASCII, and UTF-8's other bytes are all above 0x7F. So patterns name their
characters: `\\d` or `\\s` would match more than ASCII.

Types whose text is passed on unchanged need no grammar: nothing can be lost. Where we transform, or write what is
not a JSON string, or must know the session's style, the text is matched first and refused if it does not fit.
"""

import re
from binascii import Error as BinasciiError
from binascii import b2a_base64, unhexlify
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Final

from cdc.model.errors import MalformedValueError
from cdc.model.events import Column
from cdc.pgoutput.arrays import ArrayEncoder

DATES_MAX: Final = 4_096
Encoder = Callable[[str], str]  # PostgreSQL's text → JSON text, both as latin-1 view

quote: Encoder = encode_basestring  # escapes ", \ and control characters only


def json_name(name: str) -> str:
    """Returns any text as JSON string, latin-1 view."""
    return quote(name.encode().decode("latin-1"))


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """The form of a column in records."""

    encode: Encoder | None  # None: records don't have it
    unknown: str | None = None  # JSON text in an old row of which only the identity is known; None: it is absent there
    is_bounded: bool = False  # it does not grow with the value: a mask


_INTEGER = re.compile(r"0|-?[1-9][0-9]*").fullmatch
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?").fullmatch
_DATE = re.compile(r"[0-9]{4,7}-[0-9]{2}-[0-9]{2}(?: BC)?|-?infinity").fullmatch
_PLAIN = r"([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?)"
_WIDE = r"[0-9]{4,6}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
_TIMESTAMP = re.compile(_PLAIN).fullmatch
_TIMESTAMP_OTHER = re.compile(rf"{_WIDE}(?: BC)?|-?infinity").fullmatch
_TIMESTAMPTZ = re.compile(rf"{_PLAIN}\+00").fullmatch
_TIMESTAMPTZ_OTHER = re.compile(rf"{_WIDE}\+00(?: BC)?|-?infinity").fullmatch


def boolean(text: str) -> str:
    if text == "t":
        return "true"
    if text == "f":
        return "false"
    raise MalformedValueError("a boolean")


def integer(text: str) -> str:
    if _INTEGER(text):
        return text
    raise MalformedValueError("an integer")


def floating(text: str) -> str:
    if _FLOAT(text):
        return "-0.0" if text == "-0" else text  # -0 reads as an integer, which has no negative zero
    if text in ("NaN", "Infinity", "-Infinity"):
        return f'"{text}"'
    raise MalformedValueError("a floating-point number")


def bytea(text: str) -> str:
    if text.startswith("\\x"):
        try:
            return f'"{b2a_base64(unhexlify(text[2:]), newline=False).decode("ascii")}"'
        except (BinasciiError, ValueError):
            pass
    raise MalformedValueError("bytea in hex format")


@lru_cache(maxsize=DATES_MAX)  # in most tables, each comes many times
def date(text: str) -> str:
    if _DATE(text):
        return f'"{text}"'
    raise MalformedValueError("a date in ISO style")


def timestamp(text: str) -> str:
    if plain := _TIMESTAMP(text):
        return f'"{plain[1]}T{plain[2]}"'
    if _TIMESTAMP_OTHER(text):
        return f'"{text}"'
    raise MalformedValueError("a timestamp in ISO style")


def timestamptz(text: str) -> str:
    if plain := _TIMESTAMPTZ(text):
        return f'"{plain[1]}T{plain[2]}Z"'
    if _TIMESTAMPTZ_OTHER(text):
        return f'"{text}"'
    raise MalformedValueError("a timestamp with time zone in ISO style and UTC")


_BY_OID: dict[int, Encoder] = {
    16: boolean,
    17: bytea,
    20: integer,  # bigint
    21: integer,  # smallint
    23: integer,
    26: integer,  # oid
    700: floating,  # real
    701: floating,  # double precision
    1082: date,
    1114: timestamp,
    1184: timestamptz,
}


def encoder_for(column: Column) -> Encoder:
    """The encoder of a column's values. It raises MalformedValueError for text that is not its type's."""
    oid = column.base_type_oid or column.type_oid
    if column.element_oid:
        return ArrayEncoder(_BY_OID.get(column.element_oid, quote), column.delimiter)
    return _BY_OID.get(oid, quote)
