"""Rates, lags, percentiles and the schedule of kills."""

import pytest

from watershed.demo.figures import (
    RATE_WINDOW_S,
    Freshness,
    Kill,
    Lag,
    Rows,
    SourceHistory,
    duration,
    kill_schedule,
    percentile,
    sparkline,
)


def test_a_percentile_is_one_of_the_values() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert percentile(values, 0.5) == 3.0
    assert percentile(values, 0.95) == 5.0
    assert percentile(values, 0.2) == 1.0
    assert percentile(values, 0.21) == 2.0
    assert percentile([7.0], 0.95) == 7.0
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0
    assert percentile([], 0.5) is None


def test_rows_are_counted_from_captures_numbering() -> None:
    rows = Rows()
    rows.observe(0.0, 1, 100)
    rows.observe(1.0, 1, 400)
    rows.observe(1.5, 1, 400)
    assert rows.total == 400


def test_an_epoch_numbers_from_the_start_again() -> None:
    rows = Rows()
    rows.observe(0.0, 1, 100)
    rows.observe(1.0, 2, 50)
    rows.observe(2.0, 1, 900)  # what a fenced predecessor wrote is not counted
    assert rows.total == 150


def test_the_rate_is_of_the_last_seconds() -> None:
    rows = Rows()
    assert rows.rate(0.0) == 0.0
    for second in range(11):
        rows.observe(float(second), 1, second * 300)
    assert rows.rate(10.0) == pytest.approx(300)
    assert rows.rate(10.0 + 2 * RATE_WINDOW_S) == 0.0


def test_the_rate_of_a_young_run_is_over_its_age() -> None:
    rows = Rows()
    rows.observe(10.0, 1, 0)
    rows.observe(11.0, 1, 200)
    assert rows.rate(11.0) == pytest.approx(200)


def history() -> SourceHistory:
    source = SourceHistory()
    source.observe(100.0, 1000, 0)
    source.observe(101.0, 2000, 10)
    source.observe(102.0, 3000, 25)
    return source


def test_a_reader_with_everything_does_not_lag() -> None:
    assert history().lag(3000, 110.0) == Lag(0.0, 0)
    assert history().lag(9000, 110.0) == Lag(0.0, 0)


def test_lag_is_the_age_of_the_oldest_commit_that_is_missing() -> None:
    assert history().lag(2999, 110.0) == Lag(8.0, 15)
    assert history().lag(2000, 110.0) == Lag(8.0, 15)
    assert history().lag(1500, 110.0) == Lag(9.0, 25)
    assert history().lag(0, 110.0) == Lag(10.0, 25)


def test_log_without_row_changes_is_no_lag() -> None:
    source = history()
    source.observe(105.0, 4000, 25)
    assert source.lag(3000, 110.0) == Lag(0.0, 0)


def test_nothing_known_is_no_lag() -> None:
    assert SourceHistory().lag(0, 1.0) == Lag(0.0, 0)


def test_freshness_can_be_asked_of_a_part_of_the_run() -> None:
    freshness = Freshness()
    for second in range(10):
        freshness.observe(float(second), second + (0.1 if second < 5 else 3.0))
    assert freshness.spread(until=5.0).count == 5
    assert freshness.spread(until=5.0).p95 == pytest.approx(0.1)
    assert freshness.spread(since=5.0).p50 == pytest.approx(3.0)
    assert freshness.spread().worst == pytest.approx(3.0)
    assert freshness.spread(since=50.0).p50 is None


def test_clocks_that_disagree_make_no_negative_time() -> None:
    freshness = Freshness()
    freshness.observe(10.0, 9.99)
    assert freshness.spread().worst == 0.0


@pytest.mark.parametrize("duration_s", [20.0, 120.0, 3600.0])
def test_kills_come_halfway_one_after_the_other_and_leave_time_to_catch_up(duration_s: float) -> None:
    schedule = kill_schedule(["capture", "search", "cache", "warehouse"], duration_s)
    assert [kill.process for kill in schedule] == ["capture", "search", "cache", "warehouse"]
    times = [kill.at_s for kill in schedule]
    assert times[0] == duration_s / 2
    assert times == sorted(set(times))
    assert times[-1] <= duration_s * 2 / 3 + 1e-9 or times[-1] <= duration_s / 2 + 30


def test_one_kill_needs_no_gap() -> None:
    assert kill_schedule(["capture"], 60.0) == (Kill(30.0, "capture"),)
    assert kill_schedule([], 60.0) == ()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.0844, "84 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (1.25, "1.2 s"),
        (99.96, "1 m 39 s"),
        (125.0, "2 m 05 s"),
    ],
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_sparkline_shows_the_last_values_against_the_largest() -> None:
    assert sparkline([0, 50, 100], 10) == "▁▅█"
    assert sparkline([900, 0, 100], 2) == "▁█"
    assert sparkline([0, 0], 5) == "▁▁"
    assert sparkline([], 5) == ""
