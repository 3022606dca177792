"""Protobuf's binary form to the JSON that capture would have written instead: what readers of topics work with. Pure.

The source of a reader is generated for each schema. It expects fields in the order of their numbers, as every library
writes them. A column that is not known in `before` is null, as in Avro (cdc/formats/avro_json.py).
"""

import struct
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from cdc.formats.avro_json import double_text, real_text, without_absent_lists
from cdc.formats.proto_files import Field, Message
from cdc.formats.proto_schemas import parsed
from cdc.formats.proto_types import KNOWN_MESSAGES, KNOWN_TYPES
from cdc.formats.protobuf import FIRST_MESSAGE, SIZED, tag, wire_type

_BITS: Final = 64
_FLOATS: Final[Mapping[str, tuple[str, int]]] = {"float": ("real", 4), "double": ("double", 8)}


class JsonOfProtobuf:
    """Reads what was written with one schema."""

    def __init__(self, schema: str) -> None:
        """Raises ValueError for a schema that Watershed does not write."""
        file = parsed(schema)
        self._read = _Generator(file.all_messages() | KNOWN_MESSAGES).reader(file.messages[0])

    def read(self, content: bytes, begin: int) -> bytes:
        """Returns the JSON of the Protobuf in `content[begin:]`. Raises ValueError for other bytes."""
        if content[begin : begin + 1] != FIRST_MESSAGE:
            raise ValueError("not the first message of this Protobuf schema")
        try:
            found = self._read(content[begin + 1 :])
            without_absent_lists(found)
            return orjson.dumps(found)
        except (ValueError, IndexError, struct.error, TypeError, OverflowError) as error:
            raise ValueError("not Protobuf of this schema") from error


def _longer(content: bytes, at: int) -> tuple[int, int]:
    """Returns an integer of several bytes, and its end. `at`: of its first byte. Raises IndexError, ValueError."""
    found = shift = 0
    while True:
        byte = content[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return found & 0xFFFF_FFFF_FFFF_FFFF, at
        if shift > _BITS:
            raise ValueError("an integer of more than 64 bits")


def _longer_signed(content: bytes, at: int) -> tuple[int, int]:
    number, end = _longer(content, at)
    return number - (1 << _BITS) if number >> (_BITS - 1) else number, end


def _ended(content: bytes, at: int) -> None:
    if at != len(content):
        raise ValueError("a field of another schema, or a part of one")


def _integers(content: bytes) -> list[int]:
    """Returns the items of a packed list."""
    at, found = 0, []
    while at < len(content):
        number, at = _longer_signed(content, at)
        found.append(number)
    return found


def _base64(content: bytes) -> str:
    return b2a_base64(content, newline=False).decode("ascii")


def _real(content: bytes) -> orjson.Fragment:
    return orjson.Fragment(real_text(*struct.unpack("<f", content)))


def _double(content: bytes) -> orjson.Fragment:
    return orjson.Fragment(double_text(*struct.unpack("<d", content)))


_NAMES: Final[Mapping[str, Any]] = {
    "longer": _longer,
    "longer_signed": _longer_signed,
    "ended": _ended,
    "base64": _base64,
    "real": _real,
    "double": _double,
    "bools": lambda content: [bool(number) for number in _integers(content)],
    "integers": _integers,
    "reals": lambda content: [_real(content[i : i + 4]) for i in range(0, len(content), 4)],
    "doubles": lambda content: [_double(content[i : i + 8]) for i in range(0, len(content), 8)],
    "zero": orjson.Fragment("0"),
} | {f"value_of_{name.rpartition('.')[2]}": known.value for name, known in KNOWN_TYPES.items()}
_PACKED: Final[Mapping[str, str]] = {
    "bool": "bools",
    "int32": "integers",
    "int64": "integers",
    "uint32": "integers",
    "float": "reals",
    "double": "doubles",
}
_DEFAULTS: Final[Mapping[str, str]] = {
    "bool": "False",
    "int32": "0",
    "int64": "0",
    "uint32": "0",
    "float": "zero",
    "double": "zero",
    "string": "''",
    "bytes": "''",
}


class _Generator:
    """Writes a function for each message."""

    def __init__(self, messages: Mapping[str, Message]) -> None:
        self._messages = messages
        self._lines: list[str] = []
        self._functions: dict[str, str] = {}  # by full name

    def reader(self, message: Message) -> Callable[[bytes], Any]:
        """Returns the function that reads a message as a dict."""
        top = self._function(message)
        namespace = dict(_NAMES)
        # The source contains no text from outside but names, as literals.
        exec(compile("\n".join(self._lines), "<json of a protobuf schema>", "exec"), namespace)  # noqa: S102
        found: Callable[[bytes], Any] = namespace[top]
        return found

    def _function(self, message: Message) -> str:
        if (name := self._functions.get(message.name)) is None:
            name = self._functions[message.name] = f"read_{len(self._functions)}"
            lines = [f"def {name}(b):", "    i = 0"]
            if message.item is None:
                defaults = (f"{field.original!r}: {self._default(field)}" for field in message.fields)
                lines.append(f"    o = {{{', '.join(defaults)}}}")
                for field in sorted(message.fields, key=lambda field: field.number):
                    lines += self._field(field)
            else:
                lines += self._array(message.item)
            self._lines += [*lines, "    ended(b, i)", "    return o"]
        return name

    def _default(self, field: Field) -> str:
        return "None" if field.label else _DEFAULTS.get(field.type, "None")

    def _array(self, item: Message) -> list[str]:
        """Returns the lines that read a list, or a map: an object, or a list of pairs."""
        read, begin = self._function(item), tag(1, SIZED)
        lines = ["    o = []", f"    while b.startswith({begin!r}, i):", *_indented(_size(len(begin)))]
        if len(item.fields) == 1:
            return [*lines, f"        o.append({read}(b[i:(i := i + n)])[{item.fields[0].original!r}])"]
        key, value = item.fields
        if key.type != "string":
            return [*lines, f"        o.append(list({read}(b[i:(i := i + n)]).values()))"]
        added = [f"        e = {read}(b[i:(i := i + n)])", f"        o[e[{key.original!r}]] = e[{value.original!r}]"]
        return ["    o = {}", *lines[1:], *added]

    def _field(self, field: Field) -> list[str]:
        kind, target = field.type, f"o[{field.original!r}]"
        if field.label == "repeated":
            begin = tag(field.number, SIZED)
            if (packed := _PACKED.get(kind)) is not None:
                return _if(begin, [*_size(len(begin)), f"    {target} = {packed}(b[i:(i := i + n)])"])
            item = f"        v.append({self._sized(kind)})"
            repeated = ["    v = []", f"    while b.startswith({begin!r}, i):", *_indented(_size(len(begin))), item]
            return _if(begin, [*repeated, f"    {target} = v"])
        begin = tag(field.number, wire_type(kind))
        if (found := _FLOATS.get(kind)) is not None:
            read, size = found
            return _if(begin, [f"    i += {len(begin)}", f"    {target} = {read}(b[i:(i := i + {size})])"])
        if wire_type(kind) == SIZED:
            return _if(begin, [*_size(len(begin)), f"    {target} = {self._sized(kind)}"])
        value = "n != 0" if kind == "bool" else "n"
        return _if(begin, [*_number(len(begin), "longer_signed"), f"    {target} = {value}"])

    def _sized(self, kind: str) -> str:
        """Returns the source of a value of n bytes from i on."""
        part = "b[i:(i := i + n)]"
        if kind == "string":
            return f"{part}.decode()"
        if kind == "bytes":
            return f"base64({part})"
        read = f"{self._function(self._messages[kind])}({part})"
        return f"value_of_{kind.rpartition('.')[2]}({read})" if kind in KNOWN_TYPES else read


def _if(begin: bytes, lines: list[str]) -> list[str]:
    return [f"    if b.startswith({begin!r}, i):", *_indented(lines)]


def _size(tag_bytes: int) -> list[str]:
    """Returns the lines that read the size n behind a tag."""
    return _number(tag_bytes, "longer")


def _number(tag_bytes: int, longer: str) -> list[str]:
    """Returns the lines that read n behind a tag. `longer`: the function for one of several bytes."""
    return [
        f"    n = b[i + {tag_bytes}]",
        f"    i += {tag_bytes + 1}",
        "    if n > 127:",
        f"        n, i = {longer}(b, i - 1)",
    ]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
