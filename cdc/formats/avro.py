"""JSON records to Avro's binary form: Python source is generated for each schema, a line over its fields. Pure.

The rows are encoded once, as JSON text (`cdc.pgoutput.codec`), and everything inside of capture works with that. Where
a record leaves capture, it is read by msgspec and written by this code.
"""

import struct
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from cdc.formats.connect import Node
from cdc.formats.varints import SHORT, SHORT_BYTES, varint

_read_json: Final = msgspec.json.Decoder().decode
_FLOAT: Final = struct.Struct("<f").pack
_DOUBLE: Final = struct.Struct("<d").pack
_OF_ROWS: Final = frozenset({"sequence", "lsn", "seq", "tx_index"})  # another value in each record
_CACHED: Final = 4_096  # texts and numbers of envelopes: most are the same in all records of a transaction


def long(number: int) -> bytes:
    """Zigzag and variable length, of int and long. Raises OverflowError above 64 bits."""
    rest = number << 1 if number >= 0 else ~(number << 1)
    return SHORT_BYTES[rest] if rest < SHORT else varint(rest)


def string(text: str) -> bytes:
    encoded = text.encode()
    return long(len(encoded)) + encoded


def base64_bytes(text: str) -> bytes:
    """Bytes, which JSON has as base64."""
    content = a2b_base64(text)
    return long(len(content)) + content


_NAMES: Final[Mapping[str, Callable[..., Any]]] = {
    "long": long,
    "string": string,
    "base64_bytes": base64_bytes,
    "FLOAT": _FLOAT,
    "DOUBLE": _DOUBLE,
    "float": float,
    "known_long": lru_cache(_CACHED)(long),
    "known_string": lru_cache(_CACHED)(string),
}


class AvroEncoder:
    """Encodes JSON texts of one Connect schema, whose fields may be absent where they are optional."""

    def __init__(self, node: Node) -> None:
        self._encode = _Generator(node).function

    def encode(self, content: bytes) -> bytes:
        """Returns the Avro of a JSON text. Raises ValueError, TypeError or KeyError if it is not of this schema."""
        found: bytes = self._encode(_read_json(content))
        return found


class _Generator:
    """Writes a function for each struct."""

    def __init__(self, node: Node) -> None:
        self._lines: list[str] = []
        self._functions: dict[str, str] = {}  # full name of a struct → its function
        top = self._struct(node)
        namespace = dict(_NAMES)
        # The source contains no text from outside but names, as literals.
        exec(compile("\n".join(self._lines), "<avro of a schema>", "exec"), namespace)  # noqa: S102
        self.function: Callable[[Any], Any] = namespace[top]

    def _struct(self, node: Node) -> str:
        if (known := self._functions.get(node["name"])) is not None:
            return known
        name = self._functions[node["name"]] = f"struct_{len(self._functions)}"
        is_shared = node["name"].endswith((".Envelope", ".Source"))
        parts = [
            self._field(member, "known_" if is_shared and member["field"] not in _OF_ROWS else "")
            for member in node["fields"]
        ]
        self._lines += [f"def {name}(o):", "    g = o.get", f"    return b''.join(({', '.join(parts)},))"]
        return name

    def _field(self, member: Node, known: str) -> str:
        name = member["field"]
        if not member.get("optional"):
            return self._value(member, f"o[{name!r}]", known)
        null, there = ("\\x02", "\\x00") if "default" in member else ("\\x00", "\\x02")
        value = self._value(member, "v", known)
        return f"b'{null}' if (v := g({name!r})) is None else b'{there}' + {value}"

    def _value(self, node: Node, source: str, known: str = "") -> str:
        match node["type"]:
            case "boolean":
                return f"(b'\\x01' if {source} else b'\\x00')"
            case "int8" | "int16" | "int32" | "int64":
                return f"{known}long({source})"
            case "float" | "double":
                return f"{node['type'].upper()}(float({source}))"  # "NaN" is a text in JSON
            case "string":
                return f"{known}string({source})"
            case "bytes":
                return f"base64_bytes({source})"
            case "struct":
                return f"{self._struct(node)}({source})"
            case "array":
                return self._blocks(source, f"{self._item(node['items'], 'i')} for i in items")
            case "map":
                pairs = "items.items()" if node["keys"]["type"] == "string" else "items"
                key, value = self._item(node["keys"], "k"), self._item(node["values"], "i")
                return self._blocks(source, f"{key} + ({value}) for k, i in {pairs}")
            case other:
                raise AssertionError(f"no schema has type {other}")

    def _item(self, node: Node, source: str) -> str:
        value = self._value(node, source)
        return f"(b'\\x00' if {source} is None else b'\\x02' + {value})" if node.get("optional") else value

    def _blocks(self, source: str, items: str) -> str:
        """Returns the source of one block with all items, and its end."""
        name = f"items_{len(self._functions)}_{len(self._lines)}"
        self._lines += [
            f"def {name}(items):",
            "    if not items:",
            "        return b'\\x00'",
            f"    return long(len(items)) + b''.join([{items}]) + b'\\x00'",
        ]
        return f"{name}({source})"
