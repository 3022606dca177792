"""JSON whose numbers keep the digits that they were written with. Pure."""

import json
from typing import Any


class JsonNumber(float):
    """A number with a point or an exponent, and its text."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> "JsonNumber":
        number = super().__new__(cls, text)
        number.text = text
        return number


def read_json(text: str) -> Any:
    """Reads JSON; numbers keep their digits."""
    return json.loads(text, parse_float=JsonNumber)


def json_text(value: Any) -> str:
    """Writes JSON as PostgreSQL prints jsonb, with the digits with which numbers were read."""
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


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
