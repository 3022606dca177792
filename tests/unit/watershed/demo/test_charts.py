"""Durations, percentiles, the chart of lags and the schedule of kills."""

import pytest

from watershed.demo.charts import Kill, LagChart, Spread, duration, kill_schedule, sparkline


def test_a_percentile_is_one_of_the_values() -> None:
    assert Spread.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Spread(5, 3.0, 5.0, 5.0)
    assert Spread.of([7.0]) == Spread(1, 7.0, 7.0, 7.0)
    assert Spread.of(float(number) for number in range(1, 101)) == Spread(100, 50.0, 95.0, 100.0)
    assert Spread.of([]) == Spread(0, None, None, None)


@pytest.mark.parametrize("duration_s", [20.0, 120.0, 3600.0])
def test_kills_come_halfway_one_after_the_other_and_leave_time_to_catch_up(duration_s: float) -> None:
    schedule = kill_schedule(["capture", "search", "cache", "warehouse"], duration_s)
    assert [kill.process for kill in schedule] == ["capture", "search", "cache", "warehouse"]
    times = [kill.at_s for kill in schedule]
    assert times[0] == duration_s / 2
    assert times == sorted(set(times))
    assert times[-1] <= duration_s * 2 / 3 + 1e-9 or times[-1] <= duration_s / 2 + 30


def test_one_kill_needs_no_gap() -> None:
    assert kill_schedule(["capture"], 60.0) == [Kill(30.0, "capture")]
    assert kill_schedule([], 60.0) == []


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


def test_a_sparkline_shows_values_against_the_largest() -> None:
    assert sparkline([0, 50, 100]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def test_a_column_is_the_largest_lag_of_its_seconds_and_seconds_without_any_repeat_the_last() -> None:
    chart = LagChart()
    for at_s, lag in ((0.1, 1.0), (0.6, 4.0), (0.9, 2.0), (3.2, 8.0)):
        chart.observe(at_s, "cache", lag)
    assert chart.lines(60) == [("cache", "▅▅▅█", 8.0)]
    assert chart.lines(2) == [("cache", "▅█", 8.0)]
    assert (chart.column_s(60), chart.column_s(2)) == (1, 2)


def test_kills_are_marked_below_their_seconds() -> None:
    chart = LagChart()
    assert chart.marks() == ""
    for second in range(20):
        chart.observe(second, "cache", 1.0)
        chart.observe(second, "search", 2.0)
    chart.kill(Kill(6.4, "capture"))
    chart.kill(Kill(12.0, "sinks"))
    assert chart.marks(60) == "      ▲     ▲  kill -9: capture at 6.4 s, sinks at 12.0 s"
    assert chart.marks(10) == "   ▲  ▲  kill -9: capture at 6.4 s, sinks at 12.0 s"
    assert [bars for _, bars, _ in chart.lines(10)] == ["█" * 10] * 2
