"""The transactional producer (cdc.ports.stream.Broker)."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from cdc.config.settings import PipelineConfig
from cdc.kafka.client import (
    MESSAGE_BYTES_MAX,
    Outage,
    Undelivered,
    broker_error,
    kafka_error,
    new_client,
    writing_settings,
)
from cdc.kafka.daemon_thread import WAIT_S, start_thread
from cdc.kafka.event_topics import EventTopicCreator
from cdc.kafka.topic_admin import EndOffsets, TopicAdmin, TopicDescription, record_limits
from cdc.model.control import OpenPart
from cdc.model.errors import BrokerError, ConnectionLost, UnreachableError, WatershedError
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.stream import WhileWaiting

log = structlog.get_logger(__name__)

_ANY_PARTITION = -1  # librdkafka's RD_KAFKA_PARTITION_UA: the partitioner decides
# librdkafka's queue is the only buffer between us and the brokers; while it is full the loop does not read.
QUEUE_MESSAGES_MAX = 200_000
# A batch of one topic and partition; brokers refuse one that is larger than the maximum record.
BATCH_BYTES_MAX = 1_000_000
# The brokers' default maximum is 15 min; a transaction that is open for longer than this is aborted by them.
TRANSACTION_TIMEOUT_MS = 120_000
# Seconds within which reachable brokers have written the end of a transaction to every partition.
MARKED_S_MAX = 5.0
# Seconds to wait for brokers that don't answer; then a new session begins with its own checks.
AWAY_S_MAX = 60.0
# Seconds within which a working broker has written the end of a transaction, and we have noticed that it died.
MARKING_S_MAX = 0.5
# Maximum wait for the answer to a call. The coordinator aborts a transaction that is open for longer, so a commit
# without an answer by then can't succeed any more. The next session finds out what became of it.
ANSWER_S_MAX = TRANSACTION_TIMEOUT_MS / 1000
# The same after a request to stop: working brokers answer in milliseconds, and the process has 8 s to end.
STOPPING_S_MAX = 3.0
_NEVER = -1


Encode = Callable[[Iterable[TopicRecord], WhileWaiting], Iterable[TopicRecord]]


class StoredRecord(NamedTuple):
    """A record with its place in a partition."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0  # since 1970; 0: now


class KafkaBroker:
    """Implements cdc.ports.stream.Broker: the one producer of a prefix. Whoever writes its topics fences the previous
    writer. Constructing it does not touch the brokers' transaction state; `fence_predecessors` does."""

    def __init__(
        self,
        config: PipelineConfig,
        admin: TopicAdmin,
        topics: Iterable[TopicDescription],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`topics`: those of tables. `should_stop`: returns whether the process was asked to stop."""
        self.transactional_id = f"watershed-{config.topics.prefix}"
        self._kafka = config.kafka
        self._admin = admin
        self._events = EventTopicCreator(admin, config.topics, config.kafka)
        self._own = Topics(config.topics.prefix).written
        self._should_stop = should_stop
        self.encode: Encode | None = None
        """Encodes the records of tables; None: they are JSON."""
        self.follow(topics)
        # Topics of events may have lower limits, which an earlier session found.
        known = (*self._record_bytes_max.values(), *admin.event_bytes_max.values())
        self._batch_bytes = min(BATCH_BYTES_MAX, *known, MESSAGE_BYTES_MAX)
        self._is_open = False
        self._is_committing = False  # a commit has no answer yet
        self._stop_seen_at: float | None = None  # when the request to stop was noticed, monotonic seconds
        self._outage = Outage()
        self._committed_at = 0.0  # monotonic seconds
        # Lost connections at the last check for hanging transactions, and when the transaction began
        self._checked_losses = self._losses_at_begin = 0
        self._check: Future[list[OpenPart]] | None = None
        # Not a bound method: a producer that refers to its owner outlives the session, with its threads.
        self._undelivered = Undelivered()
        self._producer = new_client(
            Producer,
            writing_settings(
                config.kafka,
                self.transactional_id,
                **{
                    "error_cb": self._outage.note,
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                    "batch.size": self._batch_bytes,
                    "queue.buffering.max.messages": QUEUE_MESSAGES_MAX,
                    "linger.ms": 5,
                    "delivery.report.only.error": True,
                    "on_delivery": self._undelivered.note,
                },
            ),
        )

    def fence_predecessors(self, while_waiting: WhileWaiting) -> None:
        """Calls `init_transactions`: from now on no earlier producer of this id can write, and its open transaction is
        ended."""
        self._until_answered("init_transactions", while_waiting)

    def produce(self, records: Iterable[TopicRecord], while_waiting: WhileWaiting) -> None:
        topic = ""
        try:
            self._open(while_waiting)
            producer = self._producer
            for record in records if self.encode is None else self.encode(records, while_waiting):
                topic, key, value, headers, destination = record
                if destination is not None:
                    self._produce_event(record, while_waiting)
                    continue
                while True:
                    try:
                        if headers is None:
                            producer.produce(topic, value, key or None)
                        else:
                            producer.produce(topic, value, key or None, headers=[*headers])
                        break
                    except BufferError:
                        self._await_room(while_waiting)
            producer.poll(0)
        except KafkaException as exception:
            raise self._translate("produce", exception, topic) from exception
        finally:
            producer = None  # type: ignore[assignment] # a traceback must not keep a discarded producer alive

    def put(self, records: Iterable[StoredRecord], while_waiting: WhileWaiting) -> None:
        """Produces records to the partitions that they name, even where a transaction hangs."""
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
        deadline = time.monotonic() + AWAY_S_MAX
        self.check_after_outage()
        # A check in progress would take the new transaction for a hanging one.
        while self._check is not None or self.has_lost_connection:
            if time.monotonic() > deadline:
                raise ConnectionLost("Kafka: the brokers don't say whether a transaction is hanging")
            while_waiting()
            if self._check is not None:
                wait([self._check], WAIT_S)
            else:  # brokers are unreachable
                time.sleep(WAIT_S)
            self.check_after_outage()
        self._begin()

    def _begin(self) -> None:
        if not self._is_open:
            self._losses_at_begin = self._losses()
            self._producer.begin_transaction()
            self._is_open = True

    def _losses(self) -> int:
        """Returns the number of lost connections. Raises ConnectionLost or BrokerError if the producer has failed for
        good."""
        try:
            self._producer.poll(0)  # serves the error callback
        except KafkaException as exception:
            raise self._translate("the producer has failed", exception, is_final=True) from exception
        return self._outage.losses

    @property
    def has_lost_connection(self) -> bool:
        """True if a connection to a broker was lost since the last check for hanging transactions. Raises what
        `_losses` raises."""
        return self._losses() != self._checked_losses

    def _require_connections(self) -> None:
        """Raises ConnectionLost if the open transaction must not continue; the next session checks for hanging
        transactions first."""
        if self._may_merge_with_last():
            raise ConnectionLost("Kafka: a broker was lost while a transaction was open")
        self._losses_at_begin = self._losses()  # the next transaction begins with a check

    def _may_merge_with_last(self) -> bool:
        """Returns whether the open transaction may merge with the previous one. A broker that died right after a commit
        may have died before the end of that transaction was in its partitions. While it is away it has nothing of the
        open transaction, and must never get anything of it, not even an abort, which would apply to both. Where each
        partition has another replica in sync, it always has a leader and no transaction hangs. When a broker dies
        later, the partitions know the open transaction; then its commit is the right end for both."""
        if self._losses() == self._losses_at_begin or self._outage.noted_at - self._committed_at > MARKING_S_MAX:
            return False
        return not self._admin.are_replicated(self._names())

    def check_after_outage(self) -> None:
        """Checks, when called now and then, whether brokers that were unreachable left a transaction hanging (see
        cdc/kafka/hanging_transactions.py): our next transaction would merge with it, and until then no reader gets past
        it. Does not wait. Raises ConnectionLost; the next session ends the hanging transaction."""
        try:
            if self._check is not None:
                if self._check.done():
                    check, self._check = self._check, None
                    self._evaluate(check)
            elif self._is_open:
                self._require_connections()
            elif self.has_lost_connection:
                self._checked_losses = self._losses()
                self._check = start_thread(self._find_hanging)
        except (BrokerError, UnreachableError) as error:
            raise ConnectionLost(error.message) from error  # the next session reports it to the user

    def _names(self) -> set[str]:
        return {*self._partition_counts, *self._events.record_bytes_max, *self._own}

    def _find_hanging(self) -> list[OpenPart]:
        return self._admin.open_parts(self._names(), MARKED_S_MAX, self._partition_counts)

    def _evaluate(self, check: "Future[list[OpenPart]]") -> None:
        try:
            found = check.result()
        except (ConnectionLost, UnreachableError):
            self._checked_losses = _NEVER  # the brokers are still unreachable
            return
        except KafkaException as exception:
            raise self._translate("can't check for hanging transactions", exception, is_final=True) from exception
        if found:
            raise ConnectionLost(f"Kafka: a transaction hangs in topic {found[0].topic}")

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
        """Raises ConnectionLost if the topic refuses batches of the producer's size, so that the next session's
        producer makes smaller ones. Brokers limit batches as they limit records, and a producer has one size of
        batches."""
        bytes_max = self._events.record_bytes_max[topic]
        if bytes_max < self._batch_bytes:
            self._admin.event_bytes_max[topic] = bytes_max
            raise ConnectionLost(f"Kafka: topic {topic} accepts {bytes_max} bytes at once, so batches must be smaller")

    def _produce_event(self, record: TopicRecord, while_waiting: WhileWaiting) -> None:
        """Produces an event, or the dead letter that replaces it."""
        topic, key, value, headers, destination = self._events.accepted(record, while_waiting)
        self._require_fitting_batches(topic)
        for note in self._events.unrecorded():
            self._hand_over(while_waiting, note.topic, note.value, note.key)
        assert destination is not None, "a dead letter has one as well"
        partition = _ANY_PARTITION if destination.partition is None else destination.partition
        more = {"headers": [*(headers or ())], "timestamp": destination.timestamp_ms}
        self._hand_over(while_waiting, topic, value, key if destination.has_key else None, partition, **more)

    def commit(self, while_waiting: WhileWaiting) -> None:
        """Waits until everything that was produced is in the log, then commits, by one call in a thread: if
        librdkafka's thread does not get to a call within its time, as on an overloaded machine, it forgets the call,
        takes the answer to an earlier one for that of an abort, and ends the process."""
        self._deliver(while_waiting)
        self._is_committing = True
        self._await_commit(while_waiting)
        self._is_committing = self._is_open = False
        self._committed_at = time.monotonic()

    def _await_commit(self, while_waiting: WhileWaiting) -> None:
        began = time.monotonic()
        while True:
            answer = start_thread(partial(self._producer.commit_transaction, ANSWER_S_MAX))
            while not wait([answer], WAIT_S).done:
                self._require_time("commit", began)
                self._losses()
                while_waiting()
            error = answer.exception()
            if error is None:
                return
            if not isinstance(error, KafkaException):
                raise error
            if not kafka_error(error).retriable():
                self._is_committing = False
                raise self._translate("commit", error) from error
            self._require_time("commit", began)
            self._losses()
            while_waiting()

    def flush_and_abort(self, while_waiting: WhileWaiting) -> None:
        """Waits until everything that was produced is in the log, then aborts: each partition with records gets an
        abort marker."""
        self._deliver(while_waiting)
        self._until_answered("abort_transaction", while_waiting)
        self._is_open = False

    def _deliver(self, while_waiting: WhileWaiting) -> None:
        began = time.monotonic()
        while self._flush():
            self._raise_delivery_error()
            self._require_connections()
            self._require_time("flush", began)
            while_waiting()

    def _flush(self) -> int:
        """Returns the number of records that are not in the log yet."""
        try:
            return self._producer.flush(WAIT_S)
        except KafkaException as exception:
            raise self._translate("the producer has failed", exception, is_final=True) from exception

    def abort(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._is_committing or self._may_merge_with_last():
                del self._producer  # before anything of it reaches the brokers again
                return
            # Drops what was not sent, and waits for the rest: records that arrived later would not be aborted.
            self._producer.abort_transaction(5.0)
        except (KafkaException, WatershedError) as error:
            # The next producer of this id aborts the transaction.
            message = kafka_error(error).str() if isinstance(error, KafkaException) else error.message
            log.warning("could not abort the Kafka transaction", error=message)

    def follow(self, topics: Iterable[TopicDescription]) -> None:
        """Takes the topics of the tables that are captured from now on."""
        self._described = list(topics)
        self._partition_counts = {topic.name: topic.partition_count for topic in self._described}
        self._record_bytes_max = record_limits(self._kafka, self._described)

    def request_end_offsets(self) -> EndOffsets:
        """Requests the ends of all partitions that the tables' topics have now: the producer uses new ones at once."""
        return self._admin.request_ends_of(self._described)

    # ---- errors

    def _until_answered(self, call: str, while_waiting: WhileWaiting) -> None:
        """Calls the producer's method `call` until the brokers answer. (A name, so that no frame keeps the producer
        alive.) Raises ConnectionLost if they do not answer within ANSWER_S_MAX, or STOPPING_S_MAX after a request to
        stop."""
        what = call.removesuffix("_transaction")
        began = time.monotonic()
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
            self._require_time(what, began)

    def _require_time(self, what: str, began: float) -> None:
        """Raises ConnectionLost if the brokers have not answered for too long. `began`: monotonic seconds."""
        now = time.monotonic()
        if self._stop_seen_at is None and self._should_stop():
            self._stop_seen_at = now
        stops_s = 0.0 if self._stop_seen_at is None else now - max(began, self._stop_seen_at)
        if now - began > ANSWER_S_MAX or stops_s > STOPPING_S_MAX:
            raise ConnectionLost(f"Kafka: {what}: the brokers have not answered for {now - began:.0f} s")

    def _raise_delivery_error(self) -> None:
        error = self._undelivered.error
        if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise self._too_large(self._undelivered.topic)

    def _too_large(self, topic: str) -> WatershedError:
        """Returns the error for a record that is too large although its size was checked: the limit of the topic was
        lowered, or it is not the topic that refused."""
        now = self._admin.describe([topic]).get(topic)
        before = (self._record_bytes_max | self._events.record_bytes_max).get(topic, 0)
        if now is not None and now.record_bytes_max < before:
            return ConnectionLost(
                f"Kafka: topic {topic} takes records of {now.record_bytes_max} bytes, instead of {before}"
            )
        return BrokerError(
            f"topic {topic}: a record is larger than the brokers take ({MESSAGE_BYTES_MAX} bytes at most from capture)",
            f"raise max.message.bytes of {topic}, or leave the large column out of the publication",
        )

    def _translate(
        self, what: str, exception: KafkaException, topic: str = "", *, is_final: bool = False
    ) -> WatershedError:
        """Returns our error for a KafkaException. `is_final`: the producer has failed for good, whichever error it
        reports."""
        error = kafka_error(exception)
        if not topic:
            with suppress(KafkaException):  # a failed producer raises here too
                self._producer.poll(0)  # delivery reports name the cause
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


# Errors that a new session would meet again.
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
    # Reported by a producer that has failed for good, whatever the cause; a new producer reports the cause if it
    # persists.
    KafkaError._FATAL,
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._STATE,
}
