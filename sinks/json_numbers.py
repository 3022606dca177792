"""JSON whose numbers keep the digits that they were written with. Pure."""

import json
import re
import sys
from typing import Any, Final

# Python reads no integers with more digits, unless a setting of the process allows it.
_INTEGER_CHARS_MAX: Final = sys.int_info.str_digits_check_threshold

_HALF_OF_A_PAIR: Final = re.compile("[\ud800-\udfff]")


class JsonNumber(float):
    """A number with a point, an exponent or very many digits, and its text."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> "JsonNumber":
        number = super().__new__(cls, text)
        number.text = text
        return number


def read_json(text: str) -> Any:
    """Reads JSON; numbers keep their digits."""
    return json.loads(text, parse_float=JsonNumber, parse_int=_integer)


def json_text(value: Any) -> str:
    """Writes JSON as PostgreSQL prints jsonb, with the digits with which numbers were read. The text can be encoded."""
    match value:
        case JsonNumber():
            return value.text
        case dict():
            return "{" + ", ".join(f"{_quoted(name)}: {json_text(item)}" for name, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(json_text, value)) + "]"
        case str():
            return _quoted(value)
    return json.dumps(value)


def _integer(text: str) -> int | JsonNumber:
    return int(text) if len(text) <= _INTEGER_CHARS_MAX else JsonNumber(text)


def _quoted(text: str) -> str:
    """Quotes a text. Half of a pair of UTF-16, which no encoding can represent, is escaped as it was."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _HALF_OF_A_PAIR.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
