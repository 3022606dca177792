"""Messages byte for byte, and everything that the decoder must refuse."""

import struct
import tracemalloc

import pytest

from cdc.model.errors import ProtocolError
from cdc.model.lsn import Lsn
from cdc.pgoutput.decoder import COLUMNS_MAX, COMMIT_BYTES_MAX, NAME_BYTES_MAX, decode
from cdc.pgoutput.messages import (
    NULL,
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    RelationColumn,
    ReplicationOrigin,
    StreamAbort,
    Truncate,
    Type,
    Update,
)
from tests.support import wire

RELATION = Relation(
    0x4001,
    "public",
    "customers",
    "d",
    (RelationColumn(True, "id", 20, -1), RelationColumn(False, "näme", 1043, 24)),
)
# Every message type in hexadecimal, from the manual's tables.
MESSAGES: dict[str, tuple[str, Message]] = {
    "begin": (
        "42 0000000001020304 0000000000000005 00000230",
        Begin(Lsn(0x01020304), 946_684_800_000_005, 560),
    ),
    "commit": (
        "43 00 0000000001020304 0000000001020334 0000000000000005",
        Commit(Lsn(0x01020304), Lsn(0x01020334), 946_684_800_000_005),
    ),
    "origin": ("4f 0000000001020304 6e6f646500", ReplicationOrigin(Lsn(0x01020304), "node")),
    "relation": (
        "52 00004001 7075626c696300 637573746f6d65727300 64 0002"
        "01 696400 00000014 ffffffff  00 6ec3a46d6500 00000413 00000018",
        RELATION,
    ),
    "relation of pg_catalog": (
        "52 00004001 00 7400 6e 0000",
        Relation(0x4001, "pg_catalog", "t", "n", ()),
    ),
    "type": ("59 00004001 7075626c696300 6d6f6f6400", Type(0x4001, "public", "mood")),
    "insert": (
        "49 00004001 4e 0003 74 00000002 3137 6e 74 00000000",
        Insert(0x4001, (b"17", NULL, b"")),
    ),
    "update": (
        "55 00004001 4e 0002 74 00000002 3137 75",
        Update(0x4001, None, None, (b"17", UNCHANGED)),
    ),
    "update with old key": (
        "55 00004001 4b 0002 74 00000001 31 6e 4e 0002 74 00000001 32 6e",
        Update(0x4001, "K", (b"1", NULL), (b"2", NULL)),
    ),
    "update with old row": (
        "55 00004001 4f 0001 74 00000001 31 4e 0001 74 00000001 32",
        Update(0x4001, "O", (b"1",), (b"2",)),
    ),
    "delete": ("44 00004001 4b 0001 74 00000001 31", Delete(0x4001, "K", (b"1",))),
    "delete with old row": ("44 00004001 4f 0001 74 00000002 00ff", Delete(0x4001, "O", (b"\0\xff",))),
    "truncate": ("54 00000002 03 00004001 00004002", Truncate(3, (0x4001, 0x4002))),
    "message": (
        "4d 01 0000000001020304 707265666978 00 00000003 61 00 62",
        LogicalMessage(True, Lsn(0x01020304), "prefix", b"a\0b"),
    ),
    "stream abort": ("41 00000005 00000006", StreamAbort(5, 6)),
}
EVERY = pytest.mark.parametrize(("hexadecimal", "message"), MESSAGES.values(), ids=MESSAGES)


@EVERY
def test_each_message_is_read_as_the_manual_lays_it_out(hexadecimal: str, message: Message) -> None:
    raw = bytes.fromhex(hexadecimal)
    assert decode(raw, "0/0") == message
    assert decode(memoryview(b"xx" + raw)[2:], "0/0") == message


@EVERY
def test_a_message_cut_anywhere_is_refused(hexadecimal: str, message: Message) -> None:
    raw = bytes.fromhex(hexadecimal)
    for end in range(len(raw)):
        with pytest.raises(ProtocolError):
            decode(raw[:end], "0/0")


@EVERY
def test_bytes_after_a_message_are_refused(hexadecimal: str, message: Message) -> None:
    with pytest.raises(ProtocolError, match="1 bytes too many"):
        decode(bytes.fromhex(hexadecimal) + b"\0", "0/0")


def test_the_test_builders_write_what_the_decoder_reads() -> None:
    assert decode(wire.relation_bytes(RELATION), "0/0") == RELATION
    assert decode(wire.begin(5, 6, 7), "0/0") == Begin(Lsn(5), 6, 7)
    assert decode(wire.commit(5, 6, 7), "0/0") == Commit(Lsn(5), Lsn(6), 7)
    assert decode(wire.truncate([1, 2], 1), "0/0") == Truncate(1, (1, 2))
    assert decode(wire.logical_message("p", b"c", lsn=9), "0/0") == LogicalMessage(True, Lsn(9), "p", b"c")
    assert decode(wire.update(1, [b"x"], [UNCHANGED], b"O"), "0/0") == Update(1, "O", (UNCHANGED,), (b"x",))


def relation_with(flags: int = 0, name: bytes = b"c") -> bytes:
    return b"R\0\0\0\1s\0t\0d\0\1" + bytes([flags]) + name + b"\0\0\0\0\x14\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"", "a message type needs 1 bytes, 0 are left"),
        (b"S", "not a message type of protocol version 1"),
        (b"\xff", "not a message type"),
        (wire.commit(1, 2, 3, flags=4), "unknown flags 4"),
        (wire.commit(5, 5, 3), "the commit record's end is not after its start"),
        (wire.commit(5, 6 + COMMIT_BYTES_MAX, 3), "the commit record's end is not after its start"),
        (b"R\0\0\0\1s\0t\0x\0\0", "unknown replica identity 'x'"),
        (relation_with(flags=2), "unknown column flags 2"),
        (relation_with(name=b"\xff"), "a column's name is not UTF-8"),
        (relation_with(name=b"x" * (NAME_BYTES_MAX + 1)), f"a column's name has no end within {NAME_BYTES_MAX + 1}"),
        (b"R\0\0\0\1s\0t\0d\xff\xff", "65535 columns, at most 1664"),
        (b"I\0\0\0\1K\0\0", "tuple kind 'K', expected 'N'"),
        (b"I\0\0\0\1N" + struct.pack(">H", COLUMNS_MAX + 1), "1665 columns"),
        (b"I\0\0\0\1N\0\1x", "value kind 'x'"),
        (b"I\0\0\0\1N\0\1t\xff\xff\xff\xffab", "a value needs 4294967295 bytes, 2 are left"),
        (b"I\0\0\0\1N\0\1t\x7f\xff\xff\xff", "a value needs 2147483647 bytes, 0 are left"),
        (b"U\0\0\0\1X\0\0", "tuple kind 'X', expected 'K' or 'O'"),
        (b"U\0\0\0\1K\0\0K\0\0", "tuple kind 'K', expected 'N'"),
        (b"D\0\0\0\1N\0\0", "tuple kind 'N', expected 'K' or 'O'"),
        (b"T\xff\xff\xff\xff\0", "4294967295 relations, at most"),
        (b"T\0\0\x10\0\0", "the relations needs 16384 bytes, 0 are left"),
        (b"T\0\0\0\0\4", "unknown options 4"),
        (b"M\2" + bytes(8) + b"p\0\0\0\0\0", "unknown flags 2"),
        (b"M\0" + bytes(8) + b"p\0\xff\xff\xff\xff", "the content needs 4294967295 bytes"),
        (b"M\0" + bytes(8) + b"prefix", "the prefix has no end"),
    ],
)
def test_what_the_manual_does_not_allow_is_refused(message: bytes, text: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        decode(message, "0/0")
    assert text in refusal.value.message


def test_a_refusal_names_type_offset_and_position() -> None:
    with pytest.raises(ProtocolError, match=r"pgoutput message 'I' at 16/B374D848, byte 9: value kind 'z'"):
        decode(b"I\0\0\0\1N\0\1zecret", "16/B374D848")


def test_a_relation_may_have_as_many_columns_as_the_server_allows() -> None:
    columns = tuple(RelationColumn(False, f"column_{i}", 25, -1) for i in range(COLUMNS_MAX))
    relation = Relation(1, "s", "t", "f", columns)
    assert decode(wire.relation_bytes(relation), "0/0") == relation


def test_lengths_that_lie_allocate_nothing() -> None:
    message = b"I\0\0\0\1N\x06\x80" + b"t\x7f\xff\xff\xff"
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(message, "0/0")
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
