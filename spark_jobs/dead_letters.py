"""The dead letters of one generation of a sink, as its driver keeps them: followed in their topic, and published before
a position that covers their records. Not for use by two threads at once."""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.config.settings import KafkaConfig, TopicConfig
from cdc.kafka.client import NEXT_REACHABLE, broker_error, client_settings, new_client
from cdc.kafka.compacted import CompactedTail
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import UnreachableError
from cdc.model.rejected_rows import RejectedRow, dead_letter_generation
from cdc.model.topics import Topics
from spark_jobs.rejections import DeadLetterUpdates

ACKNOWLEDGE_S_MAX: Final = 15.0


class DeadLetterQueue(Protocol):
    """A sink loop's access to its dead letters."""

    @property
    def open(self) -> Mapping[str, int]:
        """Returns dead_letter_key → the version that was rejected."""

    def follow(self) -> None:
        """Reads what others did to the topic: an operator discards dead letters."""

    def read_to_end(self) -> None:
        """Follows the topic up to what it has now. Raises BrokerError, UnreachableError."""

    def publish(self, dead_letters: DeadLetterUpdates) -> None:
        """Returns when the brokers have them. Raises BrokerError, UnreachableError."""


class DeadLetterProducer:
    """Publishes dead letters of a sink. Not thread-safe."""

    def __init__(self, kafka: KafkaConfig, prefix: str, sink: str) -> None:
        """Raises ConfigError, BrokerError."""
        self._topic = Topics(prefix).sink_dead_letter(sink)
        self._error: KafkaError | None = None
        self._offsets: dict[str, int] = {}
        settings = {"enable.idempotence": True, "linger.ms": 5}
        settings["delivery.timeout.ms"] = int(ACKNOWLEDGE_S_MAX * 1000)
        self._producer = new_client(Producer, client_settings(kafka, **settings))

    def publish(self, dead_letters: DeadLetterUpdates) -> dict[str, int]:
        """Returns key → offset when the brokers have them. Raises BrokerError, UnreachableError."""
        self._error, self._offsets = None, {}
        if not dead_letters:
            return {}
        try:
            for key, dead_letter in dead_letters.items():
                value = None if dead_letter is None else dead_letter.encode()
                self._producer.produce(self._topic, key=key.encode(), value=value, on_delivery=self._delivered)
                self._producer.poll(0)
            waiting = self._producer.flush(ACKNOWLEDGE_S_MAX + 1)
        except (KafkaException, BufferError) as exception:
            error = exception if isinstance(exception, KafkaException) else KafkaException(KafkaError(KafkaError._FAIL))
            raise broker_error(f"can't write to topic {self._topic}", error) from exception
        if self._error is not None:
            raise broker_error(f"can't write to topic {self._topic}", KafkaException(self._error))
        if waiting:
            raise UnreachableError(
                f"Kafka: topic {self._topic}: no answer in {ACKNOWLEDGE_S_MAX:.0f} s", NEXT_REACHABLE
            )
        return self._offsets

    def close(self) -> None:
        """Does not wait for anything: `publish` does."""
        self._producer.flush(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._error = self._error or error
        if error is None:
            self._offsets[(message.key() or b"").decode()] = message.offset() or 0


class DeadLetterTopic:
    """Implements DeadLetterQueue. Creates the topic if it does not exist."""

    def __init__(self, kafka: KafkaConfig, topics: TopicConfig, sink: str, generation: int) -> None:
        """Opens the topic. Raises BrokerError, UnreachableError."""
        self._generation = generation
        self._topic = Topics(topics.prefix).sink_dead_letter(sink)
        TopicAdmin(kafka).create(topics, {"sink_dead_letter": [self._topic]})
        self._open: dict[str, int] = {}
        self._own: dict[str, int] = {}  # key → offset of our newest record of it, until that is read back
        self._tail = CompactedTail(kafka, [self._topic])
        try:
            self._tail.read_to_end()
            for key in self._tail.latest[self._topic]:
                self._take(key)
            self._producer = DeadLetterProducer(kafka, topics.prefix, sink)
        except BaseException:
            self._tail.close()
            raise

    @property
    def open(self) -> Mapping[str, int]:
        return self._open

    def follow(self) -> None:
        changed = self._tail.poll(0)
        for _, key in changed:
            # An earlier record than ours of this key says nothing any more.
            if self._own.get(key, -1) < self._tail.reached(self._topic):
                self._own.pop(key, None)
                self._take(key)

    def read_to_end(self) -> None:
        changed = self._tail.read_to_end()
        for key in {*(key for _, key in changed), *self._own}:
            self._take(key)
        self._own.clear()

    def close_others(self, generations: Collection[int]) -> None:
        """Closes the dead letters of all other generations: their stores are gone. Raises as `publish`."""
        latest = self._tail.latest[self._topic]
        self.publish({key: None for key in latest if dead_letter_generation(key) not in generations})

    def publish(self, dead_letters: DeadLetterUpdates) -> None:
        self._own |= self._producer.publish(dead_letters)
        for key, dead_letter in dead_letters.items():
            if dead_letter is None:
                self._open.pop(key, None)
            else:
                self._open[key] = dead_letter.version

    def close(self) -> None:
        """Does nothing: publish waits for each record."""
        self._tail.close()
        self._producer.close()

    def _take(self, key: str) -> None:
        if dead_letter_generation(key) != self._generation:
            return
        value = self._tail.latest[self._topic].get(key)
        if value is None:
            self._open.pop(key, None)
        else:
            self._open[key] = RejectedRow.decode(value, f"topic {self._topic}, key {key}").version
