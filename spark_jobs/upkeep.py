"""`cdc warehouse maintain`: maintenance of warehouses in a separate Spark session, beside the sinks' job."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from cdc.config.settings import Config
from cdc.config.sink_settings import WarehouseConfig, sink_config
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


def maintain_warehouse(config: Config, name: str, spark: SparkSession) -> list[Maintained]:
    """Maintains the tables of the sink, and returns the result for each. Raises SinkError."""
    section = sink_config(config.sinks, name)
    assert isinstance(section, WarehouseConfig)
    where = catalog_place(section, config.topics.prefix)
    return Maintenance(SparkEngine(spark, where), time.time, section).maintain(where.namespace)
