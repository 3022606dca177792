"""A row that a store's client can't convert is rejected alone; what is not of a row's values is raised."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from cdc.model.events import pack_version
from sinks.contract import Change, Outcome, Result
from sinks.errors import SinkError
from sinks.row_errors import apply_each
from tests.conformance.tables import LABELS

V = pack_version(1, 1)


class Store:
    """Raises the error of a row's value, and keeps what it was given otherwise."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        self._errors = errors
        self.held: dict[str, int] = {}
        self.calls = 0

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        self.calls += 1
        results = []
        for change in changes:
            if error := self._errors.get(change.row["uses"] if change.row else 0):
                raise error
            is_news = self.held.get(change.key["name"], 0) < change.version
            self.held[change.key["name"]] = change.version
            results.append(Result(Outcome.WRITTEN if is_news else Outcome.STALE))
        return results


def rows(count: int) -> list[Change]:
    return [LABELS.upsert(V + number, name=str(number), uses=number) for number in range(count)]


@pytest.mark.parametrize("culprits", [{0}, {1}, {0, 1}, {3, 4, 99}, set(range(1, 100))])
def test_only_the_culprits_are_rejected(culprits: set[int]) -> None:
    store = Store({number: ValueError("secret") for number in culprits})
    results = apply_each(store.apply, rows(100))
    rejected = {number for number, result in enumerate(results) if result.outcome is Outcome.REJECTED}
    assert rejected == culprits and "secret" not in str(results)
    assert set(store.held) == {str(number) for number in range(100)} - set(map(str, culprits))
    assert store.calls < 2 + 2 * 8 * len(culprits)


@pytest.mark.parametrize("convert", [lambda: "\ud800".encode(), lambda: int("9" * 5_000), lambda: Decimal("x")])
def test_the_reason_says_what_was_raised_and_where(convert: Any) -> None:
    def apply(_: Sequence[Change]) -> list[Result]:
        convert()
        return []

    (result,) = apply_each(apply, rows(1))
    assert result.outcome is Outcome.REJECTED
    assert "in test_row_errors.py, line" in result.reason


@pytest.mark.parametrize("error", [SinkError("away", "wait"), ConnectionError("reset"), AssertionError("not prepared")])
def test_what_no_value_causes_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        apply_each(Store({3: error}).apply, rows(10))
