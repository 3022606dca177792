"""Conversion of a record's JSON values to Python's, for stores with typed columns. Pure."""

import base64

from sinks.contract import Json


class Unholdable(Exception):  # noqa: N818
    """Raised for a value that a column can't hold. The text is the reason, without the value."""


def as_text(value: Json) -> str:
    """Returns the value if it is a text. Raises Unholdable."""
    if not isinstance(value, str):
        raise Unholdable("not text")
    return value


def as_boolean(value: Json) -> bool:
    """Returns the value if it is a boolean. Raises Unholdable."""
    if not isinstance(value, bool):
        raise Unholdable("not a boolean")
    return value


def as_binary(value: Json) -> bytes:
    """Decodes base64. Raises Unholdable."""
    try:
        return base64.b64decode(as_text(value), validate=True)
    except ValueError:
        raise Unholdable("not base64") from None
