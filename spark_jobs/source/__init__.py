"""Spark's data source `watershed`: a captured table as a DataFrame.

    from spark_jobs.source import register

    register(spark)
    spark.read.format("watershed").options(**place).load()         # the table's rows
    spark.readStream.format("watershed").options(**place).load()   # its changes

`place` has `bootstrap.servers`, `prefix` and `table`; docs/how-to/spark-jobs.md describes every option. A Python
process that the driver's JVM starts plans with the pipeline's control and progress topics (`pipeline`), and tasks read
the table's topic (`records`). The rest is pure: options, the form of rows, the newest version of each key, offsets.
"""

from typing import TYPE_CHECKING, Any

from cdc.model.errors import ConfigError
from spark_jobs.source.names import SINK_OPTION

if TYPE_CHECKING:  # the package is imported by each of Spark's Python processes
    from cdc.config.settings import KafkaConfig
    from spark_jobs.source.sink_options import SinkStreamOptions

_SPARK_MIN = (4, 1)


def require_version(spark: Any) -> None:
    """Raises ConfigError for a Spark without the API."""
    version = tuple(int(part) for part in spark.version.split(".")[:2] if part.isdecimal())
    if version < _SPARK_MIN:
        raise ConfigError(
            f'Spark {spark.version} can\'t read format("watershed"): it lacks the Python Data Source API that is used',
            "run Spark and pyspark 4.1 or a later 4.x",
        )


def register(spark: Any) -> None:
    """Registers the data source with a session of Spark. Raises ConfigError for a Spark without the API."""
    require_version(spark)
    from spark_jobs.source.datasource import WatershedSource

    spark.dataSource.register(WatershedSource)


def stream_of_sink(spark: Any, kafka: "KafkaConfig", prefix: str, options: "SinkStreamOptions") -> Any:
    """Returns the stream of a sink: all its tables' topics, in rows that are pieces (spark_jobs/source/piece.py). Spark
    counts pieces as rows; the observed metrics `read` of each progress have the records and their bytes."""
    register(spark)
    from pyspark.sql import functions

    from spark_jobs.source.datasource import configured

    spark.dataSource.register(configured(kafka))
    place = {"prefix": prefix, SINK_OPTION: options.encoded()}
    stream = spark.readStream.format("watershed").options(**place).load()
    return stream.observe("read", *(functions.sum(name).alias(name) for name in ("records", "bytes")))
