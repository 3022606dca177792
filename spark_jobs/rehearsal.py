"""A small run, without servers, of everything that a job does: a query with a checkpoint, tasks in Python workers that
stage rows, guarded merges, a sweep, and the Kafka source up to a broker that does not answer.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.contract import Change
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.staging import Staged, Stager, delete_staged, own_folder
from spark_jobs.engine import SparkEngine

BATCHES: Final = 2
TASKS: Final = 2
ROWS_OF_A_TASK: Final = 3
NAMESPACE: Final = "rehearsal"
# Short timeouts: a query that is stopped during a request ends only after the request.
NOBODY: Final = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.request.timeout.ms": "500",
    "kafka.default.api.timeout.ms": "500",
    "fetchOffset.numRetries": "1",
    "subscribe": "rehearsal",
}
ASK_S_MAX: Final = 5
TABLE: Final = TableSchema(
    table=TableId("public", "rehearsal"),
    version=1,
    oid=1,
    columns=(
        Column("id", 20, -1, "bigint", nullable=False, base_type_oid=20),
        Column("name", 25, -1, "text", nullable=True, base_type_oid=25),
        Column("price", 1700, (12 << 16 | 2) + 4, "numeric(12,2)", nullable=True, base_type_oid=1700),
        Column("seen", 1184, -1, "timestamp with time zone", nullable=True, base_type_oid=1184),
        Column("tags", 1009, -1, "text[]", nullable=True, base_type_oid=1009),
    ),
    key=("id",),
    topic="rehearsal",
)


def rehearse(spark: SparkSession, folder: Path) -> None:
    """Runs all of it below `folder`, which is empty. Raises the errors of Spark and the warehouse."""
    place = CatalogPlace(folder / "catalog.db", (folder / "tables").as_uri(), NAMESPACE)
    staging = own_folder((folder / "staged").as_uri())
    sink = WarehouseSink(SparkEngine(spark, place), [SparkEngine(spark, place)], WarehouseReader(place), staging)
    sink.begin_generation(1)
    sink.prepare(TABLE)
    files = folder / "records"
    files.mkdir()
    for number in range(BATCHES):
        (files / f"{number}.txt").write_text("a record\n", encoding="utf-8")
    stream = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(files))

    def apply_batch(_: DataFrame, batch_id: int) -> None:
        def stage(first: int) -> tuple[Staged, ...]:
            stager = Stager(staging, [TABLE])
            stager.apply([_change(number, batch_id) for number in range(first, first + ROWS_OF_A_TASK)])
            return stager.finish()

        firsts = range(0, TASKS * ROWS_OF_A_TASK, ROWS_OF_A_TASK)
        staged = spark.sparkContext.parallelize(firsts, TASKS).flatMap(stage).collect()
        sink.take(staged)
        delete_staged(part.path for part in staged)

    writer: Any = stream.writeStream.foreachBatch(apply_batch)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    sink.sweep(TABLE.table, pack_version(2, 0))
    sink.generation()
    _query_unreachable_broker(spark, folder / "unanswered")


def _change(number: int, batch_id: int) -> Change:
    row = {"id": number, "name": "a", "price": "1.25", "seen": "2026-01-31T12:00:00.5Z", "tags": ["b", None]}
    return Change(TABLE.table, {"id": number}, pack_version(1, 1 + number + 100 * batch_id), row, TABLE.version)


def _query_unreachable_broker(spark: SparkSession, checkpoint: Path) -> None:
    """Runs a query on topics of a broker that does not exist, up to the request for their offsets."""
    stream = spark.readStream.format("kafka").options(**NOBODY).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    with suppress(PySparkException):
        query.awaitTermination(ASK_S_MAX)
    query.stop()
