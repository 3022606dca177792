"""Publishes a sink's applied position, its requests to end a batch, and the progress of its rebuild."""

import threading
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import NEXT_REACHABLE, broker_error, client_settings, new_client
from cdc.model.control import Record
from cdc.model.errors import BrokerError
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import Topics

ACKNOWLEDGE_S_MAX: Final = 15.0


class ProgressWriter:
    """Publishes with one producer; each record is acknowledged before `publish` returns."""

    def __init__(self, kafka: KafkaConfig, topics: Topics) -> None:
        self._topic = topics.progress
        self._error: KafkaError | None = None
        self._lock = threading.Lock()
        self._producer = new_client(
            Producer,
            client_settings(
                kafka,
                **{"enable.idempotence": True, "linger.ms": 0, "delivery.timeout.ms": int(ACKNOWLEDGE_S_MAX * 1000)},
            ),
        )

    def publish(self, record: SinkRecord) -> None:
        """Publishes a record. Raises BrokerError."""
        self.send(record)

    def send(self, record: Record) -> None:
        """Publishes any record. Raises BrokerError. Any thread may call it."""
        with self._lock:
            self._error = None
            try:
                self._producer.produce(
                    self._topic, key=record.record_key.encode(), value=record.encode(), on_delivery=self._delivered
                )
                waiting = self._producer.flush(ACKNOWLEDGE_S_MAX + 1)
            except KafkaException as exception:
                raise broker_error(f"can't write to topic {self._topic}", exception) from exception
            if self._error is not None:
                raise broker_error(f"can't write to topic {self._topic}", KafkaException(self._error))
            if waiting:
                raise BrokerError(f"Kafka: topic {self._topic}: no answer in {ACKNOWLEDGE_S_MAX:.0f} s", NEXT_REACHABLE)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._error = error

    def close(self) -> None:
        """Does nothing: publish waits for each record."""
        self._producer.flush(0)
