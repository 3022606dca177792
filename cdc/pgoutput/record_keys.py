"""Converts between record keys and the values of a table's key columns. Pure.

A record key is JSON text as the codec writes it, `{"region":"eu","id":17}`; the values are PostgreSQL's texts. From a
key follows a text that PostgreSQL reads as the value, though not always the one that it prints: `2024-01-31T12:00:00Z`.
So a lookup lets PostgreSQL print the key, and accepts only rows whose record key is the same.
"""

import json
from binascii import Error as BinasciiError
from binascii import a2b_base64
from collections.abc import Sequence
from typing import Any

from cdc.model.events import Column, TableSchema
from cdc.pgoutput.values import bytea, encoder_for, json_name

Texts = tuple[str, ...]
"""The texts of the key's columns, in key order."""


class RecordKeys:
    """Converts keys of one table in one schema version."""

    def __init__(self, schema: TableSchema) -> None:
        by_name = {column.name: column for column in schema.columns}
        self._columns = tuple(by_name[name] for name in schema.key)
        self._encoders = tuple((json_name(column.name), encoder_for(column)) for column in self._columns)

    def encode(self, texts: Sequence[str]) -> bytes:
        """Returns the record key of a row with these values, as PostgreSQL prints them. Raises ProtocolError for other
        texts."""
        members = (
            f"{name}:{encoder(text.encode().decode('latin-1'))}"
            for (name, encoder), text in zip(self._encoders, texts, strict=True)
        )
        return ("{" + ",".join(members) + "}").encode("latin-1")

    def texts(self, key: bytes) -> Texts | None:
        """Returns texts that PostgreSQL reads as the record key's values; None for a key that is not of these
        columns."""
        try:
            values = json.loads(key, parse_int=str, parse_float=str)  # numbers as their JSON text
        except (ValueError, RecursionError):
            return None
        if not isinstance(values, dict) or tuple(values) != tuple(column.name for column in self._columns):
            return None
        texts = tuple(_text(column, value) for column, value in zip(self._columns, values.values(), strict=True))
        return None if any(text is None or "\0" in text for text in texts) else tuple(text or "" for text in texts)


def _text(column: Column, value: Any) -> str | None:
    match value:
        case bool():
            return "true" if value else "false"
        case list():
            return _array(column, value)
        case str():
            # PostgreSQL does not read base64; it reads a number's text, and times with T and Z.
            return _hex(value) if encoder_for(column) is bytea else value
    return None


def _array(column: Column, values: list[Any]) -> str:
    """Returns an array literal; each element is quoted, which every type accepts."""
    elements = []
    for value in values:
        if isinstance(value, list):
            elements.append(_array(column, value))
        elif value is None:
            elements.append("NULL")
        else:
            text = _hex(value) if column.type_name.startswith("bytea") else _text(column, value) or ""
            elements.append('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return "{" + (";" if column.type_name.startswith("box[") else ",").join(elements) + "}"


def _hex(base64: str) -> str:
    try:
        return "\\x" + a2b_base64(base64).hex()
    except BinasciiError:
        return ""
