"""The reports of a producer's callbacks: lost connections and undelivered records."""

import time

from confluent_kafka import KafkaError, Message

from cdc.kafka.client import note_error


class Outage:
    """Counts lost connections to brokers."""

    def __init__(self) -> None:
        self.losses = 0
        self.noted_at = 0.0  # time of the last one, monotonic seconds

    def note(self, error: KafkaError) -> None:
        """Handles librdkafka's `error_cb`."""
        note_error(error)
        if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
            self.losses += 1
            self.noted_at = time.monotonic()


class Undelivered:
    """The error and the topic of the first record that was not delivered."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.topic = ""

    def note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self.error is None:
            self.error, self.topic = error, message.topic() or ""
