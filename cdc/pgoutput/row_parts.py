"""Splits row messages into values and joins them again, without a copy of any value: for rows that are large.

Messages that are not row messages, or have wrong lengths, are left to `decoder`, which reports the error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

NULL: Final = b"n"
UNCHANGED: Final = b"u"
TEXT: Final = b"t"

_HEAD_BYTES: Final = 5  # message type 1, relation oid 4
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")


@dataclass(frozen=True, slots=True)
class RawValue:
    """One value of a tuple: the byte that precedes it, and its content."""

    kind: bytes
    content: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class RowTuple:
    """The old row or the new one of a message."""

    kind: bytes  # N, K or O
    values: Sequence[RawValue]


@dataclass(frozen=True, slots=True)
class RowParts:
    """A whole I, U or D message."""

    head: bytes | memoryview  # its type, and the relation
    tuples: Sequence[RowTuple]


def split_message(message: memoryview) -> RowParts | None:
    """Splits a message. Returns None if it is not a row message."""
    if bytes(message[:1]) not in (b"I", b"U", b"D"):
        return None
    tuples = []
    at = _HEAD_BYTES
    while at + 3 <= len(message):
        kind = bytes(message[at : at + 1])
        count: int = _U16.unpack_from(message, at + 1)[0]
        at += 3
        values = []
        for _ in range(count):
            value_kind = bytes(message[at : at + 1])
            if value_kind in (NULL, UNCHANGED):
                at += 1
                values.append(RawValue(value_kind))
                continue
            if value_kind != TEXT or at + 5 > len(message):
                return None
            end: int = at + 5 + _U32.unpack_from(message, at + 1)[0]
            values.append(RawValue(value_kind, message[at + 5 : end]))
            at = end
        tuples.append(RowTuple(kind, values))
    return RowParts(message[:_HEAD_BYTES], tuples) if tuples and at == len(message) else None


def join_message(parts: RowParts) -> bytes:
    """Returns the message. A value has less than 4 GiB."""
    pieces = [parts.head]
    for row in parts.tuples:
        pieces += [row.kind, _U16.pack(len(row.values))]
        for value in row.values:
            pieces.append(value.kind)
            if value.kind == TEXT:
                pieces += [_U32.pack(len(value.content)), value.content]
    return b"".join(pieces)
