"""A small run, without servers, of everything that a job does: a query with a checkpoint on a Python data source, tasks
in Python workers that stage rows, guarded merges, and a sweep.
"""

import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.contract import Change
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.staging import Stager, delete_staged, own_folder
from spark_jobs.engine import SparkEngine

BATCHES: Final = 2
TASKS: Final = 2
ROWS_OF_A_TASK: Final = 3
LOOK_S: Final = 0.1
NAMESPACE: Final = "rehearsal"
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
    spark.dataSource.register(RehearsedSource)
    stream = spark.readStream.format(RehearsedSource.name()).load()

    def apply_batch(frame: DataFrame, batch_id: int) -> None:
        def stage(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            stager = Stager(staging, [TABLE])
            for batch in rows:
                stager.apply([_change(number, batch_id) for number in batch.column("number").to_pylist()])
            yield pa.RecordBatch.from_pydict({"staged": [pickle.dumps(stager.finish())]})

        reports = frame.mapInArrow(stage, "staged binary").collect()  # type: ignore[arg-type]
        staged = [part for report in reports for part in pickle.loads(report.staged)]  # noqa: S301 - our own
        sink.take(staged)
        delete_staged(part.path for part in staged)
        if batch_id == BATCHES - 1:
            done.set()

    done = threading.Event()
    writer: Any = stream.writeStream.foreachBatch(apply_batch)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="0 seconds").start()
    while not done.wait(LOOK_S):
        if not query.isActive:
            query.awaitTermination()  # raises its error
    query.stop()
    sink.sweep(TABLE.table, pack_version(2, 0))
    sink.generation()


@dataclass(frozen=True)
class _Numbers(InputPartition):
    first: int


class RehearsedSource(DataSource):
    """BATCHES batches of some numbers, then nothing."""

    @classmethod
    def name(cls) -> str:
        return "watershed_rehearsal"

    def schema(self) -> str:
        return "number bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        del schema
        return _RehearsedReader()


class _RehearsedReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self._batch = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"batch": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        self._batch = min(self._batch + 1, BATCHES)
        return {"batch": self._batch}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        del start, end
        return [_Numbers(first) for first in range(0, TASKS * ROWS_OF_A_TASK, ROWS_OF_A_TASK)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Numbers)
        for number in range(partition.first, partition.first + ROWS_OF_A_TASK):
            yield pa.RecordBatch.from_pydict({"number": [number]})


def _change(number: int, batch_id: int) -> Change:
    row = {"id": number, "name": "a", "price": "1.25", "seen": "2026-01-31T12:00:00.5Z", "tags": ["b", None]}
    return Change(TABLE.table, {"id": number}, pack_version(1, 1 + number + 100 * batch_id), row, TABLE.version)
