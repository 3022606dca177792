"""Lags by second, as bars, with a mark below each kill."""

from watershed.demo.lag_chart import LagChart, LagLine


def test_a_column_is_the_largest_lag_of_its_seconds_and_seconds_without_any_repeat_the_last() -> None:
    chart = LagChart()
    for at_s, lag in ((0.1, 1.0), (0.6, 4.0), (0.9, 2.0), (3.2, 8.0)):
        chart.observe(at_s, {"cache": lag})
    assert chart.lines(60) == [LagLine("cache", "▅▅▅█", 8.0)]
    assert chart.lines(2) == [LagLine("cache", "▅█", 8.0)]
    assert chart.title(60).endswith("a column is a second")
    assert chart.title(2).endswith("a column is 2 seconds")


def test_kills_are_marked_below_their_seconds() -> None:
    chart = LagChart()
    assert chart.marks() == ""
    for second in range(20):
        chart.observe(second, {"cache": 1.0, "search": 2.0})
    chart.kill(6.4, "capture")
    chart.kill(12.0, "sinks")
    assert chart.marks(60) == "      ▲     ▲  kill -9: capture at 6.4 s, sinks at 12.0 s"
    assert chart.marks(10) == "   ▲  ▲  kill -9: capture at 6.4 s, sinks at 12.0 s"
    assert [line.bars for line in chart.lines(10)] == ["█" * 10] * 2
