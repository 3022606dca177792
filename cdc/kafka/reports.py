"""What a producer's callbacks report: connections that were lost, records that did not arrive."""

import time

from confluent_kafka import KafkaError, Message

from cdc.kafka.client import note_error


class Outage:
    """How often a connection to a broker was lost."""

    def __init__(self) -> None:
        self.losses = 0
        self.noted_at = 0.0  # the last one, monotonic seconds

    def note(self, error: KafkaError) -> None:
        """librdkafka's `error_cb`."""
        note_error(error)
        if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
            self.losses += 1
            self.noted_at = time.monotonic()


class Undelivered:
    """The first record that did not arrive: why, and where it was meant to go."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.topic = ""

    def note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self.error is None:
            self.error, self.topic = error, message.topic() or ""
