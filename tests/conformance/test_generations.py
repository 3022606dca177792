"""The store says which generation it holds, and that it holds none when its data, or a table of it, is gone."""

import pytest

from cdc.model.events import pack_version
from sinks.errors import SinkError
from tests.conformance.tables import CUSTOMERS, ORDER_LINES
from tests.conformance.trial import Trial

V = pack_version(1, 1)


def test_a_fresh_store_holds_no_generation(sink_under_test: Trial) -> None:
    assert sink_under_test.fresh_generation is None


def test_what_was_begun_is_held_for_every_writer(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V, id=1))
    assert trial.sink.generation() == 1
    restarted = trial.another()
    assert restarted.generation() == 1
    restarted.begin_generation(1)
    restarted.prepare(CUSTOMERS.schema)
    assert restarted.generation() == 1
    trial.check()


def test_the_next_generation_keeps_the_rows(sink_under_test: Trial) -> None:
    """Reading from the beginning meets the rows of the generation before: their versions guard them."""
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V + 5, id=1, name="newest"))
    restarted = trial.another()
    restarted.begin_generation(2)
    assert restarted.generation() == 2
    trial.apply(CUSTOMERS.upsert(V, id=1, name="oldest"), sink=restarted)
    trial.check(restarted)
    assert trial.another().generation() == 2


def test_a_deleted_store_holds_no_generation_and_can_be_filled_again(sink_under_test: Trial) -> None:
    trial = sink_under_test
    rows = [CUSTOMERS.upsert(V, id=1), CUSTOMERS.upsert(V + 1, id=2)]
    trial.apply(*rows)
    trial.store.delete_all()
    restarted = trial.another()
    assert restarted.generation() is None
    restarted.begin_generation(2)
    trial.model.held.clear()
    trial.apply(*rows, sink=restarted)
    trial.check(restarted)
    assert restarted.generation() == 2


def test_one_deleted_table_is_enough(sink_under_test: Trial) -> None:
    trial = sink_under_test
    lines = ORDER_LINES.upsert(V + 1, order_id=1, line_no=1)
    trial.apply(CUSTOMERS.upsert(V, id=1), lines)
    trial.store.delete_table(ORDER_LINES.id)
    assert trial.sink.generation() is None
    restarted = trial.another()
    assert restarted.generation() is None
    # Even when the number is the same again, as for a job that knows of no generation before.
    restarted.begin_generation(1)
    del trial.model.held[ORDER_LINES.id]
    trial.apply(lines, sink=restarted)
    trial.check(restarted)
    assert restarted.generation() == 1


def test_a_deleted_table_is_not_made_anew_within_its_generation(sink_under_test: Trial) -> None:
    """Else a restarted job would go on from its checkpoint with a table that lacks what was before."""
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V, id=1), ORDER_LINES.upsert(V + 1, order_id=1, line_no=1))
    trial.store.delete_table(CUSTOMERS.id)
    with pytest.raises(SinkError, match=r"customers[^\0]*next: nothing to do: the sink restarts"):
        trial.another().prepare(CUSTOMERS.schema)
    assert trial.another().generation() is None


def test_a_write_to_a_deleted_table_is_an_error(sink_under_test: Trial) -> None:
    trial = sink_under_test
    trial.apply(CUSTOMERS.upsert(V, id=1))
    trial.store.delete_table(CUSTOMERS.id)
    with pytest.raises(SinkError):
        trial.sink.apply([CUSTOMERS.upsert(V + 1, id=2)])
    assert trial.another().generation() is None


def test_a_table_is_prepared_in_a_generation(sink_under_test: Trial) -> None:
    """Without one, nobody would notice when the table is lost."""
    trial = sink_under_test
    trial.store.delete_all()
    with pytest.raises(SinkError):
        trial.another().prepare(CUSTOMERS.schema)
