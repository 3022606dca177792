"""Differences of the naive application's cache, and of the one that is kept from the log."""

from watershed.demo.naive import Drift, counted


def test_rows_that_differ_and_rows_that_are_missing_are_counted_in_each_cache() -> None:
    found = [(1, "a"), (2, "b"), (3, "c")]
    assert counted(found, {"1": "a", "2": "b", "3": "c"}, [{"note": "a"}, {"note": "b"}, {"note": "c"}]) == Drift(
        3, 0, 0
    )
    assert counted(found, {"1": "a", "2": "old"}, [{"note": "a"}, None, {"note": "x"}]) == Drift(3, 2, 2)
