"""Hanging transactions: Kafka transactions that the brokers decided on and did not end (KIP-664).

A commit returns when the coordinator has written its decision; a marker in each partition follows. Where a partition
has no leader at that moment Kafka 4.3.1 takes its topic for deleted and leaves the marker out: after `kill -9` of a
single broker, or of all replicas, a transaction can be over for its coordinator and open in the log for good.
(KRaftMetadataCache.getPartitionLeaderEndpoint has nothing to tell of a partition without a leader, which
TransactionMarkerChannelManager understands as a deleted topic.) `read_committed` readers see nothing behind it; and its
records share the fate of the next transaction that the same producer id ends there.

So once earlier producers are fenced, and before anything else is read or written, each partition that capture writes to
is compared: a last stable offset that stays below the high watermark is a hanging transaction. It is aborted, so that
readers go on, and it is a gap: part of it may have been committed in other partitions, or it may have been committed
whole, and the position record with it. A note in state comes first, so that a crash in between is the same gap.
"""

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import structlog
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from cdc.config.settings import Config
from cdc.kafka.broker import KafkaBroker, PartitionRecord
from cdc.kafka.client import broker_error, new_client, reading_settings
from cdc.kafka.compacted import read_records
from cdc.kafka.daemon_thread import nobody_waits
from cdc.kafka.state_reader import State, read_state
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import NEXT_AFTER_GAP, BrokerError, ConnectionLost, GapError
from cdc.model.topics import Topics
from cdc.ports.stream import Probe, WhileWaiting
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
# In which an abort that we have asked for is there, where a broker dies meanwhile and another takes over.
FAILS_OVER_S_MAX: Final = 30.0


class HangingTransactions:
    """Finds and aborts hanging transactions. Only for a broker that has fenced earlier producers."""

    def __init__(self, config: Config, admin: TopicAdmin, broker: KafkaBroker, probe: Probe) -> None:
        self._config = config
        self._topics = Topics(config.topics.prefix)
        self._admin = admin
        self._broker = broker
        self._probe = probe

    def require_none(self, while_waiting: WhileWaiting) -> None:
        """Raises GapError where a transaction of capture's was hanging, after aborting it; BrokerError,
        UnreachableError, ConnectionLost."""
        state = read_state(self._config)
        noted = () if state.hanging is None else state.hanging.parts
        parts = list({_place(part): part for part in (*self._find(state, while_waiting), *noted)}.values())
        if not parts:
            return
        if set(parts) != set(noted):
            log.warning("Kafka transactions hang", where=_names(parts))
            self._note(HangingTransactionRecord(parts=tuple(parts)).encode(), while_waiting)
        self._abort(parts, while_waiting)
        self._probe("hanging.aborted")
        open_places = self._open_after_abort(parts, while_waiting)
        closed = [part for part in parts if _place(part) not in open_places]
        lost = [part for part in closed if self._is_own(part.topic) or self._lacks_records(part, while_waiting)]
        if lost:
            raise GapError(
                f"a Kafka transaction that the brokers did not end was aborted in {_names(lost)}, whether it had been "
                "committed or not",
                NEXT_AFTER_GAP,
            )
        if open_places:
            foreign = [part for part in parts if part not in closed]
            log.warning("somebody else's Kafka transaction is open in a topic of ours", where=_names(foreign))
        else:  # behind a foreign one ours may have been, which the next start sees
            self._note(None, while_waiting)

    def _find(self, state: State, while_waiting: WhileWaiting) -> list[OpenPart]:
        """The open parts of every topic that an earlier transaction may have written to."""
        names = {*self._topics.written, *state.event_topics}
        names |= {self._topics.table(table) for table in self._config.source.table_ids}
        names |= set() if state.position is None else state.position.topics.keys()
        if self._config.outbox.is_used:
            names |= {record.topic for record in self._open_event_topics()}
        return self._admin.open_parts(names, SETTLES_S, while_waiting, [self._topics.state])

    def _open_event_topics(self) -> list[EventTopicRecord]:
        """Topics of events whose first event is in the transaction that is open."""
        state, where = [self._topics.state], f"{self._topics.state}, beyond what is committed"
        return [
            EventTopicRecord.decode(message.value() or b"", where)
            for part in self._admin.open_parts(state, 0, nobody_waits, state)
            for message in self._read(part, nobody_waits, "read_uncommitted")
            if (message.key() or b"").startswith(EVENT_TOPIC_KEY.encode())
        ]

    def _note(self, value: bytes | None, while_waiting: WhileWaiting) -> None:
        """Commit the note of a hanging transaction, or its removal (None)."""
        self._broker.put([PartitionRecord(self._topics.state, 0, HANGING_KEY.encode(), value)], while_waiting)
        self._broker.commit(while_waiting)

    def _abort(self, parts: Sequence[OpenPart], while_waiting: WhileWaiting) -> None:
        """Abort a transaction that writes to each part; committed readers see none of its records."""
        key = HANGING_KEY.encode()
        self._broker.put([PartitionRecord(part.topic, part.partition, key, b"") for part in parts], while_waiting)
        self._broker.abort_written(while_waiting)

    def _open_after_abort(self, parts: Sequence[OpenPart], while_waiting: WhileWaiting) -> set[tuple[str, int]]:
        """Partitions of topics of events in which an application has a transaction open. Raises BrokerError where
        nobody else may write."""
        deadline = time.monotonic() + FAILS_OVER_S_MAX
        while True:
            places = {_place(part) for part in self._broker.still_open({part.topic for part in parts}, while_waiting)}
            own = [part for part in parts if _place(part) in places and self._is_own(part.topic)]
            is_away = self._broker.has_lost_connection
            if not own or not is_away or time.monotonic() > deadline:
                break
        if own and is_away:
            raise ConnectionLost(f"Kafka: a hanging transaction in {_names(own)} is still open")
        if own:
            first = own[0]
            raise BrokerError(
                f"a Kafka transaction hangs in {_names(own)}, by a producer id that is not capture's any more",
                f"kafka-transactions.sh --bootstrap-server … abort --topic {first.topic} --partition {first.partition} "
                f"--start-offset {first.start}, then cdc snapshot --heal",
            )
        return places & {_place(part) for part in parts}

    def _is_own(self, topic: str) -> bool:
        """Whether only capture writes there; to topics of events applications may write as well."""
        return topic in self._topics.own or topic.startswith(f"{self._topics.prefix}.")

    def _lacks_records(self, part: OpenPart, while_waiting: WhileWaiting) -> bool:
        """Whether a part that is closed has records that were not committed: ours, or of an application that aborted
        them just now, which can't be told apart."""
        written, committed = (
            sum(1 for _ in self._read(part, while_waiting, isolation))
            for isolation in ("read_uncommitted", "read_committed")
        )
        return written > committed

    def _read(self, part: OpenPart, while_waiting: WhileWaiting, isolation: str) -> list[Message]:
        """The part's records. They fit into memory: they were one Kafka transaction."""
        settings = reading_settings(
            self._config.kafka,
            "watershed-reader",
            **{"isolation.level": isolation, "enable.partition.eof": True, "auto.offset.reset": "error"},
        )
        consumer = new_client(Consumer, settings)
        try:
            begin = TopicPartition(part.topic, part.partition, part.start)
            read = read_records(consumer, begin, part.end, while_waiting)
            return [message for message in read if (message.offset() or 0) < part.end]
        except KafkaException as exception:
            raise broker_error("a hanging transaction can't be read", exception) from exception
        finally:
            consumer.close()


def _place(part: OpenPart) -> tuple[str, int]:
    return part.topic, part.partition


def _names(parts: Iterable[OpenPart]) -> str:
    """Topics with their partitions: a-0,2 b-1."""
    grouped = groupby(sorted(map(_place, parts)), key=lambda place: place[0])
    return " ".join(f"{topic}-{','.join(str(number) for _, number in places)}" for topic, places in grouped)
