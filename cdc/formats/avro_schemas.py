"""Kafka Connect's schemas as Avro's, as Confluent's AvroData makes them: the properties `connect.*` keep what Avro has
no type for. Pure.

A name that Avro can't hold becomes another one by `field.name.adjustment.mode`; the field keeps the original in the
property `watershed.name`, which is how Watershed's own readers find the column again. Names of schemas are always
adjusted as Debezium's mode `avro` does: others could not be registered at all.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from cdc.config.format_options import NameAdjustment
from cdc.formats.connect import Node
from cdc.formats.schema_names import adjusted_schema_name, field_name, mode_of

ORIGINAL_NAME: Final = "watershed.name"
MAP_ENTRY: Final = "MapEntry"
_CONNECT: Final = "io.confluent.connect.avro"
_PRIMITIVES: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}
_CONNECT_DATA: Final = "org.apache.kafka.connect.data."
_LOGICAL_TYPES: Final[Mapping[str, str]] = {
    f"{_CONNECT_DATA}Decimal": "decimal",
    f"{_CONNECT_DATA}Date": "date",
    f"{_CONNECT_DATA}Time": "time-millis",
    f"{_CONNECT_DATA}Timestamp": "timestamp-millis",
}
_PRECISION_DEFAULT: Final = 64  # of AvroData


def avro_schema(node: Node, where: str, mode: NameAdjustment = "none") -> Any:
    """Returns the Avro schema of a Connect schema. `where`: the table, for errors. Raises ConfigError for a name that
    Avro can't hold, or two fields that get the same one."""
    return _Builder(where, mode).schema(node)


class _Builder:
    """Builds one schema: a named type is defined where it is met first, and referred to from then on."""

    def __init__(self, where: str, mode: NameAdjustment) -> None:
        self._where = where
        self._mode: NameAdjustment = mode
        self._defined: set[str] = set()
        self._namespace = ""  # of the record that is being defined

    def schema(self, node: Node) -> Any:
        base = self._base(node)
        if not node.get("optional"):
            return base
        return [base, "null"] if "default" in node else ["null", base]

    def _base(self, node: Node) -> Any:
        kind = node["type"]
        if kind == "struct":
            return self._record(node)
        found: dict[str, Any]
        if kind == "array":
            found = {"type": "array", "items": self.schema(node["items"])}
        elif kind == "map":
            found = self._map(node)
        else:
            found = {"type": _PRIMITIVES[kind]}
        found |= self._properties(node)
        return found["type"] if len(found) == 1 else found

    def _map(self, node: Node) -> dict[str, Any]:
        if node["keys"]["type"] == "string":
            return {"type": "map", "values": self.schema(node["values"])}

        def fields() -> list[dict[str, Any]]:
            return [{"name": part, "type": self.schema(node[f"{part}s"])} for part in ("key", "value")]

        return {"type": "array", "items": self._once(f"{_CONNECT}.{MAP_ENTRY}", fields, {})}

    def _record(self, node: Node) -> Any:
        return self._once(adjusted_schema_name(node["name"]), lambda: self._fields(node), self._properties(node))

    def _once(self, full_name: str, fields: Callable[[], Any], properties: dict[str, Any]) -> Any:
        """Returns the definition of a record, or its name. Within its own namespace a name is short, as Java's Avro
        prints it."""
        namespace, _, name = full_name.rpartition(".")
        outside, is_inside = self._namespace, namespace == self._namespace
        if full_name in self._defined:
            return name if is_inside else full_name
        self._defined.add(full_name)
        self._namespace = namespace
        record = {"type": "record", "name": name, **({} if is_inside else {"namespace": namespace}), "fields": fields()}
        self._namespace = outside
        return record | properties

    def _fields(self, node: Node) -> list[dict[str, Any]]:
        originals: dict[str, str] = {}
        mode = mode_of(node["name"], self._mode)
        fields = []
        for member in node["fields"]:
            name = field_name(member["field"], originals, self._where, mode, "Avro")
            field = {"name": name, "type": self.schema(member)}
            if "default" in member:
                field["default"] = member["default"]
            elif member.get("optional"):
                field["default"] = None
            if name != member["field"]:
                field[ORIGINAL_NAME] = member["field"]
            fields.append(field)
        return fields

    @staticmethod
    def _properties(node: Node) -> dict[str, Any]:
        found: dict[str, Any] = {}
        name, parameters = node.get("name"), node.get("parameters", {})
        if name == f"{_CONNECT_DATA}Decimal":
            found["scale"] = int(parameters["scale"])
            found["precision"] = int(parameters.get("connect.decimal.precision", _PRECISION_DEFAULT))
        more = {
            "connect.doc": node.get("doc"),
            "connect.version": node.get("version"),
            "connect.parameters": parameters or None,
            "connect.default": node.get("default"),
            "connect.name": name if node["type"] != "struct" else adjusted_schema_name(name or ""),
            "connect.type": node["type"] if node["type"] in ("int8", "int16") else None,
            "logicalType": _LOGICAL_TYPES.get(name or ""),
        }
        return found | {key: value for key, value in more.items() if value is not None}
