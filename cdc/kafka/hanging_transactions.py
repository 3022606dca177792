"""Kafka transactions that the brokers decided on and did not end.

A commit returns when the coordinator has written its decision; a marker in each partition follows. Where a partition
has no leader at that moment Kafka 4.3.1 takes its topic for deleted and leaves the marker out: after `kill -9` of a
single broker, or of all replicas, a transaction can be over for its coordinator and open in the log for good.
(KRaftMetadataCache.getPartitionLeaderEndpoint has nothing to tell of a partition without a leader, which
TransactionMarkerChannelManager understands as a deleted topic.) `read_committed` readers see nothing behind it; and its
records share the fate of the next transaction that the same producer id ends there: an abort would take what was
committed, and what its position record covers, with it.

So behind the fence, before anything else is read or written, each partition that capture writes to is looked at: where
the last stable offset stays below the high watermark, the coordinator's log tells what was decided
(cdc/kafka/transaction_log.py).
- What was aborted is aborted once more: the next transaction writes there, and is aborted.
- What was committed is read from the log, aborted, and written again, the same records in the same order, in one
  transaction. If the position record is among them, a crash in between leaves the position before, and it is as if that
  transaction had never been. If the position is committed already, a note in state comes first: a crash in between is
  then a gap with a name, and no loss that nobody sees.
- Where the brokers don't let us read what was decided, or have compacted it away, it is a gap as well.
"""

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, cast

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaException, Message, TopicPartition

from cdc.config.settings import Config
from cdc.kafka.broker import KafkaBroker, StoredRecord
from cdc.kafka.client import broker_error, new_client, reading_settings
from cdc.kafka.compacted import read_records
from cdc.kafka.daemon_thread import nobody_waits
from cdc.kafka.state_reader import State, read_state
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.transaction_log import outcomes
from cdc.model.errors import NEXT_AFTER_GAP, BrokerError, ConnectionLost, GapError
from cdc.model.topics import Topics
from cdc.ports.stream import Probe, WhileWaiting
from cdc.records.control import POSITION_KEY, PROGRESS_KEY
from cdc.records.kafka_transactions import (
    EVENT_TOPIC_KEY,
    HANGING_KEY,
    EventTopicRecord,
    HangingTransactionRecord,
    OpenPart,
)

log = structlog.get_logger(__name__)

# Behind the fence nothing of ours is on its way any more: this is for a leader that has just taken over.
SETTLES_S: Final = 2.0
# In which an end that we have asked for is there, where a broker dies meanwhile and another takes over.
FAILS_OVER_S_MAX: Final = 30.0
_DIED: Final = "capture died while it wrote it again"
_THEIRS: Final = "somebody else's Kafka transaction is open in a topic of ours"


class HangingTransactions:
    """Ends what the brokers left open. Only for who has fenced earlier producers."""

    def __init__(self, config: Config, admin: TopicAdmin, broker: KafkaBroker, probe: Probe) -> None:
        self._config = config
        self._topics = Topics(config.topics.prefix)
        self._admin = admin
        self._broker = broker
        self._probe = probe

    def end(self, while_waiting: WhileWaiting) -> None:
        """Raises GapError where something is lost, after closing what is open; BrokerError, UnreachableError,
        ConnectionLost."""
        state = read_state(self._config)
        parts = self._find(state, while_waiting)
        if parts:
            self._end(parts, state, while_waiting)
        elif state.hanging is not None:
            raise self._lost(state.hanging.parts, _DIED)

    def _end(self, parts: Sequence[OpenPart], state: State, while_waiting: WhileWaiting) -> None:
        log.warning("the brokers left a Kafka transaction open", where=_names(parts))
        decided = outcomes(self._config.kafka, self._broker.transactional_id, while_waiting)
        foreign = [part for part in parts if _place(part) not in (decided or {})]
        if decided is None or any(self._is_own(part.topic) for part in foreign):
            self._note(parts, while_waiting)
            if lost := self._abort(parts, while_waiting):
                raise self._lost(lost, "the brokers don't say whether it was committed")
            self._forget(while_waiting)
            return
        if foreign:
            log.warning(_THEIRS, where=_names(foreign))
        committed = [part for part in parts if decided.get(_place(part)) is True]
        self._abort([part for part in parts if decided.get(_place(part)) is False], while_waiting)
        if committed:
            self._write_anew(committed, state, while_waiting)
        elif state.hanging is not None:
            raise self._lost(state.hanging.parts, _DIED)
        log.info("ended what the brokers left open", committed=_names(committed))

    def _find(self, state: State, while_waiting: WhileWaiting) -> list[OpenPart]:
        """In every topic that an earlier transaction may have written to."""
        names = {*self._topics.written, *state.event_topics}
        names |= {self._topics.table(table) for table in self._config.source.table_ids}
        names |= set() if state.position is None else state.position.topics.keys()
        if self._config.outbox.is_used:
            names |= {record.topic for record in self._open_event_topics()}
        return self._admin.open_parts(names, SETTLES_S, while_waiting, [self._topics.state])

    def _open_event_topics(self) -> list[EventTopicRecord]:
        """Whose first event is in the transaction that is open."""
        state, where = [self._topics.state], f"{self._topics.state}, beyond what is committed"
        return [
            EventTopicRecord.decode(message.value() or b"", where)
            for message in self._read(self._admin.open_parts(state, 0, nobody_waits, state), nobody_waits)
            if (message.key() or b"").startswith(EVENT_TOPIC_KEY.encode())
        ]

    def _write_anew(self, parts: Sequence[OpenPart], state: State, while_waiting: WhileWaiting) -> None:
        messages = [message for message in self._read(parts, while_waiting) if self._is_ours(message)]
        has_position = any(self._is_position(message) for message in messages)
        if not has_position:  # in state there is a note of ours at most, which the next one ends
            parts = [part for part in parts if part.topic != self._topics.state]
            messages = [message for message in messages if message.topic() != self._topics.state]
        if not has_position and state.hanging is not None and state.hanging.parts != tuple(parts):
            self._abort(parts, while_waiting)
            raise self._lost(state.hanging.parts, _DIED)
        if not has_position:
            self._note(parts, while_waiting)
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
            self._forget(while_waiting)

    def _is_position(self, message: Message) -> bool:
        """Or that what was left open before is written again: either tells how far its transaction has come."""
        is_end_of_note = message.key() == HANGING_KEY.encode() and message.value() is None
        return message.topic() == self._topics.state and (message.key() == POSITION_KEY.encode() or is_end_of_note)

    def _is_ours(self, message: Message) -> bool:
        """Of progress others write too, without transactions: what they told was seen, or is told again."""
        return message.topic() != self._topics.progress or message.key() == PROGRESS_KEY.encode()

    def _note(self, parts: Sequence[OpenPart], while_waiting: WhileWaiting) -> None:
        note = HangingTransactionRecord(parts=tuple(parts)).encode()
        self._broker.put([StoredRecord(self._topics.state, 0, HANGING_KEY.encode(), note)], while_waiting)
        self._broker.commit(while_waiting)

    def _forget(self, while_waiting: WhileWaiting) -> None:
        """The note, and commit."""
        self._broker.put([StoredRecord(self._topics.state, 0, HANGING_KEY.encode(), None)], while_waiting)
        self._broker.commit(while_waiting)

    def _abort(self, parts: Sequence[OpenPart], while_waiting: WhileWaiting) -> list[OpenPart]:
        """With a transaction of our own that writes there; of its records no committed reader sees anything. Which of
        them are closed now: what we write behind others would become part of them."""
        if not parts:
            return []
        self._broker.put([StoredRecord(p.topic, p.partition, HANGING_KEY.encode(), b"") for p in parts], while_waiting)
        self._broker.abort_written(while_waiting)
        return self._ended(parts, while_waiting)

    def _read(
        self, parts: Sequence[OpenPart], while_waiting: WhileWaiting, isolation: str = "read_uncommitted"
    ) -> list[Message]:
        """What is there, or is seen by who reads what is committed. It fits into memory: it was one Kafka transaction
        of ours."""
        if not parts:
            return []
        settings = reading_settings(
            self._config.kafka,
            "watershed-reader",
            **{"isolation.level": isolation, "enable.partition.eof": True, "auto.offset.reset": "error"},
        )
        consumer = new_client(Consumer, settings)
        try:
            return [
                message
                for part in parts
                for message in read_records(
                    consumer, TopicPartition(part.topic, part.partition, part.start), part.end, while_waiting
                )
                if (message.offset() or 0) < part.end
            ]
        except KafkaException as exception:
            raise broker_error("can't read what was left open", exception) from exception
        finally:
            consumer.close()

    def _ended(self, parts: Sequence[OpenPart], while_waiting: WhileWaiting) -> list[OpenPart]:
        """Without those where an application has a transaction open, in topics of events. Raises BrokerError where
        nobody else may write."""
        deadline = time.monotonic() + FAILS_OVER_S_MAX
        while True:
            still = {_place(part) for part in self._broker.still_open({part.topic for part in parts}, while_waiting)}
            open_parts = [part for part in parts if _place(part) in still]
            own = [part for part in open_parts if self._is_own(part.topic)]
            is_away = self._broker.has_lost_connection
            if not own or not is_away or time.monotonic() > deadline:
                break
        if own and is_away:
            raise ConnectionLost(f"Kafka: what the brokers left open in {_names(own)} is still open")
        if own:
            first = own[0]
            raise BrokerError(
                f"the brokers left a Kafka transaction open in {_names(own)}, by a producer id that is not capture's "
                "any more",
                f"kafka-transactions.sh --bootstrap-server … abort --topic {first.topic} --partition {first.partition} "
                f"--start-offset {first.start}, then cdc snapshot heal if it was committed",
            )
        if open_parts:
            log.warning(_THEIRS, where=_names(open_parts))
        return [part for part in parts if part not in open_parts]

    def _is_own(self, topic: str) -> bool:
        """Events go elsewhere (see cdc/outbox/event_stream.py)."""
        return topic in self._topics.own or topic.startswith(f"{self._topics.prefix}.")

    def _lost(self, parts: Sequence[OpenPart], why: str) -> GapError:
        return GapError(
            f"a Kafka transaction that the brokers left open in {_names(parts)} is lost: {why}", NEXT_AFTER_GAP
        )


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
    """For people: a-0,2 b-1."""
    grouped = groupby(sorted(map(_place, parts)), key=lambda place: place[0])
    return " ".join(f"{topic}-{','.join(str(number) for _, number in places)}" for topic, places in grouped)
