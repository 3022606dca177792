"""Reads how the brokers ended the transactions of a transactional id, from their own log `__transaction_state`.

No admin call tells it once the id's producer has restarted. The format is that of Kafka's TransactionLogKey and
TransactionLogValue (versions 0 and 1, of which 1 is flexible: KIP-482), described in
transaction-coordinator/src/main/resources/common/message of its source.
"""

import io
import struct
from collections.abc import Iterator
from typing import Final

from confluent_kafka import KafkaError

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import cause_of
from cdc.kafka.topic_reader import PartitionId, open_reader
from cdc.model.errors import BrokerError
from cdc.ports.stream import WhileWaiting

TOPIC: Final = "__transaction_state"
PREPARE_COMMIT: Final = 2  # Kafka's numbers of transaction states, those in which a transaction is decided
PREPARE_ABORT: Final = 3
_FIXED: Final = struct.Struct(">hqhib")  # version, producer's id and epoch, timeout in ms, state
_REFUSED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}


def outcomes(kafka: KafkaConfig, transactional_id: str, while_waiting: WhileWaiting) -> dict[PartitionId, bool] | None:
    """Returns whether the id's last transaction that wrote to a partition and was decided was committed. None if the
    log can't be read: the role may not, it is elsewhere, or has another format.

    Raises UnreachableError.
    """
    found: dict[PartitionId, bool] = {}
    with open_reader(kafka) as reader:
        try:
            partitions = reader.partitions(TOPIC) if TOPIC in reader.topics() else []
            if not partitions:
                return None
            partition = partition_of(transactional_id, len(partitions))
            wanted = entry_key(transactional_id)
            for message in reader.read(TOPIC, partition, while_waiting=while_waiting):
                value = message.value()
                if message.key() == wanted and value is not None:
                    state, places = decode_entry(value)
                    if state in (PREPARE_COMMIT, PREPARE_ABORT):
                        found |= dict.fromkeys(places, state == PREPARE_COMMIT)
        except ValueError:
            return None
        except BrokerError as error:
            cause = cause_of(error)
            if cause is None or cause.code() not in _REFUSED:
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


def decode_entry(value: bytes) -> tuple[int, frozenset[PartitionId]]:
    """Returns the state of an entry, and where its transaction wrote (nothing once it is complete). Raises ValueError
    for bytes in another format."""
    try:
        version, _, _, _, state = _FIXED.unpack_from(value)
        if version not in (0, 1):
            raise ValueError(f"{TOPIC}: a value of the unknown version {version}")
        return state, frozenset(_places(io.BytesIO(value[_FIXED.size :]), is_flexible=version == 1))
    except (struct.error, IndexError) as error:
        raise ValueError(f"{TOPIC}: an invalid value: {error}") from error


def entry_key(transactional_id: str) -> bytes:
    """Returns the key of the entries of an id (TransactionLogKey, version 0)."""
    text = transactional_id.encode()
    return struct.pack(">hh", 0, len(text)) + text


def _places(data: io.BytesIO, *, is_flexible: bool) -> Iterator[PartitionId]:
    """Yields the items of an array of topics with their partitions; none for a null array."""

    def size(form: str) -> int:
        if is_flexible:
            return _unsigned(data) - 1
        (number,) = struct.unpack(form, data.read(struct.calcsize(form)))
        return int(number)

    for _ in range(size(">i")):
        topic = data.read(size(">h")).decode()
        count = size(">i")
        for partition in struct.unpack(f">{count}i", data.read(4 * count)):
            yield topic, partition
        for _ in range(_unsigned(data) if is_flexible else 0):  # tagged fields, none of them ours
            _unsigned(data)
            data.read(_unsigned(data))


def _unsigned(data: io.BytesIO) -> int:
    """Reads an unsigned varint."""
    number = shift = 0
    while True:
        byte = data.read(1)[0]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
        shift += 7
