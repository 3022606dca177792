"""The transactional producer (cdc.ports.stream.Broker)."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import MESSAGE_BYTES_MAX, broker_error, client_settings, kafka_error, new_client
from cdc.kafka.daemon_thread import WAIT_S, begin, call_in_thread, nobody_waits
from cdc.kafka.event_topics import EventTopics
from cdc.kafka.reports import Outage, Undelivered
from cdc.kafka.topic_admin import EndOffsets, TopicAdmin
from cdc.model.errors import BrokerError, ConnectionLost, UnreachableError, WatershedError
from cdc.model.topic_record import EventDestination, TopicRecord
from cdc.ports.stream import WhileWaiting
from cdc.records.kafka_transactions import OpenPart

log = structlog.get_logger(__name__)

_ANY_PARTITION = -1  # librdkafka's RD_KAFKA_PARTITION_UA: the partitioner's
# librdkafka's queue is the only buffer between us and the brokers; when it is full the loop stops reading.
QUEUE_MESSAGES_MAX = 200_000
QUEUE_KIBIBYTES_MAX = 64 * 1024
# Of one topic and partition; brokers refuse one that is larger than a record may be.
BATCH_BYTES_MAX = 1_000_000
# The brokers' default limit is 15 min; a transaction that is open longer was forgotten.
TRANSACTION_TIMEOUT_MS = 120_000
# In which the brokers have put a transaction's end into every partition, once they answer at all.
MARKED_S_MAX = 5.0
# Of brokers that don't answer; later a new session looks at everything again.
AWAY_S_MAX = 60.0
# In which a transaction's end is in the partitions for a broker that works, and until we have noticed that it died.
MARKING_S_MAX = 0.5
# How long the answer to a call is waited for. The coordinator aborts a transaction that is open for longer, so a commit
# that is not answered by then can't be waited for with success. The next session asks what became of it.
ANSWER_S_MAX = TRANSACTION_TIMEOUT_MS / 1000
# The same after a request to stop: brokers that work answer in milliseconds, and the process has 8 s to end.
STOPPING_S_MAX = 3.0
_NEVER = -1


class StoredRecord(NamedTuple):
    """A record as it stands, or is to stand, in a partition."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0  # since 1970; 0: now


class KafkaBroker:
    """Constructing it does not touch the brokers' transaction state; `fence_predecessors` does."""

    def __init__(
        self,
        kafka: KafkaConfig,
        *,
        transactional_id: str,
        admin: TopicAdmin,
        partition_counts: Mapping[str, int],
        events: EventTopics,
        record_bytes_max: Mapping[str, int] | None = None,
        own: Collection[str] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`partition_counts`: of the tables' topics. `record_bytes_max`: what topics took when they were looked at.
        `own`: topics that are written beside them and those of events. `should_stop`: whether the process was asked to
        stop."""
        self.transactional_id = transactional_id
        self._admin = admin
        self._record_bytes_max = dict(record_bytes_max or {})
        self._events = events
        # Topics of events may take less, which an earlier session has met.
        known = (*self._record_bytes_max.values(), *admin.event_bytes_max.values())
        self._batch_bytes = min(BATCH_BYTES_MAX, *known, MESSAGE_BYTES_MAX)
        self._partition_counts = dict(partition_counts)
        self._own = own
        self._should_stop = should_stop
        self._is_open = False
        self._outage = Outage()
        self._committed_at = 0.0  # monotonic seconds
        self._looked_after = self._began_after = 0  # losses: at the last look, and when the transaction began
        self._look: Future[list[OpenPart]] | None = None
        # Not a method of ours: a producer that refers to its owner outlives the session, threads and all.
        self._undelivered = Undelivered()
        self._producer = new_client(
            Producer,
            client_settings(
                kafka,
                **{
                    "transactional.id": transactional_id,
                    "error_cb": self._outage.note,
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                    "partitioner": "murmur2_random",  # what Java's producers do, so that both agree on a key's place
                    "message.max.bytes": MESSAGE_BYTES_MAX,
                    "batch.size": self._batch_bytes,
                    "queue.buffering.max.messages": QUEUE_MESSAGES_MAX,
                    "queue.buffering.max.kbytes": QUEUE_KIBIBYTES_MAX,
                    "linger.ms": 5,
                    "compression.type": "lz4",
                    "delivery.report.only.error": True,
                    "on_delivery": self._undelivered.note,
                },
            ),
        )

    def fence_predecessors(self, while_waiting: WhileWaiting) -> None:
        """`init_transactions`: from now on no earlier producer of this id can write, and what it left is ended."""
        self._until_answered("init_transactions", while_waiting)

    def produce(self, records: Iterable[TopicRecord], while_waiting: WhileWaiting) -> None:
        """See cdc.ports.stream.Broker."""
        topic = ""
        try:
            self._open(while_waiting)
            producer = self._producer
            for topic, key, value, headers, destination in records:
                if destination is not None:
                    event = TopicRecord(topic, key, value, headers, destination)
                    topic, key, value, headers, destination = self._events.accepted(event, while_waiting)
                    self._require_fitting_batches(topic)
                    for told in self._events.untold():
                        self._hand_over(while_waiting, told.topic, told.value, told.key)
                while True:
                    try:
                        if headers is None:
                            producer.produce(topic, value, key or None)
                        elif destination is None:
                            producer.produce(topic, value, key or None, headers=[*headers])
                        else:
                            self._produce_event(topic, key, value, headers, destination)
                        break
                    except BufferError:
                        self._await_room(while_waiting)
            producer.poll(0)
        except KafkaException as exception:
            raise self._translate("produce", exception, topic) from exception
        finally:
            producer = None  # type: ignore[assignment] # a traceback must not keep one alive that is given up

    def put(self, records: Iterable[StoredRecord], while_waiting: WhileWaiting) -> None:
        """Like `produce`, to the partitions that the records name, whatever is open there."""
        topic = ""
        try:
            self._begin()
            for topic, partition, key, value, headers, timestamp_ms in records:
                where = {"partition": partition, "timestamp": timestamp_ms}
                self._hand_over(while_waiting, topic, value, key, headers=[*headers], **where)
        except KafkaException as exception:
            raise self._translate("produce", exception, topic) from exception

    def _open(self, while_waiting: WhileWaiting) -> None:
        if self._is_open:
            self._require_connections()
            return
        if self._look is not None:  # one that goes on would take what comes now for left open
            self._look, self._looked_after = None, _NEVER
        deadline = time.monotonic() + AWAY_S_MAX
        while self._has_lost_brokers():
            if time.monotonic() > deadline:
                raise ConnectionLost("Kafka: the brokers don't say what they left open")
            self._judge(lambda: call_in_thread(self._find_open, while_waiting))
            if self._looked_after == _NEVER:
                while_waiting()
                time.sleep(WAIT_S)
        self._begin()

    def _begin(self) -> None:
        if not self._is_open:
            self._began_after = self._losses()
            self._producer.begin_transaction()
            self._is_open = True

    def _losses(self) -> int:
        """Raises ConnectionLost, BrokerError for a producer that has failed for good."""
        try:
            self._producer.poll(0)  # what the client has noticed
        except KafkaException as exception:
            raise self._translate("the producer has failed", exception, is_final=True) from exception
        return self._outage.losses

    @property
    def has_lost_connection(self) -> bool:
        """To a broker, since somebody last looked at what they left. Raises what `_losses` raises."""
        return self._losses() != self._looked_after

    def _require_connections(self) -> None:
        """Raises ConnectionLost where the open transaction must not go on: the next session looks first."""
        if self._may_be_one_with_the_last():
            raise ConnectionLost("Kafka: a broker was lost while a transaction was open")
        self._began_after = self._losses()  # the next transaction begins with a look

    def _may_be_one_with_the_last(self) -> bool:
        """A broker that died right behind a commit may have died before its end was in the partitions. As long as it is
        away nothing of the transaction that is open now is there, so nothing of it must ever get there, not even its
        abort: it would be both of theirs. Where each partition has another replica in sync, it has a leader all the
        time, and nothing is left open. Later than right behind, the partitions know the transaction that is open; then
        its commit is the one end that is good for both."""
        if self._losses() == self._began_after or self._outage.noted_at - self._committed_at > MARKING_S_MAX:
            return False
        return not self._admin.are_replicated(self._names())

    def look_after_outage(self) -> None:
        """Call it now and then: brokers that were away may have left a transaction hanging (see
        cdc/kafka/hanging_transactions.py). Our next transaction would be one with it, and until then nobody reads on.
        Returns at once. Raises ConnectionLost: the next session ends the hanging transaction."""
        try:
            if self._look is not None:
                if self._look.done():
                    look, self._look = self._look, None
                    self._judge(look.result)
            elif self._is_open:
                self._require_connections()
            elif self._has_lost_brokers():
                self._look = begin(self._find_open)
        except (BrokerError, UnreachableError) as error:
            raise ConnectionLost(error.message) from error  # the next session meets it where a user is told

    def _has_lost_brokers(self) -> bool:
        """Since the last look at what they left; this is one."""
        looked_after, self._looked_after = self._looked_after, self._losses()
        return self._looked_after != looked_after

    def _names(self) -> set[str]:
        """Of the topics that this session writes to."""
        return {*self._partition_counts, *self._events.record_bytes_max, *self._own}

    def _find_open(self) -> list[OpenPart]:
        return self._admin.open_parts(self._names(), MARKED_S_MAX, nobody_waits, self._partition_counts)

    def _judge(self, look: Callable[[], list[OpenPart]]) -> None:
        try:
            found = look()
        except (ConnectionLost, UnreachableError):
            self._looked_after = _NEVER  # they are still away
            return
        except KafkaException as exception:
            raise self._translate("what is open can't be asked", exception, is_final=True) from exception
        if found:
            raise ConnectionLost(f"Kafka: the brokers left a transaction open in {found[0].topic}")

    def still_open(self, names: Collection[str], while_waiting: WhileWaiting) -> list[OpenPart]:
        """What stays open in these topics. Brokers that are away are waited for."""
        while True:
            try:
                return call_in_thread(
                    lambda: self._admin.open_parts(names, MARKED_S_MAX, nobody_waits, names), while_waiting
                )
            except (ConnectionLost, UnreachableError):
                while_waiting()
                time.sleep(WAIT_S)

    def _hand_over(self, while_waiting: WhileWaiting, *record: Any, **more: Any) -> None:
        while True:
            try:
                return self._producer.produce(*record, **more)
            except BufferError:
                self._await_room(while_waiting)

    def _await_room(self, while_waiting: WhileWaiting) -> None:
        self._producer.poll(WAIT_S)
        self._raise_delivery_error()
        self._require_connections()
        while_waiting()

    def _require_fitting_batches(self, topic: str) -> None:
        """The brokers refuse a batch as they do a record, and a producer has one size of them. Raises ConnectionLost:
        the next session's producer knows."""
        bytes_max = self._events.record_bytes_max[topic]
        if bytes_max < self._batch_bytes:
            self._admin.event_bytes_max[topic] = bytes_max
            raise ConnectionLost(f"Kafka: topic {topic} takes {bytes_max} bytes at once, batches have to be smaller")

    def _produce_event(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        destination: EventDestination,
    ) -> None:
        partition = _ANY_PARTITION if destination.partition is None else destination.partition
        self._producer.produce(
            topic,
            value,
            key if destination.has_key else None,
            partition,
            headers=[*headers],
            timestamp=destination.timestamp_ms,
        )

    def commit(self, while_waiting: WhileWaiting) -> None:
        """See cdc.ports.stream.Broker."""
        self._until_answered("commit_transaction", while_waiting)
        self._is_open = False
        self._committed_at = time.monotonic()

    def abort_written(self, while_waiting: WhileWaiting) -> None:
        """When everything that was handed over is in the log, end the transaction without it: each partition that it
        wrote to gets a marker."""
        while self._flush():
            self._raise_delivery_error()
            self._require_connections()
            while_waiting()
        self._until_answered("abort_transaction", while_waiting)
        self._is_open = False

    def _flush(self) -> int:
        """How many records are not in the log yet."""
        try:
            return self._producer.flush(WAIT_S)
        except KafkaException as exception:
            raise self._translate("the producer has failed", exception, is_final=True) from exception

    def abort(self) -> None:
        """See cdc.ports.stream.Broker."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._may_be_one_with_the_last():
                del self._producer  # before it comes to the brokers again
                return
            self._producer.purge()
            self._producer.abort_transaction(5.0)
        except (KafkaException, WatershedError) as error:
            # The next producer of this id ends it.
            said = kafka_error(error).str() if isinstance(error, KafkaException) else error.message
            log.warning("kafka transaction not aborted", error=said)

    def follow(self, partition_counts: Mapping[str, int]) -> None:
        """These are the tables' topics now."""
        self._partition_counts = dict(partition_counts)

    def request_end_offsets(self) -> EndOffsets:
        """See cdc.ports.stream.Broker."""
        return self._admin.request_end_offsets(self._partition_counts)

    def close(self) -> None:
        """Give up what is open and forget the producer."""
        self.abort()

    # ---- errors

    def _until_answered(self, call: str, while_waiting: WhileWaiting) -> None:
        """`call`: the name of one of the producer's, which no frame keeps alive. Raises ConnectionLost when the brokers
        have not answered within ANSWER_S_MAX, or within STOPPING_S_MAX of a request to stop."""
        what = call.removesuffix("_transaction")
        began = time.monotonic()
        deadline = began + ANSWER_S_MAX
        while True:
            try:
                getattr(self._producer, call)(WAIT_S)
            except KafkaException as exception:
                if not kafka_error(exception).retriable():
                    raise self._translate(what, exception) from exception
                if self._is_open:
                    self._require_connections()
                while_waiting()
            else:
                return
            now = time.monotonic()
            if self._should_stop():
                deadline = min(deadline, now + STOPPING_S_MAX)
            if now > deadline:
                raise ConnectionLost(f"Kafka: {what}: the brokers have not answered for {now - began:.0f} s")

    def _raise_delivery_error(self) -> None:
        error = self._undelivered.error
        if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise self._too_large(self._undelivered.topic)

    def _too_large(self, topic: str) -> WatershedError:
        """Sizes were compared before: the topic takes less than it did, or it was somebody else's doing."""
        now = self._admin.describe([topic]).get(topic)
        before = (self._record_bytes_max | self._events.record_bytes_max).get(topic, 0)
        if now is not None and now.record_bytes_max < before:
            return ConnectionLost(
                f"Kafka: topic {topic} takes records of {now.record_bytes_max} bytes, no more {before}"
            )
        return BrokerError(
            f"topic {topic}: a record is larger than the brokers take ({MESSAGE_BYTES_MAX} bytes at most from us)",
            f"raise max.message.bytes of {topic}, or leave the large column out of the publication",
        )

    def _translate(
        self, what: str, exception: KafkaException, topic: str = "", *, is_final: bool = False
    ) -> WatershedError:
        """`is_final`: the producer has failed for good, whatever its error is."""
        error = kafka_error(exception)
        if not topic:
            with suppress(KafkaException):  # raised by a producer that has failed for good
                self._producer.poll(0)  # reports of what was not delivered: they name the cause
        cause = self._undelivered.error or error
        causes = {error.code(), cause.code()}
        if KafkaError.MSG_SIZE_TOO_LARGE in causes:
            return self._too_large(topic or self._undelivered.topic)
        if not causes & _REFUSED and (
            is_final or error.code() in _LOST or error.fatal() or error.txn_requires_abort() or error.retriable()
        ):
            return ConnectionLost(f"Kafka: {what}: {error.str()} ({error.name()})")
        where = f" (topic {self._undelivered.topic})" if self._undelivered.topic else ""
        return broker_error(
            f"{what}{where}", exception, "see the brokers' log; capture resumes from its position record"
        )


# No session to come would fare better.
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
}
_LOST = {
    # What a producer says that has failed for good, whatever it was; a new one says more if it is not over.
    KafkaError._FATAL,
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._STATE,
}
