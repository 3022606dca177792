"""Differences of the naive application's cache, and of the one that is kept from the log."""

from watershed.demo.naive import differing


def test_notes_that_differ_or_are_missing_are_counted() -> None:
    notes = {"1": "a", "2": "b", "3": "c"}
    assert differing(notes, dict(notes)) == 0
    assert differing(notes, {"1": "a", "2": "old"}) == 2
