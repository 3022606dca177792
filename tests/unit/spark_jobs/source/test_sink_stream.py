"""What a task of a sink's stream reads, and when it ends, on a scripted reader and a clock of its own."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.settings import KafkaConfig
from cdc.model.control import ProgressRecord, SchemaRecord
from cdc.model.events import TableId
from cdc.model.job_records import BatchEndRecord
from cdc.model.sink_records import SinkRecord
from spark_jobs.source import sink_stream
from spark_jobs.source.piece import EMPTY, Piece
from spark_jobs.source.reading import Fetched, Partition
from spark_jobs.source.shares import Share
from spark_jobs.source.sink_options import SinkStreamOptions
from spark_jobs.source.sink_stream import (
    BOUNDED_IDLE_S_MAX,
    IDLE_TIMES,
    POSITIONS_S_MAX,
    SETTLE_S,
    SPLIT_S,
    WAIT_S_MAX,
    TaskInput,
    read_bounded,
    read_live,
)
from tests.unit.spark_jobs.records import OTHER, PARTITION, Signal, fetched, upsert

KAFKA = KafkaConfig(bootstrap_servers="127.0.0.1:1")
CONTROL, PROGRESS = "shop.control", "shop.progress"
SIGNALS = {Partition(CONTROL, 0): 40, Partition(PROGRESS, 0): 70}
LIVE_S = 10.0
BEGUN = 1000.0
BATCH_END = BatchEndRecord.key_of("search", 1)


def options(**fields: Any) -> SinkStreamOptions:
    given: dict[str, Any] = {
        "name": "search",
        "generation": 1,
        "job_id": (3, "m"),
        "tables": ("*.*",),
        "exclude_tables": (),
        "task_count_max": 4,
        "piece_bytes_max": 1000,
    }
    return SinkStreamOptions(**given | fields)


def live(*, may_split: bool = False, starts: Mapping[Partition, int] | None = None) -> TaskInput:
    share = Share({PARTITION: 5, OTHER: 9} if starts is None else starts, None)
    return TaskInput(KAFKA, "shop", options(live_s=LIVE_S), share, SIGNALS, may_split)


def bounded(ends: Mapping[Partition, int], task_bytes_max: int | None = None) -> TaskInput:
    share = Share(dict.fromkeys(ends, 0), ends)
    return TaskInput(KAFKA, "shop", options(task_bytes_max=task_bytes_max), share, SIGNALS, may_split=False)


class TimedReader:
    """Hands over what the script has, not before its time (seconds after the beginning)."""

    def __init__(self, *script: tuple[float, Fetched]) -> None:
        self.script = list(script)
        self.now = BEGUN
        self.sought: dict[Partition, int] = {}
        self.waits: list[float] = []
        self.is_resting = False

    @property
    def lasted_s(self) -> float:
        return self.now - BEGUN

    def seek(self, starts: Mapping[Partition, int]) -> None:
        self.sought = dict(starts)

    def read(self, timeout_s: float, bytes_max: int) -> Fetched:
        assert bytes_max == 1000
        self.waits.append(timeout_s)
        if self.script and BEGUN + self.script[0][0] <= self.now + timeout_s:
            at_s, found = self.script.pop(0)
            self.now = max(self.now, BEGUN + at_s)
            return found
        self.now += timeout_s
        return Fetched([], {}, False)

    def unassign(self) -> None:
        self.is_resting = True


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The readers' clock in place of the machine's."""
    clock = SimpleNamespace(monotonic=lambda: BEGUN)
    monkeypatch.setattr(sink_stream, "time", clock)
    return clock


def read(clock: SimpleNamespace, part: TaskInput, reader: TimedReader) -> list[Piece]:
    clock.monotonic = lambda: reader.now
    return list((read_live if part.share.end_offsets is None else read_bounded)(part, reader))


def keys(pieces: list[Piece]) -> list[list[int]]:
    return [[record.offset for record in piece.records] for piece in pieces]


def test_a_live_task_reads_its_partitions_and_our_own_topics(clock: SimpleNamespace) -> None:
    reader = TimedReader()
    read(clock, live(), reader)
    assert reader.sought == {PARTITION: 5, OTHER: 9, **SIGNALS}
    assert reader.is_resting


@pytest.mark.parametrize("part", [live(), bounded({PARTITION: 8, OTHER: 12})])
def test_a_task_begins_at_the_first_record_that_was_known_to_be_there(clock: SimpleNamespace, part: TaskInput) -> None:
    reader = TimedReader()
    read(clock, replace(part, first_offsets={OTHER: 11}), reader)
    assert reader.sought[OTHER] == 11 and reader.sought[PARTITION] == part.share.start_offsets[PARTITION]


@pytest.mark.parametrize("may_split", [False, True])
def test_a_live_task_in_which_records_arrive_ends_after_its_time(clock: SimpleNamespace, may_split: bool) -> None:
    reader = TimedReader(*((float(at), fetched(upsert(at, at, at + 1))) for at in range(1, 99)))
    pieces = read(clock, live(may_split=may_split), reader)
    assert 1 + LIVE_S <= reader.lasted_s <= 1 + LIVE_S + WAIT_S_MAX, "after its first record"
    assert [piece.records[0].offset for piece in pieces if piece.records] == list(range(1, 12))


def test_a_live_task_in_which_nothing_arrives_lasts_longer(clock: SimpleNamespace) -> None:
    reader = TimedReader()
    assert read(clock, live(), reader) == []
    assert LIVE_S * IDLE_TIMES <= reader.lasted_s <= LIVE_S * IDLE_TIMES + WAIT_S_MAX
    assert set(reader.waits) == {WAIT_S_MAX}


def test_the_time_of_a_live_task_that_was_idle_begins_with_its_first_record(clock: SimpleNamespace) -> None:
    """A burst after a pause is not cut by the end of a batch."""
    reader = TimedReader((2 * LIVE_S, fetched(upsert(5, 1, 1))))
    assert keys(read(clock, live(), reader)) == [[5], []]
    assert 3 * LIVE_S <= reader.lasted_s <= 3 * LIVE_S + WAIT_S_MAX


def test_ends_of_partitions_are_no_records(clock: SimpleNamespace) -> None:
    reader = TimedReader(*((float(at), fetched(end=5 + at)) for at in range(1, 99)))
    pieces = read(clock, live(), reader)
    assert reader.lasted_s >= LIVE_S * IDLE_TIMES
    assert [piece.positions for piece in pieces if piece.partitions][:2] == [{PARTITION: 6}, {PARTITION: 7}]


def test_when_no_records_follow_at_once_an_empty_piece_says_so(clock: SimpleNamespace) -> None:
    """Spark passes a piece on when the next one is there."""
    reader = TimedReader((1.0, fetched(upsert(5, 1, 1))), (1.0005, fetched(upsert(6, 2, 2))), (3.0, fetched(end=8)))
    pieces = read(clock, live(), reader)
    assert keys(pieces) == [[5], [6], [], [], []]
    assert pieces[2] == pieces[4] == EMPTY and pieces[3].positions == {PARTITION: 8}
    first = reader.waits.index(SETTLE_S)
    assert reader.waits[first : first + 3] == [SETTLE_S, SETTLE_S, WAIT_S_MAX], "then it waits without spinning"


def test_positions_without_records_wait_for_the_next_records(clock: SimpleNamespace) -> None:
    """Transaction markers follow the records of each transaction: alone, they were half of the rows of Spark."""
    reader = TimedReader(
        (1.0, fetched(upsert(5, 1, 1))),
        (1.01, fetched(end=7)),
        (1.02, fetched(upsert(9, 2, 2, partition=1))),
        (1.03, fetched(end=8)),
    )
    pieces = read(clock, live(), reader)
    assert keys(pieces) == [[5], [], [9], [], [], []]
    assert pieces[2].positions == {PARTITION: 7, OTHER: 10}
    assert pieces[4].positions == {PARTITION: 8}, "not longer than POSITIONS_S_MAX"
    assert reader.waits[-1] == WAIT_S_MAX and POSITIONS_S_MAX in reader.waits


def test_positions_that_wait_when_a_task_ends_are_passed_on(clock: SimpleNamespace) -> None:
    request = fetched(Signal(PROGRESS, BATCH_END, 71))
    reader = TimedReader((1.0, fetched(upsert(5, 1, 1))), (1.01, fetched(end=7)), (1.02, request))
    assert read(clock, live(), reader)[-1].positions == {PARTITION: 7}


def test_the_reason_why_a_partition_is_not_read_on_is_passed_on_at_once(clock: SimpleNamespace) -> None:
    reader = TimedReader((1.0, fetched(lost={PARTITION: "the topic was deleted"})))
    pieces = read(clock, live(), reader)
    assert pieces[0].lost == [(*PARTITION, "the topic was deleted")] and pieces[1:] == [EMPTY]
    assert reader.lasted_s >= LIVE_S, "the others are read on"


@pytest.mark.parametrize(
    ("topic", "key", "ends"),
    [
        (CONTROL, SchemaRecord.key_of(TableId("public", "new")), True),
        (CONTROL, "sweep/public.a", False),
        (PROGRESS, BATCH_END, True),
        (PROGRESS, BatchEndRecord.key_of("search", 2), False),
        (PROGRESS, BatchEndRecord.key_of("search", 11), False),
        (PROGRESS, BatchEndRecord.key_of("search2", 1), False),
        (PROGRESS, ProgressRecord.KEY, False),
        (PROGRESS, SinkRecord.key_of("search", 1), False),
        (PROGRESS, SchemaRecord.KEY, False),
        ("shop.public.a", BATCH_END, False),
    ],
)
def test_a_live_task_ends_when_its_driver_or_a_new_schema_asks_for_it(
    clock: SimpleNamespace, topic: str, key: str, ends: bool
) -> None:
    reader = TimedReader((2.0, fetched(Signal(topic, key, 71), upsert(5, 1, 1))))
    pieces = read(clock, live(), reader)
    assert keys(pieces)[0][-1] == 5, "what was read with it is passed on"
    assert (reader.lasted_s == 2.0) is ends
    assert reader.is_resting


@pytest.mark.parametrize("topic", [CONTROL, PROGRESS])
def test_a_live_task_ends_when_it_can_t_follow_our_own_topics(clock: SimpleNamespace, topic: str) -> None:
    """They were deleted, or compacted beyond what was read: the driver reads them again before the next batch."""
    reader = TimedReader((2.0, fetched(lost={Partition(topic, 0): "gone"})))
    assert read(clock, live(), reader) == []
    assert reader.lasted_s == 2.0


def test_a_task_without_partitions_follows_our_own_topics(clock: SimpleNamespace) -> None:
    reader = TimedReader((2.0, fetched(Signal(PROGRESS, BATCH_END, 71))))
    assert read(clock, live(starts={}), reader) == []
    assert reader.lasted_s == 2.0 and reader.sought == SIGNALS


def full(at_s: float, offset: int) -> tuple[float, Fetched]:
    return at_s, fetched(upsert(offset, offset, offset + 1), is_full=True)


@pytest.mark.parametrize("may_split", [False, True])
def test_a_task_that_is_behind_ends_where_more_tasks_could_share_its_partitions(
    clock: SimpleNamespace, may_split: bool
) -> None:
    reader = TimedReader(*(full(1.0 + number / 1000, number) for number in range(12_000)))
    read(clock, live(may_split=may_split), reader)
    assert reader.lasted_s == pytest.approx(1.0 + SPLIT_S if may_split else 1 + LIVE_S, abs=0.01)


def test_a_task_that_catches_up_now_and_then_is_not_split(clock: SimpleNamespace) -> None:
    script = [
        full(number / 1000, number) if number % 1000 else (number / 1000, fetched(upsert(number, number, number + 1)))
        for number in range(1, 12_000)
    ]
    reader = TimedReader(*script)
    read(clock, live(may_split=True), reader)
    assert reader.lasted_s >= LIVE_S


def test_a_task_that_had_to_wait_for_a_slot_reads_a_part_of_its_backlog_before_it_ends(clock: SimpleNamespace) -> None:
    """The others have ended, and it is asked to end before it has begun: it would never read anything."""
    end = 0.0, fetched(Signal(PROGRESS, BATCH_END, 71))
    reader = TimedReader(end)
    read(clock, live(), reader)
    assert reader.lasted_s == 0.0, "nothing waits"
    asked = 0.001, fetched(Signal(PROGRESS, BATCH_END, 71), upsert(1, 1, 2), is_full=True)
    reader = TimedReader(asked, *(full(number / 1000, number) for number in range(2, 12_000)))
    read(clock, live(), reader)
    assert reader.lasted_s == pytest.approx(SPLIT_S, abs=0.01)
    reader = TimedReader(asked, full(0.002, 2), (0.003, fetched(upsert(3, 3, 4))))
    assert keys(read(clock, live(), reader)) == [[1], [2], [3]]
    assert reader.lasted_s == pytest.approx(0.003), "it has caught up"


# ---- bounded


def test_a_bounded_task_ends_exactly_where_the_batch_does(clock: SimpleNamespace) -> None:
    """The offsets in Spark's checkpoint say what a batch has: what arrives meanwhile is the next one's."""
    reader = TimedReader(
        (0.0, fetched(upsert(0, 1, 1), upsert(1, 2, 2), upsert(2, 3, 3), upsert(0, 7, 4, partition=1))),
        (0.0, fetched(upsert(3, 3, 3), upsert(1, 7, 5, partition=1), upsert(2, 7, 6, partition=1), end=9)),
        (0.0, fetched(upsert(3, 7, 7, partition=1))),
    )
    pieces = read(clock, bounded({PARTITION: 2, OTHER: 2}), reader)
    assert [piece.positions for piece in pieces] == [{PARTITION: 2, OTHER: 1}, {OTHER: 2}]
    assert [[(*piece.partition(record), record.offset)[1:] for record in piece.records] for piece in pieces] == [
        [(0, 0), (0, 1), (1, 0)],
        [(1, 1)],
    ]
    assert len(reader.script) == 1 and reader.is_resting
    assert reader.sought == {PARTITION: 0, OTHER: 0}, "our own topics are not followed"


def test_markers_at_the_end_count(clock: SimpleNamespace) -> None:
    reader = TimedReader((0.0, fetched(upsert(0, 1, 1))), (0.1, fetched(end=3)))
    pieces = read(clock, bounded({PARTITION: 3}), reader)
    assert [piece.positions for piece in pieces] == [{PARTITION: 1}, {PARTITION: 3}]
    assert not reader.script


def test_a_bounded_task_stops_at_its_bytes(clock: SimpleNamespace) -> None:
    size = len(upsert(0, 1, 1))
    script = [(0.0, fetched(upsert(number, 1, 1))) for number in range(9)]
    for task_bytes_max, count in ((1, 1), (size, 1), (size + 1, 2), (None, 9)):
        reader = TimedReader(*script)
        assert len(read(clock, bounded({PARTITION: 9}, task_bytes_max), reader)) == count
        assert reader.is_resting


def test_a_partition_that_is_lost_is_not_waited_for(clock: SimpleNamespace) -> None:
    reader = TimedReader((0.0, fetched(lost={PARTITION: "deleted"})), (1.0, fetched(upsert(0, 1, 1, partition=1))))
    pieces = read(clock, bounded({PARTITION: 9, OTHER: 1}), reader)
    assert pieces[0].lost == [(*PARTITION, "deleted")] and pieces[1].positions == {OTHER: 1}
    assert reader.lasted_s == 1.0


def test_a_bounded_task_does_not_wait_without_end_for_records_that_do_not_come(clock: SimpleNamespace) -> None:
    """The topic was made again, or a transaction was removed: the next batch begins where this one came to."""
    reader = TimedReader((BOUNDED_IDLE_S_MAX - 1, fetched(upsert(0, 1, 1))))
    pieces = read(clock, bounded({PARTITION: 9}), reader)
    assert pieces[-1].positions == {PARTITION: 1}
    assert reader.lasted_s == pytest.approx(2 * BOUNDED_IDLE_S_MAX - 1, abs=2 * WAIT_S_MAX)


def test_records_behind_the_end_are_not_what_is_waited_for(clock: SimpleNamespace) -> None:
    busy = ((float(at), fetched(upsert(at, 1, 1))) for at in range(99))
    reader = TimedReader(*busy)
    read(clock, bounded({PARTITION: 1, OTHER: 1}), reader)
    assert reader.lasted_s <= BOUNDED_IDLE_S_MAX + 1
