"""The arithmetic of the snapshot's bench: which changes met a restart, and where capture is killed."""

import math

import pytest

from tests.bench.snapshot import Run, kill_points, lags, percentile


def test_a_change_meets_a_restart_when_it_was_not_readable_before_the_kill() -> None:
    run = Run(streaming_at=[100.0, 205.0], killed_at=[200.0], published_at=300.0)
    arrivals = [
        (99.0, 99.1),  # before capture streamed
        (150.0, 150.2),
        (199.0, 199.5),  # readable before the kill
        (199.9, 206.0),  # committed before it, readable after
        (202.0, 206.5),  # committed while capture was away
        (205.5, 207.0),  # behind those that waited: its lag is the stream's
        (301.0, 301.1),  # after the last row
    ]
    every, calm = lags(arrivals, run)
    assert every == pytest.approx([0.2, 0.5, 1.5, 4.5, 6.1])
    assert calm == pytest.approx([0.2, 0.5, 1.5])


def test_restarts_do_not_count_as_reading() -> None:
    run = Run(streaming_at=[10.0, 25.0, 40.0], killed_at=[20.0, 38.0], published_at=50.0)
    assert run.restarts == [(20.0, 25.0), (38.0, 40.0)]
    assert run.reading_s == 33.0


@pytest.mark.parametrize("seed", range(5))
def test_kills_are_spread_over_the_rows(seed: int) -> None:
    points = kill_points(1_000, 5, seed)
    assert [point // 200 for point in points] == [0, 1, 2, 3, 4]


def test_percentiles_are_values_that_were_there() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 1.0) == 4.0
    assert math.isnan(percentile([], 0.5))
