"""The form in which the cache keeps the rows of one table: names of keys, their contents, and rows read from the
contents. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import orjson

from cdc.config.store_shapes import CacheShape
from cdc.model.events import Column, TableId, TableSchema
from sinks.cache.documents import JsonColumns
from sinks.cache.keys import DOCUMENT_FIELD, VERSION_DIGITS, CacheKeys, hash_tag
from sinks.cache.scripts import KEEP
from sinks.contract import Json
from sinks.errors import RefusedError
from sinks.json_documents import JSON_FIELD
from sinks.records import decode_json, encode_json
from sinks.reduction import bounded_id
from sinks.templates import Part, Template, check_apart, overlap, parts_beginning, value_text

Command = tuple[Any, ...]

_KINDS: Final = {"document": "document", "columns": "hash", "json": "string"}
_STORED_AS_JSON: Final = frozenset({16, 20, 21, 23, 26, 700, 701})  # bool, int8, int2, int4, oid, float4, float8
_SHORT: Final = frozenset({20, 21, 23, 26, 2950})  # types with short texts: int8, int2, int4, oid, uuid


def shape_text(shape: CacheShape) -> str:
    """Returns the part of a shape, as JSON, that can't change while keys of the table exist."""
    value = None if shape.mode == "invalidate" else shape.value
    described = {"key": shape.key, "value": value, "lookups": shape.lookups, "expires": shape.ttl_s is not None}
    # Without the default, so that keys from before the option keep their shape.
    return json.dumps(described if shape.json_as == "text" else described | {"json": shape.json_as})


class RowKeys:
    """Makes the keys of a table's rows from the texts of their primary keys (`sinks.reduction.key_text`)."""

    def __init__(self, versions: str, key_columns: Sequence[str], template: Template | None) -> None:
        self._beginning = versions
        self._template = template
        self._is_single = len(key_columns) == 1
        # Where the values of the template's columns stand in the primary key.
        self._at = [
            key_columns.index(name) if name in key_columns else -1 for name in (template.columns if template else ())
        ]

    @classmethod
    def described(cls, versions: str, key_columns: str, shape: str) -> Self:
        """Returns the RowKeys of keys that exist, from what the table's hash holds in KEY_COLUMNS and SHAPE."""
        text = json.loads(shape)["key"]
        return cls(versions, json.loads(key_columns), None if text is None else Template.parse(text, "cache"))

    def key(self, row_id: str) -> str:
        if self._template is None:
            return self._beginning + bounded_id(row_id)
        if self._is_single:
            return self._template.fill([row_id])
        values = decode_json(row_id.encode())
        return self._template.fill([value_text(values[at]) for at in self._at])


class TableForm:
    """The keys of one table. Raises RefusedError for a template that can't be parsed."""

    def __init__(self, keys: CacheKeys, schema: TableSchema, shape: CacheShape) -> None:
        self.schema = schema
        self.shape = shape
        self.text = shape_text(shape)
        self.versions = keys.table(schema.table)
        self.deleted = keys.deleted(schema.table)
        self.is_stored = shape.mode == "upsert"
        self._prefix = keys.prefix
        self._in_cluster = keys.in_cluster
        self._where = f"cache: {schema.table}"
        self._key = None if shape.key is None else Template.parse(shape.key, self._where)
        self._lookups = [Template.parse(text, self._where) for text in shape.lookups]
        self._columns = {column.name: column for column in schema.columns}
        self._row_keys = RowKeys(self.versions, schema.key, self._key)
        self._json_columns = None if shape.json_as == "text" else JsonColumns(schema)

    @property
    def kind(self) -> str:
        """The kind of value that APPLY writes (ARGV[5])."""
        return _KINDS[self.shape.value] if self.is_stored else "none"

    def check(self, others: Mapping[tuple[TableId, str], list[Part]]) -> dict[str, list[Part]]:
        """Returns the parts of the templates by their texts. `others`: the parts of other tables' templates. Raises
        RefusedError for templates that are not unique, that name columns which the table does not have, or that could
        make a key of another table or of the sink itself, and for a column with the name of a document's own field.
        """
        if self._json_columns is not None and JSON_FIELD in self._columns:
            raise RefusedError(
                f"{self._where}: column {JSON_FIELD} has the name of a field that json: object adds to documents",
                "rename the column in the sink's mapping, or set json: text",
            )
        if self._key is not None:
            self._key.check_unique(self.schema, self._where)
        for template in self._lookups:
            template.check_columns(self.schema, self._where)
        templates = [*([self._key] if self._key else []), *self._lookups]
        if self._in_cluster:
            self._check_hash_slot(templates)
        parts = {template.text: template.parts(self.schema) for template in templates}
        if len(parts) < len(templates):
            raise RefusedError(f"{self._where}: a template is listed twice", "remove one of them")
        ours = parts_beginning(f"{self._prefix}:")
        for text in parts:
            if overlap(parts[text], ours):
                raise RefusedError(
                    f"{self._where}: template {text!r} can make keys that begin with {self._prefix}:, the sink's own",
                    "begin it with another text, or set another key_prefix",
                )
        check_apart(self.schema.table, parts, others, "cache")
        return parts

    def row_key(self, row_id: str) -> str:
        """Returns the key of a row, from the text of its primary key."""
        return self._row_keys.key(row_id)

    @property
    def lookup_count(self) -> int:
        """The number of lookup keys of each row."""
        return len(self._lookups)

    def lookups(self, row: Mapping[str, Json]) -> list[str]:
        """The lookup keys of a whole row; none of one that lacks columns."""
        names = self.lookup_arguments(row)
        return [] if KEEP in names else [name for name in names if name]

    @property
    def lookup_literals(self) -> list[tuple[str, ...]]:
        """The constant texts around the values, for each template of lookup keys."""
        return [template.literals for template in self._lookups]

    @property
    def has_short_keys(self) -> bool:
        """True if every row's key consists of the table's key and the text of the primary key."""
        columns = [self._columns[name] for name in self.schema.key]
        return self._key is None and len(columns) == 1 and (columns[0].base_type_oid or columns[0].type_oid) in _SHORT

    def lookup_arguments(self, row: Mapping[str, Json]) -> list[str]:
        """Returns the argument of APPLY for each lookup key: empty for none, KEEP if the row lacks its columns."""
        return [self._lookup(template, row) for template in self._lookups]

    def document(self, row: Mapping[str, Json]) -> bytes:
        """Returns a row as JSON."""
        return encode_json(row) if self._json_columns is None else self._json_columns.document(row)

    def parts(self, row: Mapping[str, Json]) -> list[str | bytes]:
        """The fields and values of a row's hash."""
        return [part for name, value in row.items() if value is not None for part in (name, value_text(value))]

    def key_argument(self, row_id: str) -> str:
        """The row's key; empty where APPLY makes it of the table's key and the row's id."""
        return "" if self._key is None and bounded_id(row_id) is row_id else self._row_keys.key(row_id)

    @property
    def key_literals(self) -> tuple[str, ...]:
        """The literal texts around the values in the keys of rows, in order."""
        return (self.versions, "") if self._key is None else self._key.literals

    @property
    def key_type(self) -> str:
        """The Redis type of the keys of rows."""
        return "string" if self.shape.value == "json" else "hash"

    def read(self, row_id: str) -> Command:
        """Returns the command that reads a row; `row` converts its answer."""
        return self.read_key(self.row_key(row_id))

    def read_key(self, key: str) -> Command:
        """Returns the command that reads the row under `key`."""
        match self.shape.value:
            case "json":
                return ("GET", key)
            case "columns":
                return ("HGETALL", key)
            case _:
                return ("HGET", key, DOCUMENT_FIELD)

    def key_of(self, row_id: str) -> dict[str, Json]:
        """Returns the primary key that has this text (`sinks.reduction.key_text`)."""
        names = self.schema.key
        if len(names) > 1:
            return dict(zip(names, decode_json(row_id.encode()), strict=True))
        column = self._columns[names[0]]
        is_json = column.element_oid or (column.base_type_oid or column.type_oid) in _STORED_AS_JSON
        return {names[0]: decode_json(row_id.encode()) if is_json else row_id}

    def row(self, answer: Any) -> dict[str, Json] | None:
        """Returns the row that the answer to `read` holds; None if the key does not exist."""
        if not answer:
            return None
        if self._json_columns is not None:
            return self._json_columns.row(answer)
        if self.shape.value != "columns":
            row: dict[str, Json] = decode_json(answer)
            return row
        held = {name.decode(): value for name, value in answer.items()}
        return {name: _column_value(column, held.get(name)) for name, column in self._columns.items()}

    def _check_hash_slot(self, templates: Sequence[Template]) -> None:
        """Raises RefusedError for a template or a stream whose keys are not in the hash slot of the table's keys."""
        tag = hash_tag(self.versions) or ""
        why = f"{{{tag}}}: in a cluster all keys of a table have one hash tag, because one script writes them"
        for template in templates:
            if hash_tag(template.literals[0]) != tag:
                written = f"{{{{{tag}}}}}:{template.text}"
                raise RefusedError(
                    f"{self._where}: template {template.text!r} lacks, before its first column, {why}",
                    f"write {written!r}",
                )
        if self.shape.stream is not None and hash_tag(self.shape.stream) != tag:
            written = f"{{{tag}}}:{self.shape.stream}"
            raise RefusedError(f"{self._where}: stream {self.shape.stream!r} lacks {why}", f"write {written!r}")

    def _lookup(self, template: Template, row: Mapping[str, Json]) -> str:
        if any(name not in row for name in template.columns):
            return KEEP
        return template.render(row) or ""


def lookup_keys(held: bytes) -> Sequence[str]:
    """Returns the lookup keys that follow the version in a row's entry `held` of the table's hash."""
    return [name for name in orjson.loads(held[VERSION_DIGITS:]) if name] if len(held) > VERSION_DIGITS else []


def _column_value(column: Column, text: bytes | None) -> Json:
    if text is None:
        return None
    oid = column.base_type_oid or column.type_oid
    if oid in _STORED_AS_JSON or column.element_oid or column.type_name.endswith("[]"):
        try:
            return decode_json(text)
        except ValueError:  # NaN; an array whose subscripts do not start at 1
            pass
    return text.decode()
