"""Cached documents whose JSON columns are JSON values (`json: object`), and the row from one, exactly. Pure.

A value is inserted as PostgreSQL prints it, so its digits, spaces and repeated names stay as they are. One that a
strict reader of the document could not read, or that would mean another value there, is text in `ws_json.<column>`
instead, as in the search index, and the document lacks the column: JSON's null (SQL's NULL is null there), half of a
surrogate pair, a number that no double can hold, more than LEVELS_MAX levels, and spaces around the value.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import orjson

from cdc.model.events import TableSchema
from sinks.contract import Json
from sinks.json_documents import JSON_FIELD, encode_document, is_shallow
from sinks.records import decode_json

_JSONS: Final = frozenset({114, 3802})  # json, jsonb
_ELEMENTS: Final = {199: 114, 3807: 3802}  # json[], jsonb[] → theirs
_SPACE: Final = " \t\n\r"
_NULL: Final = b"null"
_read_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class JsonColumns:
    """The columns of one table whose values are JSON, and those that are arrays of such."""

    def __init__(self, schema: TableSchema) -> None:
        columns = [column for column in schema.columns if column.name not in schema.key]
        oids = {column.name: column.base_type_oid or column.type_oid for column in columns}
        elements = {column.name: column.element_oid or _ELEMENTS.get(oids[column.name]) for column in columns}
        self._arrays = frozenset(name for name, oid in elements.items() if oid in _JSONS)
        self._values = frozenset(name for name, oid in oids.items() if oid in _JSONS) - self._arrays

    def document(self, row: Mapping[str, Json]) -> bytes:
        """Returns the document of a row, in JSON."""
        made: dict[str, Any] = {}
        kept: dict[str, Json] = {}
        for name, value in row.items():
            inserted: Any = value
            if value is not None and name in self._values:
                inserted = _inserted(value)
            elif value is not None and name in self._arrays:
                inserted = _inserted_items(value)
            if inserted is None and value is not None:
                kept[name] = value
            else:
                made[name] = inserted
        if kept:
            made[JSON_FIELD] = kept
        return encode_document(made)

    def row(self, document: bytes) -> dict[str, Json]:
        """Returns the row of a document. Raises ValueError for another text."""
        try:
            row = {name: self._value(name, bytes(raw)) for name, raw in _read_members(document).items()}
            kept: dict[str, Json] = row.pop(JSON_FIELD, {})
            return row | kept
        except (TypeError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError("not the document of a row") from error

    def _value(self, name: str, raw: bytes) -> Json:
        if raw == _NULL or name not in self._values | self._arrays:
            return decode_json(raw)
        if name in self._values:
            return raw.decode()
        return [None if item == _NULL else item.decode() for item in map(bytes, _read_items(raw))]


def _inserted(text: Json) -> orjson.Fragment | None:
    """Returns a JSON value as it stands in the document; None for one that can't."""
    if not isinstance(text, str) or text == "null" or text.strip(_SPACE) != text or not is_shallow(text):
        return None
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return orjson.Fragment(text)


def _inserted_items(items: Json) -> list[orjson.Fragment | None] | None:
    """Returns an array of JSON values as it stands in the document; None for one of several dimensions, which could not
    be distinguished from an array of JSON arrays, and if an item can't."""
    if not isinstance(items, list):
        return None
    inserted = [None if item is None else _inserted(item) for item in items]
    return inserted if inserted.count(None) == items.count(None) else None
