"""Values in binary format and their texts; what the server makes of all types is in the integration tests."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from cdc.model.events import Column
from cdc.pgoutput.binary_rows import BinaryMessages, BinaryRow, BinaryValues, TypeQuery
from cdc.pgoutput.frames import XLOG_DATA_BYTES
from cdc.pgoutput.messages import NULL, UNCHANGED, Binary, TupleValue
from cdc.pgoutput.row_parts import BINARY, TEXT, RawValue
from tests import wire

OID = 16385
INT, BYTEA, DATE, MINE = 23, 17, 1082, 50_000
HEAD = b"w" + bytes(range(XLOG_DATA_BYTES - 1))
SEND = {INT: "int4send", BYTEA: "byteasend", DATE: "date_send"}
KNOWN = {
    "textsend": ("ö".encode(), "ö".encode()),
    "enum_send": (b"fine", b"fine"),
    "byteasend": (b"\0\xff", b"\\x00ff"),
    "jsonb_send": (b'\1{"a": 1}', b'{"a": 1}'),
    "int2send": (struct.pack(">h", -7), b"-7"),
    "int4send": (struct.pack(">i", 1 << 30), b"1073741824"),
    "int8send": (struct.pack(">q", -(1 << 63)), b"-9223372036854775808"),
    "oidsend": (struct.pack(">I", 4294967295), b"4294967295"),
    "boolsend": (b"\1", b"t"),
}


@dataclass
class FakeServer:
    """Says of a value that it is `T<oid>:<hex>`."""

    sends: Mapping[int, tuple[int, str]] = field(
        default_factory=lambda: {oid: (oid, name) for oid, name in SEND.items()} | {MINE: (DATE, "date_send")}
    )
    asked: list[Sequence[TypeQuery]] = field(default_factory=list)
    looked_up: list[int] = field(default_factory=list)

    def send_functions(self, oids: Sequence[int]) -> Mapping[int, tuple[int, str]]:
        self.looked_up += oids
        return {oid: self.sends[oid] for oid in oids if oid in self.sends}

    def texts(self, questions: Sequence[TypeQuery]) -> Sequence[bytes | None]:
        self.asked.append(questions)
        return [
            None if content == b"damaged" else b"T%d:%s" % (oid, content.hex().encode()) for oid, content in questions
        ]


@pytest.mark.parametrize("function", KNOWN)
def test_of_simple_types_nobody_is_asked(function: str) -> None:
    server = FakeServer({7: (7, function)})
    content, text = KNOWN[function]
    assert BinaryValues(server).with_texts([BinaryRow([7], [RawValue(BINARY, content)])]) == [[RawValue(TEXT, text)]]
    assert server.asked == []


@pytest.mark.parametrize(
    ("function", "content"), [("int4send", b"\0\0\0"), ("int2send", b""), ("boolsend", b"\2"), ("jsonb_send", b"\2{}")]
)
def test_what_the_function_does_not_write_stays_as_it_is(function: str, content: bytes) -> None:
    rows = [BinaryRow([7], [RawValue(BINARY, content)])]
    assert BinaryValues(FakeServer({7: (7, function)})).with_texts(rows) == [[RawValue(BINARY, content)]]


def test_the_server_is_asked_once_for_all_and_for_equal_values_once() -> None:
    server = FakeServer()
    value, other = RawValue(BINARY, b"\0\0\0\1"), RawValue(BINARY, b"\0\0\0\2")
    made = BinaryValues(server).with_texts([BinaryRow([DATE, MINE], [value, value]), BinaryRow([DATE], [other])])
    text = RawValue(TEXT, b"T1082:00000001")  # a domain's base type is asked about
    assert made == [[text, text], [RawValue(TEXT, b"T1082:00000002")]]
    (asked,) = server.asked
    assert sorted(asked) == [(DATE, b"\0\0\0\1"), (DATE, b"\0\0\0\2")]


def test_values_that_are_refused_or_too_large_or_of_a_type_that_is_gone() -> None:
    large, damaged, gone = RawValue(BINARY, bytes(11)), RawValue(BINARY, b"damaged"), RawValue(BINARY, b"\1")
    row = BinaryRow([BYTEA, DATE, 9], [large, damaged, gone], value_bytes_max=10)
    assert BinaryValues(FakeServer()).with_texts([row]) == [[large, damaged, RawValue(TEXT, b"T9:01")]]


def test_empty_values_that_the_server_does_not_take_back() -> None:
    server = FakeServer({7: (7, "tsquerysend"), 8: (8, "int2vectorsend")})
    vector = struct.pack(">iiIii", 1, 0, 21, 0, 0)
    row = BinaryRow([7, 8], [RawValue(BINARY, bytes(4)), RawValue(BINARY, vector)])
    assert BinaryValues(server).with_texts([row]) == [[RawValue(TEXT, b""), RawValue(TEXT, b"")]]


# ---- messages


def messages(row_bytes_max: int = 1 << 20) -> tuple[BinaryMessages, list[bytes]]:
    """And the frames with which a stream begins."""
    columns = [Column("id", INT, -1, "integer", False), Column("data", BYTEA, -1, "bytea", True)]
    _, relation = wire.schema_and_relation([*columns, Column("at", DATE, -1, "date", True)], ["id"], oid=OID)
    return BinaryMessages(FakeServer(), row_bytes_max), [HEAD + wire.relation_bytes(relation)]


def turned(*rows: bytes, row_bytes_max: int = 1 << 20) -> list[bytes]:
    made, frames = messages(row_bytes_max)
    out = made.with_texts([*frames, *(HEAD + row for row in rows)])
    assert out[0] == frames[0]
    assert all(frame.startswith(HEAD) for frame in out)
    return [frame[XLOG_DATA_BYTES:] for frame in out[1:]]


ONE: list[TupleValue] = [Binary(b"\0\0\0\1"), Binary(b"\0\xff"), NULL]
ONE_AS_TEXT: list[TupleValue] = [b"1", b"\\x00ff", NULL]
TWO: list[TupleValue] = [b"2", UNCHANGED, Binary(b"\0\0\0\0")]
TWO_AS_TEXT: list[TupleValue] = [b"2", UNCHANGED, b"T1082:00000000"]


def test_messages_are_the_same_with_texts() -> None:
    assert turned(wire.insert(OID, ONE), wire.update(OID, TWO, ONE, b"O"), wire.delete(OID, TWO)) == [
        wire.insert(OID, ONE_AS_TEXT),
        wire.update(OID, TWO_AS_TEXT, ONE_AS_TEXT, b"O"),
        wire.delete(OID, TWO_AS_TEXT),
    ]


def test_relations_are_known_from_one_call_to_the_next_and_types_are_looked_up_once() -> None:
    server = FakeServer()
    made, (relation,) = BinaryMessages(server, 1 << 20), messages()[1]
    made.with_texts([relation])
    row = HEAD + wire.insert(OID, ONE)
    assert made.with_texts([row]) == [HEAD + wire.insert(OID, ONE_AS_TEXT)]
    made.with_texts([relation, row])
    assert sorted(server.looked_up) == sorted([INT, BYTEA, DATE])


@pytest.mark.parametrize(
    "message",
    [
        wire.begin(1, 2, 3),
        wire.insert(OID, ONE)[:-1],
        wire.insert(OID, ONE[:2]),  # of another width than its relation
        wire.insert(OID + 1, ONE),  # never described
    ],
)
def test_what_is_no_row_of_a_relation_is_left_to_who_decodes_it(message: bytes) -> None:
    assert turned(message) == [message]


def test_keepalives_are_left_alone() -> None:
    frame = b"k" + bytes(17)
    assert messages()[0].with_texts([frame]) == [frame]


def test_of_a_row_that_no_record_holds_only_the_small_values_are_turned() -> None:
    large = Binary(bytes(2_000))
    assert turned(wire.insert(OID, [ONE[0], large, NULL]), row_bytes_max=1_000) == [
        wire.insert(OID, [b"1", large, NULL])
    ]
