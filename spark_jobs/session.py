"""The Spark session that all sinks of a process share."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark_jobs import class_archive
from spark_jobs.fork_server import interpreter
from spark_jobs.jvm import silence_accumulators
from spark_jobs.worker_output import filtered_output

CORES: Final = os.cpu_count() or 1
CHECKPOINT_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_CLASS_PATH: Final = "spark.driver.extraClassPath"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
ICEBERG_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

# Measured with merges of 5,000 and 100,000 rows into 200,000: without the optimising compiler the JVM takes half the
# processor time until the first rows are written (17 instead of 35 s), and a third less per batch even after 25 of
# them; its threads would compete with the batches for two cores. The serial collector needs less memory and no threads.
# Without that compiler Java reserves 48 MB for compiled code, which three queries that were started again a few times
# filled in two minutes; from then on it interprets. What is reserved takes no memory before it is used.
_JVM_FLAGS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"

_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The default forks a process for each file of a local checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
}
# A row of the sinks' streams is a piece of many records. Each must go its way when it is there: Spark would wait for
# 10,000 rows, for 64 KiB to a Python worker or from one, and for TCP's acknowledgement of the last small packet.
# spark_jobs/pipelining.py tries whether it works.
PIPELINING: Final[Mapping[str, str]] = {
    "spark.python.daemon.module": "spark_jobs.daemon",
    "spark.python.worker.reuse": "true",  # Spark's default: workers keep their connections to brokers and stores
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    # Less than any row: Spark sends what it has collected when it is that much. With 1,024 the row behind a large piece
    # was held back, and with it the report of the piece, until more rows came or the batch ended.
    "spark.sql.execution.pandas.udf.buffer.size": "256",
    "spark.python.unix.domain.socket.enabled": "true",
}
SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Batches are small: more partitions would only cost tasks.
    "spark.sql.shuffle.partitions": str(CORES),
    # One sink's long batch must not hold up another's short one.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.streaming.minBatchesToRetain": "10",
    **PIPELINING,
    "spark.sql.extensions": ICEBERG_EXTENSIONS,
}


def is_submitted() -> bool:
    """Says whether spark-submit started this process: then it decides about master, jars and memory."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def submitted_session(options: Mapping[str, str]) -> SparkSession:
    """Returns the session of a process that spark-submit has started. `options` are the user's and precede
    Watershed's.
    """
    return _built(SparkSession.Builder().appName("watershed"), {**SETTINGS, **options})


def spark_session(
    java_home: Path,
    jars: Sequence[Path],
    driver_memory: str,
    options: Mapping[str, str] | None = None,
    query_count: int = 1,
) -> SparkSession:
    """Starts the JVM and the session, in about 5 s. Each of `query_count` queries can have a task for each processor: a
    task that waits for records holds its thread and needs no processor. `options` are the user's and override ours,
    except the class path and the JVM's flags, to which theirs are added."""
    os.environ["JAVA_HOME"] = str(java_home)
    builder = SparkSession.Builder().master(f"local[{CORES * query_count}]").appName("watershed")
    settings = {
        **SETTINGS,
        **_LOCAL_SETTINGS,
        "spark.driver.memory": driver_memory,
        # Not spark.jars, which would copy them into a temporary folder at each start.
        _CLASS_PATH: ":".join(map(str, jars)),
        **(options or {}),
    }
    if options and _CLASS_PATH in options:
        settings[_CLASS_PATH] = ":".join([*map(str, jars), options[_CLASS_PATH]])
    logging = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
    # The user's flags come last: of two contradicting ones the JVM uses the later.
    known = class_archive.flags(java_home, jars)
    settings[_JAVA_OPTIONS] = " ".join(filter(None, [logging, _JVM_FLAGS, known, settings.get(_JAVA_OPTIONS)]))
    with filtered_output(), _python_of_spark():
        return _built(builder, settings)


@contextmanager
def _python_of_spark() -> Iterator[None]:
    """Names the interpreter for Spark's Python processes to a session that is built in this context. A user's own
    precedes. Processes that this one starts do not inherit ours."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = chosen or interpreter()
    try:
        yield
    finally:
        os.environ["PYSPARK_PYTHON"] = chosen or sys.executable


def _built(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, value)
    # PySpark handles SIGINT by cancelling jobs, in the main thread only; here it means: finish the batch and stop.
    interrupt = signal.getsignal(signal.SIGINT)
    spark = builder.getOrCreate()
    signal.signal(signal.SIGINT, interrupt)
    silence_accumulators(spark)
    return spark
