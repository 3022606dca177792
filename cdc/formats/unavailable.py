"""Debezium's placeholder for a large (TOAST) value that an update did not change and that could not be read either.

The record has it in the form of the column's values. Numbers, times, geometric types and the like have no such value:
for them Debezium writes null, or a zero where null is not allowed, which can't be distinguished from a value.
"""

import hashlib
import uuid
from typing import Final

from cdc.config.format_options import FormatOptions
from cdc.formats.connect import dumps
from cdc.formats.debezium_values import bytes_as
from cdc.formats.kinds import ValueType, is_of_domain, value_type
from cdc.model.events import Column
from cdc.pgoutput.values import quote

_TEXT_OIDS: Final = frozenset({19, 25, 114, 142, 1042, 1043, 3802})
_TEXT_NAMES: Final = frozenset({"citext", "ltree"})
_NO_PLAIN_DATE: Final = ("connect", "isostring")  # modes whose dates are no plain number
_BYTE_ARRAYS: Final = frozenset({20, 23, 1082})  # bigint, integer, date: the placeholder's bytes, one by one


def unavailable(column: Column, options: FormatOptions) -> str | None:
    """Returns the placeholder as JSON, a latin-1 view of UTF-8; None in profile `readable`, and if the column's form
    has none."""
    content = options.placeholder
    if content is None or (column.element_oid and is_of_domain(column)):
        return None
    of = value_type(column)
    if not column.element_oid:
        return _value(of, content, options)
    if of.oid in _BYTE_ARRAYS and not (of.oid == 1082 and options.time_precision_mode in _NO_PLAIN_DATE):
        return dumps(list(content))
    if of.oid == 2950:
        return dumps([_uuid(content)])
    element = _value(of, content, options)
    return None if element is None else f"[{element}]"


def _value(of: ValueType, content: bytes, options: FormatOptions) -> str | None:
    text = dumps(content.decode(errors="replace"))
    if of.oid in _TEXT_OIDS or of.name in _TEXT_NAMES:
        return text
    if of.oid == 17:
        mode = options.binary_handling_mode or "bytes"
        return text if mode == "hex" else bytes_as(mode)(content)  # as Debezium does, though text is no hexadecimal
    if of.name == "hstore":
        pair = f"{{{text}:{text}}}"
        return pair if options.hstore_handling_mode == "map" else quote(pair)
    return None


def _uuid(content: bytes) -> str:
    """Java's UUID.nameUUIDFromBytes."""
    return str(uuid.UUID(bytes=hashlib.md5(content, usedforsecurity=False).digest(), version=3))
