"""Debezium's placeholder for a large (TOAST) value that an update did not change and that could not be read either.

The record has it in the form of the column's values. Numbers, times, geometric types and the like have no such value:
for them Debezium writes null, or a zero where null is not allowed, which can't be distinguished from a value.
"""

import base64
import hashlib
import json
import uuid
from collections.abc import Callable
from typing import Final

from cdc.config.format_options import FormatOptions
from cdc.formats.kinds import column_type, element_type, is_of_domain
from cdc.model.events import Column

_TEXT_OIDS: Final = frozenset({19, 25, 114, 142, 1042, 1043, 3802})
_TEXT_NAMES: Final = frozenset({"citext", "ltree"})
_NO_PLAIN_DATE: Final = ("connect", "isostring")  # modes whose dates are no plain number
_BYTE_ARRAYS: Final = frozenset({20, 23, 1082})  # bigint, integer, date: the placeholder's bytes, one by one


def unavailable(column: Column, options: FormatOptions) -> str | None:
    """Returns the placeholder as JSON, a latin-1 view of UTF-8; None in profile `readable`, and if the column's form
    has none."""
    content = options.placeholder
    if content is None:
        return None
    text = content.decode(errors="replace")
    if column.element_oid and is_of_domain(column):
        return None
    if column.element_oid:
        of = element_type(column)
        if of.oid in _BYTE_ARRAYS and not (of.oid == 1082 and options.time_precision_mode in _NO_PLAIN_DATE):
            return _json(list(content))
        if of.oid == 2950:
            return _json([_uuid(content)])
    else:
        of = column_type(column)
    form: Callable[[object], object] = (lambda value: [value]) if column.element_oid else (lambda value: value)
    if of.oid in _TEXT_OIDS or of.name in _TEXT_NAMES:
        return _json(form(text))
    if of.oid == 17:
        return _json(form(_bytes(content, text, options)))
    if of.name == "hstore":
        pair = {text: text}
        return _json(form(pair if options.hstore_handling_mode == "map" else _text(pair)))
    return None


def _bytes(content: bytes, text: str, options: FormatOptions) -> str:
    match options.binary_handling_mode:
        case "hex":
            return text  # as Debezium does, though it is no hexadecimal
        case "base64-url-safe":
            return base64.urlsafe_b64encode(content).decode()
        case _:
            return base64.b64encode(content).decode()


def _uuid(content: bytes) -> str:
    """Java's UUID.nameUUIDFromBytes."""
    return str(uuid.UUID(bytes=hashlib.md5(content, usedforsecurity=False).digest(), version=3))


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _json(value: object) -> str:
    return _text(value).encode().decode("latin-1")
