"""Converts Kafka records to changes, and rows to the JSON that stores hold. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import orjson

from cdc.model.events import EPOCH_MAX, SEQ_BITS, SEQ_MAX, VERSION_HEADER, TableSchema, pack_version
from sinks.contract import Change, Json, SourceOperation
from sinks.errors import SinkError
from sinks.schema_history import SchemaHistory

Headers = Sequence[tuple[str, bytes | None]]


class UnknownSchemaError(SinkError):
    """A record names a schema that was not read from the control topic yet. Partitions become readable independently
    of each other, so the record can be there a moment before its schema: read the control topic again, and wait."""


class RecordCoordinates(NamedTuple):
    """The place of a record in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}, partition {self.partition}, offset {self.offset}"


NEXT_AFTER_LOST_SCHEMA = (
    "check that nobody deleted records of the control topic; if its records were deleted, publish under a new prefix"
)
_NEXT_STEP = (
    "something other than Watershed, or a newer version of it, wrote to this topic: run that version, "
    "or have the other program write elsewhere"
)


class _Source(msgspec.Struct, gc=False):
    """The fields in use of a source block. Their values are checked afterwards, for errors that name them."""

    schema: Json = None
    table: Json = None
    epoch: Json = None
    seq: Json = None
    schema_version: Json = None
    unchanged: Json = None
    ts_us: Json = None


class _Envelope(msgspec.Struct, gc=False):
    """The fields in use of an envelope; the others, half of its bytes, are skipped without a Python object."""

    op: Json = None
    source: _Source | None = None
    after: Json = None


class _OrdinarySource(msgspec.Struct, gc=False):
    """The fields in use of the source block of an ordinary record, with their types."""

    schema: str
    table: str
    epoch: int
    seq: int
    schema_version: int
    unchanged: Json = None
    ts_us: Json = None


class _OrdinaryEnvelope(msgspec.Struct, gc=False):
    """The envelope of an ordinary record."""

    op: str
    source: _OrdinarySource
    after: dict[str, Json]


# Integers of any size stay exact in all of them.
_read_ordinary: Final = msgspec.json.Decoder(_OrdinaryEnvelope).decode
_read_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_read_json: Final = msgspec.json.Decoder().decode
_NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


_ROW_OPERATIONS: Final = frozenset({"c", "u", "r"})


def ordinary_change(schema: TableSchema, key: bytes | None, value: bytes | None) -> Change | None:
    """Returns what read_record returns for a whole row in this schema, which is the newest one of its topic: most
    records are such. None for any other record, also one to be refused: read_record says what it is.

    It takes half the time, because one function checks everything at once. Columns are counted only: in JSON that
    capture wrote, their names are right. Names that a schema registry has given to values may be others.
    """
    try:
        envelope = _read_ordinary(value or b"")
        columns = _read_json(key or b"")
    except _NOT_JSON:
        return None
    source, row = envelope.source, envelope.after
    version, epoch, seq, table = schema.version, source.epoch, source.seq, schema.table
    if (
        source.schema_version == version
        and source.unchanged is None
        and envelope.op in _ROW_OPERATIONS
        and len(row) == len(schema.columns)
        and source.table == table.name
        and source.schema == table.schema
        and 0 < epoch <= EPOCH_MAX
        and 0 <= seq <= SEQ_MAX
        and type(columns) is dict
        and tuple(columns) == schema.key
        and None not in columns.values()
    ):
        origin = SourceOperation(envelope.op, source.ts_us)
        return Change(table, columns, epoch << SEQ_BITS | seq, row, version, _WHOLE, origin)
    return None


def read_record(
    lineages_by_topic: Mapping[str, SchemaHistory],
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None = None,
) -> Change:
    """Returns the change in a record of a table's topic, in the table's newest schema version.

    `lineages_by_topic` has the schema of each table in its versions; the job reads them from the control topic after it
    knows the batch's end offsets, so that they cover every record of the batch. A null value is a tombstone, whose
    version is in the header `watershed.version` (ASCII decimal). Raises UnknownSchemaError for a schema that
    `lineages_by_topic` lacks; SinkError, naming topic, partition and offset, for a record that capture did not write.
    """
    try:
        return _read(lineages_by_topic, topic, key, value, headers)
    except _UnknownSchema as error:
        where = RecordCoordinates(topic, partition, offset)
        raise UnknownSchemaError(f"record at {where} {error}", NEXT_AFTER_LOST_SCHEMA) from None
    except _ForeignRecord as error:
        where = RecordCoordinates(topic, partition, offset)
        raise SinkError(f"record at {where} is not a change record: {error}", _NEXT_STEP) from error.__cause__


class _UnknownSchema(Exception):  # noqa: N818
    """A record with an unknown schema. The caller adds the coordinates, which it does not build for every record."""


class _ForeignRecord(Exception):  # noqa: N818
    """A record that capture did not write. The caller adds the coordinates."""


def _read(
    lineages_by_topic: Mapping[str, SchemaHistory],
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> Change:
    schema_history = lineages_by_topic.get(topic)
    if schema_history is None:
        raise _UnknownSchema("can not be read: no schema record in the control topic names this topic")
    schema = schema_history.newest
    key_columns = _read_key(schema, key)
    if value is None:
        return Change(schema.table, key_columns, _header_version(headers), None, None)
    envelope = _decode_envelope(value)
    source = envelope.source
    if source is None:
        raise _ForeignRecord("its value has no source block")
    if source.schema != schema.table.schema or source.table != schema.table.name:
        raise _ForeignRecord(f"its source block names another table than {schema.table}")
    version = _source_version(source)
    schema_version = source.schema_version
    if type(schema_version) is not int:
        raise _ForeignRecord("its source block has no schema_version")
    if schema_version > schema.version:
        raise _UnknownSchema(
            f"has schema version {schema_version} of {schema.table}; the control topic has versions up to "
            f"{schema.version}"
        )
    unchanged = _read_unchanged(schema, source)
    row = _read_row(schema_history, envelope, schema_version, len(unchanged))
    if row is not None and schema_version != schema.version:
        row, unchanged = schema_history.in_newest(schema_version, row, unchanged)
    origin = SourceOperation(envelope.op, source.ts_us)
    if unchanged and envelope.op == "c":
        # A row with a changed key: a store holds another row under this key, and this one is not known yet.
        return Change(schema.table, key_columns, version, None, schema_version, origin=origin)
    return Change(schema.table, key_columns, version, row, schema_version, unchanged, origin)


def encode_json(value: Json) -> bytes:
    """Returns compact UTF-8 JSON. Integers of any size stay exact."""
    try:
        # A copy: orjson's own bytes keep the room that it reserved for escapes, up to 13 times their length.
        return b"%b" % orjson.dumps(value)
    except TypeError:  # an integer above 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def decode_json(content: bytes) -> Json:
    """Reads JSON, the reverse of encode_json. Raises ValueError for other text."""
    try:
        return _read_json(content)
    except _NOT_JSON as error:
        raise ValueError("not JSON") from error


def _read_key(schema: TableSchema, key: bytes | None) -> dict[str, Json]:
    if key is None:
        raise _ForeignRecord("it has no key")
    try:
        columns = _read_json(key)
    except _NOT_JSON as error:
        raise _ForeignRecord("its key is not JSON") from error
    if type(columns) is not dict:
        raise _ForeignRecord("its key is not a JSON object")
    if tuple(columns) != schema.key:
        raise _ForeignRecord(f"its key does not have the columns ({', '.join(schema.key)}) of {schema.table}")
    if None in columns.values():
        raise _ForeignRecord("its key holds a null")
    found: dict[str, Json] = columns
    return found


_WHOLE: Final[frozenset[str]] = frozenset()


def _read_unchanged(schema: TableSchema, source: _Source) -> frozenset[str]:
    listed = source.unchanged
    if listed is None:
        return _WHOLE
    if not isinstance(listed, list) or not all(type(name) is str and name not in schema.key for name in listed):
        raise _ForeignRecord("its source block lists as unchanged something that is not a column outside the key")
    return frozenset(listed)


def _read_row(
    schema_history: SchemaHistory, envelope: _Envelope, schema_version: int, absent: int
) -> dict[str, Json] | None:
    match envelope.op:
        case "d":
            return None
        case "c" | "u" | "r":
            row = envelope.after
            if not isinstance(row, dict):
                raise _ForeignRecord("its after block is missing")
            # A sink writes whole rows: a column left out would be lost in the store, one of another name passed over.
            expected = schema_history.column_names(schema_version)
            if expected is not None and not (len(row) + absent == len(expected) and row.keys() <= expected):
                table = schema_history.newest.table
                raise _ForeignRecord(
                    f"its after block does not have the columns of {table}, schema version {schema_version}"
                )
            return row
        case op:
            raise _ForeignRecord(f"its operation {op!r} is not c, u, d or r" if type(op) is str else "it has no op")


def _source_version(source: _Source) -> int:
    epoch, seq = source.epoch, source.seq
    if type(epoch) is not int or type(seq) is not int or not (0 < epoch <= EPOCH_MAX and 0 <= seq <= SEQ_MAX):
        raise _ForeignRecord("its source block has no epoch and seq")
    return pack_version(epoch, seq)


def _header_version(headers: Headers | None) -> int:
    for name, content in headers or ():
        if name == VERSION_HEADER:
            # At most 19 digits: int() accepts more than capture writes.
            if content is not None and content.isdigit() and len(content) <= 19 and int(content) < 1 << 63:
                return int(content)
            raise _ForeignRecord(f"its header {VERSION_HEADER} is not a version")
    raise _ForeignRecord(f"it is a tombstone without the header {VERSION_HEADER}")


def _decode_envelope(content: bytes) -> _Envelope:
    try:
        return _read_envelope(content)
    except msgspec.ValidationError as error:
        part = "has no source block" if "$.source" in str(error) else "is not a JSON object"
        raise _ForeignRecord(f"its value {part}") from error
    except _NOT_JSON as error:
        raise _ForeignRecord("its value is not JSON") from error
