"""The records of a transaction other than row records: transaction metadata and logical messages. Pure.

Messages have no version and no index. Counting them tells which messages of a half published transaction are published;
for messages outside of transactions, the position does.
"""

from collections.abc import Iterable

from cdc.formats.message_events import MessageEvents
from cdc.formats.records import EnvelopeContext
from cdc.formats.transaction_metadata import MESSAGES, TransactionMetadata
from cdc.model.control import PartialTransaction
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.messages import Begin, LogicalMessage, ReplicationOrigin


class TransactionRecords:
    """Makes the records for one transaction after another; none if the options are off."""

    def __init__(self, context: EnvelopeContext) -> None:
        options = context.format
        self._topics = Topics(context.prefix)
        self.metadata = TransactionMetadata(
            schemas_enable=options.schemas_enable, is_enabled=options.provide_transaction_metadata
        )
        self._events = MessageEvents(context) if options.has_messages else None
        self._transaction: Begin | None = None
        self.origin: ReplicationOrigin | None = None  # of the transaction
        self._received = self._published = 0  # messages of the current transaction

    def begin(self, begin: Begin, partial: PartialTransaction | None) -> None:
        """A transaction begins. `partial`: the part of it that is published."""
        self._transaction, self.origin = begin, None
        self._received, self._published = 0, partial.messages if partial else 0
        self.metadata.start(begin, partial)

    def partial(self, next_index: int, outbox: str) -> PartialTransaction:
        """Returns the record of the current transaction as half published up to `next_index`. `outbox`: the prefix of
        messages that are events."""
        assert self._transaction is not None
        return PartialTransaction(
            commit_lsn=self._transaction.final_lsn,
            xid=self._transaction.xid,
            next_index=next_index,
            messages=max(self._received, self._published),
            outbox=outbox,
            events=self.metadata.counts,
        )

    def opening(self) -> list[TopicRecord]:
        """Returns the records that precede the transaction's first event."""
        return self._records(self.metadata.opening())

    def end(self, *, is_published: bool) -> list[TopicRecord]:
        """Returns the records behind the transaction's last event. `is_published`: the transaction was published
        completely before."""
        self._transaction = None
        return [] if is_published else self._records(self.metadata.closing())

    def message(
        self, message: LogicalMessage, last_commit_lsn: int | None, now_us: int, *, is_published: bool
    ) -> list[TopicRecord]:
        """Returns the records of a logical message of an application. `is_published`: its transaction, or its position,
        is already published."""
        transaction = self._transaction if message.transactional else None
        if transaction is not None:
            self._received += 1
            is_published = is_published or self._received <= self._published
        if is_published or self._events is None or not self._events.publishes(message.prefix):
            return []
        opening, origin, block = list[TopicRecord](), None, "null"
        if transaction is not None:
            opening, origin, block = self.opening(), self.origin, self.metadata.block(MESSAGES)
        record = self._events.record(message, transaction, origin, last_commit_lsn, block, now_us)
        return [*opening, TopicRecord(self._topics.message, *record)]

    def _records(self, made: Iterable[tuple[bytes, bytes]]) -> list[TopicRecord]:
        return [TopicRecord(self._topics.transaction, key, value) for key, value in made]
