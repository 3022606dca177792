"""A base of Iceberg tables that the warehouse sink keeps, with Spark SQL that computes the documents."""

import json
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from cdc.config.stores import WarehouseConfig
from cdc.model.events import TableId
from sinks.contract import Change
from sinks.warehouse import statements
from sinks.warehouse.catalog import catalog_place
from sinks.warehouse.maintenance import Maintenance
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.staging import FOLDER, own_folder
from spark_jobs.class_archive import JAR_SETS
from spark_jobs.engine import SparkEngine
from spark_jobs.jars.java import spark_java
from spark_jobs.jars.resolver import resolve_sets
from spark_jobs.session import spark_session
from tests.bench.view_bases_shop import CUSTOMERS, LINES, ORDERS, TABLES, Document

CORES: Final = 2
MERGES_AT_ONCE: Final = 3  # a merge is planned and committed in one thread of the driver
BATCHES: Final = 60  # of the streaming query
STREAM_S_MAX: Final = 120.0

CURRENT_BYTES: Final = "SELECT sum(file_size_in_bytes) FROM {}.files"

# The customers of orders before they are changed. Words in braces stand for tables, and for keys with commas.
OWNERS: Final = "SELECT DISTINCT customer_id FROM {orders} WHERE id IN ({keys})"
# The affected rows are few: the large tables are read and joined with them, and never shuffled.
DOCUMENTS: Final = """
WITH o AS (SELECT id, customer_id, status, note, total FROM {orders} WHERE customer_id IN ({keys})),
     l AS (SELECT /*+ BROADCAST(p) */ l.order_id,
                  sort_array(collect_list(struct(l.line_no AS no, l.product_id AS product, l.quantity AS quantity,
                                                 l.unit_price AS price))) AS lines
             FROM {order_lines} l JOIN (SELECT id FROM o) p ON l.order_id = p.id GROUP BY l.order_id),
     d AS (SELECT /*+ BROADCAST(l) */ o.customer_id,
                  sort_array(collect_list(struct(o.id, o.status, o.note, o.total,
                                                 coalesce(l.lines, array()) AS lines))) AS orders
             FROM o LEFT JOIN l ON l.order_id = o.id GROUP BY o.customer_id)
SELECT /*+ BROADCAST(d) */ c.id,
       to_json(struct(c.id, c.name, c.email, c.phone, coalesce(d.orders, array()) AS orders),
               map('ignoreNullFields', 'false')) AS document
  FROM {customers} c LEFT JOIN d ON d.customer_id = c.id WHERE c.id IN ({keys})
"""


@contextmanager
def session() -> Iterator[SparkSession]:
    """The session that a sink's job has."""
    jars = [jar for found in resolve_sets(JAR_SETS).values() for jar in found]
    options = {"spark.master": f"local[{CORES}]", "spark.sql.shuffle.partitions": str(CORES)}
    spark = spark_session(spark_java(), jars, "1g", options)
    try:
        yield spark
    finally:
        spark.stop()


class IcebergBase:
    """Implements tests.bench.view_bases_shop.KeyedBase."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._folder = folder
        section = WarehouseConfig.model_validate(
            {"catalog_uri": f"jdbc:sqlite:{folder}/catalog.db", "location": (folder / "tables").as_uri()}
        )
        place = catalog_place(section, "shop")
        self._engine = SparkEngine(spark, place)
        merging = [SparkEngine(spark, place) for _ in range(MERGES_AT_ONCE)]
        staging = own_folder(f"{place.location}/{FOLDER}/shop")
        self._sink = WarehouseSink(self._engine, merging, WarehouseReader(place), staging, options=section)
        self._maintenance = Maintenance(self._engine, time.time, section)
        self._sink.begin_generation(1)
        for one in TABLES:
            self._sink.prepare(one.schema)
        self._names = {one.id.name: statements.full(place.place(one.id).rows) for one in TABLES}

    def fill(self, batches: Iterator[list[Change]]) -> None:
        rows: dict[TableId, list[Change]] = {one.id: [] for one in TABLES}
        for some in batches:
            for change in some:
                rows[change.table].append(change)
        for changes in rows.values():
            self._sink.apply(changes)  # one file, or a few

    def write(self, changes: list[Change]) -> set[int]:
        customers = self._affected(changes)
        self._sink.apply(changes)
        return customers

    def compute(self, written: Any) -> list[dict[str, Any]]:
        return list(self._engine.query(self._text(DOCUMENTS, written)).to_pylist())

    def _affected(self, changes: list[Change]) -> set[int]:
        """The customers whose documents the changes concern: those of orders before the changes, and after them."""
        orders = {change.key["id"] for change in changes if change.table == ORDERS.id}
        orders |= {change.key["order_id"] for change in changes if change.table == LINES.id}
        customers = {change.key["id"] for change in changes if change.table == CUSTOMERS.id}
        customers |= {change.row["customer_id"] for change in changes if change.table == ORDERS.id and change.row}
        if orders:
            customers |= set(self._engine.query(self._text(OWNERS, orders)).column(0).to_pylist())
        return customers

    def _text(self, statement: str, keys: Collection[int]) -> str:
        return statement.format(keys=", ".join(map(str, keys)), **self._names)

    def documents(self, computed: Any) -> dict[int, Document | None]:
        return {row["id"]: json.loads(row["document"], parse_float=str) for row in computed}

    def run_if_due(self) -> None:
        """Merges small files as the sink's job does."""
        for table in self._sink.take_due():
            self._maintenance.run_if_due(table, self._sink.without_merges(table))

    def sizes(self) -> dict[str, float]:
        """The files of the tables as they are now, and all files, those of earlier snapshots included."""
        current = sum(
            self._engine.query(CURRENT_BYTES.format(name)).column(0)[0].as_py() for name in self._names.values()
        )
        every = sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
        return {"disk_mb": current / 1e6, "disk_with_history_mb": every / 1e6}

    def close(self) -> None:
        self._sink.close()


def empty_batches(spark: SparkSession, folder: Path) -> list[float]:
    """Returns the seconds of micro-batches of Structured Streaming whose function does nothing."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()

    def nothing(_: DataFrame, __: int) -> None:
        """The batch is not even read."""

    query = (
        rows.writeStream.foreachBatch(nothing)
        .option("checkpointLocation", (folder / "checkpoint").as_uri())
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        end = time.monotonic() + STREAM_S_MAX
        while len(query.recentProgress) < BATCHES and time.monotonic() < end:
            time.sleep(0.1)
        progress = list(query.recentProgress)
    finally:
        query.stop()
    warm = progress[len(progress) // 3 :]
    return [one.durationMs["triggerExecution"] / 1000 for one in warm]
