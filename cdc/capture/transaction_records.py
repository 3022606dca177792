"""What is published of a transaction beside its rows: that it begins and ends, and logical messages. Pure.

Messages have no version and no index. Which of a half published transaction's are published is known by counting them;
of those outside of transactions, by the position.
"""

from collections.abc import Iterable

from cdc.formats.envelope import EnvelopeContext
from cdc.formats.message_events import MessageEvents, MessagePosition
from cdc.formats.transaction_metadata import MESSAGES, TransactionMetadata
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.messages import Begin, LogicalMessage, Origin
from cdc.records.control import PartialTransaction


class TransactionRecords:
    """Of one transaction after another; without the options it makes none."""

    def __init__(self, context: EnvelopeContext) -> None:
        options = context.format
        self._topics = Topics(context.prefix)
        self.metadata = (
            TransactionMetadata(schemas_enable=options.schemas_enable) if options.provide_transaction_metadata else None
        )
        self._events = MessageEvents(context) if options.has_messages else None
        self._transaction: Begin | None = None
        self.origin: Origin | None = None  # of the transaction
        self._received = self._published = 0  # messages of the transaction

    def begin(self, begin: Begin, partial: PartialTransaction | None) -> None:
        """A transaction begins. `partial`: what of it is published."""
        self._transaction, self.origin = begin, None
        self._received, self._published = 0, partial.messages if partial else 0
        if self.metadata is not None:
            counts = partial.events if partial else None
            self.metadata.start(begin.xid, begin.final_lsn, begin.commit_ts_us, counts, is_resumed=partial is not None)

    def partial(self, commit_lsn: int, xid: int, next_index: int) -> PartialTransaction:
        """Of the transaction, if it is recorded now."""
        return PartialTransaction(
            commit_lsn=commit_lsn,
            xid=xid,
            next_index=next_index,
            messages=max(self._received, self._published),
            events=self.metadata.counts if self.metadata is not None else None,
        )

    @property
    def events(self) -> int:
        """Of the transaction so far; 0 without metadata."""
        return self.metadata.total if self.metadata is not None else 0

    def withdraw(self, collection: str, events: int) -> None:
        """Only so many events are published; what was counted since is none, all of this collection."""
        if self.metadata is not None:
            self.metadata.withdraw(collection, events)

    def opening(self) -> list[TopicRecord]:
        """What goes before an event of the transaction."""
        return self._told(self.metadata.opening()) if self.metadata is not None else []

    def end(self, *, is_published: bool) -> list[TopicRecord]:
        """What goes behind its last event. `is_published`: all of it, earlier."""
        self._transaction = None
        return self._told(self.metadata.closing()) if self.metadata is not None and not is_published else []

    def message(
        self, message: LogicalMessage, last_commit_lsn: int | None, now_us: int, *, is_published: bool
    ) -> list[TopicRecord]:
        """Of a message that is somebody else's. `is_published`: with its transaction, or before the position."""
        transaction = self._transaction if message.transactional else None
        if transaction is not None:
            self._received += 1
            is_published = is_published or self._received <= self._published
        if is_published or self._events is None or not self._events.publishes(message.prefix):
            return []
        place, opening, block = MessagePosition(message.lsn, last_commit_lsn), list[TopicRecord](), "null"
        if transaction is not None:
            place = MessagePosition(
                message.lsn,
                last_commit_lsn,
                transaction.final_lsn,
                transaction.commit_ts_us,
                transaction.xid,
                self.origin,
            )
            opening = self.opening()
            if self.metadata is not None:
                block = self.metadata.block(MESSAGES)
        return [*opening, TopicRecord(self._topics.message, *self._events.record(message, place, block, now_us))]

    def _told(self, made: Iterable[tuple[bytes, bytes]]) -> list[TopicRecord]:
        return [TopicRecord(self._topics.transaction, key, value) for key, value in made]
