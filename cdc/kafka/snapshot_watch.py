"""Snapshots watched from outside, as state and progress tell of them."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, Self

from cdc.config.settings import Config
from cdc.kafka.client import NEXT_REACHABLE
from cdc.kafka.compacted_tail import CompactedTail
from cdc.model.errors import GapError, UnreachableError
from cdc.model.events import TableId
from cdc.model.topics import Topics
from cdc.records.control import (
    POSITION_KEY,
    PROGRESS_KEY,
    PositionRecord,
    ProgressRecord,
    RebuildRecord,
    SinkRecord,
    SnapshotProgress,
    SnapshotRecord,
    rebuild_key,
    snapshot_key,
)
from cdc.snapshots.status import Standing, replaced, table_standing

BEGUN_S_MAX: Final = 30.0  # from the answer until state shows what it says: both are in one Kafka transaction
_STEP_S: Final = 0.05


class Tail(Protocol):
    """cdc.kafka.compacted_tail.CompactedTail."""

    @property
    def latest(self) -> Mapping[str, Mapping[str, bytes]]: ...
    @property
    def is_at_end(self) -> bool: ...
    def forget_end(self) -> None: ...
    def read_to_end(self) -> None: ...
    def poll(self, timeout_s: float) -> set[tuple[str, str]]: ...
    def close(self) -> None: ...


class SnapshotWatch:
    """Both topics, followed. What counts of a snapshot is its record in state, which is in the Kafka transaction of the
    rows; progress adds how fast it goes. Not for use by two threads."""

    def __init__(self, topics: Topics, tail: Tail, clock: Callable[[], float] = time.monotonic) -> None:
        """`tail`: of the state and progress topics."""
        self._topics = topics
        self._tail = tail
        self._clock = clock
        self._heard: dict[str, float] = {}  # key → when something new came, monotonic
        self._began = clock()

    @classmethod
    def of(cls, config: Config) -> Self:
        """Of the configuration's prefix."""
        topics = Topics(config.topics.prefix)
        return cls(topics, CompactedTail(config.kafka, [topics.state, topics.progress]))

    def read_to_end(self) -> None:
        """Begin. Raises WatershedError when capture has never run on the prefix, UnreachableError, BrokerError."""
        self._tail.read_to_end()
        self._began = self._clock()

    def poll(self, timeout_s: float) -> None:
        """Gather for so long what is new."""
        changed = self._tail.poll(timeout_s)
        now = self._clock()
        self._heard.update({key: now for _, key in changed if key.startswith("snapshot/")})

    @property
    def is_at_end(self) -> bool:
        """See CompactedTail.forget_end."""
        return self._tail.is_at_end

    def forget_end(self) -> None:
        self._tail.forget_end()

    def close(self) -> None:
        self._tail.close()

    # ---- what they say

    def snapshots(self) -> dict[TableId, SnapshotRecord]:
        """The last one of each table that ever had one, by name."""
        topic = self._topics.state
        records = [
            SnapshotRecord.decode(value, f"topic {topic}, key {key}")
            for key, value in self._tail.latest[topic].items()
            if key.startswith("snapshot/")
        ]
        return {record.table: record for record in sorted(records, key=lambda record: record.table)}

    def standing(self, record: SnapshotRecord) -> Standing:
        """How far this snapshot is."""
        topic, key = self._topics.progress, snapshot_key(record.table)
        value = self._tail.latest[topic].get(key)
        progress = None if value is None else SnapshotProgress.decode(value, f"topic {topic}, key {key}")
        silent_s = self._clock() - max(self._began, self._heard.get(key, 0.0))
        return table_standing(record, progress, silent_s)

    def position(self) -> PositionRecord | None:
        """Raises GapError for a damaged one."""
        topic = self._topics.state
        value = self._tail.latest[topic].get(POSITION_KEY)
        return None if value is None else PositionRecord.open(value, f"topic {topic}, key {POSITION_KEY}")

    def published(self) -> ProgressRecord | None:
        topic = self._topics.progress
        value = self._tail.latest[topic].get(PROGRESS_KEY)
        return None if value is None else ProgressRecord.decode(value, f"topic {topic}, key {PROGRESS_KEY}")

    def sinks(self) -> list[SinkRecord]:
        """Of every sink and generation that ever published one."""
        topic = self._topics.progress
        return [
            SinkRecord.decode(value, f"topic {topic}, key {key}")
            for key, value in self._tail.latest[topic].items()
            if key.startswith("sink/")
        ]

    def rebuild(self, sink: str) -> RebuildRecord | None:
        """The last one of this sink that was asked for."""
        topic, key = self._topics.progress, rebuild_key(sink)
        value = self._tail.latest[topic].get(key)
        return None if value is None else RebuildRecord.decode(value, f"topic {topic}, key {key}")


class Followed:
    """Some tables' snapshots, each known by the request that began it."""

    def __init__(self, watch: SnapshotWatch, requests: Mapping[TableId, str]) -> None:
        self._watch = watch
        self._requests = dict(requests)

    def standings(self) -> list[Standing]:
        """Of each table, by name."""
        told = []
        for table, record in self._watch.snapshots().items():
            wanted = self._requests.get(table)
            if wanted is not None:
                standing = self._watch.standing(record)
                told.append(standing if record.request == wanted else replaced(standing))
        return told


def await_begun(watch: SnapshotWatch, request: str, tables: Iterable[TableId]) -> dict[TableId, str]:
    """Table → request, when state shows the snapshots that a signal has begun. Raises UnreachableError."""
    wanted = dict.fromkeys(tables, request)
    _until(watch, lambda: all(_request(watch, table) == request for table in wanted))
    return wanted


def epoch_of(watch: SnapshotWatch) -> int:
    """The position's; 0 where there is none, or a damaged one: what it says is not to be relied on."""
    try:
        position = watch.position()
    except GapError:
        return 0
    return 0 if position is None else position.epoch


def await_healed(watch: SnapshotWatch, epoch_before: int) -> dict[TableId, str]:
    """The same for those that began with the epoch that followed. Raises UnreachableError."""

    def is_streaming() -> bool:
        if epoch_of(watch) <= epoch_before:
            return False
        position = watch.position()
        return position is not None and position.phase == "streaming"

    _until(watch, is_streaming)
    return {table: record.request for table, record in watch.snapshots().items()}


def _request(watch: SnapshotWatch, table: TableId) -> str | None:
    record = watch.snapshots().get(table)
    return None if record is None else record.request


def _until(watch: SnapshotWatch, is_seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BEGUN_S_MAX
    while not is_seen():
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"Kafka: what capture has answered was not seen in {BEGUN_S_MAX:.0f} s", NEXT_REACHABLE
            )
        watch.poll(_STEP_S)
