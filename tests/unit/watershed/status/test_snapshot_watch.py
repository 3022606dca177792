"""Snapshots followed through what the topics tell."""

import pytest

from cdc.model.control import RangeRecord
from cdc.model.errors import GapError, UnreachableError, WatershedError
from cdc.model.events import TableId
from cdc.model.table_state import TableRecord
from cdc.model.topics import Topics
from tests.support.pipeline_records import FakeTail, position, progress, published, sink, snapshot
from watershed.status.fill_progress import FillProgress
from watershed.status.snapshot_watch import FollowedSnapshots, SnapshotWatch, await_begun, await_healed, epoch_of

A, B = TableId("public", "a"), TableId("public", "b")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tail() -> FakeTail:
    return FakeTail(Topics("shop"))


@pytest.fixture
def watch(tail: FakeTail, clock: Clock) -> SnapshotWatch:
    return SnapshotWatch(Topics("shop"), tail, clock)  # type: ignore[arg-type]


def test_every_tables_last_snapshot_comes_by_name(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(snapshot("b"))
    tail.publish(snapshot("a"))
    tail.publish(position(7))
    assert list(watch.snapshots()) == [A, B]


def test_rows_come_from_state_and_the_rate_from_progress(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(progress())
    assert watch.progress_of(snapshot()) == FillProgress("table", "public.a", "running", 300, 1000, 50.0)


def test_silence_counts_from_the_last_word_of_either_topic(watch: SnapshotWatch, tail: FakeTail, clock: Clock) -> None:
    clock.now += 8
    tail.publish_later(progress())
    watch.poll(0.0)
    clock.now += 8
    assert watch.progress_of(snapshot()).message == ""
    clock.now += 8
    assert "not reported for 16 s" in watch.progress_of(snapshot()).message


def test_what_else_the_topics_tell_is_read(watch: SnapshotWatch, tail: FakeTail) -> None:
    assert (watch.position(), watch.published(), watch.sinks()) == (None, None, ())
    reported = position(7), published(6), sink(1, 5), sink(2, 4)
    for record in reported:
        tail.publish(record)
    assert (watch.position(), watch.published(), *watch.sinks()) == reported


def test_a_damaged_position_is_not_taken(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(position(7).model_copy(update={"resume_lsn": 8}))
    with pytest.raises(GapError):
        watch.position()


# ---- requests


def test_followed_are_the_tables_of_the_request(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(snapshot("a", status="done"))
    tail.publish(snapshot("b"))
    (reported,) = FollowedSnapshots(watch, {A: "r1"}).statuses()
    assert (reported.name, reported.status) == ("public.a", "done")


def test_a_snapshot_that_another_request_replaced_has_ended(watch: SnapshotWatch, tail: FakeTail) -> None:
    followed = FollowedSnapshots(watch, {A: "r1"})
    tail.publish(snapshot(request="r2"))
    assert [reported.status for reported in followed.statuses()] == ["replaced"]


HEALS = "the snapshot that heals the gap"


def test_what_heals_a_gap_is_followed_in_the_snapshot_that_takes_it_over(watch: SnapshotWatch, tail: FakeTail) -> None:
    """A heal that ended well was reported as an error: rows that changed meanwhile were read by another snapshot."""
    followed = FollowedSnapshots(watch, {A: "epoch 2"})
    seen = []
    for record in (
        snapshot(request="epoch 2", owes=HEALS),
        snapshot(request="column x was dropped", rows=0, owes="the snapshot that is due"),
        snapshot(request="column x was dropped", rows=400, status="done"),
    ):
        tail.publish(record)
        seen += [(reported.status, reported.done) for reported in followed.statuses()]
    assert seen == [("running", 300), ("running", 0), ("done", 400)]


def test_a_gap_is_healed_when_a_snapshot_begins_that_owes_nothing(watch: SnapshotWatch, tail: FakeTail) -> None:
    followed = FollowedSnapshots(watch, {A: "epoch 2"})
    tail.publish(snapshot(request="epoch 2", owes=HEALS))
    followed.statuses()
    tail.publish(snapshot(request="by an operator", where="id > 7", sweeps=False))
    assert [reported.status for reported in followed.statuses()] == ["done"]


def test_a_part_does_not_heal_a_gap(watch: SnapshotWatch, tail: FakeTail) -> None:
    followed = FollowedSnapshots(watch, {A: "epoch 2"})
    tail.publish(snapshot(request="epoch 2", owes=HEALS, status="running"))
    followed.statuses()
    part = RangeRecord(after=None, up_to=None)
    tail.publish(snapshot(request="by an operator", owes=HEALS, sweeps=False, deletes_in=part, status="done"))
    assert [reported.status for reported in followed.statuses()] == ["replaced"]


def test_healing_waits_for_no_table_that_it_does_not_read(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(snapshot("b", request="epoch 1", status="cancelled"))
    tail.publish_later(position(9, epoch=2), snapshot("a", request="epoch 2", owes=HEALS))
    assert await_healed(watch, 1) == {A: "epoch 2"}


def test_a_table_that_could_not_be_captured_is_found(watch: SnapshotWatch, tail: FakeTail) -> None:
    why = WatershedError("its key is (a)", "restore its key")
    tail.publish(TableRecord.stopped(A, why, 0, is_held=False))
    tail.publish(TableRecord.stopped(B, why, 0, is_held=True))
    assert [(table, record.message, record.next) for table, record in watch.stopped().items()] == [
        (A, "its key is (a)", "restore its key")
    ]


def test_a_snapshot_has_begun_when_state_shows_it(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(snapshot("a", request="r0", status="done"))
    tail.publish_later(snapshot("a"))
    tail.publish_later(snapshot("b"))
    assert await_begun(watch, "r1", [A, B]) == {A: "r1", B: "r1"}
    assert tail.polls == []


def test_one_that_never_shows_is_an_error(watch: SnapshotWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watershed.status.snapshot_watch.BEGUN_S_MAX", 0.1)
    with pytest.raises(UnreachableError, match="was not seen"):
        await_begun(watch, "r1", [A])


def test_healing_has_begun_when_the_next_epoch_streams(watch: SnapshotWatch, tail: FakeTail) -> None:
    tail.publish(position(7, epoch=1))
    tail.publish(snapshot("a", request="epoch 1", status="done"))
    tail.publish_later(position(0, epoch=2, phase="intent"))
    tail.publish_later(position(9, epoch=2), snapshot("a", request="epoch 2"))
    assert await_healed(watch, 1) == {A: "epoch 2"}


def test_a_damaged_position_is_healed_from_epoch_0(watch: SnapshotWatch, tail: FakeTail) -> None:
    assert epoch_of(watch) == 0
    tail.publish(position(7, epoch=3).model_copy(update={"resume_lsn": 8}))
    assert epoch_of(watch) == 0
    tail.publish_later(position(9, epoch=4), snapshot("a", request="epoch 4"))
    assert await_healed(watch, 0) == {A: "epoch 4"}
    assert epoch_of(watch) == 4
