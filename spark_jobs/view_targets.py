"""Opens the warehouses that are targets of views. All views of a process share one Spark session."""

import time
from contextlib import suppress
from typing import Self

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig
from cdc.config.views import target_prefix
from sinks.errors import SinkError
from sinks.slots import FIRST
from sinks.warehouse.catalog import CatalogPlace, catalog_place
from sinks.warehouse.gathering import GatheringSink
from sinks.warehouse.maintenance import Maintenance
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.slots import WarehouseSlots, in_slot
from sinks.warehouse.staging import FOLDER, delete_leftovers, own_folder
from spark_jobs.engine import SparkEngine
from spark_jobs.jvm import jvm_failure
from spark_jobs.runner import started


class WarehouseTargets:
    """A Spark session, and the warehouses that it writes."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self._config = config
        self._spark = spark

    @classmethod
    def start(cls, config: Config, view_count: int) -> Self:
        """Starts the session, in the process's main thread. Raises SinkError, and StackError if there is no Java."""
        spark, _ = started(config, view_count)
        return cls(config, spark)

    def open(self, view: str, section: WarehouseConfig, slot: str = FIRST) -> GatheringSink:
        """Connects to the target of this view. `slot`: of the generation, see sinks.slots. Raises SinkError.
        Thread-safe."""
        place = in_slot(self._place(view, section), slot)
        folders = f"{place.location}/{FOLDER}/{place.namespace}"
        staging = own_folder(folders)
        try:
            delete_leftovers(folders, section.s3)
        except OSError as error:
            raise SinkError(
                f"warehouse: {folders} can't be used: {error}",
                "cdc view check says what is wrong with the target",
            ) from error
        engine = SparkEngine(self._spark, place)  # for everything: a view does one thing at a time
        sink = WarehouseSink(engine, [engine], WarehouseReader(place), staging, name=view, options=section)
        maintenance = Maintenance(engine, time.time, section)
        return GatheringSink(sink, maintenance, staging, section, self._config.spark.bytes_per_write_max)

    def slots(self, view: str, section: WarehouseConfig) -> WarehouseSlots:
        """Opens the generations of this view's target, whose catalog is a JDBC catalog."""
        place = self._place(view, section)
        return WarehouseSlots(SparkEngine(self._spark, place), place)

    def _place(self, view: str, section: WarehouseConfig) -> CatalogPlace:
        return catalog_place(section, target_prefix(self._config.topics.prefix, view))

    def failure(self) -> SinkError | None:
        """Returns the error to end with if the session's Java process has ended."""
        return jvm_failure(self._spark)

    def close(self) -> None:
        """Ends the session. Idempotent."""
        with suppress(Py4JError, OSError):  # the Java process has ended
            self._spark.stop()
