"""What a plain `read_committed` consumer sees, and what it makes of it."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NoReturn

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

SEQ_BITS = 48
VERSION_HEADER = "watershed.version"
ANSWER_S_MAX = 15.0
READ_S_MAX = 60.0
AGAIN_S = 20.0  # after which another client asks

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """A record as Kafka has it."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Change:
    """A row record (c, u, d, r) of a table's topic."""

    record: Record
    op: str
    snapshot: str
    epoch: int
    seq: int
    commit_lsn: int
    tx_index: int
    xid: int | None
    table: str  # schema.table
    key: Row
    identity: str  # the key as text that is the same for equal keys
    before: Row | None
    after: Row | None
    unchanged: frozenset[str] = frozenset()  # columns that `after` lacks
    filled: frozenset[str] = frozenset()  # columns that were read for it

    @property
    def is_loaded(self) -> bool:
        """Read before the stream began; other rows with op r were read beside it, in chunks."""
        return self.snapshot == "true"

    @property
    def is_streamed(self) -> bool:
        """It came from the log; other rows, and deletes of keys that were not found, from the table."""
        return self.snapshot == "false"

    @property
    def version(self) -> int:
        return self.epoch << SEQ_BITS | self.seq

    @property
    def position(self) -> tuple[int, int]:
        return self.commit_lsn, self.tx_index

    def __str__(self) -> str:
        return f"{self.op} of {self.identity} (epoch {self.epoch}, seq {self.seq}, {self.record})"


class NotAChangeError(Exception):
    """Bytes that are no row record as the format describes it."""


def changes_of(records: Iterable[Record]) -> list[Change]:
    """The row records among a table topic's records; tombstones are left out. Raises NotAChangeError."""
    return [change_of(record) for record in records if record.value is not None]


@lru_cache(maxsize=1 << 17)
def change_of(record: Record) -> Change:
    """Raises NotAChangeError. Several rules look at the same record, so what it says is remembered."""
    assert record.value is not None
    try:
        value, key = parse(record.value), parse(record.key)
        source = value["source"]
        change = Change(
            record=record,
            op=value["op"],
            snapshot=source["snapshot"],
            epoch=source["epoch"],
            seq=source["seq"],
            commit_lsn=source["commit_lsn"],
            tx_index=source["tx_index"],
            xid=source["txId"],
            table=f"{source['schema']}.{source['table']}",
            key=key,
            identity=key_text(key),
            before=value["before"],
            after=value["after"],
            unchanged=_names(source, "unchanged"),
            filled=_names(source, "filled"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise NotAChangeError(f"{record}: {error!r}") from error
    _check_shape(change)
    return change


def _names(source: Mapping[str, Any], what: str) -> frozenset[str]:
    names = source.get(what, ())
    if what in source and not names:
        raise ValueError(f"{what} lists nothing")
    return frozenset(names)


def _check_shape(change: Change) -> None:
    kinds = {"r": ("true", "incremental"), "d": ("false", "incremental")}.get(change.op, ("false",))
    if change.op not in ("c", "u", "d", "r") or change.snapshot not in kinds:
        raise NotAChangeError(f"{change}: op {change.op!r} with snapshot {change.snapshot!r}")
    row = change.before if change.op == "d" else change.after
    if (change.op == "d") != (change.after is None) or row is None:
        raise NotAChangeError(f"{change}: before and after do not fit the op")
    if change.unchanged & row.keys() or change.filled - row.keys() or (change.op not in ("c", "u") and change.filled):
        raise NotAChangeError(f"{change}: columns that are there are listed as unchanged, or others as filled")
    if not change.key or any(row.get(name) != value for name, value in change.key.items()):
        raise NotAChangeError(f"{change}: the record key is not the row's")


def parse(text: bytes | str) -> Any:
    """JSON as the RFC has it: no NaN, no key twice. Fractions are exact."""
    return _DECODER.decode(text if isinstance(text, str) else text.decode())


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name twice in one object")
    return members


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_once)


def key_text(key: Row) -> str:
    """A key as text, for messages and as a dict's key."""
    return _ENCODER.encode(key)


_ENCODER = json.JSONEncoder(sort_keys=True, default=str, ensure_ascii=False)


# ---- Kafka


class EndNotReachedError(AssertionError):
    """The brokers have not answered in time."""


def read_topics(
    bootstrap_servers: str, topics: Sequence[str], isolation_level: str = "read_committed"
) -> tuple[list[Record], dict[str, int]]:
    """All records of the topics from the beginning to their end now, and each topic's number of partitions.

    Records of a partition are in order. Topics that do not exist are left out.
    """
    # A client that knew a topic before it was deleted and created again may never get an answer: another one does.
    with suppress(EndNotReachedError):
        return _read_topics(bootstrap_servers, topics, isolation_level, AGAIN_S)
    return _read_topics(bootstrap_servers, topics, isolation_level, READ_S_MAX)


def _read_topics(
    bootstrap_servers: str, topics: Sequence[str], isolation_level: str, deadline_s: float
) -> tuple[list[Record], dict[str, int]]:
    with _consumer(bootstrap_servers, isolation_level) as consumer:
        counts = _assign(consumer, topics)
        return list(_read_to_end(consumer, sum(counts.values()), deadline_s)), counts


def stream_topics(
    bootstrap_servers: str, topics: Sequence[str], deadline_s: float
) -> Iterator[tuple[Record, Mapping[str, int]]]:
    """The same, one by one, for who can't hold them all; each with the topics' numbers of partitions."""
    with _consumer(bootstrap_servers, "read_committed") as consumer:
        counts = _assign(consumer, topics)
        for record in _read_to_end(consumer, sum(counts.values()), deadline_s):
            yield record, counts


def _assign(consumer: Consumer, topics: Sequence[str]) -> dict[str, int]:
    existing = consumer.list_topics(timeout=ANSWER_S_MAX).topics
    counts = {topic: len(existing[topic].partitions) for topic in topics if topic in existing}
    consumer.assign(
        [TopicPartition(topic, p, OFFSET_BEGINNING) for topic, count in counts.items() for p in range(count)]
    )
    return counts


# Consumers that nobody uses now, by brokers and isolation level. A new one for each look would cost both sides three
# connections; many a test looks until it finds what it waits for.
_IDLE: Final[dict[tuple[str, str], list[Consumer]]] = {}


@contextmanager
def _consumer(bootstrap_servers: str, isolation_level: str) -> Iterator[Consumer]:
    """One that nothing is assigned to. It is closed when its use fails."""
    idle = _IDLE.setdefault((bootstrap_servers, isolation_level), [])
    consumer = idle.pop() if idle else _new_consumer(bootstrap_servers, isolation_level)
    try:
        yield consumer
        consumer.unassign()
    except BaseException:
        consumer.close()
        raise
    idle.append(consumer)


def _new_consumer(bootstrap_servers: str, isolation_level: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "judge",  # required by the client; nothing is committed
            "enable.auto.commit": False,
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 5,  # what there is is there; who looks again does so by itself
            "reconnect.backoff.max.ms": 500,  # brokers are killed and come back between two looks
            # What has no leader when it is assigned, because the broker has just been frozen, has one soon.
            "topic.metadata.refresh.interval.ms": 1_000,
            "log_level": 0,  # or for good
        }
    )


def _read_to_end(consumer: Consumer, partition_count: int, deadline_s: float = READ_S_MAX) -> Iterator[Record]:
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + deadline_s
    while len(ended) < partition_count:
        if time.monotonic() > deadline:
            places = [(p.topic, p.partition, p.offset) for p in consumer.position(consumer.assignment())]
            raise EndNotReachedError(
                f"the topics' end was not reached in {deadline_s:.0f} s; ended: {sorted(ended)}; read up to {places}"
            )
        first = consumer.poll(0.2)
        for message in [] if first is None else [first, *consumer.consume(5_000, 0)]:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None and partition is not None and offset is not None
            error = message.error()
            if error is None:
                yield Record(topic, partition, offset, message.key() or b"", message.value(), _headers(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add((topic, partition))
            else:
                raise KafkaException(error)


def _headers(message: Message) -> tuple[tuple[str, bytes], ...]:
    headers = message.headers() or []
    assert isinstance(headers, list)
    return tuple((name, value if isinstance(value, bytes) else b"") for name, value in headers)


# ---- the partitioner of Java's producers


@lru_cache(maxsize=1 << 17)
def partition_of(key: bytes, partition_count: int) -> int:
    """Where `org.apache.kafka.clients.producer.internals.BuiltInPartitioner` puts a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bit, with Kafka's seed."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
