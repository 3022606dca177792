"""Reads signals, the requests of an operator to capture, and produces single records, such as answers to them."""

import time
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import (
    METADATA_MS,
    NEXT_REACHABLE,
    Undelivered,
    cause_of,
    client_settings,
    new_client,
    require_topics,
    translated,
)
from cdc.kafka.topic_reader import TopicReader
from cdc.model.control import SignalRecord
from cdc.model.errors import BrokerError, UnreachableError, WatershedError
from cdc.model.topic_record import TopicRecord
from cdc.ports.stream import Signal

log = structlog.get_logger(__name__)

SIGNALS_MAX: Final = 100  # signals of one poll
QUEUE_KIBIBYTES_MAX: Final = 1024
FETCH_WAIT_MS: Final = 500  # for the next signal; signals are few
WARNING_INTERVAL_S: Final = 60.0
ACKNOWLEDGE_S_MAX: Final = 15.0


class SignalReader:
    """Implements cdc.ports.stream.Signals. Errors are retried and logged, because capture must not end for them."""

    def __init__(self, kafka: KafkaConfig, topic: str, offset: int | None) -> None:
        """`offset`: of the first signal that has not taken effect; None: all signals in the topic."""
        self._topic = topic
        # Not a bound method: see KafkaBroker.
        self._errors = _ErrorLog(topic)
        settings = {
            # If the offset is no longer in the topic, the oldest signal comes next.
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "queued.max.messages.kbytes": QUEUE_KIBIBYTES_MAX,
            "topic.metadata.propagation.max.ms": METADATA_MS,  # after that a missing topic is an error
            "error_cb": self._errors.note,
        }
        self._reader = TopicReader(kafka, settings=settings, name="watershed-signals")
        self._reader.follow(topic, start=offset)

    def poll(self) -> list[Signal]:
        """Implements cdc.ports.stream.Signals. Also empty while the topic does not exist or no broker answers."""
        try:
            return [self._signal(message) for message in self._reader.poll(0, SIGNALS_MAX)]
        except (BrokerError, UnreachableError) as error:
            if (cause := cause_of(error)) is not None:
                self._errors.note(cause)
            return []

    def close(self) -> None:
        self._reader.close()

    def _signal(self, message: Message) -> Signal:
        offset = message.offset()
        assert offset is not None
        key, value = message.key(), message.value()
        identity = key.decode("utf-8", "replace") if key else f"offset-{offset}"
        try:
            where = f"topic {self._topic}, offset {offset}"
            return Signal(identity, offset, SignalRecord.decode(value or b"", where), "")
        except WatershedError as error:
            return Signal(identity, offset, None, error.message)


class _ErrorLog:
    """Logs why signals can't be read, at most once in WARNING_INTERVAL_S."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._logged_at = float("-inf")

    def note(self, error: KafkaError) -> None:
        now = time.monotonic()
        if error.code() == KafkaError._TRANSPORT or now - self._logged_at < WARNING_INTERVAL_S:
            return  # a single lost connection is not yet a problem
        self._logged_at = now
        log.warning("signals can't be read", topic=self._topic, error=error.str(), code=error.name())


def deliver(kafka: KafkaConfig, record: TopicRecord) -> None:
    """Produces one record outside of Kafka transactions, which fences no producer. Returns when the brokers have
    acknowledged it. Raises WatershedError if the topic does not exist, UnreachableError, BrokerError."""
    undelivered = Undelivered()
    producer = new_client(
        Producer,
        client_settings(
            kafka,
            **{"enable.idempotence": True, "linger.ms": 0, "delivery.timeout.ms": int(ACKNOWLEDGE_S_MAX * 1000)},
        ),
    )
    require_topics(producer, [record.topic])
    with translated(f"can't write to topic {record.topic}"):
        producer.produce(
            record.topic,
            key=record.key,
            value=record.value,
            headers=[*(record.headers or ())],
            on_delivery=undelivered.note,
        )
        waiting = producer.flush(ACKNOWLEDGE_S_MAX + 1)
        if undelivered.error is not None:
            raise KafkaException(undelivered.error)
    if waiting:
        raise UnreachableError(
            f"Kafka: topic {record.topic}: no answer in {ACKNOWLEDGE_S_MAX:.0f} s; the record may have arrived",
            NEXT_REACHABLE,
        )
