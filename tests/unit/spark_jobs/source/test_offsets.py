"""Offsets in a checkpoint, how far a micro-batch reads, and the ranges of a batch query."""

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructType, TimestampType

from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from spark_jobs.source import batch, stream
from spark_jobs.source.batch import INTACT_MS, BatchReader, plan
from spark_jobs.source.errors import IncompleteTableError, TopicChangedError
from spark_jobs.source.offsets import StreamOffset, limited, require_held
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.pipeline import TableState, require_same
from spark_jobs.source.records import Sweep
from spark_jobs.source.stream import StreamReader
from tests.unit.spark_jobs.source.records import TOPIC, part

OFFSET = StreamOffset(TOPIC, "history", "id", (1, 7), 5, (3, 4))


def state(**fields: Any) -> TableState:
    progress = fields.pop("progress", None) or ProgressRecord(
        epoch=1,
        seq=9,
        lsn=500,
        commit_ts_us=0,
        published_ts_us=0,
        end_offsets={TOPIC: (10, 20)},
        history="history",
        incarnations=fields.pop("incarnations", {TOPIC: "id"}),
    )
    given: dict[str, Any] = {
        "schema_history": part().schema_history,
        "progress": progress,
        "sweep": None,
        "topic_id": "id",
    }
    return TableState(**given | {"start_offsets": (0, 0), "end_offsets": (11, 21)} | fields)


def test_an_offset_survives_the_checkpoint() -> None:
    text = json.dumps(OFFSET.encoded())
    assert StreamOffset.decode(json.loads(text)) == OFFSET
    assert json.dumps(StreamOffset.decode(json.loads(text)).encoded()) == text
    for other in ({}, {"o": 3}, {**OFFSET.encoded(), "offsets": "x"}):
        with pytest.raises(TopicChangedError, match="not one of format"):
            StreamOffset.decode(other)


def test_a_checkpoint_of_something_else_is_refused() -> None:
    require_same(OFFSET._asdict(), state())
    for other, message in (
        (OFFSET._replace(topic="shop.public.a"), "the checkpoint is of topic shop.public.a"),
        (OFFSET._replace(history="other"), "has another history"),
        (OFFSET._replace(incarnation="id#2"), "was created again, or has lost records"),
    ):
        with pytest.raises(TopicChangedError) as error:
            require_same(other._asdict(), state())
        assert message in error.value.message
        assert "new checkpoint" in error.value.hint
    require_same(OFFSET._asdict(), state(incarnations={}))  # the table is being added


def test_lost_records_are_found_and_new_partitions_are_read() -> None:
    require_held(OFFSET, (0, 0), (3, 4))
    require_held(OFFSET, (0, 0, 0), (3, 4, 9))
    assert [OFFSET.of(number) for number in range(3)] == [3, 4, 0]
    for starts, ends, message in (
        ((0, 0), (2, 4), "partition 0 ends at 2"),
        ((0, 5), (3, 9), "partition 1 begins at 5"),
        ((0,), (9,), "has 1 partitions, the checkpoint 2"),
    ):
        with pytest.raises(TopicChangedError) as error:
            require_held(OFFSET, starts, ends)
        assert message in error.value.message


def test_a_batch_takes_of_each_partition_what_its_backlog_is() -> None:
    assert limited((0, 0), (10, 20), None) == (10, 20)
    assert limited((0, 0), (10, 20), 30) == (10, 20)
    assert limited((0, 0), (10, 20), 3) == (1, 2)
    assert limited((5, 0), (5, 20), 1) == (5, 1)
    assert limited((0, 0, 0), (1, 1, 1), 1) == (1, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6), st.integers(1, 40))
def test_a_batch_is_bounded_and_goes_on(parts: list[tuple[int, int]], records_max: int) -> None:
    starts = [start for start, _ in parts]
    ends = [start + lag for start, lag in parts]
    found = limited(starts, ends, records_max)
    read = sum(found) - sum(starts)
    assert all(start <= stop <= end for start, stop, end in zip(starts, found, ends, strict=True))
    assert read == min(records_max, sum(ends) - sum(starts))


def options(**fields: Any) -> SourceOptions:
    return SourceOptions(part().kafka, "shop", TableId("public", "things"), **fields)


def test_ranges_of_a_batch_query() -> None:
    sweep = SweepRecord.of(TableId("public", "things"), 77, 400, 1, 0)
    parts: list[Any] = [*plan(options(), state(sweep=sweep, start_offsets=(2, 0)), INTACT_MS + 5)]
    first, second = parts
    assert (first.number, first.begin, first.start, first.end, first.floor) == (0, 2, 2, 10, 77)
    assert (second.number, second.end, second.after, second.until) == (1, 20, (0, 0), None)
    window = options(starting=100, ending=200)
    parts = [*plan(window, state(sweep=sweep), INTACT_MS + 5)]  # the sweep is outside of it
    assert {(each.after, each.until, each.intact_ms) for each in parts} == {((1, 100), (1, 200), 5)}
    latest = options(starting="earliest", ending="latest", may_be_compacted=True)
    parts = [*plan(latest, state(sweep=sweep), INTACT_MS + 5)]
    swept = parts.pop(0)
    assert swept == Sweep(state().schema_history, 77, 400)
    assert {(each.after, each.until, each.intact_ms) for each in parts} == {((0, 0), (1, 500), 0)}


@pytest.mark.parametrize(
    ("starting", "ending", "error", "message"),
    [
        (None, 501, IncompleteTableError, "capture has reached 0/1F4, which is before endingPosition 0/1F5"),
        (600, None, IncompleteTableError, "which is before startingPosition"),
        (200, 100, ConfigError, "endingPosition is before startingPosition"),
        (None, "earliest", ConfigError, "can't be earliest"),
    ],
)
def test_positions_of_which_there_is_nothing_are_refused(starting: Any, ending: Any, error: Any, message: str) -> None:
    with pytest.raises(error) as refused:
        list(plan(options(starting=starting, ending=ending), state(), 0))
    assert message in refused.value.message


# ---- the readers, on facts that they are given

SPARK = (
    StructType()
    .add("id", IntegerType())
    .add("_op", StringType())
    .add("_version", LongType())
    .add("_commit_lsn", LongType())
    .add("_commit_ts", TimestampType())
    .add("_key", StringType())
    .add("_unchanged", ArrayType(StringType()))
)


class Watch:
    """A pipeline whose facts a test sets."""

    now = state()

    def __init__(self, _: SourceOptions) -> None:
        pass

    def state(self) -> TableState:
        return self.now

    settled_state = state

    def close(self) -> None:
        pass


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> type[Watch]:
    monkeypatch.setattr(batch, "TableWatch", Watch)
    monkeypatch.setattr(stream, "TableWatch", Watch)
    monkeypatch.setattr(Watch, "now", state())
    return Watch


def test_a_range_and_a_reader_can_be_sent_to_a_task(watch: type[Watch]) -> None:
    reader = BatchReader(options(columns=("id",)), SPARK)
    parts = reader.partitions()
    assert pickle.loads(pickle.dumps(parts)) == parts  # noqa: S301 - our own bytes
    assert len(parts) == 2
    pickle.dumps(StreamReader(options(columns=("id",)), SPARK))
    assert watch.now.owed == ""


def test_a_table_of_which_rows_are_missing_is_not_read_early(watch: type[Watch]) -> None:
    progress = state().progress.model_copy(update={"owed": {"public.things": "its initial snapshot"}})
    watch.now = state(progress=progress)
    with pytest.raises(IncompleteTableError, match="its initial snapshot"):
        BatchReader(options(columns=("id",)), SPARK).partitions()
    allowed = BatchReader(options(columns=("id",), may_be_incomplete=True), SPARK).partitions()
    assert len(allowed) == 2


def test_a_query_begins_continues_and_reads_new_partitions(watch: type[Watch]) -> None:
    chosen = options(columns=("id",), records_max=4)
    fresh = StreamReader(chosen, SPARK)
    first = fresh.latestOffset()  # as Spark 4.1 calls them
    begin = fresh.initialOffset()
    assert (begin["offsets"], first["offsets"]) == ([0, 0], [2, 2])
    parts: list[Any] = [*fresh.partitions(begin, first)]
    assert [(part.number, part.start, part.end) for part in parts] == [(0, 0, 2), (1, 0, 2)]
    restarted = StreamReader(chosen, SPARK)
    assert restarted.partitions(first, first) == []
    watch.now = state(start_offsets=(0, 0, 0), end_offsets=(2, 2, 3))
    second = restarted.latestOffset()
    parts = [*restarted.partitions(first, second)]
    assert [(part.number, part.start, part.end) for part in parts] == [(2, 0, 3)]
    watch.now = state(incarnations={TOPIC: "id#7"})
    for call in (restarted.latestOffset, lambda: restarted.partitions(first, second)):
        with pytest.raises(TopicChangedError, match="was created again, or has lost records"):
            call()


def test_a_query_may_begin_at_the_end_or_at_a_position(watch: type[Watch]) -> None:
    assert watch.now.end_offsets == (11, 21)
    latest = StreamReader(options(columns=("id",), starting="latest"), SPARK)
    assert latest.latestOffset() == latest.initialOffset()
    assert latest.initialOffset()["offsets"] == [11, 21]
    position = StreamReader(options(columns=("id",), starting=300), SPARK)
    end = position.latestOffset()
    parts: list[Any] = [*position.partitions(position.initialOffset(), end)]
    assert {part.after for part in parts} == {(1, 300)}


def test_a_sweep_is_passed_on_when_everything_as_of_it_was(watch: type[Watch]) -> None:
    sweep = SweepRecord.of(TableId("public", "things"), 77, 400, 1, 0)
    watch.now = state(sweep=sweep)
    reader = StreamReader(options(columns=("id",), records_max=20), SPARK)
    first = reader.latestOffset()
    assert (first["swept"], len(reader.partitions(reader.initialOffset(), first))) == (0, 2)
    second = reader.latestOffset()
    assert (second["swept"], second["offsets"]) == (77, [11, 21])
    assert reader.partitions(first, second)[0] == Sweep(state().schema_history, 77, 400)
    assert reader.latestOffset() == second
    watch.now = state(sweep=SweepRecord.of(TableId("public", "things"), 99, 501, 1, 77))
    assert reader.latestOffset() == second  # capture has not reached it
