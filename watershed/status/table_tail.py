"""Follows the changes of one table: the records of its topic, and its sweeps in the control topic."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from confluent_kafka import Message

from cdc.model.control import SweepRecord
from cdc.model.events import TableId, unpack_version
from watershed.status.table_records import PublishedRecord, read_table_record

# Offsets that are read for each of the last records: markers of transactions and compacted records take some, too.
OFFSETS_PER_RECORD: Final = 4
OFFSETS_MORE: Final = 100
POLLED_MAX: Final = 5_000


class Reader(Protocol):
    """What is needed of cdc.kafka.topic_reader.TopicReader."""

    def partitions(self, topic: str) -> list[int]: ...
    def end(self, topic: str, partition: int = 0) -> int: ...
    def follow(self, topic: str, partition: int = 0, start: int | None = None) -> None: ...
    def read_to(self, topic: str, end: int, partition: int = 0) -> Iterator[Message]: ...
    def require_leader(self, topic: str, partition: int = 0) -> None: ...
    def arrivals(self, wait_s: float, records_max: int = 5_000) -> list[Message]: ...


class TableTail:
    """Methods raise UnreachableError and BrokerError."""

    def __init__(
        self,
        reader: Reader,
        table: TableId,
        topics: tuple[str, str],
        is_wanted: Callable[[PublishedRecord], bool],
        plain: Callable[[bytes | None], bytes | None],
    ) -> None:
        """`topics`: the table's, and control. `is_wanted`: selects records, for example of one key; sweeps concern all
        keys. `plain`: returns the JSON of a key or value."""
        self._reader = reader
        self._topic, self._control = topics
        self._sweep = SweepRecord.key_of(table).encode()
        self._is_wanted = is_wanted
        self._plain = plain

    def begin(self, count: int) -> list[PublishedRecord]:
        """Begins to follow at the present end. Returns the last `count` records, of all partitions, by their time."""
        ends = {
            partition: self._reader.end(self._topic, partition) for partition in self._reader.partitions(self._topic)
        }
        self._reader.follow(self._control, 0, self._reader.end(self._control))
        back = OFFSETS_PER_RECORD * count + OFFSETS_MORE if count else 0
        for partition, end in ends.items():
            self._reader.follow(self._topic, partition, max(0, end - back))
        found: list[PublishedRecord] = []
        for partition, end in ends.items():
            found += self._taken(self._reader.read_to(self._topic, end, partition))
        found.sort(key=lambda record: (record.commit_us or 0, record.version or 0))
        return list(deque(found, maxlen=count)) if count else []

    def poll(self, wait_s: float, records_max: int = POLLED_MAX) -> list[PublishedRecord]:
        """Returns the records that have arrived; waits for the first one."""
        return list(self._taken(self._reader.arrivals(wait_s, records_max)))

    def require_answer(self) -> None:
        """Raises UnreachableError if the brokers do not answer, which `poll` does not notice."""
        self._reader.require_leader(self._topic)

    def _taken(self, messages: Iterable[Message]) -> Iterator[PublishedRecord]:
        for message in messages:
            place = message.partition() or 0, message.offset() or 0
            key, value = message.key(), message.value()
            if message.topic() == self._control:
                if key == self._sweep and value is not None:
                    sweep = SweepRecord.decode(value, f"topic {self._control}")
                    yield PublishedRecord(*place, None, "sweep", sweep.floor, sweep.as_of_lsn)
                continue
            record = read_table_record(*place, self._plain(key), self._plain(value), message.headers())
            if self._is_wanted(record):
                yield record


def sweep_line(record: PublishedRecord) -> str:
    """Returns the line of a sweep, whose version is its floor."""
    epoch, seq = unpack_version(record.version or 0)
    return f"{'':12}  sweep   rows with versions below {epoch}.{seq} are gone: a TRUNCATE, or the end of a snapshot"
