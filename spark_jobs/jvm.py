"""The Java process that PySpark starts, and the error for its unexpected end.

PySpark publishes no way to the process and its objects. Its private names are used here only; they were checked with
PySpark 4.1.3.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from sinks.errors import SinkError
from spark_jobs.fork_server import server_number


def is_cut_off(error: BaseException) -> bool:
    """Says whether the error is that of a call whose answer did not come: of what py4j raises, all but exceptions of
    Java. Its text is only the name of the call."""
    return isinstance(error, OSError) or (isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError))


def java_classes(spark: SparkSession) -> Any:
    """Returns py4j's view of the packages and classes of Java."""
    return spark._jvm


def java_session(spark: SparkSession) -> Any:
    """Returns the session's object of Java."""
    return spark._jsparkSession


def java_strings(spark: SparkSession, texts: Sequence[str]) -> Any:
    """Returns an array of Java."""
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(java_classes(spark).java.lang.String, len(texts))
    for number, text in enumerate(texts):
        array[number] = text
    return array


def task_slots(spark: SparkSession) -> int | None:
    """Returns how many tasks the application's executors can run at once, at this moment; None if Spark does not
    say."""
    try:
        context: Any = spark.sparkContext._jsc.sc()
        return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
    except (Py4JError, OSError):  # the Java process has ended, or its Spark has no such method
        return None


def silence_accumulators(spark: SparkSession) -> None:
    """When the JVM ends before us, PySpark's server of accumulators would print a traceback for the lost connection."""
    accumulators: Any = spark.sparkContext._accumulatorServer
    accumulators.handle_error = lambda _, __: None


def jvm_process(spark: SparkSession) -> Any:
    """Returns the process; None if Spark was started by `spark-submit`, which ends with it."""
    return getattr(spark.sparkContext._gateway, "proc", None)


def kill_python_workers(process: Any) -> None:
    """Ends the Python processes that Java has started, before it ends itself: each of them would print a traceback for
    its lost connection. Does nothing where there is no /proc."""
    for parent in filter(None, (server_number(), process.pid)):
        for child in _children(parent):
            # A daemon of PySpark is the leader of a group, in which its workers are.
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def jvm_failure(spark: SparkSession, wait_s: float = 0.0) -> SinkError | None:
    """Returns the error to raise if the Java process has ended. `wait_s`: the time after the loss of its connections
    within which its end may be noticed.
    """
    process = jvm_process(spark)
    if process is None:
        return None
    try:
        code = process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return None
    ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return SinkError(
        f"Spark's Java process ended by itself ({ended})",
        "start the command again: it continues where it was; if it ran out of memory, raise spark.driver_memory or "
        "lower spark.bytes_per_write_max",
    )
