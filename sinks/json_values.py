"""A record's JSON values as Python's, for stores with typed columns. Pure."""

import base64
import binascii

from sinks.contract import Json


class Unholdable(Exception):  # noqa: N818
    """Why a column can't hold a value; never the value itself."""


def as_text(value: Json) -> str:
    """Raises Unholdable."""
    if not isinstance(value, str):
        raise Unholdable("not text")
    return value


def as_boolean(value: Json) -> bool:
    """Raises Unholdable."""
    if not isinstance(value, bool):
        raise Unholdable("not a boolean")
    return value


def as_binary(value: Json) -> bytes:
    """From base64. Raises Unholdable."""
    try:
        return base64.b64decode(as_text(value), validate=True)
    except binascii.Error:
        raise Unholdable("not base64") from None
