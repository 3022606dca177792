"""pgoutput messages → records and positions. Pure: bytes in, records out, the position kept.

The assembler counts the row changes of the captured tables in a transaction, so that a change has the same position
each time its transaction is sent, and drops what the position record says is published. Changes of other tables don't
count: whether they are sent at all is not the same each time, where the publication was altered meanwhile.
"""

from collections.abc import Sequence
from typing import Final

from cdc.capture.captured_tables import CapturedTables
from cdc.capture.transaction_records import TransactionRecords
from cdc.formats.debezium import Draft, EnvelopeContext, TableEncoder, relation_differs
from cdc.formats.unpublishable import Unpublishable
from cdc.model.errors import GapError, ProtocolError, UnpublishableError, UnsupportedChangeError
from cdc.model.events import Position, TableId, TableSchema, pack_version
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.seq import SeqCounter
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.outbox.event_stream import OutboxStream, message_prefix
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.frames import XLOG_DATA_BYTES, Keepalive, parse_frame, start_lsn
from cdc.pgoutput.messages import Begin, Commit, LogicalMessage, Origin, Relation, StreamAbort, Truncate, Type
from cdc.pgoutput.wal_ends import WalEnds
from cdc.ports.chunk_reader import WATERMARK_PREFIX
from cdc.ports.listeners import Listeners
from cdc.ports.stream_state import OpenTransaction, StreamState
from cdc.snapshots.sweeps import Sweeps
from cdc.toast.batch import BatchRecord, DraftRecord, OmittedChange

_XLOG_DATA = b"w"
_ROW_TAGS = frozenset(b"IUD")


RELATIONS_MAX: Final = 50_000  # described in one session; of those that are not captured each takes some 100 bytes
_WHOLE = 1 << 62  # skip_below of a transaction that is published whole


class Assembler:
    """Feed it CopyData payloads in order; it returns the records to produce.

    After `consume` returned, `state` covers exactly the records returned so far.
    """

    def __init__(
        self,
        tables: CapturedTables,
        context: EnvelopeContext,
        resume: StreamState,
        sweeps: Sweeps,
        listeners: Listeners,
        unpublishable: Unpublishable | None = None,
        outbox: OutboxStream | None = None,
    ) -> None:
        """`resume`: where the stream begins. `unpublishable`: None where every record fits and has a form."""
        self._leaving = tables.leaving if resume.partial is not None else ()
        schemas = [*tables.schemas, *self._leaving]
        self._since = {table: lsn for table, lsn in tables.since.items() if lsn > resume.resume_lsn}
        self._schema_of_oid: dict[int, TableSchema] = {schema.oid: schema for schema in schemas}
        self._schema_of_name: dict[TableId, TableSchema] = {s.table: s for s in schemas}
        self._outbox = outbox
        self._messages = message_prefix(outbox, resume.partial)  # of logical messages that are events
        self._context = context
        self._sweeps = sweeps
        self._observer = listeners.observer
        self._tracker = listeners.tracker
        self._side = TransactionRecords(context)
        unpublishable = self._unpublishable = unpublishable or Unpublishable(Topics(context.prefix))
        self._value_bytes_safe, self._row_bytes_usual = unpublishable.value_bytes_safe, unpublishable.row_bytes_usual
        self._is_observed = False  # the transaction that is being received
        self._relations: dict[int, Relation] = {}  # as last described, of captured tables
        # Relation oid → encoder, topic. None: not captured. Without an encoder: changes count, and are not published.
        self._encoders: dict[int, tuple[TableEncoder | None, str] | None] = {}
        self._early: dict[int, tuple[Relation, int]] = {}  # described before their tables joined, and when they do
        self._started: set[int] = set()  # relations whose encoder knows the current transaction
        self._resume_lsn = resume.resume_lsn
        self._published_below = resume.resume_lsn  # commits before this are not published again
        self._partial = resume.partial
        self._seq = SeqCounter(resume.seq)
        self._commit_ts_us = resume.commit_ts_us
        self._last_commit_lsn: Lsn | None = None
        self._transaction: OpenTransaction | None = None
        self.received_lsn = resume.resume_lsn  # the newest WAL position that the server told us of
        self.reply_requested = False
        self._wal_ends = WalEnds()

    @property
    def state(self) -> StreamState:
        """What has been consumed so far."""
        partial = self._partial
        transaction = self._transaction
        if transaction is not None and transaction.published:
            next_index = max(transaction.next_index, transaction.skip_below)
            partial = self._side.partial(transaction.commit_lsn, transaction.xid, next_index)
            partial = partial.model_copy(update={"outbox": self._messages}) if self._messages else partial
        return StreamState(self._resume_lsn, partial, self._seq.last, self._commit_ts_us)

    @property
    def unpublished(self) -> dict[str, int]:
        """Changes that were left out, by table."""
        return self._unpublishable.counts

    @property
    def in_transaction(self) -> bool:
        """Whether a PostgreSQL transaction has begun and not ended."""
        return self._transaction is not None

    @property
    def needs_keepalive(self) -> bool:
        """Whether the server should send another keepalive: the last one named a position that moves ours."""
        return self._wal_ends.needs_another and self._transaction is None and self._partial is None

    @property
    def is_crowded(self) -> bool:
        """Whether so many relations were described that another session had better begin, which knows none."""
        return self._transaction is None and len(self._encoders) > RELATIONS_MAX

    @property
    def newest_commit_ts_us(self) -> int:
        """When the newest transaction that has begun to arrive was committed, µs since 1970 by the server's clock."""
        return self._commit_ts_us if self._transaction is None else self._transaction.commit_ts_us

    def consume(self, frames: Sequence[bytes], now_us: int) -> tuple[list[BatchRecord], UnsupportedChangeError | None]:
        """The records of these frames, in order. A row with holes is a DraftRecord, which is still to be filled.

        When a change can't be followed, the error is returned with the records of the whole transactions before it,
        and `state` stands at their end; if part of the failing transaction left the assembler earlier, no records
        are returned and `state` is not to be used: abort. Raises ProtocolError and GapError.
        """
        records: list[BatchRecord] = []
        # Of a transaction that began earlier nothing may have left the assembler yet.
        boundary = (0, self.state) if self._transaction is None or not self._transaction.published else None
        try:
            for frame in frames:
                if frame[:1] == _XLOG_DATA and len(frame) > XLOG_DATA_BYTES:
                    self._message(frame, records, now_us)
                else:
                    self._other(frame)
                if self._transaction is None:
                    boundary = (len(records), self.state)
        except UnsupportedChangeError as error:
            if boundary is None:
                return [], error
            count, state = boundary
            self._transaction = None
            self._resume_lsn, self._partial, self._seq.last = state.resume_lsn, state.partial, state.seq
            self._commit_ts_us = state.commit_ts_us
            return records[:count], error
        return records, None

    # ---- frames

    def _other(self, frame: bytes) -> None:
        keepalive = parse_frame(frame)
        assert isinstance(keepalive, Keepalive)
        reached = self._wal_ends.add(keepalive.wal_end)
        self.received_lsn = max(self.received_lsn, reached)
        self.reply_requested = self.reply_requested or keepalive.reply_requested
        # Everything that commits before what is reached has been sent before this message; with no transaction open, a
        # restart may begin there. Its durability is the delivery's business: it is confirmed only once recorded.
        if self._transaction is None and self._partial is None:
            self._resume_lsn = max(self._resume_lsn, reached)

    def _message(self, frame: bytes, records: list[BatchRecord], now_us: int) -> None:
        if frame[XLOG_DATA_BYTES] in _ROW_TAGS:
            self._row(frame, start_lsn(frame), records, now_us)
            return
        where = format_lsn(start_lsn(frame))
        match decode(memoryview(frame)[XLOG_DATA_BYTES:], where):
            case Begin() as begin:
                self._begin(begin)
            case Commit() as commit:
                self._commit(commit, records, now_us)
            case Relation() as relation:
                self._relation(relation, records)
            case Truncate() as truncate:
                self._truncate(truncate, start_lsn(frame), records, now_us)
            case LogicalMessage() as message:
                self._logical_message(message, records, now_us)
            case Origin() as origin:
                self._open(f"Origin at {where}")
                self._side.origin = origin
            case Type() | StreamAbort():
                pass  # nothing that a record holds
            case other:
                raise ProtocolError(f"unexpected {type(other).__name__} at {where}")

    # ---- transactions

    def _begin(self, begin: Begin) -> None:
        if self._transaction is not None:
            raise ProtocolError(
                f"Begin inside the transaction that commits at {format_lsn(self._transaction.commit_lsn)}"
            )
        transaction = OpenTransaction(begin.final_lsn, begin.commit_ts_us, begin.xid)
        if begin.final_lsn < self._published_below:
            transaction.skip_below = _WHOLE
        elif self._partial is not None:
            if (begin.final_lsn, begin.xid) != (self._partial.commit_lsn, self._partial.xid):
                raise GapError(
                    f"the server sends the transaction that commits at {format_lsn(begin.final_lsn)}, but the one at "
                    f"{format_lsn(self._partial.commit_lsn)} is published only in part",
                    "the log no longer holds what was promised: the source was restored or the slot was moved",
                )
            transaction.skip_below = self._partial.next_index
            transaction.published = True
        self._transaction = transaction
        self._started.clear()
        self._side.begin(begin, self._partial if transaction.published else None)
        self._is_observed = self._observer.begin(begin.xid, self._seq.next)

    def _commit(self, commit: Commit, records: list[BatchRecord], now_us: int) -> None:
        transaction = self._open(f"Commit at {format_lsn(commit.commit_lsn)}")
        if commit.commit_lsn != transaction.commit_lsn:
            raise ProtocolError(
                f"Commit at {format_lsn(commit.commit_lsn)} ends a transaction that began with "
                f"{format_lsn(transaction.commit_lsn)}"
            )
        is_published = transaction.skip_below == _WHOLE
        if not is_published:
            if transaction.next_index < transaction.skip_below:
                raise GapError(
                    f"the transaction at {format_lsn(commit.commit_lsn)} has {transaction.next_index} changes now, "
                    f"but {transaction.skip_below} were published",
                    "the publication or its options changed while the transaction was half published",
                )
            self._partial = None
            self._let_go()
            self._resume_lsn = max(self._resume_lsn, commit.end_lsn)
            self._commit_ts_us = transaction.commit_ts_us
        self.received_lsn = max(self.received_lsn, commit.end_lsn)
        self._last_commit_lsn = transaction.commit_lsn
        self._transaction = None
        records += self._side.end(is_published=is_published)
        records += self._observer.end(transaction.commit_lsn, self._seq, now_us)
        added, altered = self._tracker.end()
        records += added
        for schema in altered:
            self._alter(schema)

    def _open(self, what: str) -> OpenTransaction:
        if self._transaction is None:
            raise ProtocolError(f"{what} outside a transaction")
        return self._transaction

    def _let_go(self) -> None:
        """Of the tables that leave: the half published transaction has ended."""
        for schema in self._leaving:
            self._encoders = {o: e for o, e in self._encoders.items() if e is None or e[1] != schema.topic}
            self._encoders[schema.oid] = None
            del self._schema_of_oid[schema.oid], self._schema_of_name[schema.table]
        self._leaving = ()

    # ---- changes

    def _relation(self, relation: Relation, records: list[BatchRecord]) -> None:
        name = TableId(relation.schema, relation.name)
        schema = self._schema_of_oid.get(relation.oid) or self._schema_of_name.get(name)
        records += self._tracker.described(relation.oid, schema)
        if schema is None:
            self._encoders[relation.oid] = None  # published, but not captured
            return
        since = self._since.get(schema.table, 0)
        if self._open(f"Relation {relation.oid}").commit_lsn < since:
            self._encoders[relation.oid], self._early[relation.oid] = None, (relation, since)
            return
        self._early.pop(relation.oid, None)
        relation = self._context.format.columns.marked(relation)
        if relation_differs(schema, relation) is not None:
            if schema in self._leaving or self._is_published():
                # What counts was published, or never will be.
                self._encoders[relation.oid] = None, schema.topic
                return
            schema, added = self._tracker.follow(schema, relation)
            self._schema_of_oid[schema.oid] = self._schema_of_name[schema.table] = schema
            records += added
        self._describe(schema, relation)

    def _is_published(self) -> bool:
        """Whether changes at this place are already. Then a shape that is not the newest one is that of its time."""
        transaction = self._transaction
        return transaction is not None and transaction.next_index < transaction.skip_below

    def _describe(self, schema: TableSchema, relation: Relation) -> None:
        self._relations[relation.oid] = relation
        if self._outbox is not None and self._outbox.takes(schema.table):
            self._outbox.describe_again(relation.oid, schema)
            self._encoders[relation.oid] = None
            return
        encoder = TableEncoder(schema, relation, self._context, self._side.metadata)
        self._encoders[relation.oid] = (encoder, schema.topic)
        self._started.discard(relation.oid)

    def _alter(self, schema: TableSchema) -> None:
        """What the catalog tells. A shape that is new in the stream too is described there before its first row."""
        self._schema_of_oid[schema.oid] = self._schema_of_name[schema.table] = schema
        relation = self._relations.get(schema.oid)
        if relation is not None and relation_differs(schema, relation) is None:
            self._describe(schema, relation)

    def _joined(self, oid: int, commit_lsn: int, records: list[BatchRecord]) -> tuple[TableEncoder | None, str] | None:
        """Of a table that was not captured so far: its encoder and topic if it is now. Its relation may have been
        described before, and is not described again."""
        relation, since = self._early.get(oid, (None, 0))
        if relation is not None and commit_lsn >= since:
            self._relation(relation, records)
        return self._encoders[oid]

    def _row(self, frame: bytes, lsn: int, records: list[BatchRecord], now_us: int) -> None:
        transaction = self._transaction
        if transaction is None:
            raise ProtocolError(f"row change at {format_lsn(lsn)} outside a transaction")
        index = transaction.next_index
        oid = int.from_bytes(frame[26:30], "big")
        try:
            captured = self._encoders[oid]
        except KeyError:
            raise ProtocolError(f"row change at {format_lsn(lsn)} for relation {oid}, never described") from None
        if captured is None and self._early:
            captured = self._joined(oid, transaction.commit_lsn, records)
        if captured is None:
            if self._outbox is not None and self._outbox.follows(oid):
                self._event(memoryview(frame)[XLOG_DATA_BYTES:], records, now_us)
            return
        if index >= transaction.skip_below:
            encoder, topic = captured
            if encoder is None:
                self._pass_over(oid, topic, lsn)
                return
            if oid not in self._started:
                records += self._start(oid, encoder, transaction)
            events = self._side.events
            try:
                if len(frame) > self._row_bytes_usual:
                    frame = self._unpublishable.lightened(encoder, frame, Position(transaction.commit_lsn, index))
                made = encoder.encode(frame, XLOG_DATA_BYTES, lsn, index, self._seq.last + 1, now_us)
                value = made[0][1]
                if len(made) > 1 or not isinstance(value, bytes) or len(value) > self._value_bytes_safe:
                    self._unpublishable.require_fits(encoder.schema, Position(transaction.commit_lsn, index), made)
            except UnsupportedChangeError as error:
                made = []
                records += self._unpublishable.replacements(
                    encoder.schema, Position(transaction.commit_lsn, index), error, now_us
                )
                self._side.withdraw(str(encoder.table), events)
                keys = error.keys if isinstance(error, UnpublishableError) else ()
                records.append(OmittedChange(topic, keys))
                for key in keys if self._is_observed else ():
                    self._observer.touch(topic, key)  # what a chunk has read of it is not newer
            for key, value, headers in made:
                if value is not None:
                    self._seq.last += 1
                if isinstance(value, Draft):
                    records.append(DraftRecord(topic, key, value, headers))
                else:
                    records.append(TopicRecord(topic, key, value, headers))
                if self._is_observed:
                    self._observer.touch(topic, key)
            transaction.published = True
        transaction.next_index = index + 1

    def _event(self, what: memoryview | LogicalMessage, records: list[BatchRecord], now_us: int) -> None:
        """A row change of an outbox table, or a message. It counts like any row change, and takes no seq."""
        assert self._outbox is not None
        transaction = self._open("an event")
        if transaction.next_index >= transaction.skip_below:
            position = Position(transaction.commit_lsn, transaction.next_index)
            made = self._outbox.event(what, transaction.xid, position, now_us, transaction.commit_ts_us)
            records += made
            transaction.published = transaction.published or bool(made)
        transaction.next_index += 1

    def _pass_over(self, oid: int, topic: str, lsn: int) -> None:
        """A change of a table that leaves, in a shape that is not followed any more, perhaps recreated."""
        if all(schema.topic != topic for schema in self._leaving):
            raise ProtocolError(f"row change at {format_lsn(lsn)} for relation {oid}, in a shape of long ago")
        transaction = self._open("row change")
        transaction.next_index += 1
        transaction.published = True

    def _start(self, oid: int, encoder: TableEncoder, transaction: OpenTransaction) -> list[TopicRecord]:
        """Before the first event of a table in a transaction; what goes before it."""
        begun = transaction.commit_lsn, transaction.commit_ts_us, transaction.xid
        encoder.start_transaction(*begun, self._last_commit_lsn, self._side.origin)
        self._started.add(oid)
        return self._side.opening()

    def _logical_message(self, message: LogicalMessage, records: list[BatchRecord], now_us: int) -> None:
        """Ours is a watermark; others are published where that is configured."""
        where = format_lsn(message.lsn)
        if message.transactional:
            transaction = self._open(f"Message at {where}")
            if message.prefix == WATERMARK_PREFIX:
                self._observer.watermark(message.content)
                self._tracker.watermark(message.content)
                return
            if message.prefix == self._messages:
                self._event(message, records, now_us)
                return
            is_published = transaction.skip_below == _WHOLE
            made = self._side.message(message, self._last_commit_lsn, now_us, is_published=is_published)
            transaction.published = transaction.published or bool(made)
        elif self._transaction is not None:
            raise ProtocolError(f"Message at {where} is part of no transaction, and stands inside one")
        elif message.prefix == WATERMARK_PREFIX or message.lsn < self._resume_lsn:
            return
        else:
            made = self._side.message(message, self._last_commit_lsn, now_us, is_published=False)
            if made:
                # What commits before it has been sent before it: a restart may begin behind it.
                self._resume_lsn = Lsn(message.lsn + 1)
                self.received_lsn = max(self.received_lsn, self._resume_lsn)
        records += made

    def _truncate(self, truncate: Truncate, lsn: int, records: list[BatchRecord], now_us: int) -> None:
        """A sweep with the next version for a floor: no event could stand behind all rows in all partitions."""
        transaction = self._open("Truncate")
        for oid in truncate.relation_oids:
            try:
                captured = self._encoders[oid]
            except KeyError:
                raise ProtocolError(f"Truncate at {format_lsn(lsn)} of relation {oid}, never described") from None
            if captured is None and self._early:
                captured = self._joined(oid, transaction.commit_lsn, records)
            if captured is None:
                continue
            if transaction.next_index >= transaction.skip_below and oid in self._schema_of_oid:
                encoder, topic = captured
                # A number of the sweep's own: a sink that has swept must not take the next row for a replay.
                floor = pack_version(self._context.epoch, self._seq.take())
                records.append(self._sweeps.record(self._schema_of_oid[oid].table, floor, transaction.commit_lsn))
                if encoder is not None and encoder.has_truncates:
                    if oid not in self._started:
                        records += self._start(oid, encoder, transaction)
                    event = encoder.truncate(lsn, transaction.next_index, self._seq.last, now_us)
                    records.append(TopicRecord(topic, *event))
                if self._is_observed:
                    self._observer.truncate(topic)
                transaction.published = True
            transaction.next_index += 1
