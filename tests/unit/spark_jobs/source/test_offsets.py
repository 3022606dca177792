"""Offsets in a checkpoint, how far a micro-batch reads, and the ranges of a batch query."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from spark_jobs.source.batch import INTACT_MS, plan
from spark_jobs.source.errors import IncompleteTableError, TopicChangedError
from spark_jobs.source.offsets import StreamOffset, limited, require_held
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.pipeline import TableFacts, require_same
from tests.unit.spark_jobs.source.records import TOPIC, part

OFFSET = StreamOffset(TOPIC, "history", "id", (1, 7), (3, 4))


def facts(**fields: Any) -> TableFacts:
    progress = ProgressRecord(
        epoch=1,
        seq=9,
        lsn=500,
        commit_ts_us=0,
        published_ts_us=0,
        end_offsets={TOPIC: (10, 20)},
        history="history",
        incarnations=fields.pop("incarnations", {TOPIC: "id"}),
    )
    given: dict[str, Any] = {"lineage": part().lineage, "progress": progress, "sweep": None, "topic_id": "id"}
    return TableFacts(**given | {"starts": (0, 0), "ends": (11, 21)} | fields)


def test_an_offset_survives_the_checkpoint() -> None:
    text = json.dumps(OFFSET.encoded())
    assert StreamOffset.decode(json.loads(text)) == OFFSET
    assert json.dumps(StreamOffset.decode(json.loads(text)).encoded()) == text
    for other in ({}, {"o": 3}, {**OFFSET.encoded(), "offsets": "x"}):
        with pytest.raises(TopicChangedError, match="not one of format"):
            StreamOffset.decode(other)


def test_a_checkpoint_of_something_else_is_refused() -> None:
    require_same(OFFSET._asdict(), facts())
    for other, said in (
        (OFFSET._replace(topic="shop.public.a"), "the checkpoint is of topic shop.public.a"),
        (OFFSET._replace(history="other"), "has another history"),
        (OFFSET._replace(incarnation="id#2"), "was created again, or has lost records"),
    ):
        with pytest.raises(TopicChangedError) as error:
            require_same(other._asdict(), facts())
        assert said in error.value.message
        assert "new checkpoint" in error.value.hint
    require_same(OFFSET._asdict(), facts(incarnations={}))  # the table is being added


def test_lost_records_are_found_and_new_partitions_are_read() -> None:
    require_held(OFFSET, (0, 0), (3, 4))
    require_held(OFFSET, (0, 0, 0), (3, 4, 9))
    assert [OFFSET.of(number) for number in range(3)] == [3, 4, 0]
    for starts, ends, said in (
        ((0, 0), (2, 4), "partition 0 ends at 2"),
        ((0, 5), (3, 9), "partition 1 begins at 5"),
        ((0,), (9,), "has 1 partitions, the checkpoint 2"),
    ):
        with pytest.raises(TopicChangedError) as error:
            require_held(OFFSET, starts, ends)
        assert said in error.value.message


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
    first, second = plan(options(), facts(sweep=sweep, starts=(2, 0)), INTACT_MS + 5)
    assert (first.number, first.begin, first.start, first.end, first.floor) == (0, 2, 2, 10, 77)
    assert (second.number, second.end, second.after, second.until) == (1, 20, (0, 0), None)
    window = options(starting=100, ending=200)
    assert {(each.after, each.until, each.intact_ms) for each in plan(window, facts(), INTACT_MS + 5)} == {
        ((1, 100), (1, 200), 5)
    }
    latest = options(starting="earliest", ending="latest", may_be_compacted=True)
    assert {(each.after, each.until, each.intact_ms) for each in plan(latest, facts(), INTACT_MS + 5)} == {
        ((0, 0), (1, 500), 0)
    }


@pytest.mark.parametrize(
    ("starting", "ending", "error", "said"),
    [
        (None, 501, IncompleteTableError, "capture has reached 0/1F4, which is before endingPosition 0/1F5"),
        (600, None, IncompleteTableError, "which is before startingPosition"),
        (200, 100, ConfigError, "endingPosition is before startingPosition"),
        (None, "earliest", ConfigError, "can't be earliest"),
    ],
)
def test_positions_of_which_there_is_nothing_are_refused(starting: Any, ending: Any, error: Any, said: str) -> None:
    with pytest.raises(error) as refused:
        list(plan(options(starting=starting, ending=ending), facts(), 0))
    assert said in refused.value.message
