"""Kafka Connect's schemas as Protobuf's files, with types as Confluent's ProtobufConverter has them. Pure.

A nullable field is `optional`. Protobuf has neither null items nor a null list or map, so these are messages of their
own: `StringArray {repeated Item items}` with `Item {optional string value}`, and `StringStringMap {repeated Entry
entries}`. Lists whose items are never null, and which have some where they are not null, are `repeated`.

A field's number belongs to its column for ever (docs/design/encodings.md): schemas continue from earlier ones.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc.config.format_options import NameAdjustment
from cdc.formats.connect import Node
from cdc.formats.proto_files import NUMBER_MAX, Field, Label, Message, ProtoFile, default_json_name, parsed_file
from cdc.formats.proto_types import KNOWN_MESSAGES, LOGICAL_TYPES
from cdc.formats.schema_names import adjusted_schema_name, field_name, mode_of
from cdc.model.errors import ConfigError

_SCALARS: Final[Mapping[str, str]] = {
    "boolean": "bool",
    "int8": "int32",
    "int16": "int32",
    "int32": "int32",
    "int64": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}
_RESERVED_BY_PROTOBUF: Final = range(19_000, 20_000)


def proto_schema_name(name: str) -> str:
    """Returns a full name that Protobuf accepts: Avro's, in which no part begins with a digit or is empty."""
    return ".".join(re.sub(r"^(?=[0-9]|$)", "_", part) for part in adjusted_schema_name(name).split("."))


def parsed(text: str) -> ProtoFile:
    """Returns the file of a text from a registry. Raises ValueError for one that Watershed does not write."""
    return parsed_file(text, KNOWN_MESSAGES)


def proto_file(node: Node, where: str, mode: NameAdjustment = "none", earlier: Sequence[ProtoFile] = ()) -> ProtoFile:
    """Returns the file of a Connect schema. `where`: the table, for errors. `earlier`: files whose numbers it
    continues, first that of the topic's newest records. Raises ConfigError for a name that Protobuf can't hold, or two
    columns that get the same one."""
    return _Builder(node, where, mode, earlier).file()


class _Builder:
    """Builds one file. All messages are defined in the first one, so that no other file has the same names."""

    def __init__(self, node: Node, where: str, mode: NameAdjustment, earlier: Sequence[ProtoFile]) -> None:
        self._node = node
        self._where = where
        self._mode: NameAdjustment = mode
        self._main = proto_schema_name(node["name"])
        self._earlier = [file.all_messages() for file in earlier]
        self._imports: set[str] = set()
        self._inner: dict[str, Message] = {}  # by full name

    def file(self) -> ProtoFile:
        main = self._message(self._main, self._node["fields"])
        whole = replace(main, messages=tuple(self._inner.values()))
        return ProtoFile(self._main.rpartition(".")[0], tuple(sorted(self._imports)), (whole,))

    def _message(self, name: str, members: Iterable[Node]) -> Message:
        columns = {member["field"]: member for member in members}
        earlier = [messages[name] for messages in self._earlier if name in messages]
        numbers = _numbers(columns, earlier, is_ordered=name.endswith(".Key"))
        originals: dict[str, str] = {}
        mode = mode_of(name, self._mode)
        fields = []
        json_names: dict[str, str] = {}
        for column, node in columns.items():
            named = field_name(column, originals, self._where, mode, "Protobuf")
            self._require_json_name(named, column, json_names)
            fields.append(self._field(named, column, node, numbers[column]))
        # A version that was written before, and is written again, has the schema that it had.
        is_same = bool(earlier) and columns.keys() == {field.original for field in earlier[0].fields}
        reserved = earlier[:1] if is_same else earlier
        used_numbers, used_names = _used(reserved)
        return Message(
            name,
            tuple(fields),
            used_numbers.difference(numbers.values()),
            used_names.difference(originals),
        )

    def _require_json_name(self, field: str, column: str, json_names: dict[str, str]) -> None:
        """Raises ConfigError where Protobuf's compilers do. `json_names`: columns by the name that Protobuf derives."""
        if column.startswith("[") and column.endswith("]"):  # in Protobuf's JSON this is an extension
            raise ConfigError(
                f"table {self._where}: Protobuf can't hold the name of column {column}",
                "leave the column out with source.exclude_columns",
            )
        if (other := json_names.setdefault(default_json_name(field), column)) != column:
            raise ConfigError(
                f"table {self._where}: Protobuf can't hold columns {other} and {column} in one message: it derives the "
                "same name in JSON from both",
                "set format.field.name.adjustment.mode to avro_unicode, or leave one out with source.exclude_columns",
            )

    def _field(self, name: str, column: str, node: Node, number: int) -> Field:
        of = node["items"] if node["type"] == "array" else node
        is_list = of is not node and not of.get("optional")
        label: Label = "repeated" if is_list else "optional" if node.get("optional") else ""
        scale, semantic = of.get("parameters", {}).get("scale"), of.get("name", "")
        note = "" if of["type"] in ("struct", "map") or semantic in LOGICAL_TYPES else semantic
        kind = self._type(of if is_list else node)
        return Field(name, number, kind, label, column, note, None if scale is None else int(scale))

    def _type(self, node: Node) -> str:
        """Returns the type of one value, after its message is defined."""
        if (known := LOGICAL_TYPES.get(node.get("name", ""))) is not None:
            self._imports.add(known.path)
            return known.message.name
        match node["type"]:
            case "struct":
                name = f"{self._main}.{proto_schema_name(node['name']).rpartition('.')[2]}"
                if name not in self._inner:
                    self._inner[name] = Message(name, ())  # it is being defined, and keeps its place
                    self._inner[name] = self._message(name, node["fields"])
                return name
            case "array":
                return self._items("Array", "items", "Item", {"value": node["items"]})
            case "map":
                return self._items("Map", "entries", "Entry", {"key": node["keys"], "value": node["values"]})
            case scalar:
                return _SCALARS[scalar]

    def _items(self, kind: str, field: str, item: str, parts: Mapping[str, Node]) -> str:
        """Returns the message of an array or a map, whose numbers are always the same."""
        types = {part: self._type(node) for part, node in parts.items()}
        short = "".join(map(_short, types.values()))
        name = f"{self._main}.{short}{kind}"
        if name not in self._inner:
            fields = (
                Field(part, i, of, "" if part == "key" else "optional", part)
                for i, (part, of) in enumerate(types.items(), 1)
            )
            inner = Message(f"{name}.{item}", tuple(fields))
            self._inner[name] = Message(name, (Field(field, 1, inner.name, "repeated", field),), messages=(inner,))
        return name


def _short(kind: str) -> str:
    """Returns the part of a type in the name of an array or a map."""
    last = kind.rpartition(".")[2]
    return last if last != kind else kind.capitalize()


def _used(messages: Sequence[Message]) -> tuple[frozenset[int], frozenset[str]]:
    """Returns the numbers and names of all fields that these had, or reserved."""
    names = (message.reserved_names.union(field.name for field in message.fields) for message in messages)
    return frozenset().union(*(message.numbers for message in messages)), frozenset().union(*names)


def _numbers(columns: Collection[str], earlier: Sequence[Message], *, is_ordered: bool) -> dict[str, int]:
    """Returns the number of each column: that which it has in the first of the earlier messages that knows it, unless
    one before that used the number; otherwise the next one that none of them used. `is_ordered`: the numbers ascend, so
    that a registry which sorts the fields of a schema does not change the text of a key."""
    found: dict[str, int] = {}
    used: set[int] = set()
    for message in earlier:
        theirs = {field.original: field.number for field in message.fields}
        for column in columns:
            if column not in found and column in theirs and theirs[column] not in used:
                found[column] = theirs[column]
        used |= message.numbers
    if is_ordered and (known := [found.get(column, NUMBER_MAX) for column in columns]) != sorted(known):
        found = {}
    following = max(used, default=0)
    for column in columns:
        if column not in found:
            following += 1
            if following in _RESERVED_BY_PROTOBUF:
                following = _RESERVED_BY_PROTOBUF.stop
            found[column] = following
    assert following <= NUMBER_MAX
    return found
