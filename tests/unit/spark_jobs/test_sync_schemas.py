"""Schemas that follow one another faster than a sink applies them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sinks.errors import SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import ALTERED
from spark_jobs.batches import BatchReport
from spark_jobs.control_reader import ControlUpdate
from tests.unit.spark_jobs.records import schema
from tests.unit.spark_jobs.test_sync import Bench, progress, wrote


def test_several_schemas_one_after_the_other_are_no_missing_schema() -> None:
    """Seen: of a table that was altered every few seconds every batch met another new schema, and the sink started
    again after 30 s, although each of them had come at once."""
    bench = Bench()

    def another(version: int) -> Callable[[], BatchReport]:
        def met() -> BatchReport:
            bench.now_us += 10_000_000
            bench.update.append(ControlUpdate((), (), (SchemaHistory((replace(schema(), version=version),)),)))
            return BatchReport(unknown_schema=f"record at …: schema version {version}")

        return met

    bench.reports = [*map(another, range(2, 12)), wrote(3)]
    bench.batch(11)
    assert bench.calls.count("prepare a 11") == 1 and bench.sync.failure is None


@pytest.mark.invariant(11)
def test_rows_are_owed_until_the_store_has_their_columns() -> None:
    """Nothing else may be published of a table that was altered, and its position applies at once."""
    bench = Bench()
    altered = SchemaHistory((replace(schema(), version=2),))
    bench.update = [ControlUpdate((progress(100, 0),), (), (altered,))]
    with bench.sync._writing:  # a batch is running, which prepares no table
        bench.sync.run_housekeeping()
    assert (bench.published[-1].applied_lsn, bench.published[-1].owed) == (100, {"public.a": ALTERED})
    bench.sync.run_housekeeping()
    assert bench.calls.count("prepare a 2") == 1
    bench.sync.run_housekeeping()
    assert (bench.published[-1].applied_lsn, bench.published[-1].owed) == (100, {})


def test_a_table_that_could_not_be_prepared_stays_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.update = [ControlUpdate((progress(100, 0),), (), (SchemaHistory((replace(schema(), version=2),)),))]

    def refuse(*_: object) -> None:
        raise SinkError("the store is away", "wait")

    monkeypatch.setattr(bench.sink, "prepare", refuse)
    with pytest.raises(SinkError, match="away"):
        bench.sync.run_housekeeping()
    bench.sync._publish()
    assert bench.published[-1].owed == {"public.a": ALTERED}
