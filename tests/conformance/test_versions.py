"""The guard, case by case: greater wins, equal is a replay, smaller is stale, a delete leaves its version."""

from collections.abc import Iterator
from itertools import permutations

import pytest

from cdc.model.events import EPOCH_MAX, SEQ_MAX, pack_version
from sinks.contract import Outcome
from tests.conformance.tables import CUSTOMERS, LABELS, ORDER_LINES
from tests.conformance.trial import Trial

V = pack_version(1, 100)
WRITTEN, STALE = Outcome.WRITTEN, Outcome.STALE


def test_an_equal_version_changes_nothing(sink_under_test: Trial) -> None:
    trial = sink_under_test
    assert trial.apply(CUSTOMERS.upsert(V, id=1, name="first")) == [WRITTEN]
    # Not what capture does; it shows that the content stays.
    assert trial.apply(CUSTOMERS.upsert(V, id=1, name="other")) == [STALE]
    assert trial.apply(CUSTOMERS.delete(V, id=1)) == [STALE]
    trial.check()


@pytest.mark.invariant(6)
def test_an_older_version_changes_nothing(sink_under_test: Trial) -> None:
    trial = sink_under_test
    assert trial.apply(CUSTOMERS.upsert(V, id=1, name="new")) == [WRITTEN]
    assert trial.apply(CUSTOMERS.upsert(V - 1, id=1, name="old")) == [STALE]
    assert trial.apply(CUSTOMERS.delete(V - 2, id=1)) == [STALE]
    trial.check()


def test_an_update_replaces_the_whole_row(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V, id=1, name="full", rating=1.5, tags=["a"], attributes="{}"))
    trial.apply(CUSTOMERS.upsert(V + 1, id=1, balance="1.00"))
    trial.check()


@pytest.mark.promise(2)
@pytest.mark.invariant(6)
def test_a_delete_and_older_upserts_in_any_order_leave_the_row_deleted(sink_under_test: Trial) -> None:
    trial = sink_under_test
    for number, order in enumerate(_orders(trial)):
        key = {"order_id": number, "line_no": 0}
        changes = {
            "first": ORDER_LINES.upsert(V, **key, quantity=1),
            "second": ORDER_LINES.upsert(V + 1, **key, quantity=2),
            "delete": ORDER_LINES.delete(V + 2, **key),
        }
        for name in order:
            trial.apply(changes[name])
    trial.check()
    assert trial.model.rows(ORDER_LINES.id) == {}


def _orders(trial: Trial) -> Iterator[tuple[str, ...]]:
    orders = list(permutations(("first", "second", "delete")))
    yield from orders if trial.store.history_count > 5 else orders[-2:]


def test_either_a_delete_or_its_tombstone_deletes(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(*(LABELS.upsert(V + number, name=name) for number, name in enumerate(("a", "b", "c", "d"))))
    trial.apply(LABELS.delete(V + 10, name="a"))
    trial.apply(LABELS.tombstone(V + 11, name="b"))
    trial.apply(LABELS.delete(V + 12, name="c"), LABELS.tombstone(V + 12, name="c"))
    assert trial.apply(LABELS.tombstone(V + 12, name="c")) == [STALE]
    trial.check()
    assert [row["name"] for _, row in trial.model.rows(LABELS.id).values()] == ["d"]


def test_a_delete_of_a_key_never_seen_keeps_its_version(sink_under_test: Trial) -> None:
    trial = sink_under_test
    assert trial.apply(CUSTOMERS.delete(V, id=1), CUSTOMERS.tombstone(V + 1, id=2)) == [WRITTEN, WRITTEN]
    assert trial.apply(CUSTOMERS.upsert(V - 1, id=1), CUSTOMERS.upsert(V, id=2)) == [STALE, STALE]
    trial.check()


def test_an_insert_after_a_delete_is_a_new_life(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V, id=1, name="first life", rating=2.5))
    trial.apply(CUSTOMERS.delete(V + 1, id=1))
    trial.apply(CUSTOMERS.upsert(V + 2, id=1, balance="2.00"))
    assert trial.apply(CUSTOMERS.delete(V + 1, id=1)) == [STALE]
    trial.check()


def test_versions_are_compared_to_the_last_bit(sink_under_test: Trial) -> None:
    """Beyond 2^53 a double would take neighbours for equal."""
    trial = sink_under_test
    ascending = [
        pack_version(1, 0),
        pack_version(1, SEQ_MAX),
        pack_version(2, 0),
        pack_version(9, SEQ_MAX),
        pack_version(10, 0),
        pack_version(EPOCH_MAX, SEQ_MAX - 1),
        pack_version(EPOCH_MAX, SEQ_MAX),
    ]
    for number, version in enumerate(ascending):
        assert trial.apply(LABELS.upsert(version, name="x", uses=number)) == [WRITTEN]
        assert trial.apply(LABELS.upsert(version - 1, name="x", uses=-1)) == [STALE]
    trial.check()


def test_a_batch_has_outcomes_in_its_order(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V + 50, id=2), ORDER_LINES.upsert(V + 50, order_id=2, line_no=1))
    outcomes = trial.apply(
        CUSTOMERS.upsert(V + 1, id=1),
        ORDER_LINES.upsert(V + 2, order_id=2, line_no=1),
        CUSTOMERS.upsert(V + 3, id=2),
        ORDER_LINES.upsert(V + 4, order_id=2, line_no=2),
        LABELS.delete(V + 5, name="none"),
    )
    assert outcomes == [WRITTEN, STALE, STALE, WRITTEN, WRITTEN]
    trial.check()


def test_an_empty_batch_is_nothing(sink_under_test: Trial) -> None:
    assert sink_under_test.sink.apply([]) == []
    sink_under_test.sink.make_readable(set())
