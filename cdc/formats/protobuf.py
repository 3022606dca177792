"""JSON records to Protobuf's binary form: Python source is generated for each schema, a line over its fields. Pure.

The bytes are those of Protobuf's own library: fields in the order of their numbers, numbers in lists packed, and fields
that are not `optional` left out where they have the default. So a key has one form only.
"""

import struct
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from cdc.formats.proto_files import Field, Message, ProtoFile
from cdc.formats.proto_types import KNOWN_MESSAGES, KNOWN_TYPES
from cdc.formats.varints import SHORT, SHORT_BYTES, varint

FIRST_MESSAGE: Final = b"\0"  # in Confluent's wire format: the schema's first message follows
_read_json: Final = msgspec.json.Decoder().decode
_CACHED: Final = 4_096  # texts and numbers of envelopes: most are the same in all records of a transaction
_OF_ROWS: Final = frozenset({"sequence", "lsn", "seq", "tx_index"})  # another value in each record
_WIRE_TYPES: Final[Mapping[str, int]] = {
    "bool": 0,
    "int32": 0,
    "int64": 0,
    "uint32": 0,
    "double": 1,
    "float": 5,
}
SIZED: Final = 2  # the wire type of everything else: its size precedes it


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def wire_type(kind: str) -> int:
    return _WIRE_TYPES.get(kind, SIZED)


def integer(number: int) -> bytes:
    """Raises OverflowError above 64 bits with a sign."""
    if 0 <= number < SHORT:
        return SHORT_BYTES[number]
    if not -1 << 63 <= number < 1 << 63:
        raise OverflowError(f"{number} is not a 64-bit integer")
    return varint(number & 0xFFFF_FFFF_FFFF_FFFF)


def sized(content: bytes) -> bytes:
    return varint(len(content)) + content


def string(text: str) -> bytes:
    return sized(text.encode())


def base64_bytes(text: str) -> bytes:
    """Bytes, which JSON has as base64."""
    return sized(a2b_base64(text))


_NAMES: Final[Mapping[str, Any]] = {
    "integer": integer,
    "string": string,
    "base64_bytes": base64_bytes,
    "sized": sized,
    "float32": struct.Struct("<f").pack,
    "float64": struct.Struct("<d").pack,
    "known_integer": lru_cache(_CACHED)(integer),
    "known_string": lru_cache(_CACHED)(string),
} | {f"fields_of_{name.rpartition('.')[2]}": known.fields for name, known in KNOWN_TYPES.items()}


class ProtobufEncoder:
    """Encodes JSON texts of one schema, whose fields may be absent where they are optional."""

    def __init__(self, file: ProtoFile) -> None:
        self._encode = _Generator(file).function

    def encode(self, content: bytes) -> bytes:
        """Returns the Protobuf of a JSON text, behind the index of its message. Raises ValueError, TypeError, KeyError
        or OverflowError if it is not of this schema."""
        return FIRST_MESSAGE + self._encode(_read_json(content))


class _Generator:
    """Writes a function for each message."""

    def __init__(self, file: ProtoFile) -> None:
        self._messages = file.all_messages() | KNOWN_MESSAGES
        self._lines: list[str] = []
        self._functions: dict[tuple[str, int | None], str] = {}
        top = self._function(file.messages[0], None)
        namespace = dict(_NAMES)
        # The source contains no text from outside but names, as literals.
        exec(compile("\n".join(self._lines), "<protobuf of a schema>", "exec"), namespace)  # noqa: S102
        self.function: Callable[[Any], bytes] = namespace[top]

    def _function(self, message: Message, scale: int | None) -> str:
        """Returns the name of the function that makes a message of a value. `scale`: of the decimals in an array."""
        if (name := self._functions.get((message.name, scale))) is None:
            name = self._functions[message.name, scale] = f"message_{len(self._functions)}"
            self._lines += self._array(message.item, name, scale) if message.item else self._struct(message, name)
        return name

    def _struct(self, message: Message, name: str) -> list[str]:
        known = "known_" if message.name.endswith((".Envelope", ".Source")) else ""
        parts = [
            self._field(field, "" if field.original in _OF_ROWS else known)
            for field in sorted(message.fields, key=lambda field: field.number)
        ]
        return [f"def {name}(o):", "    g = o.get", f"    return b''.join(({', '.join(parts)},))"]

    def _array(self, item: Message, name: str, scale: int | None) -> list[str]:
        """Returns the lines of a function of a list, or of a map: an object, or a list of pairs."""
        if len(item.fields) == 1:
            inner, source = self._item(item.fields[0], "i", scale), "i in items"
        else:
            key, value = item.fields
            inner = f"{self._item(key, 'k', None)} + {self._item(value, 'i', scale)}"
            source = f"k, i in {'items.items()' if key.type == 'string' else 'items'}"
        return [f"def {name}(items):", f"    return b''.join([{tag(1, SIZED)!r} + sized({inner}) for {source}])"]

    def _item(self, field: Field, source: str, scale: int | None) -> str:
        begin = tag(field.number, wire_type(field.type))
        there = f"{begin!r} + {self._value(field.type, source, scale)}"
        return f"({there} if {source} is not None else b'')" if field.label else f"({there} if {source} else b'')"

    def _field(self, field: Field, known: str) -> str:
        found, begin = f"g({field.original!r})", tag(field.number, wire_type(field.type))
        value = self._value(field.type, "v", field.scale, known)
        if field.label == "optional":
            return f"(b'' if (v := {found}) is None else {begin!r} + {value})"
        if field.label == "repeated":
            return f"({self._repeated(field)} if (v := {found}) else b'')"
        found = f"o[{field.original!r}]"
        if field.type in ("float", "double"):  # minus zero is not the default
            zero = bytes(4 if field.type == "float" else 8)
            return f"(b'' if (v := {self._value(field.type, found, None)}) == {zero!r} else {begin!r} + v)"
        if field.type in self._messages:
            return f"{begin!r} + {self._value(field.type, found, field.scale)}"
        return f"({begin!r} + {value} if (v := {found}) else b'')"

    def _repeated(self, field: Field) -> str:
        """Returns the source of all items of the list v."""
        item = self._value(field.type, "i", field.scale)
        if wire_type(field.type) == SIZED:
            return f"b''.join([{tag(field.number, SIZED)!r} + {item} for i in v])"
        return f"{tag(field.number, SIZED)!r} + sized(b''.join([{item} for i in v]))"

    def _value(self, kind: str, source: str, scale: int | None, known: str = "") -> str:
        match kind:
            case "bool":
                return f"(b'\\x01' if {source} else b'\\x00')"
            case "int32" | "int64" | "uint32":
                return f"{known}integer({source})"
            case "float" | "double":
                return f"{'float32' if kind == 'float' else 'float64'}(float({source}))"  # "NaN" is a text in JSON
            case "string":
                return f"{known}string({source})"
            case "bytes":
                return f"base64_bytes({source})"
            case _:
                message = self._messages[kind]
                function = self._function(message, scale if message.item else None)
                if kind in KNOWN_TYPES:
                    source = f"fields_of_{kind.rpartition('.')[2]}({source}, {scale})"
                return f"sized({function}({source}))"
