"""Schemas that follow one another faster than a sink applies them, and what a thread that fails leaves to the other."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final
from unittest import mock

import pytest

from cdc.model.control import SweepRecord
from sinks.errors import SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import ALTERED
from spark_jobs.batches import BatchReport
from spark_jobs.control_reader import ControlUpdate
from spark_jobs.task_report import Blocked
from tests.unit.spark_jobs.records import PARTITION, TOPIC, schema
from tests.unit.spark_jobs.test_sync import OTHER_TOPIC, Bench, progress, with_b, wrote

AWAY: Final = SinkError("the store is away", "wait")


def test_several_schemas_one_after_the_other_are_no_missing_schema() -> None:
    """Seen: of a table that was altered every few seconds every batch met another new schema, and the sink started
    again after 30 s, although each of them had come at once."""
    bench = Bench()

    def another(version: int) -> Callable[[], BatchReport]:
        def met() -> BatchReport:
            bench.now_us += 10_000_000
            bench.update.append(ControlUpdate((), (), (SchemaHistory((replace(schema(), version=version),)),)))
            return BatchReport(blocked={PARTITION: Blocked(7, f"record at …: schema version {version}", "", True)})

        return met

    bench.reports = [*map(another, range(2, 12)), wrote(3)]
    bench.batch(11)
    assert bench.calls.count("prepare a 11") == 1 and bench.sync.batch_runner.failure is None


@pytest.mark.invariant(11)
def test_a_table_that_could_not_be_prepared_is_prepared_before_its_sweep() -> None:
    """By the other thread, which goes on until it notices that the query has failed."""
    sweep = SweepRecord(table_schema="public", table_name="b", floor=9, as_of_lsn=400, epoch=1)
    bench = Bench(update=[with_b(sweep)])
    with mock.patch.object(bench.sink, "prepare", side_effect=AWAY), pytest.raises(SinkError, match="away"):
        bench.batch()
    bench.sync.housekeeper.work()
    assert bench.published[-1].applied_lsn == 0
    bench.sync.housekeeper.work()
    assert [call for call in bench.calls if call.endswith(("b 1", "b 9"))] == ["prepare b 1", "sweep b 9"]
    assert bench.published[-1].applied_lsn == 500


@pytest.mark.invariant(11)
@pytest.mark.parametrize("call", ["follow", "reset_versions"])
def test_what_was_read_from_control_before_a_call_failed_is_taken_by_the_next_read(call: str) -> None:
    """The other thread goes on until it notices that the query has failed, and what it reads relies on the former."""
    bench = Bench(update=[with_b()], may_hold_more=True)
    client = bench.dead_letters if call == "follow" else bench.sink
    with mock.patch.object(client, call, side_effect=AWAY), pytest.raises(SinkError, match="away"):
        bench.batch()
    later = progress(600, 0).model_copy(update={"end_offsets": {TOPIC: (0,), OTHER_TOPIC: (0,)}})
    bench.update = [ControlUpdate((later,), (), ())]
    bench.sync.housekeeper.work()
    assert bench.published[-1].applied_lsn == 0
    bench.sync.housekeeper.work()
    assert [call for call in bench.calls if call.endswith(("reset b", "b 1"))] == [
        *("reset b", "prepare b 1", "sweep b 1")
    ]
    assert bench.published[-1].applied_lsn == 600


def test_calls_out_of_turn_and_with_the_lock_fail_in_all_these_tests() -> None:
    bench = Bench()
    with pytest.raises(AssertionError, match="due_sweeps without the lock"):
        bench.sync.state.position.due_sweeps()
    with pytest.raises(AssertionError, match="generation: with the turn False"):
        bench.environment.sink.generation()
    with bench.environment.turn, bench.sync.state.lock, pytest.raises(AssertionError, match="generation with the lock"):
        bench.environment.sink.generation()


@pytest.mark.invariant(11)
def test_rows_are_owed_until_the_store_has_their_columns() -> None:
    """Nothing else may be published of a table that was altered, and its position applies at once."""
    bench = Bench()
    altered = SchemaHistory((replace(schema(), version=2),))
    bench.update = [ControlUpdate((progress(100, 0),), (), (altered,))]
    with bench.environment.writing:  # a batch is running, which prepares no table
        bench.sync.housekeeper.work()
    assert (bench.published[-1].applied_lsn, bench.published[-1].owed) == (100, {"public.a": ALTERED})
    bench.sync.housekeeper.work()
    assert bench.calls.count("prepare a 2") == 1
    bench.sync.housekeeper.work()
    assert (bench.published[-1].applied_lsn, bench.published[-1].owed) == (100, {})


def test_a_table_that_could_not_be_prepared_stays_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.update = [ControlUpdate((progress(100, 0),), (), (SchemaHistory((replace(schema(), version=2),)),))]

    def refuse(*_: object) -> None:
        raise SinkError("the store is away", "wait")

    monkeypatch.setattr(bench.sink, "prepare", refuse)
    with pytest.raises(SinkError, match="away"):
        bench.sync.housekeeper.work()
    bench.sync.housekeeper.publisher.publish()
    assert bench.published[-1].owed == {"public.a": ALTERED}
