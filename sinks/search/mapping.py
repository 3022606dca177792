"""What a table's index looks like: each column's field from its PostgreSQL type. Pure.

A document is the row's JSON as the record had it, and two fields of ours. The mapping only says how a value is
searched; what it can't index it leaves out of the search (`ignore_malformed`, `ignore_above`) and keeps in the
document, because a document must equal its row. New fields appear by schema versions only (`dynamic: false`).
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from cdc.model.errors import RefusedError
from cdc.model.events import Column, TableId, TableSchema

VERSION_FIELD: Final = "ws_version"
DELETED_FIELD: Final = "ws_deleted"
LIVE: Final[dict[str, Any]] = {"term": {DELETED_FIELD: False}}

Field = dict[str, Any]

# Lucene refuses terms above 32,766 bytes; a character takes up to 4.
_KEYWORD_CHARS_MAX = 8191
_KEYWORD: Field = {"type": "keyword", "ignore_above": _KEYWORD_CHARS_MAX}
_TEXT: Field = {"type": "text", "fields": {"keyword": _KEYWORD}}
_LONG_TEXT: Field = {"type": "text"}
_BOOLEAN: Field = {"type": "boolean"}
_DATE: Field = {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True}
_KEPT_ONLY: Field = {"type": "object", "enabled": False}


def _number(kind: str) -> Field:
    return {"type": kind, "ignore_malformed": True}


_BOOL, _BOOLEANS = 16, 1000  # bool, bool[]

# PostgreSQL's fixed type oids: (scalar, array) → field. An array's elements are searched like the scalar.
_FIELDS_BY_OID: Final[dict[int, Field]] = {
    oid: field
    for oids, field in (
        ((_BOOL,), _BOOLEAN),
        ((_BOOLEANS,), _KEYWORD),  # with explicit bounds it is a text, which a boolean field refuses
        ((17, 1001), _KEPT_ONLY),  # bytea
        ((20, 1016), _number("long")),  # int8
        ((21, 1005), _number("short")),  # int2
        ((23, 1007), _number("integer")),  # int4
        ((26, 1028), _number("long")),  # oid
        ((700, 1021), _number("float")),  # float4
        ((701, 1022), _number("double")),  # float8
        ((1700, 1231), _number("double")),  # numeric: exact in the document, found as the nearest double
        ((25, 1009), _TEXT),  # text
        ((1042, 1014), _TEXT),  # char(n)
        ((1043, 1015), _TEXT),  # varchar
        ((19, 1003), _KEYWORD),  # name
        ((114, 199), _LONG_TEXT),  # json
        ((3802, 3807), _LONG_TEXT),  # jsonb
        ((142, 143), _LONG_TEXT),  # xml
        ((1082, 1182), _DATE),  # date
        ((1114, 1115), _DATE),  # timestamp
        ((1184, 1185), _DATE),  # timestamptz
    )
    for oid in oids
}

# Fields that OpenSearch keeps for itself at the top of a document.
_METADATA_FIELD: Final = re.compile(
    r"_(id|index|source|type|routing|field_names|feature|ignored|nested_path|seq_no|primary_term|version|size"
    r"|doc_count|data_stream_timestamp|recovery_source)"
)


def field_of(column: Column) -> Field:
    """How a column is searched. Every other type (uuid, enum, time, interval, inet…) is one exact keyword."""
    element = _BOOLEANS if column.element_oid == _BOOL else column.element_oid
    field = _FIELDS_BY_OID.get(element or column.base_type_oid or column.type_oid)
    if field is None:
        # An extension's type has no fixed oid; citext is the one that is read like text.
        field = _TEXT if column.type_name.removesuffix("[]").rpartition(".")[2] == "citext" else _KEYWORD
    return field


def index_body(schema: TableSchema, prefix: str, aliases: dict[str, Any]) -> dict[str, Any]:
    """Settings, mapping and aliases of the table's index."""
    return {
        "settings": {
            # No replica on a single node, where it could never be assigned; one where there are more.
            "auto_expand_replicas": "0-1",
            "mapping": {"total_fields": {"limit": fields_max(len(schema.columns))}},
        },
        "mappings": mapping(schema, prefix),
        "aliases": aliases,
    }


def fields_max(column_count: int) -> int:
    """A text column takes two fields."""
    return max(1000, 4 * column_count)


def mapping(schema: TableSchema, prefix: str) -> dict[str, Any]:
    """The explicit mapping, with the table's name in `_meta`."""
    return {
        "dynamic": False,
        "_meta": {"watershed": owner(schema.table, prefix) | {"schema_version": schema.version}},
        "properties": {column.name: field_of(column) for column in schema.columns}
        | {VERSION_FIELD: {"type": "long"}, DELETED_FIELD: {"type": "boolean"}},
    }


def clashes(held: dict[str, Any], schema: TableSchema) -> frozenset[str]:
    """Fields of an index (its mapping's properties) beside which the schema's can't be: of another type, or a path
    through one another. Fields can't be changed or removed."""
    wanted = {column.name: _kind(field_of(column)) for column in schema.columns}
    paths = {path for name in wanted for path in _paths_to(name)}
    return frozenset(
        name
        for name, kind in _leaves(held, "")
        if wanted.get(name, kind) != kind or name in paths or not wanted.keys().isdisjoint(_paths_to(name))
    )


def _leaves(properties: dict[str, Any], path: str) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Fields that hold values, by the name that a column has; ours left out."""
    for name, field in properties.items():
        if "properties" in field:
            yield from _leaves(field["properties"], f"{path}{name}.")
        elif path or name not in (VERSION_FIELD, DELETED_FIELD):
            yield f"{path}{name}", _kind(field)


def _kind(field: Field) -> tuple[str, bool]:
    """What of a field can't be changed."""
    return field.get("type", "object"), field.get("enabled", True)


def _paths_to(name: str) -> Iterator[str]:
    """What OpenSearch takes for objects around a field of this name."""
    end = name.find(".")
    while end >= 0:
        yield name[:end]
        end = name.find(".", end + 1)


def owner(table: TableId, prefix: str) -> dict[str, str]:
    """Whose index it is: what is written to `_meta` and compared before an existing index is used."""
    return {"prefix": prefix, "table_schema": table.schema, "table_name": table.name}


def check_columns(schema: TableSchema) -> None:
    """Raises RefusedError, naming the column, for a table whose columns can't all be fields of one document.

    OpenSearch reads a dot in a field's name as a path: `a.b` is taken as long as there is no column `a`.
    """
    names = {column.name for column in schema.columns}
    for name in sorted(names):
        parts = name.split(".")
        parents = [".".join(parts[:count]) for count in range(1, len(parts))]
        if name in (VERSION_FIELD, DELETED_FIELD):
            problem = "the search index keeps this name for itself"
        elif _METADATA_FIELD.fullmatch(parts[0]):
            problem = "OpenSearch keeps this name for itself"
        elif parts[0] in (VERSION_FIELD, DELETED_FIELD):
            problem = f"the search index reads it as a part of its own field {parts[0]}"
        elif parents and not all(part.strip() for part in parts):
            problem = "OpenSearch takes no field name with a blank part beside a dot"
        elif parent := next((parent for parent in parents if parent in names), None):
            problem = f"OpenSearch reads its dot as a path into column {parent!r}, which is no object"
        else:
            continue
        raise RefusedError(
            f"table {schema.table}: column {name!r} can't be a field: {problem}",
            "rename the column, or add the table to the sink's exclude_tables",
        )
