"""Kafka Connect's schemas as Avro's, as Confluent's AvroData makes them: the properties `connect.*` keep what Avro has
no type for. Pure.

A name that Avro can't hold becomes another one by `field.name.adjustment.mode`; the field keeps the original in the
property `watershed.name`, which is how Watershed's own readers find the column again. Names of schemas are always
adjusted as Debezium's mode `avro` does: others could not be registered at all.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from cdc.config.format_options import NameAdjustment
from cdc.formats.connect import Node
from cdc.model.errors import ConfigError

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
_VALID_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch


def adjusted_schema_name(name: str) -> str:
    """Returns a full name that Avro accepts: Debezium's SchemaNameAdjuster.AVRO."""
    first = re.sub(r"[^A-Za-z_]", "_", name[:1]) + (name[:1] if name[:1].isdigit() else "")
    return first + re.sub(r"[^A-Za-z0-9_.]", "_", name[1:])


def adjusted_field_name(name: str, mode: NameAdjustment) -> str:
    """Returns the field's name in this mode of `field.name.adjustment.mode`, as Debezium's adjusters make it."""
    if mode == "none":
        return name
    if mode == "avro":
        prefix = "_" if name[:1].isdigit() else ""
        return prefix + re.sub(r"[^A-Za-z0-9_]", "_", name)
    units = _utf16(name)
    first = units[0] if re.fullmatch("[A-Za-z]", units[0]) else _escaped(units[0])
    return first + "".join(unit if re.fullmatch("[A-Za-z0-9]", unit) else _escaped(unit) for unit in units[1:])


def _utf16(text: str) -> list[str]:
    """Java's characters: code units."""
    encoded = text.encode("utf-16-be")
    return [chr(int.from_bytes(encoded[i : i + 2])) for i in range(0, len(encoded), 2)]


def _escaped(unit: str) -> str:
    digits = f"{ord(unit):x}"
    return f"_u{'00' if len(digits) <= 2 else ''}{digits}"


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
        fields = []
        for member in node["fields"]:
            name = self._field_name(member["field"], originals)
            field = {"name": name, "type": self.schema(member)}
            if "default" in member:
                field["default"] = member["default"]
            elif member.get("optional"):
                field["default"] = None
            if name != member["field"]:
                field[ORIGINAL_NAME] = member["field"]
            fields.append(field)
        return fields

    def _field_name(self, original: str, originals: dict[str, str]) -> str:
        name = adjusted_field_name(original, self._mode)
        if not _VALID_NAME(name):
            raise ConfigError(
                f"table {self._where}: Avro can't hold the name of column {original}",
                "set format.field.name.adjustment.mode to avro or avro_unicode, or leave the column out with "
                "source.exclude_columns",
            )
        if (other := originals.setdefault(name, original)) != original:
            raise ConfigError(
                f"table {self._where}: columns {other} and {original} would both be field {name} in Avro",
                "set format.field.name.adjustment.mode to avro_unicode, or leave one out with source.exclude_columns",
            )
        return name

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
