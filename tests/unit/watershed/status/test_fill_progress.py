"""What watchers are told of snapshots and sinks."""

import pytest

from cdc.model.control import SnapshotRecord
from tests.support.pipeline_records import position, progress, published, sink, snapshot
from watershed.status.fill_progress import (
    FillProgress,
    HistoryPosition,
    Rate,
    are_complete,
    replaced,
    sink_progress,
    table_progress,
    will_be_complete,
)

# ---- tables


def test_rows_are_the_records_and_the_rate_is_what_capture_reports() -> None:
    shown = table_progress(snapshot(), progress(), 1.0)
    assert shown == FillProgress("table", "public.a", "running", 300, 1000, 50.0)
    assert shown.eta_s == 14.0
    assert shown.as_json() == {
        "what": "table",
        "name": "public.a",
        "status": "running",
        "done": 300,
        "total": 1000,
        "per_s": 50.0,
        "eta_s": 14.0,
        "message": "",
        "published": None,
    }


def test_rows_that_are_compared_are_its_progress_and_those_that_differ_are_said() -> None:
    record = snapshot(rows=7, deleted=5, compares=True, compared=300)
    shown = table_progress(record, progress(rows=7), 1.0)
    assert (shown.done, shown.total, shown.published, shown.per_s) == (300, 1000, 12, 50.0)
    shown = table_progress(record.model_copy(update={"status": "done"}), None, 1.0)
    assert (shown.done, shown.total, shown.published) == (300, 300, 12)
    assert shown.message == "deleted 5 rows that no longer exist"


def test_what_it_waits_for_is_said() -> None:
    waiting = progress(status="waiting", rows=0, rows_per_s=0.0, message="transactions that began earlier")
    shown = table_progress(snapshot(rows=0), waiting, 1.0)
    assert (shown.status, shown.message, shown.eta_s) == ("waiting", "transactions that began earlier", None)
    shown = table_progress(snapshot(rows=40), waiting, 1.0)
    assert (shown.status, shown.message) == ("running", ""), "rows have come since"


def test_reports_of_an_earlier_snapshot_are_not_taken_for_this_ones() -> None:
    shown = table_progress(snapshot(request="r2", rows=0), progress(status="waiting", message="x"), 1.0)
    assert (shown.status, shown.per_s, shown.message) == ("running", 0.0, "")


def test_rows_that_had_vanished_are_said() -> None:
    shown = table_progress(snapshot(status="done", deleted=1_200), None, 1.0)
    assert shown.message == "deleted 1,200 rows that no longer exist"


def test_silence_is_said() -> None:
    shown = table_progress(snapshot(), progress(), 12.3)
    assert (shown.per_s, shown.message) == (0.0, "capture has not reported for 12 s: check that `cdc run` is running")
    assert table_progress(snapshot(status="paused"), progress(), 99.0).message == "", "a paused one has nothing to say"


@pytest.mark.parametrize("status", ["done", "cancelled", "failed"])
def test_an_end_is_the_records(status: str) -> None:
    shown = table_progress(snapshot(status=status, message="why"), progress(), 99.0)
    assert (shown.is_ended, shown.status, shown.message, shown.eta_s) == (True, status, "why", None)


def test_an_estimate_that_was_too_low_does_not_pass_the_whole() -> None:
    assert table_progress(snapshot(rows=1500), None, 0.0).total == 1500
    assert table_progress(snapshot(rows=900, status="done"), None, 0.0).total == 900


def test_of_a_part_of_a_table_the_total_is_not_known() -> None:
    assert table_progress(snapshot(where="id > 5", sweeps=False), None, 0.0).total == 0
    assert table_progress(snapshot(sweeps=False), None, 0.0).total == 0
    assert table_progress(snapshot(sweeps=False, request="epoch 1"), None, 0.0).total == 1000


def test_a_replaced_snapshot_has_ended() -> None:
    shown = replaced(table_progress(snapshot(), None, 0.0))
    assert (shown.is_ended, shown.name, shown.status) == (True, "public.a", "replaced")


@pytest.mark.parametrize(
    ("record", "is_now", "will_be"),
    [
        (None, False, False),
        (snapshot(status="done"), True, True),
        (snapshot(status="done", sweeps=False, request="epoch 1"), True, True),
        (snapshot(status="done", sweeps=False), False, False),  # a range
        (snapshot(status="done", sweeps=False, where="id > 1", request="epoch 1"), False, False),
        (snapshot(), False, True),
        (snapshot(status="paused"), False, False),
        (snapshot(status="failed"), False, False),
        (snapshot(status="cancelled"), False, False),
    ],
)
def test_a_topic_is_complete_after_a_whole_snapshot(record: SnapshotRecord | None, is_now: bool, will_be: bool) -> None:
    assert (are_complete(record), will_be_complete(record)) == (is_now, will_be)


# ---- sinks


def test_marks_are_ordered_by_epoch_first() -> None:
    assert HistoryPosition.published(position(50, epoch=2)) == HistoryPosition(2, 50)
    assert HistoryPosition.published(published(70, {})) == HistoryPosition(1, 70)
    assert (
        HistoryPosition.applied(sink(1, 90, epoch=1))
        < HistoryPosition(2, 50)
        <= HistoryPosition.applied(sink(1, 50, epoch=2))
    )


def test_a_sink_is_as_far_as_the_offsets_it_has_passed() -> None:
    rate = Rate()
    ends = {"p.a": (100, 50), "p.b": (10,)}
    sink_progress("search", sink(1, 0, {"p.a": (20, 0)}), published(500, ends), HistoryPosition(1, 500), rate, 10.0)
    shown = sink_progress("search", sink(1, 0, {"p.a": (70,), "p.b": (99,)}), published(500, ends), None, rate, 20.0)
    assert (shown.status, shown.done, shown.total, shown.per_s) == ("running", 80, 160, 6.0)


def test_a_sink_is_filled_when_it_has_applied_the_goal() -> None:
    ends = {"p.a": (100,)}

    def shown(lsn: int, goal: HistoryPosition | None) -> str:
        return sink_progress("search", sink(1, lsn, ends), published(500, ends), goal, Rate(), 1.0).status

    assert shown(500, HistoryPosition(1, 500)) == "done"
    assert shown(499, HistoryPosition(1, 500)) == "running"
    assert shown(900, HistoryPosition(2, 500)) == "running"
    assert shown(900, None) == "running", "what it is to reach is not known yet"


def test_before_the_job_says_anything_it_is_waited_for() -> None:
    shown = sink_progress("search", None, published(500, {"p.a": (100,)}), HistoryPosition(1, 500), Rate(), 1.0)
    assert (shown.status, shown.message, shown.total) == ("waiting", "Spark starts", 0)


def test_a_rate_is_of_the_last_half_minute() -> None:
    rate = Rate()
    assert rate.per_s(0.0) == 0.0
    rate.observe(0.0, 0)
    assert rate.per_s(0.0) == 0.0
    rate.observe(10.0, 100)
    assert rate.per_s(10.0) == 10.0
    rate.observe(20.0, 100)
    assert rate.per_s(20.0) == 5.0
    rate.observe(30.0, 400)
    assert rate.per_s(35.0) == 400 / 30
    rate.observe(70.0, 400)
    assert rate.per_s(70.0) == 0.0
