"""Schemas that follow one another faster than a sink applies them."""

from collections.abc import Callable
from dataclasses import replace

from sinks.schema_history import SchemaHistory
from spark_jobs.batches import BatchReport
from spark_jobs.control_reader import ControlUpdate
from tests.unit.spark_jobs.records import schema
from tests.unit.spark_jobs.test_sync import Bench, wrote


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
