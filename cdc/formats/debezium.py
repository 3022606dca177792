"""Debezium's JSON envelope without schema part, `readable` profile, from row changes as the codec reads them.

    {"before":null,"after":{"id":1,"name":"x"},
     "source":{"version":"0.1.0","connector":"postgresql","name":"shop","ts_ms":1767323079990,"snapshot":"false",
               "db":"shop","sequence":"[\\"24025000\\",\\"24026000\\"]","ts_us":1767323079990123,
               "ts_ns":1767323079990123000,"schema":"public","table":"customers","txId":560,"lsn":24026000,
               "xmin":null,"origin":null,"origin_lsn":null,
               "epoch":1,"seq":17,"commit_lsn":24026100,"tx_index":0,"schema_version":1},
     "transaction":null,"op":"c","ts_ms":1767323080000,"ts_us":1767323080000123,"ts_ns":1767323080000123000}

Fields and their order are Debezium's; from `epoch` on `source` has ours. `source.ts_*` is the commit time (of a
snapshot row: when the snapshot began), `ts_*` our clock. `sequence` is a JSON array as a string: the LSN of the
commit before, or null, and the change's own. Columns that are not known are absent from `before`, never null.
"""

from dataclasses import dataclass
from json.encoder import encode_basestring

from cdc.errors import ProtocolError
from cdc.events import Position, TableSchema, pack_version
from cdc.lsn import Lsn
from cdc.pgoutput.codec import RowCodec, relation_differs
from cdc.pgoutput.messages import Relation

__all__ = ["EnvelopeContext", "OutRecord", "TableEncoder", "relation_differs"]

# (key, value, headers). A value of None is a tombstone.
OutRecord = tuple[bytes, bytes | None, list[tuple[str, bytes]] | None]

VERSION_HEADER = "watershed.version"
NEW_KEY_HEADER = "__debezium.newkey"
OLD_KEY_HEADER = "__debezium.oldkey"


@dataclass(frozen=True, slots=True)
class EnvelopeContext:
    """What is the same in every record of one run."""

    prefix: str
    database: str
    epoch: int
    connector_version: str


class TableEncoder:
    """Rows of one table, as one schema version publishes them, to Kafka records.

    `start_transaction` before the first `encode` of each transaction, `start_snapshot` or
    `start_chunk` before the first `copy_row`.
    Raises UnsupportedChangeError if the relation is not what the schema describes.
    """

    def __init__(self, schema: TableSchema, relation: Relation, context: EnvelopeContext) -> None:
        self._codec = RowCodec(schema, relation)
        self._schema = schema
        self.table = schema.table
        self._context = context
        # A value is before, after, then source and the rest: constant text between the numbers of each change,
        #   _to_sequence LSN _to_lsn LSN _to_seq SEQ _to_index INDEX _to_op OP _clock
        # of which a transaction fills in its own part once.
        self._head = (
            f',"source":{{"version":{_json(context.connector_version)},"connector":"postgresql"'
            f',"name":{_json(context.prefix)},"ts_ms":'
        )
        self._database = f',"db":{_json(context.database)},"sequence":"['
        self._table = f',"schema":{_json(schema.table.schema)},"table":{_json(schema.table.name)},"txId":'
        self._to_seq = f',"xmin":null,"origin":null,"origin_lsn":null,"epoch":{context.epoch},"seq":'
        self._to_op = f',"schema_version":{schema.version}}},"transaction":null,"op":"'
        self._commit_lsn = Lsn(0)
        self._to_sequence = self._to_lsn = self._to_index = ""
        self._clock_us = -1
        self._clock = ""

    def start_transaction(self, commit_lsn: int, commit_ts_us: int, xid: int, last_commit_lsn: int | None) -> None:
        """What the rows of one transaction share: Begin's fields, and the commit LSN of the transaction before it
        (None if this session has seen none). `commit_ts_us`: µs since 1970."""
        last = "null" if last_commit_lsn is None else f'\\"{last_commit_lsn}\\"'
        self._start("false", commit_lsn, commit_ts_us, str(xid), last)

    def start_snapshot(self, consistent_lsn: int, began_ts_us: int) -> None:
        """What the rows of one snapshot share: its consistent point and when it began, µs since 1970."""
        self._start("true", consistent_lsn, began_ts_us, "null", "null")

    def start_chunk(self, commit_lsn: int, read_ts_us: int) -> None:
        """What the rows of one chunk share: at which commit they count, and about when they were read."""
        self._start("incremental", commit_lsn, read_ts_us, "null", "null")

    def _start(self, snapshot: str, commit_lsn: int, ts_us: int, xid: str, last: str) -> None:
        self._commit_lsn = Lsn(commit_lsn)
        self._to_sequence = f'{self._head}{ts_us // 1000},"snapshot":"{snapshot}"{self._database}{last},\\"'
        self._to_lsn = f'\\"]","ts_us":{ts_us},"ts_ns":{ts_us * 1000}{self._table}{xid},"lsn":'
        self._to_index = f',"commit_lsn":{commit_lsn},"tx_index":'

    def encode(self, message: bytes, offset: int, lsn: int, tx_index: int, seq: int, now_us: int) -> list[OutRecord]:
        """The records of the row change in `message[offset:]`, which starts at its I, U or D byte.

        One for an insert or update; delete and tombstone for a delete; delete, tombstone and create for an update
        that changed the key: `seq` is the first value's, a moved row's create has `seq + 1`. They belong together
        in one Kafka transaction. `lsn` is the frame's, `now_us` our clock, µs since 1970.

        Raises ProtocolError for bytes that are no row of this relation, UnsupportedChangeError for a large value
        that is not in the log and for a null in the key; both name table, column and position.
        """
        op, before, after, old_key, new_key = self._codec.change(message, offset, self._commit_lsn, tx_index)
        if now_us != self._clock_us:
            self._set_clock(now_us)
        if old_key == new_key:
            key = new_key.encode("latin-1")
            value = self._value(op, before, after, lsn, tx_index, seq)
            if op != "d":
                return [(key, value, None)]
            return [(key, value, None), (key, None, [(VERSION_HEADER, self._version(seq))])]
        key, moved_to = old_key.encode("latin-1"), new_key.encode("latin-1")
        gone = self._value("d", before, "null", lsn, tx_index, seq)
        here = self._value("c", "null", after, lsn, tx_index, seq + 1)
        return [
            (key, gone, [(NEW_KEY_HEADER, moved_to)]),
            (key, None, [(NEW_KEY_HEADER, moved_to), (VERSION_HEADER, self._version(seq))]),
            (moved_to, here, [(OLD_KEY_HEADER, key)]),
        ]

    def copy_row(self, line: bytes, lsn: int, tx_index: int, seq: int, now_us: int) -> OutRecord:
        """The record of an existing row, from a line of `COPY (SELECT <the schema's columns, in order>) TO STDOUT` in
        text format. `lsn` is the snapshot's consistent point. Key and `after` are the bytes that the stream gives for
        the same row. Raises like `encode`."""
        row, key = self._codec.copy(line, lsn, tx_index)
        if now_us != self._clock_us:
            self._set_clock(now_us)
        return key.encode("latin-1"), self._value("r", "null", row, lsn, tx_index, seq), None

    def absent(self, key: bytes, lsn: int, tx_index: int, seq: int, now_us: int) -> list[OutRecord]:
        """Delete and tombstone of a record key that the table has no row of; of the old row only the key is known.
        `lsn` is `start_chunk`'s, which goes before."""
        if now_us != self._clock_us:
            self._set_clock(now_us)
        value = self._value("d", key.decode("latin-1"), "null", lsn, tx_index, seq)
        return [(key, value, None), (key, None, [(VERSION_HEADER, self._version(seq))])]

    def _value(self, op: str, before: str, after: str, lsn: int, tx_index: int, seq: int) -> bytes:
        value = (
            f'{{"before":{before},"after":{after}{self._to_sequence}{lsn}{self._to_lsn}{lsn}{self._to_seq}{seq}'
            f"{self._to_index}{tx_index}{self._to_op}{op}{self._clock}"
        )
        encoded = value.encode("latin-1")
        if not value.isascii():
            # Each value stands between ASCII characters, so the whole is UTF-8 only if every value is.
            try:
                encoded.decode()
            except UnicodeDecodeError:
                raise ProtocolError(
                    f"{self._schema.table} at {Position(self._commit_lsn, tx_index)}: a value is not UTF-8",
                    "a database in encoding SQL_ASCII holds such bytes: correct them, or convert the database",
                ) from None
        return encoded

    def _version(self, seq: int) -> bytes:
        return b"%d" % pack_version(self._context.epoch, seq)

    def _set_clock(self, now_us: int) -> None:
        self._clock_us = now_us
        self._clock = f'","ts_ms":{now_us // 1000},"ts_us":{now_us},"ts_ns":{now_us * 1000}}}'


def _json(text: str) -> str:
    """A JSON string, as latin-1 view of its UTF-8 bytes."""
    return encode_basestring(text.encode().decode("latin-1"))
