"""Reads how the brokers ended the transactions of a transactional id, from their own log `__transaction_state`.

No admin call tells it once the id's producer has restarted. The format is that of Kafka's TransactionLogKey and
TransactionLogValue (versions 0 and 1, of which 1 is flexible: KIP-482), described in
transaction-coordinator/src/main/resources/common/message of its source.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import ANSWER_S_MAX, kafka_error
from cdc.kafka.compacted import read_records, reader
from cdc.ports.stream import WhileWaiting

TOPIC: Final = "__transaction_state"
_FIXED: Final = struct.Struct(">hqhib")  # version, producer's id and epoch, timeout in ms, state
_INT32: Final = struct.Struct(">i")
_REFUSED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
Item = TypeVar("Item")


class TransactionState(IntEnum):
    """Kafka's numbers of transaction states."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


@dataclass(frozen=True, slots=True)
class TransactionEntry:
    """An entry of the log for a transactional id."""

    state: TransactionState
    partitions: frozenset[tuple[str, int]]  # topic and partition; empty once the transaction is complete


def outcomes(
    kafka: KafkaConfig, transactional_id: str, while_waiting: WhileWaiting
) -> dict[tuple[str, int], bool] | None:
    """Returns topic and partition → whether the id's last transaction that wrote there and was decided was committed.
    None if the log can't be read: the role may not, it is elsewhere, or has another format.

    Raises UnreachableError.
    """
    found: dict[tuple[str, int], bool] = {}
    with reader(kafka, f"can't read topic {TOPIC}") as consumer:
        try:
            partitions = consumer.list_topics(timeout=ANSWER_S_MAX).topics.get(TOPIC)
            if partitions is None or not partitions.partitions:
                return None
            place = TopicPartition(TOPIC, partition_of(transactional_id, len(partitions.partitions)))
            wanted = entry_key(transactional_id)
            for message in read_records(consumer, place, while_waiting=while_waiting):
                value = message.value()
                if message.key() == wanted and value is not None:
                    entry = decode_entry(value)
                    if entry.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
                        found |= dict.fromkeys(entry.partitions, entry.state is TransactionState.PREPARE_COMMIT)
        except ValueError:
            return None
        except KafkaException as exception:
            if kafka_error(exception).code() not in _REFUSED:
                raise
            return None
    return found


def partition_of(transactional_id: str, count: int) -> int:
    """Returns the partition of an id: the absolute value of Java's String.hashCode modulo `count`, 0 for the value
    without an absolute one."""
    hashed = 0
    for (unit,) in struct.iter_unpack(">H", transactional_id.encode("utf-16-be")):
        hashed = (hashed * 31 + unit) & 0xFFFFFFFF
    absolute = min(hashed, (1 << 32) - hashed)
    return 0 if absolute == 1 << 31 else absolute % count


def decode_entry(value: bytes) -> TransactionEntry:
    """Returns the entry. Raises ValueError for bytes in another format."""
    try:
        version, _, _, _, state = _FIXED.unpack_from(value)
        if version not in (0, 1):
            raise ValueError(f"{TOPIC}: a value of the unknown version {version}")
        read = _Reader(value, _FIXED.size, is_flexible=version == 1)
        partitions = frozenset((topic, partition) for topic, numbers in read.array(read.topic) for partition in numbers)
        return TransactionEntry(TransactionState(state), partitions)
    except (struct.error, IndexError) as error:
        raise ValueError(f"{TOPIC}: an invalid value: {error}") from error


def entry_key(transactional_id: str) -> bytes:
    """Returns the key of the entries of an id (TransactionLogKey, version 0)."""
    text = transactional_id.encode()
    return struct.pack(">hh", 0, len(text)) + text


class _Reader:
    """Reads Kafka's primitive types from an offset on."""

    def __init__(self, data: bytes, offset: int, *, is_flexible: bool) -> None:
        self._data = data
        self._at = offset
        self._is_flexible = is_flexible

    def array(self, item: Callable[[], Item]) -> Iterator[Item]:
        """Yields the items; none for a null array."""
        count = self._unsigned() - 1 if self._is_flexible else self._int32()
        for _ in range(count):
            yield item()

    def topic(self) -> tuple[str, list[int]]:
        size = self._unsigned() - 1 if self._is_flexible else int.from_bytes(self._take(2))
        name = self._take(size).decode()
        partitions = list(self.array(self._int32))
        for _ in range(self._unsigned() if self._is_flexible else 0):  # tagged fields, none of them ours
            self._unsigned()
            self._take(self._unsigned())
        return name, partitions

    def _int32(self) -> int:
        (number,) = _INT32.unpack(self._take(4))
        assert isinstance(number, int)
        return number

    def _unsigned(self) -> int:
        """Returns an unsigned varint."""
        number = shift = 0
        while True:
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise ValueError(f"the value is truncated at byte {len(self._data)}")
        self._at += size
        return self._data[self._at - size : self._at]
