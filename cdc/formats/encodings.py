"""The encodings of tables' records beside JSON: their schemas, and the functions that write and read them. Pure.

Each key and value is in Confluent's wire format (cdc/formats/wire_format.py).

    encoding     content                         schema
    avro         Avro's binary form              as Confluent's AvroData makes it
    protobuf     Protobuf's, behind a zero byte  as Confluent's ProtobufData makes it
    json_schema  the JSON of encoding json       a JSON Schema of it
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from fastavro.schema import parse_schema, to_parsing_canonical_form

from cdc.config.format_options import Encoding, FormatOptions
from cdc.formats.avro import AvroEncoder
from cdc.formats.avro_json import JsonOfAvro, without_logical_types
from cdc.formats.avro_schemas import avro_schema
from cdc.formats.connect import Node
from cdc.formats.json_schemas import json_schema
from cdc.formats.profiles import column_formats, record_nodes
from cdc.formats.proto_files import ProtoFile, file_text
from cdc.formats.proto_schemas import parsed, proto_file, proto_schema_name
from cdc.formats.protobuf import ProtobufEncoder
from cdc.formats.protobuf_json import JsonOfProtobuf
from cdc.formats.schema_names import adjusted_schema_name
from cdc.formats.wire_format import HEAD_BYTES
from cdc.model.errors import ConfigError
from cdc.model.events import TableSchema

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]
SCHEMA_TYPES: Final[dict[Encoding, SchemaType]] = {"avro": "AVRO", "json_schema": "JSON", "protobuf": "PROTOBUF"}
Part = Literal["key", "value"]
Content = Callable[[bytes], bytes]
# The schemas that a form of this name, of keys or values, continues; the first one counts most.
Earlier = Callable[[Part, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Form:
    """The form of keys or values of one table in one schema version."""

    name: str  # of the record, as a registry's subject may have it
    schema_type: SchemaType
    schema: str  # JSON, or Protobuf's text
    encode: Content  # the content of a JSON text


def _no_earlier(*_: str) -> Sequence[str]:
    return ()


def form_of(
    node: Node, options: FormatOptions, table: str, part: Part = "value", earlier: Earlier = _no_earlier
) -> Form:
    """Returns the form of a Connect schema. Raises ConfigError for a name that the encoding can't hold, and for an
    earlier schema that can't be read."""
    match options.encoding:
        case "avro":
            schema = avro_schema(node, table, options.field_name_adjustment_mode)
            return Form(adjusted_schema_name(node["name"]), "AVRO", _text(schema), AvroEncoder(node).encode)
        case "protobuf":
            name = proto_schema_name(node["name"])
            continued = [_continued(schema, table, part) for schema in earlier(part, name)]
            file = proto_file(node, table, options.field_name_adjustment_mode, continued)
            return Form(name, "PROTOBUF", file_text(file), ProtobufEncoder(file).encode)
        case other:
            assert other == "json_schema", "no other encoding has schemas in a registry"
            return Form(node["name"], "JSON", _text(json_schema(node)), _same)


def _continued(schema: str, table: str, part: Part) -> ProtoFile:
    try:
        return parsed(schema)
    except ValueError as error:
        raise ConfigError(
            f"table {table}: its {part}s' field numbers can't continue from the newest schema of the subject: {error}",
            "register the schema before that one again, or remove that version from the registry",
        ) from error


def forms_of(
    schema: TableSchema, options: FormatOptions, prefix: str, earlier: Earlier = _no_earlier
) -> tuple[Form | None, Form]:
    """Returns the forms of keys and values; of keys None if the table has none. Raises ConfigError."""
    key, envelope = record_nodes(schema, column_formats(schema, options), prefix)
    if options.profile == "readable":
        key = _with_wide_integers(key)
    where = str(schema.table)
    keys = form_of(key, options, where, "key", earlier) if schema.key else None
    return keys, form_of(envelope, options, where, "value", earlier)


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
        case "PROTOBUF":
            try:
                proto = JsonOfProtobuf(schema)
            except ValueError as error:
                raise ValueError(f"its schema can't be read: {error}") from error
            return lambda content: proto.read(content, HEAD_BYTES)
        case other:
            raise ValueError(f"its schema is of type {other}, which Watershed does not write")


def is_same_form(schema_type: SchemaType, one: str, other: str) -> bool:
    """Says whether both schemas describe the same bytes: names and types are equal, whatever else they say."""
    if schema_type == "AVRO":
        return _canonical(one) == _canonical(other)
    if schema_type == "PROTOBUF":
        form = _wire_form(one)
        return form is not None and form == _wire_form(other)
    return bool(_without_notes(json.loads(one)) == _without_notes(json.loads(other)))


def _canonical(schema: str) -> str:
    return to_parsing_canonical_form(parse_schema(without_logical_types(json.loads(schema))))


def _wire_form(schema: str) -> tuple[str, dict[str, set[tuple[str | int, ...]]]] | None:
    """Returns what decides about the bytes; None for a schema that Watershed does not write."""
    try:
        file = parsed(schema)
    except ValueError:
        return None
    return file.messages[0].name, {
        name: {(field.name, field.number, field.type, field.label) for field in message.fields}
        for name, message in file.all_messages().items()
    }


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
