"""The stream of a sink: all its tables' topics, in rows that are pieces (spark_jobs/source/piece.py).

Live batches are boxed in time: each task reads its partitions for `live_s`, and its rows flow to the writer while it
reads. It ends earlier when the sink's driver asks for it, when a table's schema is published (the driver prepares the
store between two batches), and when records arrive faster than the tasks of this batch take them. When one task has
ended, the driver asks the others to end. Bounded batches end at the offsets that they were planned with, or when a task
has read `task_bytes_max`.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Protocol

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from cdc.config.settings import KafkaConfig
from cdc.model.control import SchemaRecord
from cdc.model.job_records import BatchEndRecord
from cdc.model.topics import Topics
from spark_jobs.kept import KeptClients
from spark_jobs.source.piece import EMPTY, Piece, joined, parts_of, piece_of, to_row
from spark_jobs.source.reading import Fetched, Partition, PartitionReader
from spark_jobs.source.shares import Share, shares
from spark_jobs.source.sink_options import SinkStreamOptions
from spark_jobs.source.sink_plan import BatchPlan, Planner, check_offset, initial_offset
from spark_jobs.task_errors import as_task_error

WAIT_S_MAX: Final = 0.2  # for records, before a task checks the time again
# After records, before an empty piece releases them: Spark passes a row on when the next one is there.
SETTLE_S: Final = 0.002
# Positions without records (transaction markers) wait for the next records: alone, they would be half of the rows.
POSITIONS_S_MAX: Final = 0.05
IDLE_TIMES: Final = 4  # a task of a live batch waits for its first record so much longer than it lasts after that
SPLIT_S: Final = 2.0  # a task that is behind for so long ends, so that more tasks share its partitions
BOUNDED_IDLE_S_MAX: Final = 20.0  # for records that are known to be there


@dataclass(frozen=True)
class TaskInput(InputPartition):
    """What one task reads."""

    kafka: KafkaConfig
    prefix: str
    options: SinkStreamOptions
    share: Share
    control_offsets: Mapping[Partition, int]
    may_split: bool = False  # more tasks could share the partitions
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # of the topics, as the planner has found them
    first_offsets: Mapping[Partition, int] = field(default_factory=dict)  # see BatchPlan.first_offsets_of


class Reader(Protocol):
    """The interface of spark_jobs.source.reading.PartitionReader."""

    def seek(self, start_offsets: Mapping[Partition, int]) -> None: ...

    def read(self, timeout_s: float, bytes_max: int) -> Fetched: ...

    def unassign(self) -> None: ...


class SinkStreamReader(DataSourceStreamReader):
    """Plans in the planner process (spark_jobs/source/sink_plan.py); `read` runs in tasks."""

    def __init__(self, kafka: KafkaConfig, prefix: str, options: SinkStreamOptions) -> None:
        """Does not read anything: Spark makes a reader for each batch, only to send it to the tasks."""
        self._kafka = kafka
        self._prefix = prefix
        self._options = options
        self._planner: Planner | None = None
        self._planned: tuple[dict[str, Any], BatchPlan] | None = None  # the last offset, and what it stands for
        self._plan_number = 0  # of the last plan, see BatchPlan.encoded

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return initial_offset(self._options)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns a new offset, so that Spark begins a batch: for a live stream always, for a bounded one if there are
        records. It says where that batch begins, because where a live one ends is not known yet. Raises
        TaskError."""
        with as_task_error():
            plan = self._plan()
        if self._planned is not None and not self._options.live_s and not plan.has_records:
            return self._planned[0]
        self._plan_number += 1
        offset = plan.encoded(self._options, self._plan_number)
        self._planned = offset, plan
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raises TaskError."""
        with as_task_error():
            for offset in (start, end):
                check_offset(offset, self._options)
        self._plan_number = end["batch"]
        if start == end:  # Spark asks so when a query continues
            return []
        if self._planned is None or self._planned[0] != end:  # the batch that a former query was running
            with as_task_error():
                self._planned = end, self._plan()
        plan, is_live = self._planned[1], bool(self._options.live_s)
        parts = shares(plan.start_offsets, plan.end_offsets, self._options.task_count_max, is_bounded=not is_live)
        may_split = is_live and len(parts) < min(self._options.task_count_max, sum(map(len, plan.end_offsets.values())))
        if is_live and not parts:  # only our own topics are to be followed
            parts = [Share({}, None)]
        return [
            TaskInput(
                self._kafka,
                self._prefix,
                self._options,
                share,
                plan.control_offsets,
                may_split,
                plan.ids_of(share),
                plan.first_offsets_of(share),
            )
            for share in parts
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises TaskError."""
        assert isinstance(partition, TaskInput)
        read = read_live if partition.share.end_offsets is None else read_bounded
        with as_task_error(), kept_reader(partition) as reader:
            yield from map(to_row, chain.from_iterable(map(parts_of, read(partition, reader))))

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _plan(self) -> BatchPlan:
        if self._planner is None:
            self._planner = Planner(self._kafka, self._prefix, self._options)
        return self._planner.plan()


@dataclass
class _KeptReader:
    reader: PartitionReader
    topic_ids: dict[str, str] = field(default_factory=dict)  # of the topics that the consumer knows

    def close(self) -> None:
        self.reader.close()


_readers: Final[KeptClients[_KeptReader]] = KeptClients()


@contextmanager
def kept_reader(part: TaskInput) -> Iterator[PartitionReader]:
    """Lends the consumer that this worker process keeps from task to task. After an error it is closed."""
    name, generation = part.options.name, part.options.generation
    kept = _readers.get(name, generation)
    if kept is not None and any(kept.topic_ids.get(topic, found) != found for topic, found in part.topic_ids.items()):
        # Its client keeps the highest leader epoch of each topic name. A topic that was created again may have a
        # lower one, at which brokers refuse the client's requests, and it repeats them for ever.
        _readers.drop(name, generation)
        kept = None
    if kept is None:
        made = PartitionReader(part.kafka, f"watershed-{part.prefix}-{name}-reader")
        kept = _readers.keep(name, generation, _KeptReader(made))
    kept.topic_ids.update(part.topic_ids)
    try:
        yield kept.reader
    except BaseException:
        _readers.drop(name, generation)
        raise


def read_live(part: TaskInput, reader: Reader) -> Iterator[Piece]:
    """Yields pieces until the batch is over, and an empty one when no records follow at once."""
    start_offsets = part.share.start_offsets
    reader.seek({**start_offsets, **part.first_offsets, **part.control_offsets})
    begun = time.monotonic()
    worked_since: float | None = None  # since the first record
    behind_since: float | None = None
    follows, must_end, requests = False, False, _EndRequests(part)
    held, held_since = EMPTY, 0.0  # positions behind the last piece
    while True:
        wait_s = SETTLE_S if follows else WAIT_S_MAX if held is EMPTY else POSITIONS_S_MAX
        fetched = reader.read(wait_s, part.options.piece_bytes_max)
        piece = piece_of(fetched, start_offsets)
        now = time.monotonic()
        whole = piece if held is EMPTY else joined([held, piece])
        if piece.records or piece.lost or (held is not EMPTY and now - held_since >= POSITIONS_S_MAX):
            follows, held = True, EMPTY
            yield whole
        else:
            if piece.partitions:
                held_since = now if held is EMPTY else held_since
                held = whole
            if follows:
                follows = False
                yield EMPTY
        worked_since = worked_since or (now if piece.records else None)
        behind_since = (behind_since or now) if piece.is_full else None
        must_end = must_end or requests.are_in(fetched)
        # A task that had to wait for a slot may find at once that it must end: it takes a part of its records before.
        if must_end and not (piece.is_full and now - begun < SPLIT_S):
            break
        is_late = part.may_split and behind_since is not None and now - behind_since >= SPLIT_S
        if is_late or _is_over(part.options.live_s, now, begun, worked_since):
            break
    if held is not EMPTY:
        yield held
    reader.unassign()


def _is_over(live_s: float, now: float, begun: float, worked_since: float | None) -> bool:
    return now - begun >= live_s * IDLE_TIMES if worked_since is None else now - worked_since >= live_s


class _EndRequests:
    """Recognizes what ends a batch before its time."""

    def __init__(self, part: TaskInput) -> None:
        topics = Topics(part.prefix)
        self._control_partitions = frozenset(part.control_offsets)
        self._keys = {
            topics.control: SchemaRecord.KEY.encode(),
            topics.progress: BatchEndRecord.key_of(part.options.name, part.options.generation).encode(),
        }  # topic → what keys begin with

    def are_in(self, fetched: Fetched) -> bool:
        """Says whether a record, or the loss of one of our own topics, ends the batch."""
        if self._control_partitions.isdisjoint(fetched.positions.keys() | fetched.lost.keys()):
            return False
        return not self._control_partitions.isdisjoint(fetched.lost) or any(map(self._is_request, fetched.records))

    def _is_request(self, message: Message) -> bool:
        key = self._keys.get(message.topic() or "")
        return key is not None and (message.key() or b"").startswith(key)


def read_bounded(part: TaskInput, reader: Reader) -> Iterator[Piece]:
    """Yields pieces up to the ends of the share."""
    unread = dict(part.share.start_offsets)  # of the partitions that are not at their ends
    end_offsets = part.share.end_offsets or {}
    reader.seek({**unread, **part.first_offsets})
    read_bytes, arrived = 0, time.monotonic()
    while unread:
        fetched = reader.read(WAIT_S_MAX, part.options.piece_bytes_max)
        piece = piece_of(fetched, unread, end_offsets)
        finished = [partition for partition, reached in piece.positions.items() if reached >= end_offsets[partition]]
        for partition in (*finished, *(Partition(topic, number) for topic, number, _ in piece.lost)):
            unread.pop(partition, None)
        if piece.records or piece.partitions or piece.lost:
            arrived = time.monotonic()
            yield piece
        elif time.monotonic() - arrived > BOUNDED_IDLE_S_MAX:
            break
        read_bytes += sum(map(len, fetched.records))
        if part.options.task_bytes_max is not None and read_bytes >= part.options.task_bytes_max:
            break
    reader.unassign()
