"""Removals from a warehouse by a process that runs no sinks, in a Spark session that starts with the first removal."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from cdc.config.config_file import Config
from cdc.model.events import Column
from sinks.contents import Key
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.naming import Place
from sinks.warehouse.removal import remove
from spark_jobs.engine import SparkEngine
from spark_jobs.runner import started


class SparkRemoval:
    """Implements sinks.contents.Removal."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._spark: SparkSession | None = None

    def __call__(
        self, catalog: CatalogPlace, place: Place, key: Sequence[Column], held: Sequence[tuple[Key, int]]
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
