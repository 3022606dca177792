"""JSON text as a structure with an inferred schema, as Debezium's event router makes it.

Text that Debezium can't expand stays text: an array or a scalar at the top, arrays of mixed kinds, integers beyond 64
bits. Nulls and empty arrays have no schema and are left out, unless an option gives them one. In an array of objects,
each has the fields of all; missing fields are null.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NoReturn

from cdc.formats.connect import BOOLEAN, BYTES, FLOAT64, INT32, INT64, STRING, Node, array_of, optional, struct_of

_SCALARS: Final[dict[type, Node]] = {str: STRING, bool: BOOLEAN, float: FLOAT64}


class _NotExpandable(Exception):  # noqa: N818 - not an error: the text stays as it is
    pass


@dataclass(frozen=True, slots=True)
class Expansion:
    """The options of expansion."""

    keeps_nulls: bool  # as optional bytes
    keeps_empty_arrays: bool  # as arrays of strings

    def expand(self, text: str, name: str) -> tuple[Node, str] | None:
        """Returns (schema, JSON text) of a JSON object; None if it can't be expanded. `name`: that of the schema."""
        if not text.startswith("{"):
            return None
        try:
            document, _ = STRICT_JSON.raw_decode(text)
            node = self._schema(name, document)
            assert node is not None, "an object has a schema"
            return node, _written(document, node)
        except (_NotExpandable, ValueError, RecursionError):
            return None

    def _schema(self, name: str | None, value: Any) -> Node | None:
        """Returns the schema of a value; None if the value is left out."""
        match value:
            case None:
                return optional(BYTES) if self.keeps_nulls else None
            case bool() | str() | float():
                return optional(_SCALARS[type(value)])
            case int():
                return optional(_integer(value))
            case list():
                return self._array(name, value)
            case _:
                return self._object(name, value)

    def _object(self, name: str | None, value: Mapping[str, Any]) -> Node:
        fields = []
        for field, content in value.items():
            node = self._schema(f"{name}.{field}" if name and name.strip() else field, content)
            if node is not None:
                fields.append((field, node))
        return _structure(fields, name)

    def _array(self, name: str | None, value: list[Any]) -> Node | None:
        if not value:
            return optional(array_of(STRING)) if self.keeps_empty_arrays else None
        known = [element for element in value if element is not None]
        if len({_kind(element) for element in known}) > 1:
            raise _NotExpandable
        if known and isinstance(known[0], dict):
            return optional(array_of(_merged((self._object(name, element) for element in known), name)))
        element = self._schema(None, known[0] if known else None)
        if element is None:
            raise _NotExpandable
        return optional(array_of(element))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


STRICT_JSON: Final = json.JSONDecoder(parse_constant=_refuse)  # without NaN and infinity


def _kind(value: Any) -> str:
    """Returns the kind of an element; all elements of an array must be of one."""
    return str(_integer(value)["type"]) if type(value) is int else type(value).__name__


def _integer(value: int) -> Node:
    """Returns the schema of an integer. Raises _NotExpandable beyond 64 bits: Connect can't hold what Debezium makes of
    it."""
    if -(1 << 31) <= value < 1 << 31:
        return INT32
    if -(1 << 63) <= value < 1 << 63:
        return INT64
    raise _NotExpandable


def _structure(fields: Iterable[tuple[str, Node]], name: str | None) -> Node:
    node = optional(struct_of(fields))
    return {**node, "name": name} if name is not None else node


def _merged(nodes: Iterable[Node], name: str | None) -> Node:
    fields: dict[str, Node] = {}
    for node in nodes:
        for field in node["fields"]:
            known = fields.get(field["field"])
            if known is None or (known["type"] == "bytes" and field["type"] != "bytes"):
                fields[field["field"]] = {part: field[part] for part in field if part != "field"}
    return _structure(fields.items(), name)


def _written(value: Any, node: Node) -> str:
    """Returns the value as JSON with its schema's fields. Raises _NotExpandable for a value that does not fit."""
    if value is None:
        return "null"
    match node["type"]:
        case "struct" if isinstance(value, dict):
            members = (
                f"{json_text(field['field'])}:{_written(value.get(field['field']), field)}" for field in node["fields"]
            )
            return "{" + ",".join(members) + "}"
        case "array" if isinstance(value, list):
            return "[" + ",".join(_written(element, node["items"]) for element in value) + "]"
        case "boolean" if isinstance(value, bool):
            return "true" if value else "false"
        case "string" if isinstance(value, str):
            return json_text(value)
        case "double" if isinstance(value, float):
            return java_decimal(repr(value))
        case "int32" | "int64" as kind if isinstance(value, int) and not isinstance(value, bool):
            if _integer(value)["type"] != kind:
                raise _NotExpandable
            return str(value)
        case _:
            raise _NotExpandable


_ESCAPES: Final = {i: f"\\u{i:04X}" for i in range(32)} | str.maketrans(
    {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
)


def json_text(text: str) -> str:
    """Returns a JSON string as Jackson writes it."""
    return f'"{text.translate(_ESCAPES)}"'


def java_decimal(text: str) -> str:
    """Returns a number as Java prints it: 1.0E21, 1.0E-7, 1234567.125. `text`: its shortest digits, for either bit
    width."""
    number = Decimal(text)
    if not number or Decimal("1e-3") <= abs(number) < Decimal("1e7"):
        plain = f"{number:f}"
        return plain if "." in plain else f"{plain}.0"
    sign, digits, exponent = number.normalize().as_tuple()
    assert isinstance(exponent, int)
    mantissa = "".join(map(str, digits))
    return f"{'-' if sign else ''}{mantissa[0]}.{mantissa[1:] or '0'}E{exponent + len(mantissa) - 1}"
