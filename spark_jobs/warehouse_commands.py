"""What commands do to warehouses beside the sinks' job, in a Spark session of their own: `cdc warehouse maintain`, and
the removals of `cdc verify`, whose session starts with the first of them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig
from cdc.model.events import Column
from sinks.contents import Key
from sinks.warehouse.catalog import CatalogPlace, catalog_place
from sinks.warehouse.maintenance import Maintained, Maintenance
from sinks.warehouse.naming import TableLocation
from sinks.warehouse.removal import remove
from spark_jobs.engine import SparkEngine
from spark_jobs.runner import started


class SparkRemoval:
    """Implements sinks.contents.Removal."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._spark: SparkSession | None = None

    def __call__(
        self, catalog: CatalogPlace, place: TableLocation, key: Sequence[Column], held: Sequence[tuple[Key, int]]
    ) -> None:
        """Removes rows. Raises SinkError, and StackError if there is no Java."""
        if self._spark is None:
            self._spark, _ = started(self._config, 1)
        remove(SparkEngine(self._spark, catalog), place, key, held)

    def close(self) -> None:
        """Ends the session. Idempotent."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None


@contextmanager
def session(config: Config) -> Iterator[SparkSession]:
    """Starts the session. Raises SinkError."""
    spark, _ = started(config, query_count=1)
    try:
        yield spark
    finally:
        spark.stop()


def maintain_warehouse(section: WarehouseConfig, prefix: str, spark: SparkSession) -> list[Maintained]:
    """Maintains the tables of a sink, or of a view, and returns the result for each. `prefix`: that of the section's
    names. Raises SinkError."""
    where = catalog_place(section, prefix)
    return Maintenance(SparkEngine(spark, where), time.time, section).maintain(where.namespace)
