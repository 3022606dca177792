"""A Kafka with transactions: records that are pending, committed or aborted, markers that take offsets, fencing, and
commits whose answer is lost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cdc.model.errors import ConnectionLost
from cdc.model.topic_record import TopicRecord
from cdc.ports.stream import WhileWaiting
from tests.checker.records import Record, partition_of
from tests.simulation.world import World

Fate = Literal["pending", "committed", "aborted", "marker"]


@dataclass(slots=True)
class Entry:
    record: TopicRecord | None
    fate: Fate


@dataclass
class FakeCluster:
    """Topics, and the one transactional id."""

    partition_counts: Mapping[str, int]
    producer_epoch: int = 0
    opened_at_s: float = 0.0  # when the last transaction was begun
    logs: dict[tuple[str, int], list[Entry]] = field(default_factory=dict)
    on_committed: Callable[[Sequence[TopicRecord]], None] = lambda _: None  # of one transaction
    _open: list[tuple[str, int, Entry]] = field(default_factory=list)  # of the ongoing transaction

    def __post_init__(self) -> None:
        for topic, count in self.partition_counts.items():
            for partition in range(count):
                self.logs[topic, partition] = []

    def append(self, record: TopicRecord) -> None:
        partition = partition_of(record.key, self.partition_counts[record.topic])
        entry = Entry(record, "pending")
        self.logs[record.topic, partition].append(entry)
        self._open.append((record.topic, partition, entry))

    def end(self, fate: Fate) -> None:
        """End the ongoing transaction; its partitions get markers."""
        for _, _, entry in self._open:
            entry.fate = fate
        for place in sorted({(topic, partition) for topic, partition, _ in self._open}):
            self.logs[place].append(Entry(None, "marker"))
        ended = [entry.record for _, _, entry in self._open if entry.record is not None]
        self._open.clear()
        if fate == "committed":
            self.on_committed(ended)

    def barrier(self) -> int:
        """A new producer: what the last one left open is aborted."""
        self.end("aborted")
        self.producer_epoch += 1
        return self.producer_epoch

    def committed(self, topic: str) -> list[Record]:
        """What a `read_committed` consumer sees: nothing at or behind the first pending record."""
        records = []
        for partition in range(self.partition_counts[topic]):
            for offset, entry in enumerate(self.logs[topic, partition]):
                if entry.fate == "pending":
                    break
                if entry.record is not None and entry.fate == "committed":
                    r = entry.record
                    records.append(
                        Record(
                            topic, partition, offset, r.key, r.value, tuple((n, v or b"") for n, v in r.headers or ())
                        )
                    )
        return records

    def end_offsets(self, topics: Iterable[str]) -> dict[str, tuple[int, ...]]:
        return {topic: tuple(len(self.logs[topic, p]) for p in range(self.partition_counts[topic])) for topic in topics}


class FakeBroker:
    """cdc.ports.stream.Broker."""

    def __init__(self, cluster: FakeCluster, world: World, table_topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._world = world
        self._table_topics = table_topics
        self._epoch = 0
        self._queue: list[TopicRecord] = []
        self._state: Literal["ready", "open", "committing", "broken"] = "broken"

    def fence_predecessors(self) -> None:
        self._world.step()
        self._epoch = self._cluster.barrier()
        self._state = "ready"
        self._world.step()

    def produce(self, records: Iterable[TopicRecord], while_waiting: WhileWaiting) -> None:
        assert self._state in ("ready", "open"), self._state
        if self._state == "ready":
            self._cluster.opened_at_s = self._world.now_s
        self._state = "open"
        for record in records:
            self._world.step()
            if self._world.happens(self._world.rates.lost_produce):
                self._break("a record was not delivered")
            if self._world.happens(self._world.rates.queue_full):
                self._wait(while_waiting)
            self._queue.append(record)
            if self._world.chance.random() < 0.5:
                self._send()

    def commit(self, while_waiting: WhileWaiting) -> None:
        assert self._state == "open", self._state
        self._world.step()
        self._send()
        rates = self._world.rates
        if self._world.happens(rates.commit_aborted):
            self._cluster.end("aborted")
            self._break("the transaction was aborted")
        self._state = "committing"  # from here on nobody knows until it is answered
        if self._world.happens(rates.commit_slow):
            is_done_early = self._world.chance.random() < 0.5
            if is_done_early:
                self._cluster.end("committed")
            self._wait(while_waiting)
            self._require_ours()
            if not is_done_early:
                self._cluster.end("committed")
        else:
            self._cluster.end("committed")
        self._world.step()
        if self._world.happens(rates.answer_lost):
            raise ConnectionLost("the commit was not answered")
        self._state = "ready"

    def abort(self) -> None:
        if self._world.is_dying:
            return  # a dead process does nothing
        is_ours = self._cluster.producer_epoch == self._epoch
        if self._state == "open" and is_ours:
            self._cluster.end("aborted")
        elif self._state == "committing" and is_ours and self._world.chance.random() < 0.5:
            self._cluster.end("committed")  # the request was on its way and arrives, or not
        self._state = "broken"
        self._queue.clear()

    def request_end_offsets(self) -> "FakeEndOffsets":
        self._world.step()
        return FakeEndOffsets(self._cluster, self._world, self._table_topics)

    def _send(self) -> None:
        """What is in the queue reaches the brokers."""
        self._require_ours()
        for record in self._queue:
            self._cluster.append(record)
        self._queue.clear()

    def _wait(self, while_waiting: WhileWaiting) -> None:
        """The brokers are slow: up to two minutes, in waits of a second."""
        for _ in range(self._world.chance.choice((1, 3, 120))):
            self._world.step()
            self._world.now_s += 1.0
            while_waiting()

    def _require_ours(self) -> None:
        if self._cluster.producer_epoch != self._epoch:
            self._break("fenced")

    def _break(self, why: str) -> None:
        self._queue.clear()
        self._state = "broken"
        raise ConnectionLost(why)


class FakeEndOffsets:
    """cdc.ports.stream.EndOffsetsRequest: answered at some moment after it was asked."""

    def __init__(self, cluster: FakeCluster, world: World, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._world = world
        self._topics = topics
        self._polls = world.chance.randrange(4)
        self._answered_after = world.chance.randint(0, self._polls)
        self._answer: dict[str, tuple[int, ...]] | None = None

    def result(self) -> dict[str, tuple[int, ...]] | None:
        self._world.step()
        if self._world.happens(self._world.rates.lost_offsets):
            raise ConnectionLost("no answer")
        if self._answered_after == 0 and self._answer is None:
            self._answer = self._cluster.end_offsets(self._topics)
        self._answered_after -= 1
        self._polls -= 1
        return self._answer if self._polls < 0 else None
