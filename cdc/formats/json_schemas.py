"""Kafka Connect's schemas as JSON Schemas of the records that encoding json writes, with the properties `connect.*` of
Confluent's JsonSchemaData. Pure.

Objects are closed: registries take a column that is added to a closed object for compatible, but not one that is added
to an open object, in which it may have had another type before.
"""

from collections.abc import Mapping
from typing import Any, Final

from cdc.formats.connect import Node

DIALECT: Final = "http://json-schema.org/draft-07/schema#"
_KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "boolean": {"type": "boolean"},
    "int16": {"type": "integer", "connect.type": "int16"},
    "int32": {"type": "integer", "connect.type": "int32"},
    "int64": {"type": "integer", "connect.type": "int64"},
    "string": {"type": "string"},
    "bytes": {"type": "string", "connect.type": "bytes"},
}
_CONNECT_FLOATS: Final = {"float": "float32", "double": "float64"}
_NOT_FINITE: Final = ["NaN", "Infinity", "-Infinity"]  # which JSON has no numbers for


def json_schema(node: Node) -> dict[str, Any]:
    """Returns the JSON Schema of a Connect schema."""
    definitions: dict[str, Any] = {}
    top = _definition(node, definitions)
    return {"$schema": DIALECT, **top, **({"definitions": definitions} if definitions else {})}


def _definition(node: Node, definitions: dict[str, Any]) -> dict[str, Any]:
    fields = node["fields"]
    properties = {
        member["field"]: {**_value(member, definitions), "connect.index": index} for index, member in enumerate(fields)
    }
    required = [member["field"] for member in fields if not member.get("optional")]
    return {
        "type": "object",
        "title": node["name"],
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
        **({"connect.version": node["version"]} if "version" in node else {}),
    }


def _value(node: Node, definitions: dict[str, Any]) -> dict[str, Any]:
    found = _base(node, definitions)
    if not node.get("optional"):
        return found
    return {"oneOf": [{"type": "null"}, found]}


def _base(node: Node, definitions: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any]
    match node["type"]:
        case "struct":
            name = node["name"]
            if name not in definitions:
                definitions[name] = {}  # it is being defined
                definitions[name] = _definition(node, definitions)
            return {"allOf": [{"$ref": f"#/definitions/{name}"}]}
        case "array":
            found = {"type": "array", "items": _value(node["items"], definitions)}
        case "map" if node["keys"]["type"] == "string":
            found = {
                "type": "object",
                "connect.type": "map",
                "additionalProperties": _value(node["values"], definitions),
            }
        case "map":
            pair = [_value(node["keys"], definitions), _value(node["values"], definitions)]
            entry = {"type": "array", "items": pair, "minItems": 2, "maxItems": 2}
            found = {"type": "array", "connect.type": "map", "items": entry}
        case "float" | "double" as kind:
            number = {"type": "number", "connect.type": _CONNECT_FLOATS[kind]}
            found = {"anyOf": [number, {"enum": _NOT_FINITE}]}
        case kind:
            found = dict(_KINDS[kind])
    more = {
        "title": node.get("name"),
        "connect.version": node.get("version"),
        "connect.parameters": dict(node.get("parameters", {})) or None,
        "default": node.get("default"),
    }
    return found | {key: value for key, value in more.items() if value is not None}
