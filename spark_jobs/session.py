"""The Spark session that all sinks of a process share."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

CORES: Final = 2  # threads for tasks; the work is on the driver, and the machine has other tenants
CHECKPOINT_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
ICEBERG_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Batches are small: more partitions would only cost tasks.
    "spark.sql.shuffle.partitions": str(CORES),
    # One sink's long batch must not hold up another's short one.
    "spark.scheduler.mode": "FAIR",
    # The default forks a process for each file of a local checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.extensions": ICEBERG_EXTENSIONS,
}


def spark_session(
    java_home: Path, jars: Sequence[Path], driver_memory: str, options: Mapping[str, str] | None = None
) -> SparkSession:
    """Start the JVM and the session; about 5 s. `options` are the user's and go before ours."""
    os.environ["JAVA_HOME"] = str(java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.Builder().master(f"local[{CORES}]").appName("watershed")
    settings = {
        **_SETTINGS,
        "spark.driver.memory": driver_memory,
        "spark.jars": ",".join(map(str, jars)),
        **(options or {}),
    }
    logging = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
    settings[_JAVA_OPTIONS] = f"{logging} {settings.get(_JAVA_OPTIONS, '')}".strip()
    for name, value in settings.items():
        builder = builder.config(name, value)
    # PySpark takes SIGINT to cancel jobs, and only the main thread may; ours means: finish the batch and stop.
    interrupt = signal.getsignal(signal.SIGINT)
    spark = builder.getOrCreate()
    signal.signal(signal.SIGINT, interrupt)
    return spark
