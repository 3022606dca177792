"""The rehearsal goes the whole way: else what a job loads would be missing from the archive."""

from pathlib import Path

from pyspark.sql import SparkSession

from cdc.model.events import pack_version
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.naming import table_location
from spark_jobs.engine import SparkEngine
from spark_jobs.rehearsal import BATCHES, NAMESPACE, ROWS_OF_A_TASK, TABLE, TASKS, rehearse


def test_batches_are_merged_and_swept(spark: SparkSession, tmp_path: Path) -> None:
    rehearse(spark, tmp_path)
    engine = SparkEngine(spark, CatalogPlace(tmp_path / "catalog.db", (tmp_path / "tables").as_uri(), NAMESPACE))
    table = table_location(NAMESPACE, TABLE.table).rows
    deleted = table_location(NAMESPACE, TABLE.table).deleted
    rows = engine.query(f"SELECT id, ws_version FROM watershed.{'.'.join(deleted)} ORDER BY id")
    floor = pack_version(2, 0)
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        (number, floor) for number in range(TASKS * ROWS_OF_A_TASK)
    ]
    assert engine.query(f"SELECT count(*) FROM watershed.{'.'.join(table)}").column(0)[0].as_py() == 0
    assert len(list(engine.history(table))) > BATCHES, "a commit for each batch, and the sweep's"
