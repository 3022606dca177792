"""The index of a table: each column's field, derived from its PostgreSQL type. Pure.

A document is the row's JSON as it was in the record, and fields of the sink. The mapping only determines how a value is
searched. A value that a field can't index is left out of searches (`ignore_malformed`, `ignore_above`) and kept in the
document, because a document must equal its row. Only schema versions add fields (`dynamic: false`).
"""

import hashlib
import json
import re
from collections.abc import Container, Iterable, Iterator
from typing import Any, Final, NamedTuple, Self

from cdc.config.store_shapes import SearchShape
from cdc.model.events import Column, TableId, TableSchema
from sinks.errors import RefusedError
from sinks.json_documents import JSON_FIELD, LEVELS_MAX
from sinks.search.product import Product

VERSION_FIELD: Final = "ws_version"
DELETED_FIELD: Final = "ws_deleted"
DELETED_AT_FIELD: Final = "ws_deleted_at"  # when a tombstone was written, by its writer's clock
_OWN_FIELDS: Final[dict[str, dict[str, Any]]] = {
    VERSION_FIELD: {"type": "long"},
    DELETED_FIELD: {"type": "boolean"},
    DELETED_AT_FIELD: {"type": "date", "format": "epoch_millis"},
    JSON_FIELD: {"type": "object", "enabled": False},
}
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


_FLAT_OBJECT: Field = {"type": "flat_object"}
# Elasticsearch's, which by default refuses a row with more levels, or with a longer value.
_FLATTENED: Field = {"type": "flattened", "depth_limit": LEVELS_MAX, "ignore_above": _KEYWORD_CHARS_MAX}
_OBJECT: Field = {"type": "object", "dynamic": True}
_GEO_POINT: Field = {"type": "geo_point", "ignore_malformed": True}
_JSONS, _POINT = frozenset({114, 3802}), 600
VECTOR_TYPES: Final = frozenset({"knn_vector", "dense_vector"})
_KNN_DIMENSIONS_MAX: Final = 16_000
# Elasticsearch's limits: from this version on, so many dimensions.
_DENSE_DIMENSIONS: Final = (((8, 11), 4096), ((8, 8), 2048), ((0, 0), 1024))
_VECTORS_LEFT_OUT: Final = (9, 2)  # Elasticsearch leaves vectors out of _source from this version on, by default
_VECTOR: Final = re.compile(r"(?:\w+\.)?vector\(([0-9]+)\)")  # pgvector's type, as format_type prints it
_FORM: Final = 2  # increased when the documents of one configuration change their form
_DYNAMIC_SETTINGS: Final = frozenset({"refresh_interval", "number_of_replicas", "max_result_window"})
_BOOL, _BOOLEANS = 16, 1000  # bool, bool[]

# PostgreSQL's fixed type oids: (scalar, array) → field. An array's elements are searched like the scalar.
_FIELDS_BY_OID: Final[dict[int, Field]] = {
    oid: field
    for oids, field in (
        ((_BOOL,), _BOOLEAN),
        ((_BOOLEANS,), _KEYWORD),  # an array with explicit bounds is a text, which a boolean field refuses
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

# Fields that the servers reserve at the top level of a document; the second ones are Elasticsearch's alone.
_METADATA_FIELD: Final = re.compile(
    r"_(id|index|source|type|routing|field_names|feature|ignored|nested_path|seq_no|primary_term|version|size"
    r"|doc_count|data_stream_timestamp|recovery_source)"
)
_ELASTICSEARCH_FIELD: Final = re.compile(r"_(tier|tsid|ts_routing_hash|ignored_source|inference_fields)")


def field_of(column: Column) -> Field:
    """Returns the field of a column. Types without an entry (uuid, enum, time, interval, inet…) are one exact
    keyword.
    """
    element = _BOOLEANS if column.element_oid == _BOOL else column.element_oid
    field = _FIELDS_BY_OID.get(element or column.base_type_oid or column.type_oid)
    if field is None:
        # An extension's type has no fixed oid; citext is the only one that is searched like text.
        field = _TEXT if column.type_name.removesuffix("[]").rpartition(".")[2] == "citext" else _KEYWORD
    return field


class Capabilities(NamedTuple):
    """The features of a server's indexes. The default is OpenSearch without plugins."""

    flat: str = "flat_object"  # type of the field that takes whole objects; "": there is none
    vector: str = ""  # type of the field for vectors; "": there is none
    vector_dimensions_max: int = 0
    # False: documents would lack vectors. It is a setting of a new index, which keeps it when the server is updated.
    returns_vectors: bool = True

    @classmethod
    def of(cls, product: Product, plugins: Iterable[str]) -> Self:
        """Returns the features of a server."""
        version = product.version
        if product.is_elasticsearch:
            dimensions = next(limit for first, limit in _DENSE_DIMENSIONS if version >= first)
            return cls("flattened", "dense_vector", dimensions, returns_vectors=version < _VECTORS_LEFT_OUT)
        flat = "flat_object" if version >= (2, 7) or not product.number else ""
        if any("knn" in plugin for plugin in plugins):
            return cls(flat, "knn_vector", _KNN_DIMENSIONS_MAX)
        return cls(flat)

    def vector_field(self, dimensions: int) -> Field | None:
        """Returns the field for vectors of so many dimensions; None if the server has none."""
        if dimensions > self.vector_dimensions_max:
            return None
        if self.vector == "dense_vector":
            # The default, cosine, refuses a row whose vector is zero. This is also what knn_vector compares.
            return {"type": self.vector, "dims": dimensions, "index": True, "similarity": "l2_norm"}
        return {"type": self.vector, "dimension": dimensions}


def fields_of(schema: TableSchema, shape: SearchShape, capabilities: Capabilities) -> dict[str, Field]:
    """Returns each column's field: the derived one with the shape's parameters added, or the shape's field alone if it
    has another type.
    """
    fields: dict[str, Field] = {}
    for column in schema.columns:
        derived = _derived(column, shape, capabilities)
        chosen = shape.mapping.get(column.name, {})
        is_other = "type" in chosen and chosen["type"] != derived["type"]
        fields[column.name] = chosen if is_other else derived | chosen
    return fields


def _derived(column: Column, shape: SearchShape, capabilities: Capabilities) -> Field:
    oid = column.base_type_oid or column.type_oid
    if oid in _JSONS and column.element_oid == 0:
        match shape.json_as:
            case None if capabilities.flat:
                return _FLATTENED if capabilities.flat == "flattened" else _FLAT_OBJECT
            case "flat_object":
                return _FLATTENED if capabilities.flat == "flattened" else _FLAT_OBJECT
            case "object":
                return _OBJECT
    if oid == _POINT:
        return _GEO_POINT
    vector = _VECTOR.fullmatch(column.type_name)
    return (vector and capabilities.vector_field(int(vector[1]))) or field_of(column)


def is_object(field: Field) -> bool:
    """Returns whether the field takes a JSON object."""
    return field.get("type", "object") in ("flat_object", "flattened", "object", "nested") and field.get(
        "enabled", True
    )


def index_body(form: "IndexForm", aliases: dict[str, Any]) -> dict[str, Any]:
    """Returns settings, mapping and aliases of the table's index."""
    settings: dict[str, Any] = {"mapping": {"total_fields": {"limit": fields_max(len(form.schema.columns))}}}
    if "number_of_replicas" not in form.shape.settings:
        # A single node gets no replica, which could never be assigned; a cluster gets one.
        settings["auto_expand_replicas"] = "0-1"
    settings |= form.vector_settings
    return {"settings": settings | form.shape.settings, "mappings": mapping(form), "aliases": aliases}


class IndexForm:
    """The index of one table as the configuration and the schema require it."""

    def __init__(self, schema: TableSchema, shape: SearchShape, capabilities: Capabilities, prefix: str) -> None:
        self.schema = schema
        self.shape = shape
        self.fields = fields_of(schema, shape, capabilities)
        self.digest = shape_digest(shape, capabilities)
        self.owner = owner(schema.table, prefix)
        self.vector_settings: dict[str, Any] = {}
        # A server that has no such field refuses it with a clear error.
        if capabilities.vector == "knn_vector" and any(
            field.get("type") == "knn_vector" for field in self.fields.values()
        ):
            self.vector_settings["knn"] = True
        if not capabilities.returns_vectors:
            self.vector_settings["index.mapping.exclude_source_vectors"] = False

    @property
    def dynamic_settings(self) -> dict[str, Any]:
        """The settings that can be changed in an index that exists."""
        return {name: value for name, value in self.shape.settings.items() if name in _DYNAMIC_SETTINGS}


def shape_digest(shape: SearchShape, capabilities: Capabilities) -> str:
    """Returns a digest of the part of a shape that can't be changed in an index that exists."""
    fixed = shape.model_dump(by_alias=True)
    fixed["settings"] = {name: value for name, value in shape.settings.items() if name not in _DYNAMIC_SETTINGS}
    fixed |= {"form": _FORM, "capabilities": capabilities[:3]}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def fields_max(column_count: int) -> int:
    """Returns the limit of an index's fields. A text column takes two."""
    return max(1000, 4 * column_count)


def mapping(form: IndexForm) -> dict[str, Any]:
    """Returns the explicit mapping, with the table's name in `_meta`."""
    return {
        "dynamic": False,
        "_meta": {"watershed": form.owner | {"schema_version": form.schema.version, "shape": form.digest}},
        "properties": form.fields | _OWN_FIELDS,
    }


def clashes(held: dict[str, Any], fields: dict[str, Field]) -> frozenset[str]:
    """Returns the fields of an index (`held`: its mapping's properties) that conflict with `fields`: the type differs,
    or one is a path through the other. Fields of an index can't be changed or removed.
    """
    wanted = {name: _kind(field) for name, field in fields.items()}
    objects = {name for name, field in fields.items() if is_object(field)}
    paths = {path for name in wanted for path in _paths_to(name)}
    return frozenset(
        name
        for name, kind in _leaves(held, "", objects)
        if wanted.get(name, kind) != kind or name in paths or not wanted.keys().isdisjoint(_paths_to(name))
    )


def _leaves(properties: dict[str, Any], path: str, objects: Container[str]) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Yields name and kind of the fields that hold values, by the names that columns have; without the sink's own
    fields, and without the fields inside an object that a column holds.
    """
    for name, field in properties.items():
        if "properties" in field and f"{path}{name}" not in objects:
            yield from _leaves(field["properties"], f"{path}{name}.", objects)
        elif path or name not in _OWN_FIELDS:
            yield f"{path}{name}", _kind(field)


def _kind(field: Field) -> tuple[str, bool]:
    """Returns the part of a field that can't be changed."""
    return field.get("type", "object"), field.get("enabled", True)


def _paths_to(name: str) -> Iterator[str]:
    """Yields the names that OpenSearch reads as objects around a field of this name."""
    end = name.find(".")
    while end >= 0:
        yield name[:end]
        end = name.find(".", end + 1)


def owner(table: TableId, prefix: str) -> dict[str, str]:
    """Returns the owner of the table's index, which is written to `_meta` and compared before an existing index is
    used.
    """
    return {"prefix": prefix, "table_schema": table.schema, "table_name": table.name}


def check_columns(
    schema: TableSchema, shape: SearchShape | None = None, capabilities: Capabilities | None = None
) -> None:
    """Raises RefusedError, naming the column, for a table whose columns can't all be fields of one document, and for a
    mapping of a column that the table does not have.

    The server reads a dot in a field's name as a path: `a.b` is accepted if there is no column `a`.
    """
    is_elasticsearch = capabilities is not None and capabilities.flat == "flattened"
    names = {column.name for column in schema.columns}
    if unknown := sorted(shape.mapping.keys() - names if shape else ()):
        raise RefusedError(
            f"search index: mapping of {schema.table} names column {unknown[0]}, which the table does not have",
            f"its columns are {', '.join(column.name for column in schema.columns)}",
        )
    for name in sorted(names):
        parts = name.split(".")
        parents = [".".join(parts[:count]) for count in range(1, len(parts))]
        if name in _OWN_FIELDS:
            problem = "the search index reserves this name"
        elif _METADATA_FIELD.fullmatch(parts[0]) or (is_elasticsearch and _ELASTICSEARCH_FIELD.fullmatch(parts[0])):
            problem = f"{'Elasticsearch' if is_elasticsearch else 'OpenSearch'} reserves this name"
        elif parts[0] in _OWN_FIELDS:
            problem = f"the search index reads it as a part of its own field {parts[0]}"
        elif parents and not all(part.strip() for part in parts):
            problem = "the server accepts no field name with a blank part next to a dot"
        elif parent := next((parent for parent in parents if parent in names), None):
            problem = f"the server reads its dot as a path into column {parent!r}, which is not an object"
        else:
            continue
        raise RefusedError(
            f"table {schema.table}: column {name!r} can't be a field: {problem}",
            "rename the column, or add the table to the sink's exclude_tables",
        )
