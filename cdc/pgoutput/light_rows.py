"""Removes from large rows the columns that records don't have, and finds rows that no record can hold before a record
is made of them.

Making a record takes several times the memory of its row. A row of hundreds of MB is usually larger than its topic
allows. Its length shows that, because no form of a value is shorter than an eighth of its text (bit strings as base64,
six bits for a character of eight; all others are a quarter or more).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.model.events import TableSchema
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import NULL, UNCHANGED, Absent, Delete, Insert, Relation, Tuple, Update
from cdc.pgoutput.relations import sent_places
from cdc.pgoutput.values import ColumnEncoding

SHRINKS_TO: Final = 8  # a record's bytes times this are at least its row's
_HEAD_BYTES: Final = 5  # message type 1, relation oid 4
_COPY_NULL: Final = b"\\N"


@dataclass(frozen=True, slots=True)
class LightRow:
    """A message, or a line of COPY."""

    row: bytes
    column: str | None = None  # the largest one, if no record can hold the row: then only the key is left
    size: int = 0  # bytes of that column's value as it was sent


class LightRows:
    """Makes light rows of one relation."""

    def __init__(self, schema: TableSchema, relation: Relation, forms: Sequence[ColumnEncoding]) -> None:
        """Takes the same arguments as RowCodec."""
        self._names = [column.name for column in schema.columns]
        self._sent = sent_places(relation)
        self._hidden = {i for i, form in enumerate(forms) if form.encode is None}
        self._bounded = {i for i, form in enumerate(forms) if form.is_bounded}
        self._key = {self._names.index(name) for name in schema.key}

    def message(self, message: memoryview, position: str, row_bytes_max: int) -> LightRow:
        """Reads a row change, which begins at its I, U or D byte. Raises ProtocolError as the codec does, to which a
        change of another width is left."""
        change = decode(message, position)
        assert isinstance(change, Insert | Update | Delete), "other messages are no rows"
        rows: list[tuple[str, Tuple]] = []
        if not isinstance(change, Insert) and change.old is not None:
            rows.append((change.old_kind or "", change.old))
        if not isinstance(change, Delete):
            rows.append(("N", change.new))
        if any(len(values) != len(self._sent) for _, values in rows):
            return LightRow(bytes(message))
        rows = [(kind, self._without_hidden(values)) for kind, values in rows]
        sizes = max((self._sizes(values) for _, values in rows), key=lambda sizes: sum(size for size, _ in sizes))
        size, column = 0, None
        if sum(size for size, _ in sizes) > row_bytes_max:
            size, column = max(sizes)
            rows = [(kind, self._key_alone(values)) for kind, values in rows]
        pieces = (piece for kind, values in rows for piece in _pieces(kind, values))
        return LightRow(b"".join((message[:_HEAD_BYTES], *pieces)), column, size)

    def line(self, line: bytes, row_bytes_max: int) -> LightRow:
        """Reads a line of COPY's text format, with columns in the schema's order."""
        fields = line.split(b"\t")
        if len(fields) != len(self._names):
            return LightRow(line)
        fields = [_COPY_NULL if i in self._hidden else field for i, field in enumerate(fields)]
        sizes = {i: len(field) for i, field in enumerate(fields) if i not in self._bounded}
        if sum(sizes.values()) <= row_bytes_max:
            return LightRow(b"\t".join(fields))
        size, column = max((size, self._names[i]) for i, size in sizes.items())
        fields = [field if i in self._key else _COPY_NULL for i, field in enumerate(fields)]
        return LightRow(b"\t".join(fields), column, size)

    def _without_hidden(self, values: Tuple) -> Tuple:
        return tuple(
            NULL if value is not UNCHANGED and (i is None or i in self._hidden) else value
            for value, i in zip(values, self._sent, strict=True)
        )

    def _key_alone(self, values: Tuple) -> Tuple:
        return tuple(value if i in self._key else NULL for value, i in zip(values, self._sent, strict=True))

    def _sizes(self, values: Tuple) -> list[tuple[int, str]]:
        return [
            (0 if isinstance(value, Absent) else len(value), self._names[i])
            for value, i in zip(values, self._sent, strict=True)
            if i is not None and i not in self._bounded
        ]


def _pieces(kind: str, values: Tuple) -> Iterator[bytes | memoryview]:
    """Yields the parts of a tuple as the stream has it, the reverse of `decode` without a copy of any value."""
    yield kind.encode() + len(values).to_bytes(2)
    for value in values:
        if isinstance(value, Absent):
            yield value.value.encode()
        else:
            yield b"t" + len(value).to_bytes(4)
            yield value
