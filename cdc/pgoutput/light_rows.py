"""Removes from large rows the columns that records don't have, and finds rows that no record can hold before a record
is made of them.

Making a record takes several times the memory of its row. A row of hundreds of MB is usually larger than its topic
allows. Its length shows that, because no form of a value is shorter than an eighth of its text (bit strings as base64,
six bits for a character of eight; all others are a quarter or more).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdc.model.events import TableSchema
from cdc.pgoutput.messages import Relation
from cdc.pgoutput.relations import sent_places
from cdc.pgoutput.row_parts import NULL, TEXT, RawValue, RowParts, RowTuple, join_message, split_message
from cdc.pgoutput.values import ColumnForm

SHRINKS_TO: Final = 8  # a record's bytes times this are at least its row's
_COPY_NULL: Final = b"\\N"


@dataclass(frozen=True, slots=True)
class LightRow:
    """A message, or a line of COPY."""

    row: bytes
    column: str | None = None  # the largest one, if no record can hold the row: then only the key is left
    size: int = 0  # bytes of that column's value as it was sent


class LightRows:
    """Makes light rows of one relation."""

    def __init__(self, schema: TableSchema, relation: Relation, forms: Sequence[ColumnForm]) -> None:
        """Takes the same arguments as RowCodec."""
        self._names = [column.name for column in schema.columns]
        self._sent = sent_places(relation)
        self._hidden = {i for i, form in enumerate(forms) if form.encode is None}
        self._bounded = {i for i, form in enumerate(forms) if form.is_bounded}
        self._key = {self._names.index(name) for name in schema.key}

    def message(self, message: bytes, offset: int, row_bytes_max: int) -> LightRow:
        """Reads the row change in `message[offset:]`. Returns a message that is not a row change as it is."""
        parts = split_message(memoryview(message)[offset:])
        if parts is None or any(len(row.values) != len(self._sent) for row in parts.tuples):
            return LightRow(message[offset:])
        light = RowParts(parts.head, [self._without_hidden(row) for row in parts.tuples])
        largest = max(light.tuples, key=lambda row: self._size(row.values))
        if self._size(largest.values) <= row_bytes_max:
            return LightRow(join_message(light))
        size, column = self._largest(largest.values)
        return LightRow(join_message(RowParts(light.head, list(map(self._key_alone, light.tuples)))), column, size)

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

    def _without_hidden(self, row: RowTuple) -> RowTuple:
        return RowTuple(
            row.kind,
            [
                RawValue(NULL) if value.kind == TEXT and (i is None or i in self._hidden) else value
                for value, i in zip(row.values, self._sent, strict=True)
            ],
        )

    def _key_alone(self, row: RowTuple) -> RowTuple:
        values = zip(row.values, self._sent, strict=True)
        return RowTuple(row.kind, [value if i in self._key else RawValue(NULL) for value, i in values])

    def _sizes(self, values: Sequence[RawValue]) -> list[tuple[int, str]]:
        return [
            (len(value.content), self._names[i])
            for value, i in zip(values, self._sent, strict=True)
            if i is not None and i not in self._bounded
        ]

    def _size(self, values: Sequence[RawValue]) -> int:
        return sum(size for size, _ in self._sizes(values))

    def _largest(self, values: Sequence[RawValue]) -> tuple[int, str]:
        return max(self._sizes(values))
