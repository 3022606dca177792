"""Protobuf against its own library: each field has the value that was written, the bytes are those that the library
writes, and they read back as the same JSON. And field numbers over any history of a table.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from functools import cache
from typing import Any, Final, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc.formats.avro_json import double_text, real_text
from cdc.formats.connect import (
    BOOLEAN,
    BYTES,
    FLOAT32,
    FLOAT64,
    INT16,
    INT32,
    INT64,
    STRING,
    Node,
    array_of,
    map_of,
    named,
    optional,
    required,
    struct_of,
    vector_of,
)
from cdc.formats.proto_files import ProtoFile, file_text
from cdc.formats.proto_schemas import parsed, proto_file
from cdc.formats.protobuf import ProtobufEncoder
from cdc.formats.protobuf_json import JsonOfProtobuf
from tests.support.protoc import descriptors, message_class

CONNECT: Final = "org.apache.kafka.connect.data."
EPOCH: Final = date(1970, 1, 1)
DAYS: Final = (date.max - EPOCH).days  # of Python's years

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
base64_texts = st.binary(max_size=20).map(lambda content: base64.b64encode(content).decode())
doubles = st.floats().map(lambda number: json.loads(double_text(number)))
floats = st.floats(width=32).map(lambda number: json.loads(real_text(number)))


class Kind(NamedTuple):
    """A type of columns."""

    node: Node
    values: st.SearchStrategy[Any]  # in JSON
    read: Callable[[Any, str], Any]  # the same, of a message of the library and the name of its field


def plain(message: Any, name: str) -> Any:
    return getattr(message, name)


def integers(bits: int) -> st.SearchStrategy[int]:
    limit = 1 << bits - 1
    return st.integers(-limit, limit - 1) | st.sampled_from([0, 127, 128, -1, limit - 1, -limit])


def double(message: Any, name: str) -> Any:
    return json.loads(double_text(getattr(message, name)))


def real(message: Any, name: str) -> Any:
    return json.loads(real_text(getattr(message, name)))


def encoded(message: Any, name: str) -> str:
    return base64.b64encode(getattr(message, name)).decode()


def unscaled(number: int) -> str:
    return base64.b64encode(
        number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, signed=True)
    ).decode()


def decimal(message: Any, name: str) -> str:
    found = getattr(message, name)
    assert found.scale == 3
    number = int.from_bytes(found.value, signed=True)
    assert found.precision == len(str(abs(number)))
    return unscaled(number)


def items(of: Callable[[Any, str], Any] = plain) -> Callable[[Any, str], Any]:
    return lambda message, name: [
        of(item, "value") if item.HasField("value") else None for item in getattr(message, name).items
    ]


def entries(message: Any, name: str) -> Any:
    return [[item.key, double(item, "value")] for item in getattr(message, name).entries]


def texts(message: Any, name: str) -> Any:
    found = getattr(message, name).entries
    return {item.key: item.value if item.HasField("value") else None for item in found}


def days(message: Any, name: str) -> int:
    found = getattr(message, name)
    return (date(found.year, found.month, found.day) - EPOCH).days


def time_of_day(message: Any, name: str) -> int:
    found = getattr(message, name)
    since = timedelta(hours=found.hours, minutes=found.minutes, seconds=found.seconds, microseconds=found.nanos // 1000)
    return since // timedelta(milliseconds=1)


def point(message: Any, name: str) -> dict[str, Any]:
    found = getattr(message, name)
    return {"x": double(found, "x"), "wkb": encoded(found, "wkb") if found.HasField("wkb") else None}


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


DECIMAL: Final = named(BYTES, f"{CONNECT}Decimal", {"scale": "3"})
POINT: Final = {**struct_of([("x", required(FLOAT64)), ("wkb", optional(BYTES))]), "name": "a.Point"}
decimals = st.integers(-(10**30), 10**30).map(unscaled)
KINDS: Final[Mapping[str, Kind]] = {
    "boolean": Kind(BOOLEAN, st.booleans(), plain),
    "int16": Kind(INT16, integers(16), plain),
    "int32": Kind(INT32, integers(32), plain),
    "int64": Kind(INT64, integers(64), plain),
    "float": Kind(FLOAT32, floats, real),
    "double": Kind(FLOAT64, doubles, double),
    "string": Kind(STRING, any_text, plain),
    "bytes": Kind(BYTES, base64_texts, encoded),
    "decimal": Kind(DECIMAL, decimals, decimal),
    "date": Kind(named(INT32, f"{CONNECT}Date"), st.integers(-719_162, DAYS), days),
    "time": Kind(named(INT32, f"{CONNECT}Time"), st.integers(0, 86_400_000), time_of_day),
    "timestamp": Kind(
        named(INT64, f"{CONNECT}Timestamp"),
        st.integers(-62_135_596_800_000, 253_402_300_799_999),
        lambda message, name: getattr(message, name).ToMilliseconds(),
    ),
    "struct": Kind(
        POINT,
        st.tuples(doubles, nullable(base64_texts)).map(lambda pair: dict(zip(("x", "wkb"), pair, strict=True))),
        point,
    ),
    "strings": Kind(array_of(STRING), st.lists(nullable(any_text), max_size=4), items()),
    "integers": Kind(array_of(INT64), st.lists(nullable(integers(64)), max_size=4), items()),
    "booleans": Kind(array_of(BOOLEAN), st.lists(nullable(st.booleans()), max_size=4), items()),
    "decimals": Kind(array_of(DECIMAL), st.lists(nullable(decimals), max_size=3), items(decimal)),
    "text map": Kind(
        map_of(STRING, optional(STRING)), st.dictionaries(any_text, nullable(any_text), max_size=3), texts
    ),
    "number map": Kind(
        map_of(INT16, required(FLOAT64)), st.lists(st.tuples(integers(16), doubles).map(list), max_size=3), entries
    ),
}


def listed(text: Callable[[Any], str] = json.dumps) -> Callable[[Any, str], Any]:
    return lambda message, name: [json.loads(text(item)) for item in getattr(message, name)]


# Lists that are never null inside, and have items where they are not null: Protobuf's own.
LISTS: Final[Mapping[str, Kind]] = {
    "doubles": Kind(vector_of(FLOAT64), st.lists(doubles, min_size=1, max_size=4), listed(double_text)),
    "floats": Kind(vector_of(FLOAT32), st.lists(floats, min_size=1, max_size=4), listed(real_text)),
    "numbers": Kind(vector_of(INT32), st.lists(integers(32), min_size=1, max_size=4), listed()),
    "flags": Kind(vector_of(BOOLEAN), st.lists(st.booleans(), min_size=1, max_size=4), listed()),
    "texts": Kind(vector_of(STRING), st.lists(any_text, min_size=1, max_size=4), listed()),
}


def columns() -> dict[str, tuple[Kind, bool]]:
    """Each type, nullable and not, by name. More than 16, so tags have one byte and two."""
    return {
        f"{name.replace(' ', '_')}_{'null' if is_nullable else 'there'}": (kind, is_nullable)
        for name, kind in {**KINDS, **LISTS}.items()
        for is_nullable in (True, False)
    }


COLUMNS: Final = columns()
ROWS: Final = st.fixed_dictionaries(
    {name: nullable(kind.values) if is_nullable else kind.values for name, (kind, is_nullable) in COLUMNS.items()}
)


def node_of(names: Iterable[str]) -> Node:
    fields = ((name, (optional if COLUMNS[name][1] else required)(COLUMNS[name][0].node)) for name in names)
    return {**required(struct_of(fields)), "name": "shop.public.t.Value"}


@cache
def codecs() -> list[tuple[ProtoFile, str, Any]]:
    """Schema, text and the library's class of all columns, in two orders of their numbers: as if they were created, and
    as if half of them were added in front of the others."""
    names = list(COLUMNS)
    before = parsed(file_text(proto_file(node_of(names[20:]), "public.t")))
    files = [proto_file(node_of(names), "public.t", "none", earlier) for earlier in ((), (before,))]
    return [(file, text, message_class(text)) for file in files for text in (file_text(file),)]


@settings(max_examples=40)
@given(ROWS)
def test_each_field_is_what_protobufs_own_parser_reads(row: dict[str, Any]) -> None:
    row = {name: row[name] for name in COLUMNS}
    for file, text, message_of in codecs():
        made = ProtobufEncoder(file).encode(json.dumps(row).encode())
        message = message_of.FromString(made[1:])
        assert message.SerializeToString(deterministic=True) == made[1:]
        found = {name: kind.read(message, name) for name, (kind, _) in COLUMNS.items() if row[name] is not None}
        assert json.dumps(found) == json.dumps({name: value for name, value in row.items() if value is not None})
        present = {field.name for field, _ in message.ListFields()}
        assert not present & {name for name, value in row.items() if value is None}
        assert json.dumps(json.loads(JsonOfProtobuf(text).read(made, 0))) == json.dumps(row)


NAMES: Final = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@settings(max_examples=60)
@given(st.lists(st.tuples(NAMES, st.booleans()), min_size=1, max_size=8))
@example([(["a", "b"], False), (["a"], False), (["b", "a"], True), (["c"], False), (["b"], False)])
def test_a_number_belongs_to_one_column_for_ever(history: list[tuple[list[str], bool]]) -> None:
    """Over any history of columns; in some versions, the session ends before its transaction is committed."""
    state: str | None = None
    registry: list[str] = []  # which ignores what it has already
    owners: dict[int, str] = {}
    for names, is_aborted in history:
        node = {**required(struct_of((name, optional(STRING)) for name in names)), "name": "shop.public.t.Value"}
        earlier = [parsed(text) for text in (state, *registry[-1:]) if text is not None]
        file = proto_file(node, "public.t", "none", earlier)
        text = file_text(file)
        assert parsed(text) == file
        registry += [text] if text not in registry else []
        numbers = {field.original: field.number for field in file.messages[0].fields}
        assert list(numbers) == names
        for name, number in numbers.items():
            assert owners.setdefault(number, name) == name, "consumers that know this number read another column"
        assert not set(numbers.values()) & file.messages[0].reserved_numbers
        if not is_aborted:
            if state is not None:
                before = {field.original: field.number for field in parsed(state).messages[0].fields}
                assert {name: numbers[name] for name in names if name in before} == {
                    name: number for name, number in before.items() if name in names
                }
                gone = {number for name, number in before.items() if name not in names}
                assert gone <= file.messages[0].reserved_numbers
            state = text
    descriptors(registry[-1])
