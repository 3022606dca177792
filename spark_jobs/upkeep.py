"""`cdc warehouse maintain`: maintenance of warehouses in a separate Spark session, beside the sinks' job."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig
from sinks.warehouse.catalog import catalog_place
from sinks.warehouse.maintenance import Maintained, Maintenance
from spark_jobs.engine import SparkEngine
from spark_jobs.runner import started


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
