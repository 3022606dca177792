"""Ends hanging transactions: Kafka transactions that the brokers decided and did not end.

docs/design/hanging-transactions.md says how they come about, and what is not covered. In Kafka 4.3.1 it is
KRaftMetadataCache.getPartitionLeaderEndpoint that returns nothing for a partition without a leader, and
TransactionMarkerChannelManager that takes this for a deleted topic.

After earlier producers are fenced, and before anything else is read or written, each partition that capture writes to
is checked. Where the last stable offset stays below the high watermark, the coordinator's log tells the decision
(cdc/kafka/transaction_log.py):

- Aborted: it is aborted again, by another transaction that writes there and is aborted.
- Committed: its records are read from the log, aborted, and written again in the same order in one transaction. If the
  position record is among them, a crash in between leaves the previous position, as if that transaction had never been.
  If the position is committed already, a note in the state topic comes first: after a crash in between it is a
  GapError, not a silent loss.
- Unknown, because the brokers don't let us read the decision or have compacted it away: that is a GapError as well.
"""

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, cast

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from cdc.config.settings import PipelineConfig
from cdc.kafka.broker import MARKED_S_MAX, KafkaBroker, StoredRecord
from cdc.kafka.daemon_thread import WAIT_S, call_in_thread, do_nothing
from cdc.kafka.state_reader import StoredState, read_state
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_reader import open_reader
from cdc.kafka.transaction_log import outcomes
from cdc.model.control import (
    EventTopicRecord,
    HangingTransactionRecord,
    OpenPart,
    PositionRecord,
    ProgressRecord,
)
from cdc.model.errors import NEXT_AFTER_GAP, BrokerError, ConnectionLost, GapError, UnreachableError
from cdc.model.topics import Topics
from cdc.ports.stream import Probe, WhileWaiting

log = structlog.get_logger(__name__)

# Earlier producers are fenced, so nothing new of capture arrives: this is for a leader that has just taken over.
SETTLES_S: Final = 2.0
# Seconds within which a requested end is written if a broker dies and another takes over.
FAILS_OVER_S_MAX: Final = 30.0
_NOTE_KEY: Final = HangingTransactionRecord.KEY.encode()
_DIED: Final = "capture died while it wrote its records again"
_THEIRS: Final = "a Kafka transaction of another producer is open in a topic of capture"


class HangingTransactions:
    """Ends hanging transactions. Earlier producers must be fenced before."""

    def __init__(self, config: PipelineConfig, admin: TopicAdmin, broker: KafkaBroker, probe: Probe) -> None:
        self._config = config
        self._topics = Topics(config.topics.prefix)
        self._admin = admin
        self._broker = broker
        self._probe = probe

    def end(self, while_waiting: WhileWaiting) -> None:
        """Ends the hanging transactions. Raises GapError if records are lost, after ending them; BrokerError,
        UnreachableError, ConnectionLost."""
        state = read_state(self._config)
        parts = self._find(state, while_waiting)
        if parts:
            self._end(parts, state, while_waiting)
        elif state.hanging is not None:
            raise self._lost(state.hanging.parts, _DIED)

    def _end(self, parts: Sequence[OpenPart], state: StoredState, while_waiting: WhileWaiting) -> None:
        log.warning("hanging Kafka transaction found", where=_names(parts))
        decided = outcomes(self._config.kafka, self._broker.transactional_id, while_waiting)
        foreign = [part for part in parts if _place(part) not in (decided or {})]
        if decided is None or any(self._is_own(part.topic) for part in foreign):
            self._commit_note(parts, while_waiting)
            if lost := self._abort(parts, while_waiting):
                raise self._lost(lost, "the brokers don't say whether it was committed")
            self._commit_note((), while_waiting)
            return
        if foreign:
            log.warning(_THEIRS, where=_names(foreign))
        committed = [part for part in parts if decided.get(_place(part)) is True]
        self._abort([part for part in parts if decided.get(_place(part)) is False], while_waiting)
        if committed:
            self._write_again(committed, state, while_waiting)
        elif state.hanging is not None:
            raise self._lost(state.hanging.parts, _DIED)
        log.info("hanging Kafka transaction ended", committed=_names(committed))

    def _find(self, state: StoredState, while_waiting: WhileWaiting) -> list[OpenPart]:
        """Returns the hanging parts in every topic that an earlier transaction may have written to."""
        names = {*self._topics.written, *state.event_topics}
        names |= {self._topics.table(table) for table in self._config.source.table_ids}
        names |= set() if state.position is None else state.position.topics.keys()
        if self._config.outbox.is_used:
            names |= {record.topic for record in self._open_event_topics()}
        return call_in_thread(lambda: self._admin.open_parts(names, SETTLES_S, [self._topics.state]), while_waiting)

    def _open_event_topics(self) -> list[EventTopicRecord]:
        """Returns the topics of events whose first event is in the open transaction."""
        state, where = [self._topics.state], f"{self._topics.state}, beyond what is committed"
        return [
            EventTopicRecord.decode(message.value() or b"", where)
            for message in self._read(self._admin.open_parts(state, 0, state), do_nothing)
            if (message.key() or b"").startswith(EventTopicRecord.KEY.encode())
        ]

    def _write_again(self, parts: Sequence[OpenPart], state: StoredState, while_waiting: WhileWaiting) -> None:
        messages = [message for message in self._read(parts, while_waiting) if self._is_ours(message)]
        has_position = any(self._is_position(message) for message in messages)
        if not has_position:
            # The state topic has at most a record of this class, which the next one replaces.
            parts = [part for part in parts if part.topic != self._topics.state]
            messages = [message for message in messages if message.topic() != self._topics.state]
            if state.hanging is not None and state.hanging.parts != tuple(parts):
                self._abort(parts, while_waiting)
                raise self._lost(state.hanging.parts, _DIED)
            self._commit_note(parts, while_waiting)
        self._probe("left-open.recorded")
        parts = self._abort(parts, while_waiting)
        self._probe("left-open.aborted")
        theirs = {_offset(message) for message in self._read(parts, while_waiting, "read_committed")}
        ended = {_place(part) for part in parts}
        ours = [m for m in messages if (m.topic(), m.partition()) in ended and _offset(m) not in theirs]
        self._broker.put(map(_stored, ours), while_waiting)
        if has_position:
            self._broker.commit(while_waiting)
        else:
            self._commit_note((), while_waiting)

    def _is_position(self, message: Message) -> bool:
        """Returns whether the message is a position record, or the end of a note that records were written again:
        either shows how far its transaction is."""
        is_end_of_note = message.key() == _NOTE_KEY and message.value() is None
        return message.topic() == self._topics.state and (
            message.key() == PositionRecord.KEY.encode() or is_end_of_note
        )

    def _is_ours(self, message: Message) -> bool:
        """Returns whether to write the message again. Other processes write to the progress topic too, without
        transactions; their records were seen, or come again."""
        return message.topic() != self._topics.progress or message.key() == ProgressRecord.KEY.encode()

    def _commit_note(self, parts: Sequence[OpenPart], while_waiting: WhileWaiting) -> None:
        """Commits the open transaction with a note of these parts; without parts, with the note's deletion."""
        note = HangingTransactionRecord(parts=tuple(parts)).encode() if parts else None
        self._broker.put([StoredRecord(self._topics.state, 0, _NOTE_KEY, note)], while_waiting)
        self._broker.commit(while_waiting)

    def _abort(self, parts: Sequence[OpenPart], while_waiting: WhileWaiting) -> list[OpenPart]:
        """Aborts the parts with a transaction of our own that writes there. Returns those that are ended; records
        written behind the others would become part of them."""
        if not parts:
            return []
        self._broker.put([StoredRecord(p.topic, p.partition, _NOTE_KEY, b"") for p in parts], while_waiting)
        self._broker.flush_and_abort(while_waiting)
        return self._ended(parts, while_waiting)

    def _read(
        self, parts: Sequence[OpenPart], while_waiting: WhileWaiting, isolation: str = "read_uncommitted"
    ) -> list[Message]:
        """Returns the messages of these parts with the given isolation level. They fit into memory, because they were
        one Kafka transaction of ours."""
        if not parts:
            return []
        settings = {"isolation.level": isolation, "auto.offset.reset": "error"}
        with open_reader(self._config.kafka, "can't read a hanging transaction", settings) as reader:
            return [
                message
                for part in parts
                for message in reader.read(part.topic, part.partition, part.start, part.end, while_waiting)
                if (message.offset() or 0) < part.end
            ]

    def _ended(self, parts: Sequence[OpenPart], while_waiting: WhileWaiting) -> list[OpenPart]:
        """Returns the parts that are ended. In topics of events an application may have a transaction open. Raises
        BrokerError if one stays open where only capture may write. Waits for brokers that are unreachable: a session
        that ended now would leave aborted records that nobody writes again."""
        names = {part.topic for part in parts}
        deadline = time.monotonic() + FAILS_OVER_S_MAX
        while True:
            try:
                found = call_in_thread(lambda: self._admin.open_parts(names, MARKED_S_MAX, names), while_waiting)
            except (ConnectionLost, UnreachableError):
                while_waiting()
                time.sleep(WAIT_S)
                continue
            still = set(map(_place, found))
            own = [part for part in parts if _place(part) in still and self._is_own(part.topic)]
            if not own or time.monotonic() > deadline:
                break
        if own and self._broker.has_lost_connection:
            raise ConnectionLost(f"Kafka: the hanging transaction in {_names(own)} is still open")
        if own:
            first = own[0]
            raise BrokerError(
                f"a Kafka transaction hangs in {_names(own)}; its producer id no longer belongs to capture",
                f"kafka-transactions.sh --bootstrap-server … abort --topic {first.topic} --partition {first.partition} "
                f"--start-offset {first.start}, then cdc snapshot heal if it was committed",
            )
        theirs = [part for part in parts if _place(part) in still]
        if theirs:
            log.warning(_THEIRS, where=_names(theirs))
        return [part for part in parts if part not in theirs]

    def _is_own(self, topic: str) -> bool:
        """Returns whether only capture writes to the topic. Applications may write to topics of events."""
        return topic in self._topics.own or topic.startswith(f"{self._topics.prefix}.")

    def _lost(self, parts: Sequence[OpenPart], why: str) -> GapError:
        return GapError(f"the hanging Kafka transaction in {_names(parts)} is lost: {why}", NEXT_AFTER_GAP)


def _stored(message: Message) -> StoredRecord:
    kind, timestamp_ms = message.timestamp()
    return StoredRecord(
        message.topic() or "",
        message.partition() or 0,
        message.key(),
        message.value(),
        cast(list[tuple[str, bytes | None]], message.headers() or []),
        0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
    )


def _offset(message: Message) -> tuple[str | None, int | None, int | None]:
    return message.topic(), message.partition(), message.offset()


def _place(part: OpenPart) -> tuple[str, int]:
    return part.topic, part.partition


def _names(parts: Iterable[OpenPart]) -> str:
    """Returns the partitions for messages, for example a-0,2 b-1."""
    grouped = groupby(sorted(map(_place, parts)), key=lambda place: place[0])
    return " ".join(f"{topic}-{','.join(str(number) for _, number in places)}" for topic, places in grouped)
