"""The dead letters of one generation of a sink, as its driver keeps them: followed in their topic, and published before
a position that covers their records. Not for use by two threads at once."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.config.settings import KafkaConfig, TopicConfig
from cdc.kafka.client import NEXT_REACHABLE, broker_error, client_settings, new_client
from cdc.kafka.compacted import CompactedTail
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import UnreachableError
from cdc.model.events import VERSION_HEADER, TableId
from cdc.model.rejected_rows import RejectedRow, dead_letter_generation, dead_letter_table
from cdc.model.topics import Topics
from spark_jobs.rejections import Accepted, DeadLetterUpdates

ACKNOWLEDGE_S_MAX: Final = 15.0

Headers = Sequence[tuple[str, bytes]]


class OpenDeadLetters:
    """The open dead letters of one generation, from the records of their topic in order. Pure.

    A task that Spark has given up may publish for a while. What it says of an older version than the open letter's
    must not hide that row: the letter is to be published again.
    """

    def __init__(self, generation: int) -> None:
        self.versions: dict[str, int] = {}  # by dead_letter_key
        self._generation = generation
        self._rows: dict[str, RejectedRow] = {}
        self._own: dict[str, int] = {}  # key → offset of our newest record of it, until that is read back
        self._hidden: DeadLetterUpdates = {}  # what an older record came after

    def put(self, updates: DeadLetterUpdates, offsets: Mapping[str, int]) -> None:
        """Takes what this process has published, and the offset of each key's record."""
        for key, update in updates.items():
            if isinstance(update, RejectedRow):
                self.versions[key], self._rows[key] = update.version, update
            else:
                self._close(key)
            self._hidden.pop(key, None)
        self._own |= offsets

    def add(self, message: Message) -> None:
        """Adds a record of the topic."""
        key, offset = (message.key() or b"").decode("utf-8", "replace"), message.offset() or 0
        if dead_letter_generation(key) != self._generation:
            return
        own, known = self._own.get(key, -1), self.versions.get(key)
        if offset >= own:
            self._own.pop(key, None)
        value = message.value()
        row = None if value is None else RejectedRow.decode(value, f"topic {message.topic()}, key {key}")
        version = _accepted_version(message.headers()) if row is None else row.version
        is_newer = known is not None and version is not None and version > known
        if offset == own or (offset < own and not is_newer):  # an earlier record than ours says nothing any more
            return
        if offset < own:  # ours has hidden it
            self._hidden[key] = row or Accepted(version or 0)
        elif known is not None and version is not None and version < known:
            self._hidden[key] = self._rows[key]
            return
        else:
            self._hidden.pop(key, None)
        if row is None:
            self._close(key)
        else:
            self.versions[key], self._rows[key] = row.version, row

    @property
    def rows(self) -> Mapping[str, RejectedRow]:
        """Returns the open dead letters by their keys."""
        return self._rows

    def hidden(self) -> DeadLetterUpdates:
        """Returns what is to be published again."""
        return dict(self._hidden)

    def _close(self, key: str) -> None:
        self.versions.pop(key, None)
        self._rows.pop(key, None)


def adopted_dead_letters(
    former: Mapping[str, RejectedRow], generation: int, without: Collection[TableId]
) -> DeadLetterUpdates:
    """Returns the dead letters of a former generation as those of this one, except for some tables."""
    return {
        f"{generation}/{key.partition('/')[2]}": row
        for key, row in former.items()
        if dead_letter_table(key) not in without
    }


def record_of(update: RejectedRow | Accepted | None) -> tuple[bytes | None, Headers]:
    """Returns the value and the headers of a record in the topic of dead letters."""
    if isinstance(update, RejectedRow):
        return update.encode(), []
    return None, [] if update is None else [(VERSION_HEADER, str(update.version).encode())]


def _accepted_version(headers: Any) -> int | None:
    """Returns the version of Accepted, or of the letter that an operator discards. None for a record of a sweep."""
    return next((int(value) for name, value in headers or () if name == VERSION_HEADER), None)


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
                value, headers = record_of(dead_letter)
                self._producer.produce(
                    self._topic, key=key.encode(), value=value, headers=[*headers], on_delivery=self._delivered
                )
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


class _DeadLetterTail(CompactedTail):
    """Keeps the records that have arrived, until they are taken."""

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        super().__init__(kafka, [topic])
        self.arrived: list[Message] = []

    def _take(self, messages: Iterable[Message]) -> set[tuple[str, str]]:
        found = list(messages)
        self.arrived += found
        return super()._take(found)


class DeadLetterTopic:
    """The topic of dead letters, followed. Created if it does not exist."""

    def __init__(self, kafka: KafkaConfig, topics: TopicConfig, sink: str, generation: int) -> None:
        """Opens the topic. Raises BrokerError, UnreachableError."""
        self._topic = Topics(topics.prefix).sink_dead_letter(sink)
        TopicAdmin(kafka).create(topics, {"sink_dead_letter": [self._topic]})
        self._open = OpenDeadLetters(generation)
        self._tail = _DeadLetterTail(kafka, self._topic)
        try:
            self._producer = DeadLetterProducer(kafka, topics.prefix, sink)
            self.read_to_end()
        except BaseException:
            self._tail.close()
            raise

    @property
    def open(self) -> Mapping[str, int]:
        """Returns dead_letter_key → the version that was rejected."""
        return self._open.versions

    def follow(self) -> None:
        """Reads what others did to the topic: an operator discards dead letters."""
        self._tail.poll(0)
        self._add_arrived()

    def read_to_end(self) -> None:
        """Follows the topic up to what it has now. Raises BrokerError, UnreachableError."""
        self._tail.read_to_end()
        self._add_arrived()

    def _add_arrived(self) -> None:
        arrived, self._tail.arrived = self._tail.arrived, []
        for message in arrived:
            self._open.add(message)
        if hidden := self._open.hidden():
            self.publish(hidden)

    @property
    def rows(self) -> Mapping[str, RejectedRow]:
        """Returns the open dead letters by their keys."""
        return self._open.rows

    def close_others(self, generations: Collection[int]) -> None:
        """Closes the dead letters of all other generations: their stores are gone. Raises as `publish`."""
        latest = self._tail.latest[self._topic]
        self.publish({key: None for key in latest if dead_letter_generation(key) not in generations})

    def publish(self, dead_letters: DeadLetterUpdates) -> None:
        """Returns when the brokers have them. Raises BrokerError, UnreachableError."""
        self._open.put(dead_letters, self._producer.publish(dead_letters))

    def close(self) -> None:
        """Does nothing: publish waits for each record."""
        self._tail.close()
        self._producer.close()
