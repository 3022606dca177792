"""Protobuf's schema files: what capture writes of proto3, as text and back. Pure.

Registries may return the text in a form of their own: with other spaces, without comments, with options in another
place. So it is parsed; what capture never writes (enum, oneof, map, extensions, services) is refused.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

Label = Literal["", "optional", "repeated"]
SCALARS: Final = frozenset({"bool", "int32", "int64", "uint32", "float", "double", "string", "bytes"})
NUMBER_MAX: Final = (1 << 29) - 1
_DEPTH_MAX: Final = 16  # of messages in messages
_TOKEN: Final = re.compile(
    r"(?P<skipped>\s+|//[^\n]*|/\*.*?\*/)"
    r"""|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"|(?P<word>\.?[A-Za-z_][\w.]*|-?[0-9][\w.+-]*)"
    r"|(?P<mark>[][{}()<>=;,:/-])",
    re.DOTALL | re.ASCII,
)
_ESCAPE: Final = re.compile(rb"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED: Final[Mapping[bytes, bytes]] = {
    code.encode(): value.encode() for code, value in zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message."""

    name: str
    number: int
    type: str  # a scalar's name, or the full name of a message
    label: Label
    original: str  # of the column, and in JSON
    note: str = ""  # a comment
    scale: int | None = None  # of a decimal, for those who write it: not in the text


@dataclass(frozen=True, slots=True)
class Message:
    """A message, with the messages that are defined in it."""

    name: str  # full
    fields: tuple[Field, ...]
    reserved_numbers: frozenset[int] = frozenset()
    reserved_names: frozenset[str] = frozenset()
    messages: tuple["Message", ...] = ()

    @property
    def numbers(self) -> set[int]:
        """Those that no other field may have."""
        return {field.number for field in self.fields} | self.reserved_numbers

    @property
    def item(self) -> "Message | None":
        """The message of the items, if this one is an array or a map (see cdc.formats.proto_schemas)."""
        if len(self.fields) != 1 or len(self.messages) != 1:
            return None
        [field], [inner] = self.fields, self.messages
        is_item = inner.name in (f"{self.name}.Item", f"{self.name}.Entry")
        return inner if is_item and field.type == inner.name and field.label == "repeated" else None


@dataclass(frozen=True, slots=True)
class ProtoFile:
    """A file, whose first message is that of the records."""

    package: str
    imports: tuple[str, ...]
    messages: tuple[Message, ...]

    def all_messages(self) -> dict[str, Message]:
        """Returns all messages by their full names."""
        return {message.name: message for top in self.messages for message in _with_inner(top)}


def _with_inner(message: Message) -> Iterator[Message]:
    yield message
    for inner in message.messages:
        yield from _with_inner(inner)


# ---- as text


def file_text(file: ProtoFile) -> str:
    head = ['syntax = "proto3";', f"package {file.package};", *(f"import {json.dumps(name)};" for name in file.imports)]
    lines = [line for message in file.messages for line in _message_lines(message, "")]
    return "\n".join([*head, "", *lines, ""])


def _message_lines(message: Message, indent: str) -> Iterator[str]:
    inside = indent + "  "
    yield f"{indent}message {message.name.rpartition('.')[2]} {{"
    if message.reserved_numbers:
        yield f"{inside}reserved {', '.join(map(str, sorted(message.reserved_numbers)))};"
    if message.reserved_names:
        yield f"{inside}reserved {', '.join(map(json.dumps, sorted(message.reserved_names)))};"
    for field in message.fields:
        yield inside + _field_line(field)
    for inner in message.messages:
        yield from _message_lines(inner, inside)
    yield f"{indent}}}"


def _field_line(field: Field) -> str:
    kind = field.type if field.type in SCALARS else f".{field.type}"
    # So Protobuf's JSON has the names of the columns, and no two fields one name in it.
    option = "" if default_json_name(field.name) == field.original else f" [json_name = {_quoted(field.original)}]"
    note = f"  // {field.note}" if field.note else ""
    return f"{field.label} {kind} {field.name} = {field.number}{option};{note}".lstrip()


def default_json_name(name: str) -> str:
    """Returns the name in JSON that Protobuf derives from a field's."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _quoted(text: str) -> str:
    escaped = re.sub(r'["\\]', r"\\\g<0>", text)
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\{ord(found[0]):03o}", escaped) + '"'


# ---- from text


def parsed_file(text: str, known: Mapping[str, Message]) -> ProtoFile:
    """Returns the file. `known`: messages of imports by full name. Raises ValueError for another text."""
    file = _Parser(text).file()
    names = frozenset(file.all_messages()) | frozenset(known)
    return replace(file, messages=tuple(_resolved(message, names) for message in file.messages))


def _resolved(message: Message, names: frozenset[str]) -> Message:
    """Returns the message with the full names of types."""
    fields = tuple(replace(field, type=_full_name(field.type, message.name, names)) for field in message.fields)
    return replace(message, fields=fields, messages=tuple(_resolved(inner, names) for inner in message.messages))


def _full_name(kind: str, scope: str, names: frozenset[str]) -> str:
    if kind in SCALARS:
        return kind
    tried = [kind[1:]] if kind.startswith(".") else [f"{outer}{kind}" for outer in _scopes(scope)]
    for name in tried:
        if name in names:
            return name
    raise ValueError(f"type {kind} is not known")


def _scopes(name: str) -> Iterator[str]:
    """Yields the prefixes of names, from the inside to the outside."""
    while name:
        yield f"{name}."
        name = name.rpartition(".")[0]
    yield ""


class _Parser:
    """Reads the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"no Protobuf schema: {text[at : at + 20]!r} in line {text.count(chr(10), 0, at) + 1}")
            if found.lastgroup != "skipped":
                self._tokens.append(found[0])
            at = found.end()
        self._at = 0

    def file(self) -> ProtoFile:
        package, imports, messages = "", [], []
        while self._at < len(self._tokens):
            match self._next():
                case "syntax":
                    self._require("=")
                    if self._text() != "proto3":
                        raise ValueError("no Protobuf schema in proto3")
                case "package":
                    package = self._next()
                case "import":
                    imports.append(self._text())
                case "option":
                    self._skip()
                case "message":
                    messages.append(self._message(package, 0))
                    continue
                case ";":
                    continue
                case other:
                    raise ValueError(f"a Protobuf schema with {other}, which Watershed does not write")
            self._require(";")
        if not messages:
            raise ValueError("no Protobuf schema: it has no message")
        return ProtoFile(package, tuple(imports), tuple(messages))

    def _message(self, scope: str, depth: int) -> Message:
        if depth > _DEPTH_MAX:
            raise ValueError("a Protobuf schema with messages that are too deep")
        name = f"{scope}.{self._next()}".lstrip(".")
        self._require("{")
        fields: list[Field] = []
        messages: list[Message] = []
        numbers: set[int] = set()
        names: set[str] = set()
        while (word := self._next()) != "}":
            match word:
                case "message":
                    messages.append(self._message(name, depth + 1))
                case "reserved":
                    self._reserved(numbers, names)
                case "option":
                    self._skip()
                    self._require(";")
                case ";":
                    pass
                case _:
                    fields.append(self._field(word))
        return Message(name, tuple(fields), frozenset(numbers), frozenset(names), tuple(messages))

    def _field(self, word: str) -> Field:
        label: Label = ""
        if word in ("optional", "repeated"):
            label, word = cast("Label", word), self._next()
        if not re.fullmatch(r"\.?[A-Za-z_][\w.]*", word) or word in ("map", "oneof", "enum", "extensions", "extend"):
            raise ValueError(f"a Protobuf schema with {word}, which Watershed does not write")
        name = self._next()
        self._require("=")
        number, original = self._number(), name
        if (mark := self._next()) == "[":
            original = self._options() or name
            mark = self._next()
        if mark != ";":
            raise ValueError(f"no Protobuf schema: {mark} follows field {name}")
        return Field(name, number, word, label, original)

    def _options(self) -> str | None:
        """Returns the option json_name, if it is there."""
        found, depth = None, 1
        while depth:
            match self._next():
                case "[" | "{" | "(":
                    depth += 1
                case "]" | "}" | ")":
                    depth -= 1
                case "json_name" if depth == 1:
                    self._require("=")
                    found = self._text()
        return found

    def _reserved(self, numbers: set[int], names: set[str]) -> None:
        while True:
            if self._peek()[:1] in ('"', "'"):
                names.add(self._text())
            else:
                first = last = self._number()
                if self._peek() == "to":
                    self._at += 1
                    last = self._number()
                if last - first > 1 << 20:
                    raise ValueError(f"a Protobuf schema that reserves the numbers from {first} on")
                numbers.update(range(first, last + 1))
            if (mark := self._next()) == ";":
                return
            if mark != ",":
                raise ValueError(f"no Protobuf schema: {mark} is reserved")

    def _skip(self) -> None:
        """Skips an option, to its semicolon."""
        depth = 0
        while depth or self._peek() != ";":
            word = self._next()
            depth += (word == "{") - (word == "}")

    def _number(self) -> int:
        word = self._next()
        found = NUMBER_MAX if word == "max" else int(word, 0)
        if not 1 <= found <= NUMBER_MAX:
            raise ValueError(f"no Protobuf schema: {word} is no number of a field")
        return found

    def _text(self) -> str:
        found = _unquoted(self._next())
        while self._peek()[:1] in ('"', "'"):  # parts that follow each other are one
            found += _unquoted(self._next())
        return found

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise ValueError("no Protobuf schema: it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _require(self, mark: str) -> None:
        if (found := self._next()) != mark:
            raise ValueError(f"no Protobuf schema: {found} where {mark} is expected")


def _unquoted(token: str) -> str:
    if token[:1] not in ('"', "'"):
        raise ValueError(f"no Protobuf schema: {token} where a text is expected")
    return _ESCAPE.sub(_byte, token[1:-1].encode()).decode()


def _byte(found: re.Match[bytes]) -> bytes:
    code = found[1]
    if code[:1] == b"x" and len(code) > 1:
        return bytes((int(code[1:], 16),))
    return bytes((int(code, 8) & 255,)) if code.isdigit() else _ESCAPED.get(code, code)
