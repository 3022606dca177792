"""Turns pgoutput messages into records and positions. Pure: bytes in, records and the new position out.

The assembler counts the row changes of captured tables in each transaction, so that a change has the same position each
time its transaction is sent, and drops the changes that the position record covers. Changes of other tables do not
count: where the publication was altered meanwhile, whether the server sends them differs from one time to the next.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from cdc.capture.stream_state import CapturedTables, OpenTransaction, StreamState
from cdc.capture.toast_batch import BatchRecord, DraftRecord, OmittedChange
from cdc.capture.transaction_records import TransactionRecords
from cdc.formats.records import Draft, EnvelopeContext, TableEncoder
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
from cdc.pgoutput.messages import (
    Begin,
    Commit,
    LogicalMessage,
    Relation,
    ReplicationOrigin,
    StreamAbort,
    Truncate,
    Type,
)
from cdc.pgoutput.relations import relation_differs, sent_places
from cdc.pgoutput.wal_ends import WalEnds
from cdc.ports.chunk_reader import WATERMARK_PREFIX
from cdc.snapshots.chunk_engine import SnapshotEngine

_XLOG_DATA = b"w"
_ROW_TAGS = frozenset(b"IUD")
RELATIONS_MAX: Final = 50_000  # per session; a relation that is not captured takes some 100 bytes
_WHOLE = 1 << 62  # value of skip_below for a transaction that is published completely


class SchemaListener(Protocol):
    """Listens to the stream, and may add records to it. See cdc/tables/schema_tracking.py."""

    def follow(self, schema: TableSchema, relation: Relation) -> tuple[TableSchema, list[TopicRecord]]: ...
    def described(self, oid: int, schema: TableSchema | None) -> list[TopicRecord]: ...
    def watermark(self, content: bytes) -> None: ...
    def end(self) -> tuple[list[TopicRecord], list[TableSchema]]: ...


class Assembler:
    """Consumes CopyData payloads in order and returns the records to produce.

    After `consume` returned, `state` covers exactly the records that were returned so far.
    """

    def __init__(
        self,
        tables: CapturedTables,
        context: EnvelopeContext,
        resume: StreamState,
        snapshots: SnapshotEngine,
        tracker: SchemaListener,
        unpublishable: Unpublishable | None = None,
        outbox: OutboxStream | None = None,
    ) -> None:
        """`resume`: the state at which the stream begins. `unpublishable`: None if every record fits and has a form."""
        self._leaving = tables.leaving if resume.partial is not None else ()
        schemas = [*tables.schemas, *self._leaving]
        self._since = {table: lsn for table, lsn in tables.since.items() if lsn > resume.resume_lsn}
        self._schema_of_oid: dict[int, TableSchema] = {schema.oid: schema for schema in schemas}
        self._schema_of_name: dict[TableId, TableSchema] = {s.table: s for s in schemas}
        self._outbox = outbox
        self._messages = message_prefix(outbox, resume.partial)  # prefix of the logical messages that are events
        self._context = context
        self._snapshots, self._tracker = snapshots, tracker
        self._side = TransactionRecords(context)
        unpublishable = self._unpublishable = unpublishable or Unpublishable(Topics(context.prefix))
        self._value_bytes_safe, self._row_bytes_usual = unpublishable.value_bytes_safe, unpublishable.row_bytes_usual
        self._is_observed = False  # whether the snapshot engine observes the current transaction
        self._relations: dict[int, Relation] = {}  # relation oid → its last description; captured tables only
        # Relation oid → encoder and topic. None: not captured. Without an encoder, changes count but are not published.
        self._encoders: dict[int, tuple[TableEncoder | None, str] | None] = {}
        # Oid → relation described before its table is captured, and the LSN from which it is captured
        self._not_yet_captured: dict[int, tuple[Relation, int]] = {}
        self._started: set[int] = set()  # relations whose encoder was given the current transaction
        self._resume_lsn = resume.resume_lsn
        self._published_below = resume.resume_lsn  # transactions that commit before this LSN are already published
        self._partial = resume.partial
        self._seq = SeqCounter(resume.seq)
        self._commit_ts_us = resume.commit_ts_us
        self._last_commit_lsn: Lsn | None = None
        self._transaction: OpenTransaction | None = None
        self.received_lsn = resume.resume_lsn  # the newest WAL position that the server reported
        # Commit LSNs of the first and the last transaction with records since the caller has set it to None.
        self.commits: tuple[Lsn, Lsn] | None = None
        self.reply_requested = False
        self._wal_ends = WalEnds()

    @property
    def state(self) -> StreamState:
        """The state after everything that was consumed so far."""
        partial = self._partial
        transaction = self._transaction
        if transaction is not None and transaction.published:
            next_index = max(transaction.next_index, transaction.skip_below)
            partial = self._side.partial(next_index, self._messages or "")
        return StreamState(self._resume_lsn, partial, self._seq.last, self._commit_ts_us)

    @property
    def unpublished(self) -> dict[str, int]:
        """The number of changes that were left out, by table."""
        return self._unpublishable.counts

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None

    @property
    def needs_keepalive(self) -> bool:
        """True if a second keepalive must confirm the position that the last one reported."""
        return self._wal_ends.needs_another and self._transaction is None and self._partial is None

    @property
    def has_too_many_relations(self) -> bool:
        """True if so many relations were described that a new session, which knows none, should begin."""
        return self._transaction is None and len(self._encoders) > RELATIONS_MAX

    @property
    def newest_commit_ts_us(self) -> int:
        """Commit time of the newest transaction that began to arrive, in µs since 1970 by the server's clock."""
        return self._commit_ts_us if self._transaction is None else self._transaction.commit_ts_us

    def consume(self, frames: Sequence[bytes], now_us: int) -> tuple[list[BatchRecord], UnsupportedChangeError | None]:
        """Returns the records of these frames, in order. A row with unchanged TOAST values is a DraftRecord that must
        still be filled in. `now_us`: µs since 1970.

        If a change can't be followed, the error is returned with the records of the complete transactions before it,
        and `state` is the state at their end. If part of the failing transaction was returned earlier, no records are
        returned and `state` must not be used: abort the Kafka transaction. Raises ProtocolError and GapError.
        """
        records: list[BatchRecord] = []
        # The state to return to on an error; None if part of an open transaction was returned by an earlier call.
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
        # Everything that commits before `reached` was sent before this message, so outside of a transaction a restart
        # may begin there. It is confirmed only once a position record holds it.
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
            case ReplicationOrigin() as origin:
                self._require_transaction(f"Origin at {where}")
                self._side.origin = origin
            case Type() | StreamAbort():
                pass  # not part of any record
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
                    "the log no longer holds this transaction: the source was restored or the slot was moved",
                )
            transaction.skip_below = self._partial.next_index
            transaction.published = True
        self._transaction = transaction
        self._started.clear()
        self._side.begin(begin, self._partial if transaction.published else None)
        self._is_observed = self._snapshots.begin(begin.xid, self._seq.next)

    def _commit(self, commit: Commit, records: list[BatchRecord], now_us: int) -> None:
        transaction = self._require_transaction(f"Commit at {format_lsn(commit.commit_lsn)}")
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
                    "the publication or its options changed while the transaction was partly published",
                )
            self._partial = None
            self._drop_leaving_tables()
            self._resume_lsn = max(self._resume_lsn, commit.end_lsn)
            self._commit_ts_us = transaction.commit_ts_us
        self.received_lsn = max(self.received_lsn, commit.end_lsn)
        self._last_commit_lsn = transaction.commit_lsn
        if transaction.published:
            self.commits = (self.commits or (transaction.commit_lsn,))[0], transaction.commit_lsn
        self._transaction = None
        records += self._side.end(is_published=is_published)
        records += self._snapshots.end(transaction.commit_lsn, self._seq, now_us)
        added, altered = self._tracker.end()
        records += added
        for schema in altered:
            self._adopt(schema)

    def _require_transaction(self, what: str) -> OpenTransaction:
        if self._transaction is None:
            raise ProtocolError(f"{what} outside a transaction")
        return self._transaction

    def _drop_leaving_tables(self) -> None:
        """The half published transaction has ended: stop capturing the tables that are no longer configured."""
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
            self._encoders[relation.oid] = None  # the publication has the table, but it is not captured
            return
        since = self._since.get(schema.table, 0)
        if self._require_transaction(f"Relation {relation.oid}").commit_lsn < since:
            self._encoders[relation.oid], self._not_yet_captured[relation.oid] = None, (relation, since)
            return
        self._not_yet_captured.pop(relation.oid, None)
        relation = self._context.format.columns.marked(relation)
        if relation_differs(schema, relation) is not None:
            if schema in self._leaving or self._is_already_published():
                # Its changes are published already, or never will be.
                self._encoders[relation.oid] = None, schema.topic
                return
            schema, added = self._tracker.follow(schema, relation)
            self._schema_of_oid[schema.oid] = self._schema_of_name[schema.table] = schema
            records += added
        self._describe(schema, relation)

    def _is_already_published(self) -> bool:
        """True if changes at this index are published; their schema may then be an earlier version."""
        transaction = self._transaction
        return transaction is not None and transaction.next_index < transaction.skip_below

    def _describe(self, schema: TableSchema, relation: Relation) -> None:
        self._relations[relation.oid] = relation
        if self._outbox is not None and self._outbox.takes(schema.table):
            self._outbox.describe_again(relation.oid, schema, sent_places(relation))
            self._encoders[relation.oid] = None
            return
        try:
            encoder = TableEncoder(schema, relation, self._context, self._side.metadata)
        except UnsupportedChangeError:
            if schema not in self._leaving:
                raise
            self._encoders[relation.oid] = None, schema.topic  # stopped for this reason: its rows are read again
            return
        self._encoders[relation.oid] = (encoder, schema.topic)
        self._started.discard(relation.oid)

    def _adopt(self, schema: TableSchema) -> None:
        """Adopts a schema that the catalog poll found, and that the stream has announced already or will announce."""
        self._schema_of_oid[schema.oid] = self._schema_of_name[schema.table] = schema
        relation = self._relations.get(schema.oid)
        if relation is not None and relation_differs(schema, relation) is None:
            self._describe(schema, relation)

    def _captured_by_now(
        self, oid: int, commit_lsn: int, records: list[BatchRecord]
    ) -> tuple[TableEncoder | None, str] | None:
        """Returns encoder and topic of a relation if its table is captured by now. The server may have described the
        relation before that, and does not describe it again."""
        relation, since = self._not_yet_captured.get(oid, (None, 0))
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
        if captured is None and self._not_yet_captured:
            captured = self._captured_by_now(oid, transaction.commit_lsn, records)
        if captured is None:
            if self._outbox is not None and self._outbox.follows(oid):
                self._event(memoryview(frame)[XLOG_DATA_BYTES:], records, now_us)
            return
        if index >= transaction.skip_below:
            encoder, topic = captured
            if encoder is None:
                self._skip_change(oid, topic, lsn)
                return
            if oid not in self._started:
                records += self._start(oid, encoder, transaction)
            events = self._side.metadata.total
            try:
                if len(frame) > self._row_bytes_usual:
                    frame = self._unpublishable.without_unpublished_columns(
                        encoder, frame, Position(transaction.commit_lsn, index)
                    )
                made = encoder.encode(frame, XLOG_DATA_BYTES, lsn, index, self._seq.last + 1, now_us)
                value = made[0][1]
                if len(made) > 1 or not isinstance(value, bytes) or len(value) > self._value_bytes_safe:
                    self._unpublishable.require_fits(encoder.schema, Position(transaction.commit_lsn, index), made)
            except UnsupportedChangeError as error:
                made = []
                records += self._unpublishable.replacements(
                    encoder.schema, Position(transaction.commit_lsn, index), error, now_us
                )
                self._side.metadata.withdraw(str(encoder.schema.table), events)
                keys = error.keys if isinstance(error, UnpublishableError) else ()
                records.append(OmittedChange(topic, keys))
                for key in keys if self._is_observed else ():
                    self._snapshots.memory.touch(topic, key)  # a chunk's row with this key is not newer
            for key, value, headers in made:
                if value is not None:
                    self._seq.last += 1
                if isinstance(value, Draft):
                    records.append(DraftRecord(topic, key, value, headers))
                else:
                    records.append(TopicRecord(topic, key, value, headers))
                if self._is_observed:
                    self._snapshots.memory.touch(topic, key)
            transaction.published = True
        transaction.next_index = index + 1

    def _event(self, what: memoryview | LogicalMessage, records: list[BatchRecord], now_us: int) -> None:
        """Publishes a row change of an outbox table, or a message. It counts like a row change and takes no seq."""
        assert self._outbox is not None
        transaction = self._require_transaction("an event")
        if transaction.next_index >= transaction.skip_below:
            position = Position(transaction.commit_lsn, transaction.next_index)
            made = self._outbox.event(what, transaction.xid, position, now_us, transaction.commit_ts_us)
            records += made
            transaction.published = transaction.published or bool(made)
        transaction.next_index += 1

    def _skip_change(self, oid: int, topic: str, lsn: int) -> None:
        """Counts a change of a table that is no longer configured and whose schema is no longer known."""
        if all(schema.topic != topic for schema in self._leaving):
            raise ProtocolError(f"row change at {format_lsn(lsn)} for relation {oid}, whose schema is unknown")
        transaction = self._require_transaction("row change")
        transaction.next_index += 1
        transaction.published = True

    def _start(self, oid: int, encoder: TableEncoder, transaction: OpenTransaction) -> list[TopicRecord]:
        """Gives the transaction to the encoder, before the table's first event in it. Returns the records that precede
        the event."""
        begun = transaction.commit_lsn, transaction.commit_ts_us, transaction.xid
        encoder.start_transaction(*begun, self._last_commit_lsn, self._side.origin)
        self._started.add(oid)
        return self._side.opening()

    def _logical_message(self, message: LogicalMessage, records: list[BatchRecord], now_us: int) -> None:
        """Handles a logical message: a watermark, an event, or a message that is published if the options say
        so."""
        where = format_lsn(message.lsn)
        if message.transactional:
            transaction = self._require_transaction(f"Message at {where}")
            if message.prefix == WATERMARK_PREFIX:
                self._snapshots.watermark(message.content)
                self._tracker.watermark(message.content)
                return
            if message.prefix == self._messages:
                self._event(message, records, now_us)
                return
            is_published = transaction.skip_below == _WHOLE
            made = self._side.message(message, self._last_commit_lsn, now_us, is_published=is_published)
            transaction.published = transaction.published or bool(made)
        elif self._transaction is not None:
            raise ProtocolError(f"Message at {where} is not transactional, but was sent inside a transaction")
        elif message.prefix == WATERMARK_PREFIX or message.lsn < self._resume_lsn:
            return
        else:
            made = self._side.message(message, self._last_commit_lsn, now_us, is_published=False)
            if made:
                # Everything that commits before it was sent before it: a restart may begin behind it.
                self._resume_lsn = Lsn(message.lsn + 1)
                self.received_lsn = max(self.received_lsn, self._resume_lsn)
        records += made

    def _truncate(self, truncate: Truncate, lsn: int, records: list[BatchRecord], now_us: int) -> None:
        """Publishes a sweep whose floor is the next version. No event could be ordered behind all rows in all
        partitions."""
        transaction = self._require_transaction("Truncate")
        for oid in truncate.relation_oids:
            try:
                captured = self._encoders[oid]
            except KeyError:
                raise ProtocolError(f"Truncate at {format_lsn(lsn)} of relation {oid}, never described") from None
            if captured is None and self._not_yet_captured:
                captured = self._captured_by_now(oid, transaction.commit_lsn, records)
            if captured is None:
                continue
            if transaction.next_index >= transaction.skip_below and oid in self._schema_of_oid:
                encoder, topic = captured
                # The sweep takes a seq, so that a sink that has swept does not take the next row for a replay.
                floor = pack_version(self._context.epoch, self._seq.take())
                table = self._schema_of_oid[oid].table
                records.append(self._snapshots.sweeps.record(table, floor, transaction.commit_lsn))
                if encoder is not None and encoder.has_truncates:
                    if oid not in self._started:
                        records += self._start(oid, encoder, transaction)
                    event = encoder.truncate(lsn, transaction.next_index, self._seq.last, now_us)
                    records.append(TopicRecord(topic, *event))
                if self._is_observed:
                    self._snapshots.memory.truncate(topic)
                transaction.published = True
            transaction.next_index += 1
