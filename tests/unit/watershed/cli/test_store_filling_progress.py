"""When a store is filled: the source's rows first where they are wanted, then everything published until then."""

import pytest

from cdc.model.control import SnapshotRecord
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.topics import Topics
from tests.support.pipeline_records import FakeTail, position, published, sink, snapshot
from watershed.cli.store_filling import FillWatch, tables_to_read
from watershed.status.snapshot_watch import SnapshotWatch

A, B = TableId("public", "a"), TableId("public", "b")
ENDS = {"t": (100,)}


@pytest.fixture
def tail() -> FakeTail:
    return FakeTail(Topics("shop"))


@pytest.fixture
def watch(tail: FakeTail) -> SnapshotWatch:
    return SnapshotWatch(Topics("shop"), tail)  # type: ignore[arg-type]


# ---- what to read


@pytest.mark.parametrize(
    ("record", "fresh", "expected"),
    [
        (None, [], ([A], {})),
        (snapshot(status="done"), [], ([], {})),
        (snapshot(status="done"), [A], ([A], {})),
        (snapshot(), [], ([], {A: "r1"})),
        (snapshot(), [A], ([A], {})),
        (snapshot(status="failed"), [], ([A], {})),
        (snapshot(status="done", where="id > 1", sweeps=False), [], ([A], {})),
        (snapshot(status="paused", where="id > 1", sweeps=False), [], ([A], {})),
    ],
)
def test_rows_are_asked_for_where_wanted_or_where_a_topic_may_lack_some(
    watch: SnapshotWatch,
    tail: FakeTail,
    record: SnapshotRecord | None,
    fresh: list[TableId],
    expected: tuple[list[TableId], dict[TableId, str]],
) -> None:
    if record:
        tail.publish(record)
    assert tables_to_read(watch, [A], fresh) == expected


def test_a_paused_snapshot_is_its_owners_to_resume(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(snapshot(status="paused"))
    with pytest.raises(WatershedError, match=r"snapshot of public\.a is paused") as refused:
        tables_to_read(watch, [A, B], [])
    assert "cdc snapshot resume --table public.a" in refused.value.hint


# ---- the way to the goal


def statuses(filling: FillWatch) -> list[str]:
    return [f"{one.name} {one.status}" for one in filling.progress()]


def test_from_the_topics_alone_the_goal_is_what_was_published_when_it_began(
    watch: SnapshotWatch, tail: FakeTail
) -> None:
    tail.publish(published(500, ENDS))
    filling = FillWatch(watch, {"search": 1}, {}, lambda: 0.0)
    assert statuses(filling) == ["search waiting"]
    tail.publish(sink(1, 0, {"t": (40,)}))
    assert statuses(filling) == ["search running"]
    tail.publish(published(900, {"t": (200,)}))
    tail.publish(sink(1, 500, {"t": (100,)}))
    assert statuses(filling) == ["search done"]
    assert filling.is_over(filling.progress())


def test_what_a_lost_store_had_applied_counts_nothing(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(published(500, ENDS))
    tail.publish(sink(1, 500, ENDS))
    filling = FillWatch(watch, {"search": 2}, {}, lambda: 0.0)
    assert statuses(filling) == ["search waiting"]
    tail.publish(sink(2, 500, ENDS))
    assert statuses(filling) == ["search done"]


def test_with_rows_of_the_source_the_goal_is_the_position_that_covers_the_last(
    watch: SnapshotWatch, tail: FakeTail
) -> None:
    for record in (published(500, ENDS), position(500), snapshot("a"), snapshot("b", status="done"), sink(1, 500)):
        tail.publish(record)
    filling = FillWatch(watch, {"search": 1}, {A: "r1", B: "r1"}, lambda: 0.0)
    assert statuses(filling) == ["public.a running", "public.b done", "search running"]
    tail.publish(snapshot("a", status="done"))
    tail.publish_later(position(700))  # in the same Kafka transaction, and not read yet
    assert statuses(filling)[-1] == "search running", "500 was applied, the last rows came at 700"
    tail.publish(position(900))
    tail.publish(sink(1, 700))
    assert statuses(filling)[-1] == "search done", "what is published later is not waited for"


def test_several_sinks_are_filled_when_each_is(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(published(500, ENDS))
    tail.publish(sink(1, 500))
    filling = FillWatch(watch, {"search": 1, "cache": 1}, {}, lambda: 0.0)
    assert statuses(filling) == ["search done", "cache waiting"]
    assert not filling.is_over(filling.progress())


def test_a_table_that_fails_ends_it(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(published(500, ENDS))
    tail.publish(snapshot(status="failed", message="no such column"))
    filling = FillWatch(watch, {"search": 1}, {A: "r1"}, lambda: 0.0)
    assert filling.is_over(filling.progress())


def test_before_anything_is_published_there_is_no_goal(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(sink(1, 0))
    filling = FillWatch(watch, {"search": 1}, {}, lambda: 0.0)
    assert statuses(filling) == ["search running"]
