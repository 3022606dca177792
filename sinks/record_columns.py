"""Reads many records of a table at once, as columns, for stores that take columns. Pure."""

from collections.abc import Sequence
from itertools import compress
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from cdc.model.events import EPOCH_MAX, SEQ_BITS, SEQ_MAX, TableSchema
from sinks.contract import Json

_NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class RowColumns(NamedTuple):
    """Whole rows in the newest schema of their table."""

    columns: dict[str, Sequence[Json]]  # in the order of the schema
    versions: list[int]
    numbers: list[int]  # of the records that these rows are from


class ColumnReader:
    """Reads records of one version of a table's schema, the newest."""

    def __init__(self, schema: TableSchema) -> None:
        """Raises ValueError for a table with a column whose name has a quotation mark, a backslash or a control
        character, which msgspec does not find in records."""
        names = [column.name for column in schema.columns]
        self._names = names
        self._key = [names.index(name) for name in schema.key]
        self._read_value: Any = msgspec.json.Decoder(_envelope(schema)).decode
        self._read_key: Any = msgspec.json.Decoder(_struct("Key", schema.key)).decode
        self._row_of, self._key_of = _values_of(len(names)), _values_of(len(schema.key))

    def read(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> RowColumns | None:
        """Returns the rows of records (key, value) for which `sinks.records.ordinary_change` returns a change. Deletes
        and tombstones are left out. Returns None if any other record is among them, or if none is a row: then each
        record has to be read by itself.
        """
        numbers = [number for number, (_, value) in enumerate(records) if value is not None]
        try:
            envelopes = [self._read_value(records[number][1]) for number in numbers]
            if any(envelope.op == "d" for envelope in envelopes):
                kept = [envelope.op != "d" for envelope in envelopes]
                numbers, envelopes = list(compress(numbers, kept)), list(compress(envelopes, kept))
            keys = [self._read_key(records[number][0] or b"") for number in numbers]
            rows = [self._row_of(envelope.after) for envelope in envelopes]
        except (*_NOT_JSON, AttributeError):  # a row that is null has no columns
            return None
        if not rows:
            return None
        columns = list(zip(*rows, strict=True))
        key_columns = list(zip(*map(self._key_of, keys), strict=True))
        if any(None in column for column in key_columns) or key_columns != [columns[at] for at in self._key]:
            return None
        sources = [envelope.source for envelope in envelopes]
        versions = [source.epoch << SEQ_BITS | source.seq for source in sources]
        return RowColumns(dict(zip(self._names, columns, strict=True)), versions, numbers)


def _envelope(schema: TableSchema) -> Any:
    """Returns the type of the fields in use of an envelope, which refuses all but ordinary rows, and deletes."""
    source = msgspec.defstruct(
        "Source",
        [
            ("schema", Literal[schema.table.schema]),
            ("table", Literal[schema.table.name]),
            ("epoch", Annotated[int, msgspec.Meta(gt=0, le=EPOCH_MAX)]),
            ("seq", Annotated[int, msgspec.Meta(ge=0, le=SEQ_MAX)]),
            ("schema_version", Literal[schema.version]),
            ("unchanged", None, None),
        ],
        gc=False,
    )
    row = _struct("Row", [column.name for column in schema.columns])
    operation = Literal["c", "u", "r", "d"]
    return msgspec.defstruct("Envelope", [("op", operation), ("source", source), ("after", row | None, None)], gc=False)


def _struct(name: str, columns: Sequence[str]) -> Any:
    """Returns the type of an object with these fields and no others, in attributes `_0`, `_1`, and so on."""
    fields = [(f"_{number}", Any) for number in range(len(columns))]
    renamed = {f"_{number}": column for number, column in enumerate(columns)}
    return msgspec.defstruct(name, fields, rename=renamed, gc=False, forbid_unknown_fields=True)


def _values_of(count: int) -> Any:
    """Returns a function that returns an object's values as a tuple."""
    if count == 1:
        return lambda row: (row._0,)
    return attrgetter(*(f"_{number}" for number in range(count)))
