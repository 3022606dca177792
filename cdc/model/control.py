"""Records of the state, control and progress topics: small JSON objects, validated when they are read.

| topic               | key                          | value          |
|---------------------|------------------------------|----------------|
| `<prefix>.state`    | `position`                   | PositionRecord |
| `<prefix>.state`    | `snapshot/<table>`           | SnapshotRecord |
| `<prefix>.state`    | `holes/<table>`              | IncompleteRowsRecord    |
| `<prefix>.state`    | `signals`                    | SignalsRecord  |
| `<prefix>.state`    | `tombstones/<table>`         | TombstonesRecord |
| `<prefix>.state`    | `table/<table>`              | TableRecord (cdc/model/table_state.py) |
| `<prefix>.state`    | `selection`                  | SelectionRecord (the same) |
| `<prefix>.state`    | `unpublished/<table>`        | UnpublishedRecord |
| `<prefix>.state`    | `encoding/<table>`           | EncodingRecord |
| `<prefix>.state`    | `left-open`                  | HangingTransactionRecord |
| `<prefix>.state`    | `event-topic/<topic>`        | EventTopicRecord |
| `<prefix>.state`    | `lost-events/<epoch>`        | LostEventsRecord (cdc/model/lost_events.py) |
| `<prefix>.control`  | `schema/<table>/<version>`   | SchemaRecord   |
| `<prefix>.control`  | `sweep/<table>`              | SweepRecord    |
| `<prefix>.control`  | `signal/<id>`                | SignalAnswer   |
| `<prefix>.control`  | `reload`                     | ReloadRecord   |
| `<prefix>.progress` | `progress`                   | ProgressRecord |
| `<prefix>.progress` | `snapshot/<table>`           | SnapshotProgress |
| `<prefix>.progress` | `sink/<sink>/<generation>`   | SinkRecord (cdc/model/sink_records.py) |
| `<prefix>.progress` | `sink-error/<sink>`          | SinkErrorRecord (cdc/model/job_records.py) |
| `<prefix>.progress` | `query/<sink>/<generation>`  | QueryRecord (the same) |
| `<prefix>.progress` | `rebuild/<sink>`             | RebuildRecord (the same) |
| `<prefix>.progress` | `verify/<sink>`              | ComparisonRecord (cdc/model/comparisons.py) |
| `<prefix>.signals`  | the signal's id              | SignalRecord   |
| `<prefix>.audit`    | the operation's id           | AuditRecord (cdc/model/audit.py) |

Each topic has one partition and is compacted (signals and audit records are kept for a time instead): the last record
of a key applies.
A kind is found by the beginning of its keys, so no key may begin like that of another kind in the same topic.
"""

import json
import zlib
from typing import Annotated, Any, ClassVar, Final, Literal, Self
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cdc.model.errors import GapError, WatershedError
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.topic_record import TopicRecord

U64 = Annotated[int, Field(ge=0, lt=1 << 64)]
Epoch = Annotated[int, Field(ge=1, lt=1 << 15)]
Seq = Annotated[int, Field(ge=0, lt=1 << 48)]


class Record(BaseModel):
    """A value of one of these topics."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)
    KEY: ClassVar[str]  # the record's key or, up to a slash, the beginning of it; what is part of a record has none

    @property
    def record_key(self) -> str:
        return self.KEY

    def to(self, topic: str) -> TopicRecord:
        """Returns the record for this topic."""
        return TopicRecord(topic, self.record_key.encode(), self.encode())

    def encode(self) -> bytes:
        """Returns compact JSON."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, value: bytes, where: str) -> Self:
        """Reads a record. Raises WatershedError with `where` for bytes that are not such a record."""
        try:
            return cls.model_validate_json(value)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise WatershedError(
                f"{where} holds a value that is not a {cls.__name__}: {field or 'value'}: {first['msg']}",
                "a newer Watershed, or another program, wrote to this topic: run that version, or use another prefix",
            ) from error


class PerTableRecord(Record):
    """A record about one table."""

    table_schema: str
    table_name: str

    @property
    def table(self) -> TableId:
        return TableId(self.table_schema, self.table_name)

    @classmethod
    def key_of(cls, table: TableId) -> str:
        return f"{cls.KEY}{table_key(table)}"

    @property
    def record_key(self) -> str:
        return self.key_of(self.table)


# ---- state


class SourceIdentity(Record):
    """The server, database and slot to which the position's LSNs belong."""

    system_identifier: str
    timeline: int
    database: str
    slot: str
    # The timelines that led to `timeline`, each with the LSN at which it was left, oldest first: two servers can reach
    # the same number by different ways. Empty for timeline 1, and if it is not known.
    branches: tuple[tuple[int, U64], ...] = ()
    # Where this server's log ended when capture moved here from another one; 0: it did not. A lower LSN may be one of
    # the former server.
    moved_at: U64 = 0

    @property
    def server(self) -> tuple[str, str]:
        """System identifier and name of the database."""
        return self.system_identifier, self.database


class PartialTransaction(Record):
    """A source transaction that is published in part: the changes below `next_index`."""

    commit_lsn: U64
    xid: int
    next_index: int
    messages: int = 0  # logical messages in it that were received, published or not
    outbox: str = ""  # prefix of the messages that are events, and have an index; "" if none are
    events: dict[str, int] | None = None  # collection → published events; null: transaction metadata is off


class TopicState(Record):
    """A table's topic when the position was written; `end_offsets` are lower bounds, one for each partition."""

    topic_id: str
    # See ProgressRecord.incarnations. Empty: the topic's id, as long as the topic has lost no record.
    incarnation: str = ""
    start_offsets: tuple[int, ...] = ()  # where the partitions began; empty: not known, or moved by retention
    end_offsets: tuple[int, ...] = ()  # empty: not known yet
    appended: U64 = 0  # records and commit markers that followed these offsets, in all partitions together, at least
    publication_entry: str = ""  # fingerprint of the table's row in the publication; empty if it lists no tables
    since_lsn: U64 = 0  # for a table that was added later: earlier commits are in its snapshot, not in the stream

    @property
    def identity(self) -> str:
        """The topic's incarnation."""
        return self.incarnation or self.topic_id


PROTOCOL: Final = "proto_version=1"
"""The protocol options on which positions depend; a half published transaction must be resumed with the same ones."""


class PositionRecord(Record):
    """Written in the same Kafka transaction as the data that it covers.

    `phase` is `intent` before the slot exists, `loading` while existing rows are read, then `streaming`.
    `resume_lsn` is the end of the last whole transaction, or a keepalive's; 0 in phase intent.
    """

    KEY = "position"
    phase: Literal["intent", "loading", "streaming"]
    epoch: Epoch
    seq: Seq  # of the last row record published in this epoch
    resume_lsn: U64
    partial: PartialTransaction | None = None
    source: SourceIdentity
    publication: str
    protocol: str  # options that tx_index depends on, e.g. "proto_version=1"
    topics: dict[str, TopicState] = {}
    history: str = ""  # see ProgressRecord.history
    # Nothing that is published in any epoch of this history comes from the log at or above this LSN. It is below
    # `resume_lsn` where only keepalives have moved that, and above it where values were read again from tables. 0: not
    # known (see `published_below`).
    published_lsn: U64 = 0
    # No value of this epoch's records that was read again from a table is newer than the log at this LSN. null: not
    # known (see `read_below`).
    read_lsn: U64 | None = None
    checksum: int = 0

    @property
    def published_below(self) -> int:
        """The LSN that a source's log must reach on the position's timeline to contain all that is published."""
        begun = self.partial.commit_lsn + 1 if self.partial is not None else 0
        return self.published_lsn or max(self.resume_lsn, begun)

    @property
    def read_below(self) -> int:
        """The LSN below which the log has all that any value shows that was read again from a table."""
        return self.published_below if self.read_lsn is None else self.read_lsn

    def sealed(self) -> Self:
        """Returns the record with its checksum."""
        return self.model_copy(update={"checksum": _checksum(self.model_dump(mode="json"))})

    @classmethod
    def open(cls, value: bytes, where: str) -> Self:
        """Decodes and checks a record. Raises GapError if the checksum is wrong."""
        record = cls.decode(value, where)
        if record.checksum != _checksum(json.loads(value)):
            raise GapError(
                f"{where}: the position record's checksum does not match its content",
                "the record was damaged or edited: nothing is published",
            )
        return record


class RangeRecord(Record):
    """A key range of a table whose rows above `after` up to `up_to` are still to be published. Bounds are texts of the
    key's columns; null: from the first row, to the last."""

    after: tuple[str, ...] | None
    up_to: tuple[str, ...] | None
    is_done: bool = False
    keys: tuple[tuple[str, ...], ...] | None = None  # only rows with these keys; null: all


def _checksum(body: dict[str, Any]) -> int:
    """Returns the checksum of a record as it is written, so that fields with a default may be added to it."""
    rest = {name: value for name, value in body.items() if name != "checksum"}
    return zlib.crc32(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


ENDED = frozenset({"done", "cancelled", "failed"})
"""Statuses of snapshots that do not continue by themselves."""


class SnapshotRecord(PerTableRecord):
    """The progress of a table's snapshot. Written in the Kafka transaction of the rows that it covers."""

    KEY = "snapshot/"
    request: str  # the signal's id, or another cause
    status: Literal["running", "paused", "done", "cancelled", "failed"]
    where: str | None = None  # a condition in SQL
    sweeps: bool  # whether it ends with a sweep of the rows that it did not find; never with a condition or a range
    floor: U64 | None = None  # of that sweep; null until it is known
    ranges: tuple[RangeRecord, ...] = ()  # none before the table is described
    rows: int = 0  # published so far
    rows_estimated: int = 0  # 0: not known
    requested_us: int  # µs since 1970
    message: str = ""  # why it failed
    deletes_in: RangeRecord | None = None  # the range in which keys of the topic without a row are deleted
    deleted: int = 0  # keys without a row that were deleted so far
    # Whether rows that the topic has already are left out, and keys of the topic without a row are deleted; then it
    # does not sweep.
    compares: bool = False
    compared: int = 0  # rows that were compared so far
    # Record keys: only their rows are read, and those that the table has no row of are deleted. Empty: all rows.
    keys: tuple[str, ...] = ()
    key_order: str | None = None  # digest of the order in which the ranges hold; null before the table is described
    # Changes of the table that had not been published when it was described first (UnpublishedRecord.total); null
    # before. A snapshot of all rows publishes their rows.
    unpublished: int | None = None
    # The snapshot without which committed rows may be missing from the topic, in words: "its initial snapshot". Only a
    # snapshot of all rows that is done clears it. Empty: the topic lacks no row, this snapshot reads rows once more.
    owes: str = ""

    @property
    def is_whole(self) -> bool:
        """True for a snapshot of all rows, without a condition or a range."""
        return self.deletes_in is None

    @property
    def owes_sweep(self) -> bool:
        """True if stores may have rows of which the topic has no record, until a sweep removes them. A first snapshot,
        and one that compares, began where that is not so."""
        return bool(self.owes) and (self.sweeps or not self.is_whole)


class TombstonesRecord(PerTableRecord):
    """Says that every key of the table's topic whose row was swept below `floor` has its tombstone."""

    KEY = "tombstones/"
    floor: U64


class IncompleteRowsRecord(PerTableRecord):
    """Rows of a table whose last records may lack large values, and which are to be read again. Written in the Kafka
    transaction of these records, and of the rows that were read."""

    KEY = "holes/"
    keys: tuple[tuple[str, ...], ...]  # as texts of the key's columns
    is_whole: bool = False  # there were too many: besides `keys` the whole table is read
    ranges: tuple[RangeRecord, ...] = ()  # of that reading; none until it has begun
    key_order: str | None = None  # digest of the order in which the ranges hold
    asked: tuple[str, ...] = ()  # record keys of `keys` that are deleted where the table has no row of them


class EncodingRecord(PerTableRecord):
    """The encoding of a table's topic, where that is not JSON. Written in the Kafka transaction of the table's schema,
    and again in that of the first record that changes it."""

    KEY = "encoding/"
    encoding: Literal["avro", "json_schema", "protobuf"]
    # Of the keys, in the schema registry: the same for all records, as another id is another key. Null before the first
    # record, and for a table without a key.
    key_schema_id: U64 | None = None
    # Encoding protobuf: the newest one, whose field numbers later ones continue, whatever the registry has by then.
    value_schema: str | None = None


class UnpublishedRecord(PerTableRecord):
    """The number of a table's changes that could not be published and were left out as configured. Written in the Kafka
    transaction that would have had the last of them."""

    KEY = "unpublished/"
    dead_letters: int = 0
    skipped: int = 0
    settled: int = 0  # of both together: those from before a snapshot of all rows that is done
    position: str = ""  # of the last one in the source
    reason: str = ""  # of the last one
    updated_us: int = 0  # µs since 1970

    @property
    def total(self) -> int:
        return self.dead_letters + self.skipped

    @property
    def open(self) -> int:
        """The number of changes whose rows may not be in the topic as they are."""
        return self.total - self.settled


class SignalsRecord(Record):
    """The offset in the signals topic below which every signal has taken effect or was refused."""

    KEY = "signals"
    offset: int


class OpenPart(Record):
    """Records of a partition that are in the log without an end marker: neither committed nor aborted for consumers."""

    topic: str
    partition: int
    start: U64  # the last stable offset
    end: U64  # the high watermark


class HangingTransactionRecord(Record):
    """Says that a committed Kafka transaction, not ended by the brokers in these partitions, is about to be aborted
    there and written again (see cdc/kafka/hanging_transactions.py). If a start finds this record and no open
    transaction there, its records are lost."""

    KEY = "left-open"
    parts: tuple[OpenPart, ...]


class EventTopicRecord(Record):
    """A topic of events that was written to. Written in the Kafka transaction of a session's first event for it."""

    KEY = "event-topic/"
    topic: str

    @property
    def record_key(self) -> str:
        return f"{self.KEY}{self.topic}"


# ---- control and signals


class SchemaRecord(PerTableRecord):
    """One version of a table's schema."""

    KEY = "schema/"
    oid: int
    version: int
    topic: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    filled: dict[str, str] = {}  # column → JSON text; this and the next as in TableSchema
    dropped: tuple[str, ...] = ()

    @property
    def record_key(self) -> str:
        return f"{self.key_of(self.table)}/{self.version}"

    @classmethod
    def of(cls, schema: TableSchema) -> Self:
        return cls(
            table_schema=schema.table.schema,
            table_name=schema.table.name,
            oid=schema.oid,
            version=schema.version,
            topic=schema.topic,
            key=schema.key,
            columns=schema.columns,
            filled=dict(schema.filled),
            dropped=schema.dropped,
        )

    def table_schema_of(self) -> TableSchema:
        return TableSchema(
            table=self.table,
            version=self.version,
            oid=self.oid,
            topic=self.topic,
            key=self.key,
            columns=self.columns,
            filled=tuple(self.filled.items()),
            dropped=self.dropped,
        )


class SweepRecord(PerTableRecord):
    """Rows of the table whose version is below `floor` are gone, once a consumer has applied up to `as_of_lsn`."""

    KEY = "sweep/"
    floor: U64
    as_of_lsn: U64
    epoch: Epoch
    # The floor of the table's sweep before this one, which it replaces in the compacted topic; 0: there was none. A
    # reader that has not done that sweep does not know its as_of_lsn any more.
    previous_floor: U64 = 0

    @classmethod
    def of(cls, table: TableId, floor: int, as_of_lsn: int, epoch: int, previous_floor: int) -> Self:
        return cls(
            table_schema=table.schema,
            table_name=table.name,
            floor=floor,
            as_of_lsn=as_of_lsn,
            epoch=epoch,
            previous_floor=previous_floor,
        )


def table_key(table: TableId) -> str:
    """Returns a table's name for use in a record key; dots and slashes in quoted names are percent-encoded."""
    return f"{quote(table.schema, safe='').replace('.', '%2E')}.{quote(table.name, safe='').replace('.', '%2E')}"


def table_of_key(key: str) -> TableId:
    """The inverse of `table_key`."""
    schema, name = key.split(".", 1)
    return TableId(unquote(schema), unquote(name))


REPUBLISHED_MAX: Final = 1_000  # keys of one signal
NEXT_AFTER_OTHERS: Final = "send the signal again when they are"  # of an answer


class SignalRecord(Record):
    """A request of an operator. Without tables it is for all captured tables."""

    action: Literal[
        "snapshot",
        "pause",
        "resume",
        "cancel",
        "heal",
        "move",
        "stop_table",
        "start_table",
        "republish",
        "reload",
    ]
    tables: tuple[str, ...] = ()  # schema.table
    where: str | None = None
    after: tuple[str, ...] | None = None  # key texts: rows above this
    up_to: tuple[str, ...] | None = None  # and not above this
    epoch: Epoch | None = None  # the new epoch for healing, if the previous one can't be known
    all_rows: bool = False  # heal: publish every row, not only those that differ from the topics
    keys: tuple[str, ...] = ()  # republish: record keys of one table's rows, as JSON texts
    server: tuple[str, str] = ("", "")  # move: system identifier and name of the database to continue with
    replaces_slot: bool = False  # move: drop the slot of our name that is there
    requested_us: int
    requested_by: str = ""  # a user of http.users; "": a command


class SignalAnswer(Record):
    """The answer to a signal."""

    KEY = "signal/"
    is_accepted: bool
    message: str
    tables: tuple[str, ...] = ()  # whose snapshots it began or changed
    next: str = ""  # the next step if it was refused
    answered_us: int = 0  # µs since 1970

    @classmethod
    def key_of(cls, signal: str) -> str:
        """Returns the record key of the answer to the signal with this id."""
        return f"{cls.KEY}{signal}"


class ReloadRecord(Record):
    """Capture took up its configuration file, because an operator asked for it: sinks read theirs again."""

    KEY = "reload"
    requested_us: int  # µs since 1970


# ---- progress


class SnapshotProgress(Record):
    """A report for commands that watch a snapshot. Only the SnapshotRecord is binding."""

    KEY = "snapshot/"
    request: str
    table: str  # schema.table
    status: Literal["waiting", "running", "paused", "done", "cancelled", "failed"]
    rows: int
    rows_estimated: int  # 0: not known
    rows_per_s: float  # recent rate, of compared rows if they are compared
    updated_us: int  # µs since 1970
    message: str = ""  # the reason why it waits or failed

    @property
    def record_key(self) -> str:
        return f"{self.KEY}{table_key(TableId.parse(self.table))}"


class ProgressRecord(Record):
    """Says that everything committed in the source up to `lsn` lies below `end_offsets` in each partition.

    The offsets are high watermarks, requested *after* the Kafka transaction that covers `lsn` was committed.
    """

    KEY = "progress"
    epoch: Epoch
    seq: Seq
    lsn: U64
    commit_ts_us: int  # commit time of the newest transaction covered, µs since 1970; 0 if this start has seen none yet
    published_ts_us: int  # our clock when this was written, µs since 1970
    end_offsets: dict[str, tuple[int, ...]]  # topic → one offset for each partition
    unpublished: dict[str, int] = {}  # schema.table → changes that were left out, as capture.on_unpublishable says
    # A random text, made by the first start that finds no state: epochs, versions and offsets of another history mean
    # nothing. It stays when a gap is healed.
    history: str = ""
    # topic → the identity of its log. It differs from an earlier one if the topic was created again, or has lost
    # records; then offsets that were noted with the earlier one mean nothing.
    incarnations: dict[str, str] = {}
    # topic → the first offset of each partition, where one does not begin at 0: the records before are gone, and their
    # rows were published again.
    starts: dict[str, tuple[int, ...]] = {}
    # schema.table → why rows that were committed up to `lsn` may not be below `end_offsets` yet: rows that are still to
    # be read, a table that is stopped. Changes of other tables, and of these tables after they were read, are there.
    owed: dict[str, str] = {}
    # Nothing that was committed after `lsn` is below `end_offsets` either: these are the offsets of one position of the
    # source. Of other records the offsets may lie within a later transaction.
    is_cut: bool = False
