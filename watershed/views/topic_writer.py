"""The compacted topic of a view: one writer, whose transactions fence any earlier one, and its records read back."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, Producer

from cdc.config.settings import KafkaConfig, TopicConfig
from cdc.kafka.client import Undelivered, broker_error, kafka_error, new_client, writing_settings
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription, record_limits
from cdc.kafka.topic_reader import open_reader
from cdc.model.errors import UnreachableError
from sinks.errors import SinkError

ANSWER_S_MAX: Final = (
    20.0  # for unreachable brokers; then the writer is opened again, and checks whether the transaction was committed
)
VISIBLE_S_MAX: Final = 5.0  # working brokers have written the end of a transaction in milliseconds
TRANSACTION_TIMEOUT_MS: Final = 60_000
RECORD_EXTRA_BYTES: Final = 512  # of headers and of the batch around a record
_POLL_S: Final = 0.005
_STEP_S: Final = 1.0


class ViewRecord(NamedTuple):
    """One record. A value of None deletes the key."""

    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class _Delivered(Undelivered):
    """The places of delivered records, and the first error."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[int, int] = {}  # partition → the last offset

    def note(self, error: KafkaError | None, message: Message) -> None:
        super().note(error, message)
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.ends[partition] = max(offset, self.ends.get(partition, -1))


class ViewTopic:
    """The topic of one view. Raises UnreachableError and BrokerError; a writer that has raised is closed and opened
    again."""

    def __init__(self, kafka: KafkaConfig, name: str, transactional_id: str) -> None:
        self.name = name
        self._kafka = kafka
        self._transactional_id = transactional_id
        self._admin = TopicAdmin(kafka)
        self._producer: Producer | None = None
        self._partition_count = 0
        self._ends: dict[int, int] = {}  # of what this writer has delivered

    def describe(self) -> TopicDescription | None:
        """Returns None if the topic does not exist. Raises BrokerError for one that is not compacted."""
        return self._admin.check([self.name]).get(self.name)

    def create(self, config: TopicConfig) -> TopicDescription:
        """Creates the topic, and describes it."""
        self._admin.create(config, {"view": [self.name]})
        found = self.describe()
        if found is None:
            raise UnreachableError(
                f"Kafka: topic {self.name} is not known to the brokers", "nothing to do: the job tries again"
            )
        return found

    def record_bytes_max(self, description: TopicDescription) -> int:
        """Returns the size that key and value may have together."""
        return record_limits(self._kafka, [description])[self.name] - RECORD_EXTRA_BYTES

    def open(self, description: TopicDescription) -> None:
        """Fences every earlier writer of the view: its open transaction is aborted, and it can write no more."""
        self.close()
        batch_bytes = min(1_000_000, description.record_bytes_max)
        self._partition_count = description.partition_count
        settings = {"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, "batch.size": batch_bytes, "linger.ms": 1}
        self._producer = new_client(Producer, writing_settings(self._kafka, self._transactional_id, **settings))
        producer = self._producer
        self._until_answered("become the only writer", lambda: producer.init_transactions(_STEP_S))

    def write(self, records: Sequence[ViewRecord]) -> None:
        """Writes the records in one transaction, and returns when readers of committed records see them."""
        producer = self._producer
        assert producer is not None, "it was opened"
        delivered = _Delivered()
        try:
            producer.begin_transaction()
            for record in records:
                self._produce(producer, record, delivered)
        except KafkaException as exception:
            raise self._error("write", exception) from exception
        self._until_answered("commit", lambda: producer.commit_transaction(_STEP_S))
        if delivered.error is not None:
            raise self._error("write", KafkaException(delivered.error))
        for partition, end in delivered.ends.items():
            if end <= self._ends.get(partition, -1):
                raise SinkError(
                    f"topic {self.name} was deleted and created again", "nothing to do: the job fills it again"
                )
        self._ends |= delivered.ends
        self._await_visible(delivered.ends)

    def _produce(self, producer: Producer, record: ViewRecord, delivered: _Delivered) -> None:
        deadline = time.monotonic() + ANSWER_S_MAX
        while True:
            try:
                producer.produce(
                    self.name, record.value, record.key, headers=list(record.headers), on_delivery=delivered.note
                )
            except BufferError:
                if time.monotonic() > deadline:
                    raise self._away("write") from None
                producer.poll(_STEP_S)
            else:
                producer.poll(0)
                return

    def _await_visible(self, ends: dict[int, int]) -> None:
        """Waits for the end of the transaction in each partition. A broker that died at the commit may never write it
        there: the next transaction then ends both, so whoever wrote the records has to write them again."""
        deadline = time.monotonic() + VISIBLE_S_MAX
        while True:
            counts = {self.name: self._partition_count}
            stable = self._admin.request_end_offsets(counts, IsolationLevel.READ_COMMITTED).wait()[self.name]
            if all(stable[partition] > end for partition, end in ends.items()):
                return
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"Kafka: a transaction does not end in topic {self.name}",
                    "nothing to do: its records are written again",
                )
            time.sleep(_POLL_S)

    def records(self, partition_count: int) -> Iterator[Message]:
        """Yields all committed records, partition by partition."""
        with open_reader(self._kafka) as reader:
            for partition in range(partition_count):
                yield from reader.read(self.name, partition)

    def close(self) -> None:
        """Forgets the writer. An open transaction is aborted by the next one, or by the brokers after a minute."""
        producer, self._producer = self._producer, None
        self._ends.clear()
        if producer is not None:
            with suppress(KafkaException):
                producer.purge()

    def _until_answered(self, what: str, call: Callable[[], None]) -> None:
        deadline = time.monotonic() + ANSWER_S_MAX
        while True:
            try:
                return call()
            except KafkaException as exception:
                if not kafka_error(exception).retriable():
                    raise self._error(what, exception) from exception
            if time.monotonic() > deadline:
                raise self._away(what)

    def _away(self, what: str) -> UnreachableError:
        return UnreachableError(
            f"Kafka: topic {self.name}: {what}: the brokers have not answered for {ANSWER_S_MAX:.0f} s",
            "check that they are running; the job tries again",
        )

    def _error(self, what: str, exception: KafkaException) -> Exception:
        if kafka_error(exception).code() in _FENCED:
            return SinkError(
                f"topic {self.name}: another process has become its writer",
                "nothing to do: the process that has the view's lock writes",
            )
        return broker_error(f"topic {self.name}: {what}", exception, "see the brokers' log; the job tries again")


_FENCED: Final = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
