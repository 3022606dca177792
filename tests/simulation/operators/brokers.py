"""Kafka, with whatever can happen to its topics; and the clients of the sinks' job, on it."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from cdc.model.topics import Topics
from tests.simulation.operators.source import PREFIX
from tests.simulation.operators.world import World

TOPICS: Final = Topics(PREFIX)
EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
Headers = Sequence[tuple[str, bytes]]


class Message:
    """What is used of confluent_kafka.Message."""

    __slots__ = ("_error", "_headers", "_key", "_offset", "_partition", "_topic", "_value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers | None = None,
        error: KafkaError | None = None,
    ) -> None:
        self._topic, self._partition, self._offset = topic, partition, offset
        self._key, self._value, self._headers, self._error = key, value, headers, error

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Headers | None:
        return self._headers

    def error(self) -> KafkaError | None:
        return self._error

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def __len__(self) -> int:
        return len(self._key or b"") + len(self._value or b"")


@dataclass
class Log:
    """One partition. Offsets without a record are of transaction markers, or were compacted."""

    end: int = 0
    records: list[Message] = field(default_factory=list)


@dataclass
class Topic:
    identity: str
    logs: list[Log]


class Brokers:
    """The cluster."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.topics: dict[str, Topic] = {}
        self._made = 0
        self.groups: dict[str, dict[tuple[str, int], TopicPartition]] = {}
        self._latest: dict[str, tuple[Topic | None, int, dict[str, bytes]]] = {}  # topic, end, and what is below it

    # ---- what capture, operators and disks do

    def make(self, name: str, partitions: int = 1) -> Topic:
        """Returns the topic, and makes it if it does not exist."""
        if name not in self.topics:
            self._made += 1
            self.topics[name] = Topic(f"id{self._made}", [Log() for _ in range(partitions)])
        return self.topics[name]

    def write(self, records: Iterable[tuple[str, int, bytes, bytes | None, Headers | None]]) -> None:
        """Commits one Kafka transaction: topic, partition, key, value and headers of each record."""
        written = set()
        for topic, partition, key, value, headers in records:
            log = self.topics[topic].logs[partition]
            log.records.append(Message(topic, partition, log.end, key, value, headers))
            log.end += 1
            written.add((topic, partition))
        for topic, partition in written:
            self.topics[topic].logs[partition].end += 1  # the marker

    def ends(self, name: str) -> tuple[int, ...]:
        return tuple(log.end for log in self.topics[name].logs)

    def latest(self, name: str) -> dict[str, bytes]:
        """The last value of each key, of a topic of one partition that loses no records."""
        topic = self.topics.get(name)
        if topic is None:
            return {}
        (log,) = topic.logs
        of, end, found = self._latest.get(name, (None, 0, {}))
        if of is not topic:
            end, found = 0, {}
        first = len(log.records)
        while first and log.records[first - 1].offset() >= end:
            first -= 1
        for record in log.records[first:]:
            key = (record.key() or b"").decode()
            if (value := record.value()) is None:
                found.pop(key, None)
            else:
                found[key] = value
        self._latest[name] = topic, log.end, found
        return found

    def compact(self, name: str, *, deletes: bool) -> None:
        """Keeps the last record of each key. `deletes`: and no tombstone."""
        for log in self.topics[name].logs:
            last = {record.key(): record for record in log.records}
            kept = [record for record in log.records if last[record.key()] is record]
            log.records = [record for record in kept if not deletes or record.value() is not None]

    def lose_last(self, name: str, partition: int, count: int) -> None:
        """An unclean election: the newest records are gone, and their offsets are given out again."""
        log = self.topics[name].logs[partition]
        log.end = max(0, log.end - count)
        log.records = [record for record in log.records if record.offset() < log.end]

    def copied(self) -> dict[str, Topic]:
        return {
            name: Topic(topic.identity, [Log(log.end, [*log.records]) for log in topic.logs])
            for name, topic in self.topics.items()
        }

    def restore(self, older: Mapping[str, Topic]) -> None:
        self.topics = copy.deepcopy(dict(older))

    # ---- clients

    def consumer(self, group: str = "") -> "FakeConsumer":
        return FakeConsumer(self, group)

    def admin(self) -> "FakeAdmin":
        return FakeAdmin(self)


def _unknown() -> KafkaException:
    return KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))


class FakeConsumer:
    """What the product uses of confluent_kafka.Consumer."""

    def __init__(self, brokers: Brokers, group: str) -> None:
        self._brokers = brokers
        self._group = group
        self._positions: dict[tuple[str, int], int] = {}
        self._ends_seen: dict[tuple[str, int], int] = {}

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._positions, self._ends_seen = {}, {}
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        for one in partitions:
            self._positions[one.topic, one.partition] = max(one.offset, -1)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        for one in partitions:
            self._positions.pop((one.topic, one.partition), None)

    def unassign(self) -> None:
        self._positions = {}

    def get_watermark_offsets(self, of: TopicPartition, timeout: float = 0, cached: bool = False) -> tuple[int, int]:
        del timeout, cached
        self._brokers.world.call("brokers")
        topic = self._brokers.topics.get(of.topic)
        if topic is None:
            raise _unknown()
        log = topic.logs[of.partition]
        return 0, log.end

    def list_topics(self, *_: object, **__: object) -> Any:
        return self._brokers.admin().list_topics()

    def consume(self, count: int, timeout: float) -> list[Message]:
        self._brokers.world.time()
        found: list[Message] = []
        for (name, number), position in [*self._positions.items()]:
            topic = self._brokers.topics.get(name)
            if topic is None or number >= len(topic.logs):
                found.append(Message(name, number, 0, error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
                continue
            found += self._of(name, number, topic.logs[number], position, count - len(found))
            if len(found) >= count:
                break
        if not found:
            self._brokers.world.sleep(timeout)
        return found

    def _of(self, name: str, number: int, log: Log, position: int, count: int) -> list[Message]:
        place = name, number
        position = max(0, position)
        if position > log.end:
            return [Message(name, number, position, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))]
        first = len(log.records)
        while first and log.records[first - 1].offset() >= position:
            first -= 1
        found = log.records[first : first + count]
        if found:
            self._positions[place] = found[-1].offset() + 1
        if len(found) < count and self._ends_seen.get(place) != log.end:
            self._positions[place] = self._ends_seen[place] = log.end
            found = [*found, Message(name, number, log.end, error=KafkaError(KafkaError._PARTITION_EOF))]
        return found

    def commit(self, *, offsets: Sequence[TopicPartition], asynchronous: bool) -> Sequence[TopicPartition]:
        assert not asynchronous

        def effect() -> None:
            self._brokers.groups.setdefault(self._group, {}).update(
                {(one.topic, one.partition): one for one in offsets}
            )

        self._brokers.world.call("brokers.group", effect)
        return offsets

    def committed(self, wanted: Sequence[TopicPartition], _timeout: float) -> Sequence[TopicPartition]:
        self._brokers.world.call("brokers")
        known = self._brokers.groups.get(self._group, {})
        return [known.get((one.topic, one.partition), one) for one in wanted]

    def close(self) -> None:
        self._positions = {}


class _Answer:
    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self, *_: object, **__: object) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class FakeAdmin:
    """What the product uses of confluent_kafka.admin.AdminClient."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def list_topics(self, *_: object, **__: object) -> Any:
        self._brokers.world.call("brokers")
        topics = {
            name: SimpleNamespace(topic=name, error=None, partitions=dict.fromkeys(range(len(topic.logs))))
            for name, topic in self._brokers.topics.items()
        }
        return SimpleNamespace(topics=topics)

    def list_offsets(self, wanted: Mapping[TopicPartition, Any], **_: object) -> dict[TopicPartition, Any]:
        self._brokers.world.call("brokers")
        found = {}
        for of, spec in wanted.items():
            topic = self._brokers.topics.get(of.topic)
            if topic is None or of.partition >= len(topic.logs):
                found[of] = _Answer(_unknown())
                continue
            log = topic.logs[of.partition]
            found[of] = _Answer(SimpleNamespace(offset=0 if spec is EARLIEST else log.end))
        return found

    def describe_topics(self, wanted: Any, **_: object) -> dict[str, Any]:
        self._brokers.world.call("brokers")
        names = getattr(wanted, "topic_names", None) or list(wanted)
        found: dict[str, Any] = {}
        for name in names:
            topic = self._brokers.topics.get(name)
            found[name] = _Answer(
                _unknown()
                if topic is None
                else SimpleNamespace(
                    name=name,
                    topic_id=topic.identity,
                    partitions=[SimpleNamespace(id=number) for number in range(len(topic.logs))],
                )
            )
        return found
