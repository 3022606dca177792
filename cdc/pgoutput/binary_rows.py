"""Values in their types' binary format → their texts; and row messages of such values → the same in text format.

PostgreSQL makes a text in one piece of memory, of at most 1 GiB: a bytea of 600 MB, which it stores, it can't send as
text, and whoever asks for text never gets past that row. So such a stretch of the log is asked for in binary format
(PostgreSQL manual, "Streaming Replication Protocol", option `binary`), and turned into texts here.

A type's binary format is what its send function writes. Of the types whose text that is, or nearly so, we know the way;
of all others the server is asked, which has their receive and output functions: the text is PostgreSQL's in any case.
"""

import struct
from binascii import hexlify
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol

from cdc.pgoutput.decoder import decode
from cdc.pgoutput.frames import XLOG_DATA_BYTES
from cdc.pgoutput.messages import Relation
from cdc.pgoutput.row_parts import BINARY, TEXT, RawValue, RowParts, RowTuple, put_together, take_apart

Content = bytes | memoryview
TypeQuery = tuple[int, bytes]  # a type's oid, and a value in its binary format


_EMPTY_VECTOR: Final = struct.Struct(">iiIii")  # dimensions, has nulls, element type, elements, lower bound
# What the server sends, and does not take back.
_NOT_TAKEN_BACK: Final[Mapping[tuple[str, bytes], bytes]] = {
    ("tsquerysend", bytes(4)): b"",
    ("int2vectorsend", _EMPTY_VECTOR.pack(1, 0, 21, 0, 0)): b"",
    ("oidvectorsend", _EMPTY_VECTOR.pack(1, 0, 26, 0, 0)): b"",
}


@dataclass(frozen=True, slots=True)
class BinaryRow:
    """Values, with their types' oids."""

    types: Sequence[int]
    values: Sequence[RawValue]
    value_bytes_max: int = 1 << 32  # larger ones stay as they are


class TypeServer(Protocol):
    """What the source's server knows of types. Raises ConnectionLost."""

    def send_functions(self, oids: Sequence[int]) -> Mapping[int, tuple[int, str]]:
        """Type → its base type, if it is a domain, else itself; and the name of its send function, qualified where it
        is not PostgreSQL's own. Types that are gone are missing."""

    def texts(self, questions: Sequence[TypeQuery]) -> Sequence[bytes | None]:
        """Each value's text; None for one that the server does not take."""


def _jsonb(content: Content) -> bytes | None:
    return bytes(content[1:]) if content[:1] == b"\1" else None


def _number(layout: str) -> Callable[[Content], bytes | None]:
    number = struct.Struct(layout)
    return lambda content: b"%d" % number.unpack(content)[0] if len(content) == number.size else None


def _boolean(content: Content) -> bytes | None:
    return {b"\0": b"f", b"\1": b"t"}.get(bytes(content))


# By send function. None: not what that function writes.
_KNOWN: Final[Mapping[str, Callable[[Content], bytes | None]]] = {
    **dict.fromkeys(("textsend", "varcharsend", "bpcharsend", "namesend", "json_send", "enum_send"), bytes),
    "byteasend": lambda content: b"\\x" + hexlify(content),
    "jsonb_send": _jsonb,
    "int2send": _number(">h"),
    "int4send": _number(">i"),
    "int8send": _number(">q"),
    "oidsend": _number(">I"),
    "boolsend": _boolean,
}


class BinaryValues:
    """Turns values."""

    def __init__(self, server: TypeServer) -> None:
        self._server = server
        self._types: dict[int, tuple[int, str]] = {}  # as TypeServer.send_functions has them

    def with_texts(self, rows: Sequence[BinaryRow]) -> list[list[RawValue]]:
        """The rows' values; one that is too large or could not be turned is left in binary format. Raises
        ConnectionLost."""
        self._learn({oid for row in rows for oid in row.types})
        questions = list({question for row in rows for question in self._questions(row)})
        answers = dict(zip(questions, self._server.texts(questions), strict=True)) if questions else {}
        return [
            [self._turned(value, oid, answers) if _turns(row, value) else value for oid, value in _pairs(row)]
            for row in rows
        ]

    def _learn(self, oids: Set[int]) -> None:
        if unknown := oids - self._types.keys():
            found = self._server.send_functions(sorted(unknown))
            self._types |= {oid: found.get(oid, (oid, "")) for oid in unknown}

    def _questions(self, row: BinaryRow) -> Iterator[TypeQuery]:
        """What only the server can turn."""
        for oid, value in _pairs(row):
            base, function = self._types[oid]
            if _turns(row, value) and function not in _KNOWN:
                yield base, bytes(value.content)

    def _turned(self, value: RawValue, oid: int, answers: Mapping[TypeQuery, bytes | None]) -> RawValue:
        base, function = self._types[oid]
        if (known := _KNOWN.get(function)) is not None:
            text = known(value.content)
        else:
            content = bytes(value.content)
            text = _NOT_TAKEN_BACK.get((function, content), answers[base, content])
        return value if text is None else RawValue(TEXT, text)


def _pairs(row: BinaryRow) -> Iterator[tuple[int, RawValue]]:
    return zip(row.types, row.values, strict=True)


def _turns(row: BinaryRow, value: RawValue) -> bool:
    return value.kind == BINARY and len(value.content) <= row.value_bytes_max


class BinaryMessages:
    """Turns the frames of one stream. Relations have to come before their rows, as they do."""

    def __init__(self, server: TypeServer, row_bytes_max: int) -> None:
        """`row_bytes_max`: no record holds a row above it. Its large values are left in binary format: their texts
        would take twice their memory."""
        self._values = BinaryValues(server)
        self._row_bytes_max = row_bytes_max
        self._relations: dict[int, tuple[int, ...]] = {}  # oid → its columns' types

    def with_texts(self, frames: Sequence[bytes]) -> list[bytes]:
        """The same frames; a value that could not be turned is left in binary format. Raises ConnectionLost."""
        there: list[tuple[int, RowParts]] = []
        rows: list[BinaryRow] = []
        for i, frame in enumerate(frames):
            message = memoryview(frame)[XLOG_DATA_BYTES:]
            if frame[:1] != b"w":
                continue
            if bytes(message[:1]) == b"R":
                self._describe(message)
            elif (parts := take_apart(message)) is not None and self._is_described(parts):
                there.append((i, parts))
                rows += self._rows(parts)
        turned = list(frames)
        values = iter(self._values.with_texts(rows))
        for i, parts in there:
            texts = RowParts(parts.head, [RowTuple(row.kind, next(values)) for row in parts.tuples])
            turned[i] = put_together(texts, memoryview(frames[i])[:XLOG_DATA_BYTES])
        return turned

    def _describe(self, message: memoryview) -> None:
        relation = decode(message, "its place in the stream")
        assert isinstance(relation, Relation)
        self._relations[relation.oid] = tuple(column.type_oid for column in relation.columns)

    def _is_described(self, parts: RowParts) -> bool:
        """What is no row of its relation is left to who decodes it."""
        types = self._relations.get(parts.relation_oid)
        return types is not None and all(len(row.values) == len(types) for row in parts.tuples)

    def _rows(self, parts: RowParts) -> Iterator[BinaryRow]:
        size = sum(len(value.content) for row in parts.tuples for value in row.values)
        size_max = size if size <= self._row_bytes_max else self._row_bytes_max // 16
        for row in parts.tuples:
            yield BinaryRow(self._relations[parts.relation_oid], row.values, size_max)
