"""A sweep deletes what is below its floor, with the floor as version, and nothing else."""

import pytest

from cdc.model.events import pack_version
from sinks.contract import Outcome
from tests.conformance.tables import CUSTOMERS, LABELS, ORDER_LINES
from tests.conformance.trial import Trial

FLOOR = pack_version(2, 0)
OLD = pack_version(1, 500)
NEW = pack_version(2, 1)


@pytest.mark.promise(2)
def test_rows_below_the_floor_go_and_rows_of_its_epoch_stay(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(*(CUSTOMERS.upsert(OLD + number, id=number) for number in range(30)))
    trial.apply(*(CUSTOMERS.upsert(NEW + number, id=number) for number in range(0, 30, 3)))
    trial.apply(CUSTOMERS.upsert(NEW + 100, id=100, name="only after the floor"))
    assert trial.sweep(CUSTOMERS, FLOOR) == 20
    trial.check()


def test_a_sweep_again_finds_nothing(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(OLD, id=1), CUSTOMERS.upsert(NEW, id=2))
    assert trial.sweep(CUSTOMERS, FLOOR) == 1
    assert trial.sweep(CUSTOMERS, FLOOR) == 0
    assert trial.sweep(CUSTOMERS, FLOOR, sink=trial.another()) == 0
    trial.check()


def test_a_sweep_counts_no_row_that_was_deleted_before(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(OLD, id=1), CUSTOMERS.upsert(OLD + 1, id=2))
    trial.apply(CUSTOMERS.delete(OLD + 2, id=1))
    assert trial.sweep(CUSTOMERS, FLOOR) == 1
    trial.check()


def test_a_sweep_of_an_empty_table_is_nothing(sink_under_test: Trial) -> None:
    assert sink_under_test.sweep(CUSTOMERS, FLOOR) == 0


def test_a_sweep_touches_no_other_table(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(
        CUSTOMERS.upsert(OLD, id=1),
        ORDER_LINES.upsert(OLD + 1, order_id=1, line_no=1),
        LABELS.upsert(OLD + 2, name="kept"),
    )
    assert trial.sweep(ORDER_LINES, FLOOR) == 1
    trial.check()


@pytest.mark.promise(2)
@pytest.mark.invariant(6)
def test_a_stale_upsert_after_the_sweep_stays_dead(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(OLD, id=1, name="swept"))
    trial.sweep(CUSTOMERS, FLOOR)
    zombie = trial.another()
    assert trial.apply(CUSTOMERS.upsert(OLD, id=1), sink=zombie) == [Outcome.STALE]
    assert trial.apply(CUSTOMERS.upsert(FLOOR - 1, id=1), sink=zombie) == [Outcome.STALE]
    trial.check()


def test_a_newer_change_after_the_sweep_is_a_new_life(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(OLD, id=1, name="swept"), CUSTOMERS.upsert(OLD + 1, id=2, name="swept"))
    trial.sweep(CUSTOMERS, FLOOR)
    assert trial.apply(CUSTOMERS.upsert(NEW, id=1, name="back")) == [Outcome.WRITTEN]
    trial.check()
    assert trial.sweep(CUSTOMERS, FLOOR) == 0
    trial.check()


def test_a_sweep_sees_what_was_just_applied_by_anyone(sink_under_test: Trial) -> None:
    """Without make_readable in between."""
    trial = sink_under_test
    zombie = trial.another()
    trial.apply(CUSTOMERS.upsert(OLD, id=1))
    trial.apply(CUSTOMERS.upsert(OLD + 1, id=2), sink=zombie)
    assert trial.sweep(CUSTOMERS, FLOOR) == 2
    trial.check()


def test_a_later_floor_sweeps_more(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(OLD, id=1), CUSTOMERS.upsert(NEW, id=2))
    trial.sweep(CUSTOMERS, FLOOR)
    assert trial.sweep(CUSTOMERS, pack_version(3, 0)) == 1
    trial.check()
