"""Batches: what is refused stays alone, what is readable when, and memory."""

import tracemalloc

import pytest

from cdc.model.events import pack_version
from sinks.contract import Outcome
from sinks.reduction import reduce_changes
from tests.conformance.tables import CUSTOMERS, ORDER_LINES
from tests.conformance.trial import Trial

V = pack_version(1, 1)


def test_a_refused_row_does_not_block_its_neighbours(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V, id=2, name="before"))
    changes = [CUSTOMERS.upsert(V + number, id=number, name="after") for number in (1, 2, 3)]
    refused = trial.store.unholdable(changes[1])
    if refused is None:  # this store takes every row: then the three are ordinary
        trial.apply(*changes)
        trial.check()
        return
    changes[1], column = refused
    results = trial.sink.apply(changes)
    assert [result.outcome for result in results] == [Outcome.WRITTEN, Outcome.REJECTED, Outcome.WRITTEN]
    assert column in results[1].reason
    assert changes[1].row is not None
    assert str(changes[1].row[column]) not in results[1].reason, "a reason is logged and published: no values"
    trial.model.apply(changes[0])
    trial.model.apply(changes[2])
    trial.check()


def test_a_refused_row_is_overtaken_by_a_good_one(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.prepare(CUSTOMERS)
    refused = trial.store.unholdable(CUSTOMERS.upsert(V, id=1))
    if refused is not None:
        assert [result.outcome for result in trial.sink.apply([refused[0]])] == [Outcome.REJECTED]
    assert trial.apply(CUSTOMERS.upsert(V + 1, id=1, name="good")) == [Outcome.WRITTEN]
    trial.check()


@pytest.mark.promise(7)
@pytest.mark.invariant(11)
def test_after_make_readable_every_reader_sees_what_was_applied(sink_under_test: Trial) -> None:
    trial = sink_under_test
    reader = trial.another()
    reader.prepare(CUSTOMERS.schema)
    for number in range(3):
        trial.apply(CUSTOMERS.upsert(V + 2 * number, id=number), CUSTOMERS.delete(V + 2 * number + 1, id=number - 1))
        trial.sink.make_readable({CUSTOMERS.id})
        assert [row.key["id"] for row in reader.rows(CUSTOMERS.id)] == [number]


@pytest.mark.promise(7)
def test_a_replay_after_a_kill_before_make_readable_is_made_readable(sink_under_test: Trial) -> None:
    """The killed job wrote; its successor finds all stale, and must show it all the same."""
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V, id=1))
    restarted = trial.another()
    assert trial.apply(CUSTOMERS.upsert(V, id=1), sink=restarted) == [Outcome.STALE]
    restarted.make_readable({CUSTOMERS.id})
    assert [row.version for row in restarted.rows(CUSTOMERS.id)] == [V]


@pytest.mark.promise(5)
@pytest.mark.invariant(8)
def test_a_big_batch_is_applied_and_read_in_bounded_memory(sink_under_test: Trial) -> None:
    trial = sink_under_test
    content = "AAECAwT/" * 1_200  # 9,600 characters of base64
    changes = reduce_changes(
        CUSTOMERS.upsert(V + number, id=number, name=f"row {number}", photo=content + f"{number:08}")
        for number in range(trial.store.batch_rows)
    )
    trial.prepare(CUSTOMERS)
    if trial.store.batch_memory_bytes_max is None:
        assert set(trial.apply(*changes)) == {Outcome.WRITTEN}
    else:
        tracemalloc.start()
        try:
            results = trial.sink.apply(changes)
            applied_bytes = tracemalloc.get_traced_memory()[1]
            trial.sink.make_readable({CUSTOMERS.id})
            tracemalloc.reset_peak()
            count = sum(1 for _ in trial.sink.rows(CUSTOMERS.id))
            read_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert {result.outcome for result in results} == {Outcome.WRITTEN}
        assert count == len(changes)
        assert applied_bytes < trial.store.batch_memory_bytes_max
        assert read_bytes < trial.store.batch_memory_bytes_max
        trial.model.apply_all(changes)
    trial.check()


def test_rows_of_an_empty_table_are_none(sink_under_test: Trial) -> None:
    sink_under_test.prepare(ORDER_LINES)
    assert list(sink_under_test.sink.rows(ORDER_LINES.id)) == []


def test_close_can_be_repeated(sink_under_test: Trial) -> None:
    sink = sink_under_test.another()
    sink.close()
    sink.close()
