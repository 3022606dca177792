"""Columns of an event's row as Kafka Connect has them: Debezium's value, its schema, and the text without quotes that
headers and string converters write.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from cdc.config.format_options import FormatOptions
from cdc.formats.connect import Node, optional, required
from cdc.formats.debezium_kinds import kind_of
from cdc.model.errors import SourceError, UnconvertibleError
from cdc.model.events import Column
from cdc.outbox.expansion import java_decimal
from cdc.pgoutput.values import Encoder

_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_JAVA_FLOATS: Final = frozenset({"float", "double"})


@dataclass(frozen=True, slots=True)
class EventValue:
    """One column of one row."""

    json: str  # JSON text, "null" for NULL
    plain: str | None  # None for NULL; bytes are base64
    text: str | None  # as PostgreSQL prints it


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """Makes the values of one column."""

    name: str
    place: int  # index in the row
    node: Node  # Connect's schema
    encode: Encoder

    def __call__(self, row: Sequence[str | None]) -> EventValue:
        """Returns the value in `row`, whose texts are as PostgreSQL prints them. Raises ProtocolError for a text that
        is not of the column's type."""
        text = row[self.place]
        if text is None:
            return EventValue("null", None, None)
        try:
            written = self.encode(text.encode().decode("latin-1")).encode("latin-1").decode()
        except UnconvertibleError:
            return EventValue("null", None, text)
        if self.node["type"] in _JAVA_FLOATS and not written.startswith('"'):
            written = java_decimal(text)
        return EventValue(written, self._plain(written, text), text)

    def _plain(self, written: str, text: str) -> str:
        if self.node.get("name") == _DECIMAL:
            return str(Decimal(text))
        return str(json.loads(written)) if written.startswith('"') else written


def readers_of(
    where: str, columns: Sequence[Column], key: Sequence[str], options: FormatOptions
) -> dict[str, ColumnReader]:
    """Returns a reader for each column, except those that Debezium leaves out. Values have Debezium's form whatever the
    profile, with the configured modes. `where`: the table, for errors."""
    options = options.model_copy(update={"profile": "debezium"})
    readers = {}
    for place, column in enumerate(columns):
        kind = kind_of(column, options)
        if kind is not None:
            is_optional = column.nullable and column.name not in key
            node = (optional if is_optional else required)(kind.node)
            readers[column.name] = ColumnReader(column.name, place, node, kind.encode)
    if not readers:
        raise SourceError(f"outbox table {where} has no column that can be published", "correct outbox.tables")
    return readers
