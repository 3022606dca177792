"""Kafka records to changes, and rows to the JSON that stores hold. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from cdc.model.errors import SinkError
from cdc.model.events import EPOCH_MAX, SEQ_MAX, TableSchema, pack_version
from sinks.contract import Change, Json, Origin
from sinks.lineage import Lineage

VERSION_HEADER: Final = "watershed.version"
Headers = Sequence[tuple[str, bytes | None]]


class UnknownSchemaError(SinkError):
    """A record names a schema that was not read from the control topic yet. Partitions become readable independently
    of each other, so the record can be there a moment before its schema: read the control topic again, and wait."""


class RecordCoordinates(NamedTuple):
    """Where a record stands in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}, partition {self.partition}, offset {self.offset}"


NEXT_AFTER_LOST_SCHEMA = (
    "check that nobody deleted records of the control topic; if its records are gone, publish under a new prefix"
)
_NEXT_STEP = (
    "something other than Watershed, or a newer version of it, wrote to this topic: run that version, "
    "or use a topic prefix that nobody else writes to"
)
# orjson reads integers up to 64 bits; a longer one comes back as a float of at least this size.
_INTEGER_LIMIT = float(1 << 63)


def read_record(
    lineages_by_topic: Mapping[str, Lineage],
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None = None,
) -> Change:
    """The change that a record of a table's topic says, in the shape of the table's newest schema.

    `lineages_by_topic` has the schema of each table in its versions; the job reads them from the control topic after
    it knows the batch's end offsets, so that they cover every record of the batch. A null value is a tombstone, whose
    version is in the header `watershed.version` (ASCII decimal). Raises UnknownSchemaError for a schema that
    `lineages_by_topic` lacks; SinkError, naming topic, partition and offset, for anything that capture does not write.
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
    """Of a record; its coordinates are added by the caller, which does not build them for every record."""


class _ForeignRecord(Exception):  # noqa: N818
    """Not written by capture; its coordinates are added by the caller."""


def _read(
    lineages_by_topic: Mapping[str, Lineage],
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> Change:
    lineage = lineages_by_topic.get(topic)
    if lineage is None:
        raise _UnknownSchema("can not be read: no schema record in the control topic names this topic")
    schema = lineage.newest
    key_columns = _read_key(schema, key)
    if value is None:
        return Change(schema.table, key_columns, _header_version(headers), None, None)
    envelope = _decode_fast(value, "value")
    # Of the rest nothing is used that may be a number of more than 64 bits; it sees every record.
    if _may_have_lost_digits(envelope.get("after")):
        envelope = json.loads(value)
    source = envelope.get("source")
    if not isinstance(source, dict):
        raise _ForeignRecord("its value has no source block")
    if source.get("schema") != schema.table.schema or source.get("table") != schema.table.name:
        raise _ForeignRecord(f"its source block names another table than {schema.table}")
    version = _source_version(source)
    schema_version = source.get("schema_version")
    if type(schema_version) is not int:
        raise _ForeignRecord("its source block has no schema_version")
    if schema_version > schema.version:
        raise _UnknownSchema(
            f"has schema version {schema_version} of {schema.table}; the control topic has versions up to "
            f"{schema.version}"
        )
    unchanged = _read_unchanged(schema, source)
    row = _read_row(lineage, envelope, schema_version, len(unchanged))
    if row is not None and schema_version != schema.version:
        row, unchanged = lineage.in_newest(schema_version, row, unchanged)
    origin = Origin(envelope["op"], source.get("ts_us"))
    if unchanged and origin.operation == "c":
        # A row that moved here: whatever a store holds under this key was another row, and this one is not known yet.
        return Change(schema.table, key_columns, version, None, schema_version, origin=origin)
    return Change(schema.table, key_columns, version, row, schema_version, unchanged, origin)


def encode_json(value: Json) -> bytes:
    """Compact UTF-8 JSON. Integers of any size stay exact."""
    try:
        # A copy: orjson's own bytes keep the room that it reserved for escapes, up to 13 times their length.
        return b"%b" % orjson.dumps(value)
    except TypeError:  # an integer above 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def decode_json(content: bytes) -> Json:
    """The reverse of encode_json. Raises ValueError for what is not JSON."""
    value = orjson.loads(content)
    return json.loads(content) if _may_have_lost_digits(value) else value


def _read_key(schema: TableSchema, key: bytes | None) -> dict[str, Json]:
    if key is None:
        raise _ForeignRecord("it has no key")
    columns = _decode(key, "key")
    if tuple(columns) != schema.key:
        raise _ForeignRecord(f"its key has not the columns ({', '.join(schema.key)}) of {schema.table}")
    if None in columns.values():
        raise _ForeignRecord("its key holds a null")
    return columns


_WHOLE: Final[frozenset[str]] = frozenset()


def _read_unchanged(schema: TableSchema, source: dict[str, Json]) -> frozenset[str]:
    listed = source.get("unchanged")
    if listed is None:
        return _WHOLE
    if not isinstance(listed, list) or not all(type(name) is str and name not in schema.key for name in listed):
        raise _ForeignRecord("its source block lists something as unchanged that is no column beside the key")
    return frozenset(listed)


def _read_row(lineage: Lineage, envelope: dict[str, Json], schema_version: int, absent: int) -> dict[str, Json] | None:
    match envelope.get("op"):
        case "d":
            return None
        case "c" | "u" | "r":
            row = envelope.get("after")
            if not isinstance(row, dict):
                raise _ForeignRecord("its after block is missing")
            # A sink writes whole rows: a column left out would be lost in the store. Counting is enough against that
            # and costs nothing; names are capture's to get right.
            expected = lineage.column_count(schema_version)
            if expected is not None and len(row) + absent != expected:
                table = lineage.newest.table
                raise _ForeignRecord(f"its after block has not the columns of {table}, schema version {schema_version}")
            return row
        case op:
            raise _ForeignRecord(f"its operation {op!r} is not c, u, d or r" if type(op) is str else "it has no op")


def _source_version(source: dict[str, Json]) -> int:
    epoch, seq = source.get("epoch"), source.get("seq")
    if type(epoch) is not int or type(seq) is not int or not (0 < epoch <= EPOCH_MAX and 0 <= seq <= SEQ_MAX):
        raise _ForeignRecord("its source block has no epoch and seq")
    return pack_version(epoch, seq)


def _header_version(headers: Headers | None) -> int:
    for name, content in headers or ():
        if name == VERSION_HEADER:
            # At most 19 digits: what int() takes is wider than what capture writes.
            if content is not None and content.isdigit() and len(content) <= 19 and int(content) < 1 << 63:
                return int(content)
            raise _ForeignRecord(f"its header {VERSION_HEADER} is not a version")
    raise _ForeignRecord(f"it is a tombstone without the header {VERSION_HEADER}")


def _decode(content: bytes, part: str) -> dict[str, Any]:
    decoded = _decode_fast(content, part)
    exact: dict[str, Any] = json.loads(content) if _may_have_lost_digits(decoded) else decoded
    return exact


def _decode_fast(content: bytes, part: str) -> dict[str, Any]:
    """Integers above 64 bits come back as floats."""
    try:
        decoded = orjson.loads(content)
    except ValueError as error:
        raise _ForeignRecord(f"its {part} is not JSON") from error
    if not isinstance(decoded, dict):
        raise _ForeignRecord(f"its {part} is not a JSON object")
    return decoded


def _may_have_lost_digits(value: Json) -> bool:
    """Whether an integer may have become a float in orjson. A loop over dicts, because it sees every record."""
    kind = type(value)
    if kind is dict:
        for inner in value.values():
            kind = type(inner)
            if kind is float:
                if not -_INTEGER_LIMIT < inner < _INTEGER_LIMIT:
                    return True
            elif (kind is dict or kind is list) and _may_have_lost_digits(inner):
                return True
        return False
    if kind is list:
        return any(map(_may_have_lost_digits, value))
    return kind is float and not -_INTEGER_LIMIT < value < _INTEGER_LIMIT
