"""Builds the records of both profiles: Debezium's JSON envelope, around values in a profile's form (see `profiles`).

    {"before":null,"after":{"id":1,"name":"x"},
     "source":{"version":"0.1.0","connector":"postgresql","name":"shop","ts_ms":1767323079990,"snapshot":"false",
               "db":"shop","sequence":"[\\"24025000\\",\\"24026000\\"]","ts_us":1767323079990123,
               "ts_ns":1767323079990123000,"schema":"public","table":"customers","txId":560,"lsn":24026000,
               "xmin":null,"origin":null,"origin_lsn":null,
               "epoch":1,"seq":17,"commit_lsn":24026100,"tx_index":0,"schema_version":1},
     "transaction":null,"op":"c","ts_ms":1767323080000,"ts_us":1767323080000123,"ts_ns":1767323080000123000}

Fields and their order are Debezium's; from `epoch` on `source` has ours. `source.ts_*` is the commit time (for a
snapshot row: the time when the snapshot began), `ts_*` our clock. `sequence` is a JSON array as a string: the LSN of
the previous commit, or null, and the change's own. Columns that are not known are absent, never null: from `before`,
and from `after` if an update left a large value out of the log and it could not be read either. Only then `source` ends
with `"unchanged":["body"]`, the names of these columns, or with `"filled":["body"]`, the names of those that were read.

In profile `debezium` columns that are not known are null in `before`, or a zero where that is not allowed, and a
placeholder in `after` (see `unavailable`). With `schemas.enable` key and value are `{"schema":…,"payload":…}`, each
with the whole schema, as Kafka Connect's JsonConverter writes them; it reads an absent field as null. With
`cloudevents` the value has attributes in headers or around it: see `cloud_events`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from cdc.config.format_options import READABLE, FormatOptions
from cdc.formats import connect
from cdc.formats.cloud_events import RowAttributes
from cdc.formats.profiles import ColumnFormat, column_formats, record_nodes
from cdc.formats.transaction_metadata import TransactionMetadata
from cdc.formats.unavailable import unavailable
from cdc.formats.utf8 import not_utf8
from cdc.model.errors import NEXT_AFTER_STOP, ConfigError, MalformedValueError, UnsupportedChangeError
from cdc.model.events import VERSION_HEADER, Position, TableSchema, pack_version
from cdc.model.lsn import Lsn
from cdc.model.sql_names import sql_name
from cdc.model.topic_record import TopicRecord
from cdc.pgoutput.codec import IncompleteChange, RowChange, RowCodec, RowSurroundings, json_end
from cdc.pgoutput.light_rows import LightRows
from cdc.pgoutput.messages import Relation, ReplicationOrigin
from cdc.pgoutput.values import json_name

NEW_KEY_HEADER = "__debezium.newkey"
OLD_KEY_HEADER = "__debezium.oldkey"

_BEFORE = '{"before":'
_AFTER = ',"after":'
_TRANSACTION = '},"transaction":'
_OP = ',"op":"'
_SOURCE = b',"source":{"version":'
_SCHEMA_VERSION = b',"schema_version":'
_DELETED = b'"op":"d"'
_DIGITS = re.compile(rb"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class EnvelopeContext:
    """The values that all records of one run share."""

    prefix: str
    database: str
    epoch: int
    connector_version: str
    format: FormatOptions = READABLE
    history: str = ""  # of the topics, see ProgressRecord.history
    promises_utf8: bool = False  # the server converts every text to UTF-8: its database is not in SQL_ASCII


class Draft:
    """The value of a record whose row has holes, before they are filled or published as unchanged."""

    def __init__(
        self, encoder: "TableEncoder", change: IncompleteChange, xid: int, parts: tuple[str, str, str], tx_index: int
    ) -> None:
        """`parts`: the value's text before the row, from there to the end of `source`, and the rest."""
        self.encoder = encoder
        self.schema = encoder.schema
        self.columns = change.columns  # as IncompleteChange has them
        self.key = change.key  # the key columns' texts as PostgreSQL prints them
        self.xid = xid  # of its transaction, as the stream has it: 32 bits
        # The record key that the row had, if it moved.
        self.former_key = None if change.old_key == change.new_key else encoder.key_of(change.old_key)
        self._parts = parts
        self._tx_index = tx_index

    def encoded(self, column: str, value: bytes | None) -> str | None:
        """Converts a value's text as PostgreSQL prints it, None for NULL, to the form of `columns`. Returns None for an
        unknown column or a value that the column can't hold, because the table was altered since; and for a text that
        is not UTF-8, so that the row is read again as an existing row, to which `capture.on_unpublishable` applies."""
        try:
            encoded = self.encoder.column(column, value)
            encoded.encode("latin-1").decode()
        except (MalformedValueError, ValueError):
            return None
        return encoded

    def without_holes(self) -> bytes:
        """Returns the value with no hole filled."""
        return self.finished(self.columns, ())

    def finished(self, columns: Sequence[str | None], filled: Sequence[int]) -> bytes:
        """Returns the value with the known ones of `columns`; those at `filled` were read from the table. Raises
        ProtocolError for text that is not UTF-8."""
        head, source, tail = self._parts
        names = [column.name for column in self.schema.columns]
        unchanged = [i for i, column in enumerate(columns) if column is None]
        row = self.encoder.row_of(columns)
        lists = "".join(
            f',"{what}":[{",".join(json_name(names[i]) for i in places)}]'
            for what, places in (("unchanged", unchanged), ("filled", filled))
            if places
        )
        encoded = f"{head}{row}{source}{lists}{tail}".encode("latin-1")
        self.encoder.require_utf8(encoded, self._tx_index)
        return encoded


Headers = Sequence[tuple[str, bytes | None]] | None

FinishedRecord = tuple[bytes, bytes | None, Headers]
"""(key, value, headers). A value of None is a tombstone."""

OutRecord = tuple[bytes, bytes | Draft | None, Headers]
"""A finished record, or one whose row has holes: its value is a Draft, which no data can be."""

_Value = TypeVar("_Value", bytes, Draft)


def _formats(schema: TableSchema, options: FormatOptions) -> tuple[ColumnFormat, ...]:
    """Returns the formats of the columns. Raises UnsupportedChangeError if the configuration does not fit the table any
    more: a column that it masks was dropped, say."""
    try:
        return column_formats(schema, options)
    except ConfigError as error:
        raise UnsupportedChangeError(
            f"table {schema.table} was altered: {error.message}", error.hint, table=schema.table, is_held=False
        ) from error


class TableEncoder:
    """Encodes rows of one table in one schema version as Kafka records.

    Call `start_transaction` before the first `encode` of each transaction, and `start_snapshot` or `start_chunk` before
    the first `copy_row`. Raises UnsupportedChangeError if the relation does not match the schema, or the
    configuration does not fit it.
    """

    def __init__(
        self,
        schema: TableSchema,
        relation: Relation,
        context: EnvelopeContext,
        metadata: TransactionMetadata | None = None,
    ) -> None:
        """`metadata`: of the current transaction, if it is published."""
        formats = _formats(schema, context.format)
        relation = context.format.columns.marked(relation)
        forms = [found.form for found in formats]
        self._codec = RowCodec(schema, relation, forms)
        self.column = self._codec.column
        self.light = LightRows(schema, relation, forms)
        self.schema = schema
        self._is_keyless = not schema.key
        self._context = context
        # A value is before, after, then source and the rest: constant text between the numbers of each change,
        #   _to_sequence LSN _to_lsn LSN _to_seq SEQ _to_index INDEX _to_op OP _clock
        # of which a transaction fills in its own part once.
        self._head = (
            f',"source":{{"version":{json_name(context.connector_version)},"connector":"postgresql"'
            f',"name":{json_name(context.prefix)},"ts_ms":'
        )
        self._database = f',"db":{json_name(context.database)},"sequence":"['
        self._table = f',"schema":{json_name(schema.table.schema)},"table":{json_name(schema.table.name)},"txId":'
        self._to_epoch = f',"epoch":{context.epoch},"seq":'
        self._to_seq = f',"xmin":null,"origin":null,"origin_lsn":null{self._to_epoch}'
        self._to_end = f',"schema_version":{schema.version}'
        self._to_op = f"{self._to_end}{_TRANSACTION}null{_OP}"
        self._to_before, self._end, self._key_head = _BEFORE, "}", b""
        if context.format.schemas_enable:
            key, envelope = record_nodes(schema, formats, context.prefix)
            self._key_head = connect.payload_head(key).encode("latin-1")
            self._to_before = connect.payload_head(envelope) + self._to_before
            self._end = "}}"
        self._attributes = None
        if context.format.cloudevents is not None:
            mode = context.format.cloudevents
            self._attributes = RowAttributes(mode, context.prefix, str(schema.table), (context.history, context.epoch))
            self._to_before = self._attributes.head + self._to_before
        self._has_tombstones = context.format.tombstones_on_delete
        self._row_head = f"{self._to_before}null{_AFTER}".encode("latin-1")
        self._before_head = self._to_before.encode("latin-1")
        self._version_ends = f"{self._to_end}}}".encode(), f"{self._to_end},".encode()
        self._headers = context_headers(context.prefix) if context.format.has_context_headers else None
        # For each column, the text for an unknown value of an old row, and for a large value that is not
        # available; None: it is absent.
        self._unknown = [found.form.unknown for found in formats]
        self._unavailable = [
            unavailable(column, context.format) or unknown
            for column, unknown in zip(schema.columns, self._unknown, strict=True)
        ]
        self._metadata = metadata
        # The usual records, made without a question for each of these.
        is_plain = self._has_tombstones and self._headers is None and not self._key_head and self._attributes is None
        self._is_plain = is_plain and not (metadata is not None and metadata.is_enabled)
        # The record of TRUNCATE has no key, which a compacted topic does not accept.
        self.has_truncates = self._is_keyless and context.format.skipped_operations == "none"
        self._commit_lsn = Lsn(0)
        self._xid = 0
        self._to_sequence = self._to_lsn = self._to_index = ""
        self._clock_us = -1
        self._clock = ""

    def start_transaction(
        self,
        commit_lsn: int,
        commit_ts_us: int,
        xid: int,
        last_commit_lsn: int | None,
        origin: ReplicationOrigin | None = None,
    ) -> None:
        """Sets the values that a transaction's rows share: Begin's fields, the previous transaction's commit LSN (None
        if this session has seen none), and the origin, if it came by replication. `commit_ts_us`: µs since 1970."""
        self._to_seq = (
            f',"xmin":null,"origin":{json_name(origin.name) if origin else "null"},'
            f'"origin_lsn":{origin.commit_lsn if origin else "null"}{self._to_epoch}'
        )
        last = "null" if last_commit_lsn is None else f'\\"{last_commit_lsn}\\"'
        self._start("false", commit_lsn, commit_ts_us, str(xid), last)
        self._xid = xid

    def start_snapshot(self, consistent_lsn: int, began_ts_us: int) -> None:
        """Sets the values that a snapshot's rows share: its consistent point and when it began, µs since 1970."""
        self._start("true", consistent_lsn, began_ts_us, "null", "null")

    def start_chunk(self, commit_lsn: int, read_ts_us: int) -> None:
        """Sets the values that a chunk's rows share: the commit as of which they hold, and about when they were
        read."""
        self._start("incremental", commit_lsn, read_ts_us, "null", "null")

    def _start(self, snapshot: str, commit_lsn: int, ts_us: int, xid: str, last: str) -> None:
        self._commit_lsn = Lsn(commit_lsn)
        self._to_sequence = f'{self._head}{ts_us // 1000},"snapshot":"{snapshot}"{self._database}{last},\\"'
        self._to_lsn = f'\\"]","ts_us":{ts_us},"ts_ns":{ts_us * 1000}{self._table}{xid},"lsn":'
        self._to_index = f',"commit_lsn":{commit_lsn},"tx_index":'
        if self._attributes is not None:
            self._attributes.start(ts_us)

    def encode(
        self, message: bytes, offset: int, lsn: int, tx_index: int, seq: int, now_us: int
    ) -> Sequence[OutRecord]:
        """Returns the records of the row change in `message[offset:]`, which starts at its I, U or D byte.

        One for an insert or update, and for any change of a table without a key; delete and tombstone for a delete;
        delete, tombstone and create for an update that changed the key: `seq` is the first value's, the create has
        `seq + 1`. They belong together in one Kafka transaction. Without `tombstones.on.delete` there is no tombstone.
        The value of a row with holes is a Draft. `lsn` is the frame's, `now_us` our clock, µs since 1970.

        Raises ProtocolError for bytes that are not a row of this relation; UnsupportedChangeError for a key that is
        null or not in the log, and text that is not UTF-8. Both name table and position.
        """
        change = self._codec.usual_change(message, offset)
        if change is None:
            exact = self._codec.exact_change(message, offset, self._commit_lsn, tx_index)
            if isinstance(exact, IncompleteChange):
                return self._with_holes(exact, lsn, tx_index, seq, now_us)
            change = exact
        if now_us != self._clock_us:
            self._set_clock(now_us)
        if not self._is_plain:
            return self._as_configured(change, lsn, tx_index, seq)
        op, before, after, old_key, new_key = change
        if old_key == new_key:
            key = new_key.encode("latin-1")
            value = self._value(op, before, after, lsn, tx_index, seq)
            if self._is_keyless:
                return [(b"", value, None)]
            if op != "d":
                return [(key, value, None)]
            return [(key, value, None), (key, None, [(VERSION_HEADER, self._version(seq))])]
        key, moved_to = old_key.encode("latin-1"), new_key.encode("latin-1")
        gone = self._value("d", before, "null", lsn, tx_index, seq)
        here = self._value("c", "null", after, lsn, tx_index, seq + 1)
        return self._moved(key, moved_to, gone, here, seq)

    def _as_configured(self, change: RowChange, lsn: int, tx_index: int, seq: int) -> list[FinishedRecord]:
        """Returns the records with schemas, with context headers, as CloudEvents, or without tombstones, as
        configured."""
        op, before, after, old_key, new_key = change
        self._count()
        if self._is_keyless:
            return [(b"", self._value(op, before, after, lsn, tx_index, seq), self._headers_of(op, seq))]
        key = self.key_of(old_key)
        if old_key == new_key:
            value = self._value(op, before, after, lsn, tx_index, seq)
            records: list[FinishedRecord] = [(key, value, self._headers_of(op, seq))]
            if op == "d" and self._has_tombstones:
                records.append((key, None, [(VERSION_HEADER, self._version(seq)), *(self._headers or ())]))
            return records
        gone = self._value("d", before, "null", lsn, tx_index, seq)
        self._count()
        here = self._value("c", "null", after, lsn, tx_index, seq + 1)
        return self._moved(key, self.key_of(new_key), gone, here, seq)

    def copy_row(self, line: bytes, lsn: int, tx_index: int, seq: int, now_us: int) -> FinishedRecord:
        """The record of an existing row, from a line of `COPY (SELECT <the schema's columns, in order>) TO STDOUT` in
        text format. `lsn` is the snapshot's consistent point. Key and `after` are the bytes that the stream gives for
        the same row. Raises like `encode`."""
        row, key = self._codec.copy(line, lsn, tx_index)
        if now_us != self._clock_us:
            self._set_clock(now_us)
        return (
            b"" if self._is_keyless else self.key_of(key),
            self._value("r", "null", row, lsn, tx_index, seq),
            self._headers_of("r", seq),
        )

    def copy_rows(
        self, lines: Sequence[bytes], lsn: int, tx_index: int, seq: int, now_us: int
    ) -> list[TopicRecord] | None:
        """The same records as `copy_row` makes of each of these lines, without newlines, faster. `tx_index` and `seq`:
        of the first one, the others' follow on. None if a line or the format is unusual: then `copy_row` decides."""
        if not self._is_plain or self._is_keyless:
            return None
        if now_us != self._clock_us:
            self._set_clock(now_us)
        around = RowSurroundings(
            self.schema.topic,
            f'{self._to_before}null,"after":',
            f"{self._to_sequence}{lsn}{self._to_lsn}{lsn}{self._to_seq}",
            self._to_index,
            f"{self._to_op}r{self._clock}",
        )
        return self._codec.copy_all(lines, around, seq, tx_index)

    def truncate(self, lsn: int, tx_index: int, seq: int, now_us: int) -> FinishedRecord:
        """The record of a TRUNCATE of the table, where `has_truncates`. `seq` is its sweep's."""
        self._set_clock(now_us)
        self._count()
        return b"", self._value("t", "null", "null", lsn, tx_index, seq), self._headers_of("t", seq)

    def _count(self) -> None:
        """Counts an event before its record, if transaction metadata is published."""
        if self._metadata is not None:
            block = self._metadata.block(str(self.schema.table))
            self._to_op = f"{self._to_end}{_TRANSACTION}{block}{_OP}"

    def absent(self, key: bytes, lsn: int, tx_index: int, seq: int, now_us: int) -> list[FinishedRecord]:
        """Delete and tombstone of a record key that the table has no row of; of the old row only the key is known.
        `lsn` is `start_chunk`'s, which goes before."""
        self._set_clock(now_us)
        here = key.decode("latin-1")
        row = self._old_row(here) if any(self._unknown) else here
        return self._as_configured(("d", row, "null", here, here), lsn, tx_index, seq)

    def _old_row(self, key: str) -> str:
        """Returns the old row of which only the key is known, from the object of its key columns."""
        known: dict[str, str] = {}
        end = 0
        for name in self.schema.key:
            begin = end + len(json_name(name)) + 2  # with the brace or comma before it and the colon after it
            end = json_end(key, begin)
            known[name] = key[begin:end]
        there = zip(self.schema.columns, self._unknown, strict=True)
        return self._codec.row_of([known.get(column.name, unknown) for column, unknown in there])

    def columns_of(self, value: bytes) -> tuple[str | None, ...] | None:
        """Reads each column of a record's value, in the form of IncompleteChange. Returns None if the value is not a
        whole row of this schema version, for example a delete's."""
        text = str(value, "latin-1")
        if not text.startswith(self._to_before):  # the head has another version's schema
            return None
        row = self._codec.columns_of(text, json_end(text, len(self._to_before)) + len(_AFTER))
        # Found as the first text after the row's end: inside `source` nothing else is as long.
        if row is None or text.find(self._to_end + _TRANSACTION, row[1]) < 0:
            return None
        return row[0]

    def copied(self, line: bytes) -> tuple[bytes, bytes]:
        """Returns the record key and `after` of the record that `copy_row` makes of this line. Raises like it, except
        for text that is not UTF-8."""
        row, key = self._codec.copy(line, 0, 0)
        return self.key_of(key), row.encode("latin-1")

    def row_in(self, value: bytes) -> bytes:
        """Returns `after` of a record's value. Empty for one of another schema version, or in another form."""
        end = value.rfind(_SOURCE)  # inside of a text, quotes are escaped
        if end < 0 or not value.startswith(self._version_ends, value.find(_SCHEMA_VERSION, end)):
            return b""
        if value.startswith(self._row_head):
            return value[len(self._row_head) : end]
        if not value.startswith(self._before_head):
            return b""
        begin = json_end(str(value, "latin-1"), len(self._before_head)) + len(_AFTER)
        return value[begin:end]

    def row_of(self, columns: Sequence[str | None]) -> str:
        """Returns `after` of a row of which these columns are known."""
        there = zip(columns, self._unavailable, strict=True)
        return self._codec.row_of([placeholder if value is None else value for value, placeholder in there])

    def key_of(self, key: str) -> bytes:
        """Returns the record key, from the object of key columns."""
        encoded = key.encode("latin-1")
        return self._key_head + encoded + b"}" if self._key_head else encoded

    def _with_holes(
        self, change: IncompleteChange, lsn: int, tx_index: int, seq: int, now_us: int
    ) -> Sequence[OutRecord]:
        if self._is_keyless:
            raise UnsupportedChangeError(
                f"{self.schema.table} at {Position(self._commit_lsn, tx_index)}: the row was updated without its "
                "large (TOAST) value, which is not in the log, and without a key it can't be read",
                f"ALTER TABLE {sql_name(*self.schema.table)} REPLICA IDENTITY FULL; "
                + NEXT_AFTER_STOP.format(table=self.schema.table),
                table=self.schema.table,
            )
        if now_us != self._clock_us:
            self._set_clock(now_us)
        new_key = self.key_of(change.new_key)
        if change.old_key == change.new_key:
            draft = self._draft("u", change.before, change, lsn, tx_index, seq)
            return [(new_key, draft, self._headers_of("u", seq))]
        old_key = self.key_of(change.old_key)
        self._count()
        gone = self._value("d", change.before, "null", lsn, tx_index, seq)
        here = self._draft("c", "null", change, lsn, tx_index, seq + 1)
        return self._moved(old_key, new_key, gone, here, seq)

    def _draft(self, op: str, before: str, change: IncompleteChange, lsn: int, tx_index: int, seq: int) -> Draft:
        self._count()
        head = f"{self._to_before}{before}{_AFTER}"
        source = (
            f"{self._to_sequence}{lsn}{self._to_lsn}{lsn}{self._to_seq}{seq}{self._to_index}{tx_index}{self._to_end}"
        )
        tail = f"{self._to_op.removeprefix(self._to_end)}{op}{self._clock}"
        if self._attributes is not None:
            tail += self._attributes.tail(op, seq)
        return Draft(self, change, self._xid, (head, source, tail), tx_index)

    def _moved(
        self, key: bytes, moved_to: bytes, gone: bytes, here: _Value, seq: int
    ) -> list[tuple[bytes, bytes | _Value | None, Headers]]:
        to: tuple[str, bytes | None] = (NEW_KEY_HEADER, self._payload_of(moved_to))
        context: Sequence[tuple[str, bytes | None]] = self._headers or ()
        tombstone: FinishedRecord = (key, None, [to, (VERSION_HEADER, self._version(seq)), *context])
        return [
            (key, gone, [to, *(self._headers_of("d", seq) or ())]),
            *([tombstone] if self._has_tombstones else []),
            (moved_to, here, [(OLD_KEY_HEADER, self._payload_of(key)), *(self._headers_of("c", seq + 1) or ())]),
        ]

    def _headers_of(self, op: str, seq: int) -> Headers:
        """Returns the headers of a record with a value."""
        if self._attributes is None:
            return self._headers
        return [*(self._headers or ()), *self._attributes.headers(op, seq)]

    def _payload_of(self, key: bytes) -> bytes:
        """A record key as headers have it: without its schema, as Connect's SimpleHeaderConverter writes structs."""
        return key[len(self._key_head) : -1] if self._key_head else key

    def _value(self, op: str, before: str, after: str, lsn: int, tx_index: int, seq: int) -> bytes:
        value = (
            f'{self._to_before}{before},"after":{after}{self._to_sequence}{lsn}{self._to_lsn}{lsn}{self._to_seq}{seq}'
            f"{self._to_index}{tx_index}{self._to_op}{op}{self._clock}"
        )
        if self._attributes is not None:
            value += self._attributes.tail(op, seq)
        encoded = value.encode("latin-1")
        if not value.isascii():
            self.require_utf8(encoded, tx_index)
        return encoded

    def require_utf8(self, encoded: bytes, tx_index: int) -> None:
        """Raises unless all is UTF-8. Each value is between ASCII characters, so the whole is UTF-8 only if every value
        is."""
        try:
            encoded.decode()
        except UnicodeDecodeError as error:
            position = Position(self._commit_lsn, tx_index)
            promises_utf8 = self._context.promises_utf8
            raise not_utf8(self.schema.table, position, encoded, error, promises_utf8=promises_utf8) from None

    def _version(self, seq: int) -> bytes:
        return b"%d" % pack_version(self._context.epoch, seq)

    def _set_clock(self, now_us: int) -> None:
        self._clock_us = now_us
        self._clock = f'","ts_ms":{now_us // 1000},"ts_us":{now_us},"ts_ns":{now_us * 1000}{self._end}'


def schema_version_of(value: bytes) -> int:
    """Returns the schema version with which a record's value was written; 0 if it does not say it."""
    at = value.find(_SCHEMA_VERSION, max(value.rfind(_SOURCE), 0))
    found = _DIGITS.match(value, at + len(_SCHEMA_VERSION)) if at >= 0 else None
    return int(found[0]) if found else 0


def is_delete(value: bytes) -> bool:
    """Returns whether this is the value of a delete's record."""
    at = value.rfind(_OP.encode())
    return value.startswith(_DELETED, at + 1)


def context_headers(prefix: str) -> list[tuple[str, bytes | None]]:
    """Returns the headers in which Debezium's records name their connector."""
    return [
        ("__debezium.context.connectorLogicalName", prefix.encode()),
        ("__debezium.context.taskId", b"0"),
        ("__debezium.context.connectorName", b"postgresql"),
    ]
