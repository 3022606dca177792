"""The encodings of tables' records beside JSON: their schemas, and the functions that write and read them. Pure.

Each key and value is in Confluent's wire format (cdc/formats/wire_format.py).

    encoding     content                        schema
    avro         Avro's binary form             as Confluent's AvroData makes it
    json_schema  the JSON of encoding json      a JSON Schema of it
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from fastavro.schema import parse_schema, to_parsing_canonical_form

from cdc.config.format_options import Encoding, FormatOptions
from cdc.formats.avro import AvroEncoder
from cdc.formats.avro_json import JsonOfAvro, without_logical_types
from cdc.formats.avro_schemas import adjusted_schema_name, avro_schema
from cdc.formats.connect import Node
from cdc.formats.json_schemas import json_schema
from cdc.formats.profiles import column_formats, record_nodes
from cdc.formats.wire_format import HEAD_BYTES
from cdc.model.events import TableSchema

SchemaType = Literal["AVRO", "JSON"]
SCHEMA_TYPES: Final[dict[Encoding, SchemaType]] = {"avro": "AVRO", "json_schema": "JSON"}
Content = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Form:
    """The form of keys or values of one table in one schema version."""

    name: str  # of the record, as a registry's subject may have it
    schema_type: SchemaType
    schema: str  # JSON
    encode: Content  # the content of a JSON text


def form_of(node: Node, options: FormatOptions, table: str) -> Form:
    """Returns the form of a Connect schema. Raises ConfigError for a name that the encoding can't hold."""
    if options.encoding == "avro":
        schema = avro_schema(node, table, options.field_name_adjustment_mode)
        return Form(adjusted_schema_name(node["name"]), "AVRO", _text(schema), AvroEncoder(node).encode)
    assert options.encoding == "json_schema", "no other encoding has schemas in a registry"
    return Form(node["name"], "JSON", _text(json_schema(node)), _same)


def forms_of(schema: TableSchema, options: FormatOptions, prefix: str) -> tuple[Form | None, Form]:
    """Returns the forms of keys and values; of keys None if the table has none. Raises ConfigError."""
    key, envelope = record_nodes(schema, column_formats(schema, options), prefix)
    if options.profile == "readable":
        key = _with_wide_integers(key)
    where = str(schema.table)
    return form_of(key, options, where) if schema.key else None, form_of(envelope, options, where)


def _with_wide_integers(key: Node) -> Node:
    """A key's integer may become a wider one, and its records keep their keys: so its schema is the same from the
    beginning. Profile `debezium` has Debezium's types."""
    fields = [{**field, "type": "int64"} if field["type"] in ("int16", "int32") else field for field in key["fields"]]
    return {**key, "fields": fields}


def reader_of(schema_type: str, schema: str) -> Content:
    """Returns the function that makes JSON of keys or values with this schema, wire format included. Raises ValueError
    for a schema that can't be read."""
    match schema_type:
        case "AVRO":
            try:
                reader = JsonOfAvro(json.loads(schema))
            except Exception as error:  # fastavro's errors have no common class
                raise ValueError(f"its schema can't be read: {error}") from error
            return lambda content: reader.read(content, HEAD_BYTES)
        case "JSON":
            return lambda content: content[HEAD_BYTES:]
        case other:
            raise ValueError(f"its schema is of type {other}, which Watershed does not write")


def is_same_form(schema_type: SchemaType, one: str, other: str) -> bool:
    """Says whether both schemas describe the same bytes: names and types are equal, whatever else they say."""
    if schema_type == "AVRO":
        return _canonical(one) == _canonical(other)
    return bool(_without_notes(json.loads(one)) == _without_notes(json.loads(other)))


def _canonical(schema: str) -> str:
    return to_parsing_canonical_form(parse_schema(without_logical_types(json.loads(schema))))


def _without_notes(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_notes(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_notes(part) for name, part in value.items()}
        if key == "properties"
        else _without_notes(value)
        for key, value in schema.items()
        if key not in ("title", "default", "description", "$schema") and not key.startswith("connect.")
    }


def _same(content: bytes) -> bytes:
    return content


def _text(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
