"""The keys of a table's topic whose last record may come from changes that the source does not have, because a standby
was promoted that was behind.

Such a record has a commit LSN of the former branch, at or behind the point at which the branches part. Two others
count as well: a record with large values that were read from the table, which may have been newer than the record's
transaction; and a tombstone of which the delete is not in the topic any more, if no record behind it in its partition
is of the common past.

Records of a partition are in the order of the log. So only the end of a partition is read, from a record of the common
past on, which is looked for in growing steps from the end. Where values were read from tables behind the point at which
the branches part, the whole partition is read: the record that has such a value may be anywhere.
"""

import re
from collections.abc import Callable
from typing import Final

from cdc.config.settings import KafkaConfig
from cdc.kafka.record_decoding import record_reader
from cdc.kafka.topic_keys import QUEUE_KIBIBYTES_MAX
from cdc.kafka.topic_reader import PartitionId, TopicReader, open_reader

KEYS_MAX: Final = 5_000
BYTES_MAX: Final = 128 * 1024  # of the keys: the record of their snapshot, which has them twice, has to fit into 1 MiB

STEP_FIRST: Final = 1_000  # offsets before the end of a partition
STEP_FACTOR: Final = 4

_EPOCH: Final = b',"epoch":'
_PLACE: Final = re.compile(rb',"epoch":(\d+),"seq":\d+,"commit_lsn":(\d+),')
_FILLED: Final = b',"filled":['

Plain = Callable[[bytes | None], bytes | None]
"""See RecordReader.plain."""


class TooManyKeysError(Exception):
    """There are more keys than a snapshot of single rows may have."""


class DivergedKeys:
    """Collects the keys. Pure."""

    def __init__(self, epoch: int, switch: int, *, are_read_later: bool) -> None:
        """`epoch`: of the position. `switch`: the LSN at which the branches part. `are_read_later`: values may have
        been read from tables behind it."""
        self._epoch = epoch
        self._switch = switch
        self._are_read_later = are_read_later
        self._found: set[bytes] = set()  # in the partitions before
        # In the present one. After partitions were added, the older records of a key may be in another one.
        self._here: set[bytes] = set()
        self._tombstones: set[bytes] = set()  # without a delete, since the last record of the common past
        self._last_shared = b""  # key of that record
        self._bytes = 0  # at least the size of the keys
        self.has_shared = False  # the epoch has a record of the common past: it began before the branches part
        self.shared_ms = 0  # when the last record of the common past was published, ms since 1970

    def end_partition(self) -> None:
        """The next record is of another partition."""
        self._found |= self._here | self._tombstones
        self._here, self._tombstones, self._last_shared = set(), set(), b""

    def take(self, key: bytes, value: bytes | None, published_ms: int) -> None:
        """Takes the next record, as JSON. Raises TooManyKeysError."""
        if value is not None and not self.is_diverged(value):
            self.shared_ms = max(self.shared_ms, published_ms)
            self._here.discard(key)
            self._tombstones.clear()
            self._last_shared = key
        elif key not in self._here and (value is not None or key != self._last_shared):
            (self._tombstones if value is None else self._here).add(key)
            self._bytes += len(key)
            self._require_few()

    @property
    def keys(self) -> frozenset[bytes]:
        """The keys, after the last `end_partition`."""
        return frozenset(self._found)

    def _require_few(self) -> None:
        sets = self._found, self._here, self._tombstones
        if self._bytes > BYTES_MAX:
            self._bytes = sum(len(key) for keys in sets for key in keys)  # without those that were given up since
        if self._bytes > BYTES_MAX or sum(map(len, sets)) > KEYS_MAX:
            raise TooManyKeysError

    def is_diverged(self, value: bytes) -> bool | None:
        """Says whether a record may come from what never happened; None if it does not name its place in the log."""
        at = value.rfind(_EPOCH)  # it stands behind the user's columns, so the last one is ours
        place = _PLACE.match(value, at) if at >= 0 else None
        if place is None:
            return None
        if int(place[1]) < self._epoch:
            return False  # LSNs of earlier epochs mean nothing here; `has_shared` says that both branches have them
        if int(place[2]) >= self._switch:
            return True
        self.has_shared = True
        return self._are_read_later and value.find(_FILLED, at) >= 0


def read_diverged_keys(
    kafka: KafkaConfig, topic: str, epoch: int, switch: int, *, are_read_later: bool
) -> DivergedKeys:
    """Reads the topic to the end that it has now; the arguments are those of DivergedKeys. Raises TooManyKeysError,
    BrokerError, UnreachableError."""
    found = DivergedKeys(epoch, switch, are_read_later=are_read_later)
    plain = record_reader(kafka).plain
    with open_reader(kafka, settings={"queued.max.messages.kbytes": QUEUE_KIBIBYTES_MAX}) as reader:
        for partition in reader.partitions(topic):
            start = 0 if are_read_later else last_shared(reader, (topic, partition), found, plain)
            for message in reader.read(topic, partition, start):
                key = plain(message.key())
                if key is not None:
                    found.take(key, plain(message.value()), message.timestamp()[1])
            found.end_partition()
    return found


def last_shared(reader: TopicReader, place: PartitionId, found: DivergedKeys, plain: Plain) -> int:
    """Returns the offset of a record of the common past, behind which there are few others of it; 0 if none is found.
    Everything before it is of the common past, too."""
    (topic, partition), step = place, STEP_FIRST
    end = reader.end(topic, partition)
    while step < end:
        for message in reader.read(topic, partition, end - step, end):
            value = plain(message.value())
            is_diverged = None if value is None else found.is_diverged(value)
            if is_diverged is False:
                return message.offset() or 0
            if is_diverged:
                break
        step *= STEP_FACTOR
    return 0
