"""The conversion of a row into a document of its table's index, and back, exactly. Pure.

A value is the same as in the record, except for columns whose field takes another form:

| column                       | field                       | in the document                                   |
|------------------------------|-----------------------------|---------------------------------------------------|
| json, jsonb                  | flat_object, flattened,     | the object, or the array of objects, itself       |
|                              | object, nested              |                                                   |
| numeric(p,s), p up to 15     | a number's                  | a number with PostgreSQL's digits: a double is    |
|                              |                             | exact for that many                               |
| point, as degrees            | geo_point                   | [x, y]: longitude, latitude                       |
| vector                       | knn_vector, dense_vector    | an array of numbers                               |

An empty array is stored in its field, as an array of objects is. A JSON value is kept as text in `ws_json.<column>`,
which is not searched, if it is another array or no object, if its field can't take it (a text longer than 32,766
bytes), if it has more than 100 levels, or if the object would lose a part of its text (spaces of type json).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from cdc.config.store_shapes import SearchShape
from cdc.model.events import Column, TableSchema
from sinks.contract import Json
from sinks.json_documents import JSON_FIELD, is_shallow
from sinks.json_numbers import JsonNumber, json_text, read_json
from sinks.reduction import bounded_id, key_text
from sinks.schema_history import numeric_digits
from sinks.search.mapping import (
    DELETED_AT_FIELD,
    DELETED_FIELD,
    VECTOR_TYPES,
    VERSION_FIELD,
    Capabilities,
    Field,
    fields_of,
    is_object,
)
from sinks.templates import Template, value_text

_JSON, _JSONB, _NUMERIC, _POINT = 114, 3802, 1700, 600
_NUMBER_TYPES: Final = frozenset({"double", "float", "half_float", "scaled_float", "long", "integer", "short", "byte"})
_DIGITS_MAX: Final = 15  # a double holds that many decimal digits exactly
_DECIMAL: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_PAIR: Final = re.compile(r"\((-?[0-9][0-9.e+-]*),(-?[0-9][0-9.e+-]*)\)")


class DocumentForm:
    """The form of one table's documents. Raises RefusedError for a template that can't be parsed."""

    def __init__(self, schema: TableSchema, shape: SearchShape, capabilities: Capabilities) -> None:
        self.schema = schema
        self._where = f"search index: {schema.table}"
        self._id = None if shape.id is None else Template.parse(shape.id, self._where)
        self._routing = None if shape.routing is None else Template.parse(shape.routing, self._where)
        fields = fields_of(schema, shape, capabilities)
        self._writers: dict[str, Callable[[str], orjson.Fragment | None]] = {}
        self._readers: dict[str, Callable[[Any], Json]] = {}
        for column in schema.columns:
            self._readers[column.name] = _reader(column)
            if writer := _writer(column, fields[column.name]):
                self._writers[column.name] = writer
        self._objects = [column.name for column in schema.columns if _oid(column) in (_JSON, _JSONB)]

    def check(self) -> None:
        """Raises RefusedError for templates that are not unique, or name other columns than the key's."""
        if self._id is not None:
            self._id.check_unique(self.schema, self._where)
        if self._routing is not None:
            self._routing.check_only_key(self.schema, self._where)

    def document_id(self, key: Mapping[str, Json]) -> str:
        """Returns the document id of the row with this key. It is unique."""
        if self._id is None:
            return bounded_id(key_text(key))
        return bounded_id(self._id.fill([value_text(key[name]) for name in self._id.columns]))

    def routing(self, key: Mapping[str, Json]) -> str | None:
        """Returns the text that chooses the document's shard; None if the id chooses it."""
        if self._routing is None:
            return None
        return self._routing.fill([value_text(key[name]) for name in self._routing.columns])

    @property
    def has_objects(self) -> bool:
        """True if some column of type json or jsonb is stored as an object."""
        return any(name in self._writers for name in self._objects)

    def document(self, row: Mapping[str, Json], *, objects: bool = True) -> Mapping[str, Any]:
        """Returns the document for a row. Without `objects`, all JSON is kept as text in `ws_json`."""
        if not self._writers:
            return row
        made: dict[str, Any] = {}
        kept: dict[str, str] = {}
        for name, value in row.items():
            writer = self._writers.get(name)
            if writer is None or type(value) is not str:
                made[name] = value
            elif name in self._objects:
                fragment = writer(value) if objects else None
                if fragment is None or not self._is_exact(name, value):
                    kept[name] = value
                if fragment is not None:
                    made[name] = fragment
            else:
                fragment = writer(value)
                made[name] = value if fragment is None else fragment
        if kept:
            made[JSON_FIELD] = kept
        return made

    def row(self, document: dict[str, Any]) -> dict[str, Json]:
        """Returns the row of a live document, in the records' form. The document is modified."""
        for name in (VERSION_FIELD, DELETED_FIELD, DELETED_AT_FIELD):
            document.pop(name, None)
        kept = document.pop(JSON_FIELD, {})
        row = {name: self._readers.get(name, _plain)(value) for name, value in document.items()}
        row.update(kept)
        return row

    def _is_exact(self, name: str, text: str) -> bool:
        """Returns whether the object converts back to the column's text. An object of a jsonb column always does."""
        column = next(column for column in self.schema.columns if column.name == name)
        return _oid(column) == _JSONB or json_text(read_json(text)) == text


def _writer(column: Column, field: Field) -> Callable[[str], orjson.Fragment | None] | None:
    """Returns the function that converts a text of this column for the document, whose result None means: keep the
    text. Returns None if all values of the column stay as they are.
    """
    match _oid(column):
        case oid if oid in (_JSON, _JSONB):
            return (_object if oid == _JSONB else _canonical_object) if is_object(field) else None
        case oid if oid == _NUMERIC:
            return _number if field.get("type") in _NUMBER_TYPES and has_few_digits(column) else None
        case oid if oid == _POINT:
            return _point if field.get("type") == "geo_point" else None
    return orjson.Fragment if field.get("type") in VECTOR_TYPES else None


def has_few_digits(column: Column) -> bool:
    """Returns whether a double distinguishes all values of a numeric column."""
    digits = numeric_digits(column)
    return digits is not None and 0 <= digits[1] <= sum(digits) <= _DIGITS_MAX


def _object(text: str) -> orjson.Fragment | None:
    return orjson.Fragment(text) if text.startswith(("{", "[{", "[]")) and is_shallow(text) else None


def _canonical_object(text: str) -> orjson.Fragment | None:
    """Converts a value of type json. OpenSearch refuses duplicate names, of which PostgreSQL uses the last one."""
    if not is_shallow(text):
        return None
    value = read_json(text)
    is_one = isinstance(value, dict) or (isinstance(value, list) and (not value or isinstance(value[0], dict)))
    return orjson.Fragment(json_text(value)) if is_one else None


def _number(text: str) -> orjson.Fragment | None:
    return orjson.Fragment(text) if _DECIMAL.fullmatch(text) else None  # not NaN


def _point(text: str) -> orjson.Fragment | None:
    pair = _PAIR.fullmatch(text)
    if pair is None or abs(float(pair[1])) > 180 or abs(float(pair[2])) > 90:
        return None
    return orjson.Fragment(f"[{pair[1]},{pair[2]}]")


def _reader(column: Column) -> Callable[[Any], Json]:
    match _oid(column):
        case oid if oid in (_JSON, _JSONB):
            return lambda value: json_text(value) if isinstance(value, dict | list) else _plain(value)
        case oid if oid == _NUMERIC:
            return lambda value: _digits(value) if isinstance(value, int | float) else value
        case oid if oid == _POINT:
            return lambda value: f"({','.join(map(_digits, value))})" if isinstance(value, list) else value
    if column.type_name.startswith("vector") and not column.type_name.endswith("[]"):
        return lambda value: f"[{','.join(map(_digits, value))}]" if isinstance(value, list) else value
    return _plain


def _digits(number: Any) -> str:
    return number.text if isinstance(number, JsonNumber) else str(number)


def _plain(value: Any) -> Json:
    if type(value) is JsonNumber:
        return float(value)
    return list(map(_plain, value)) if type(value) is list else value


def _oid(column: Column) -> int:
    return column.base_type_oid or column.type_oid
