"""What the daemon of Spark's Python workers and the fork server have in common."""

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Final

# Imported before workers are forked, which then share them.
SHARED: Final = ("pyarrow", "spark_jobs.writer", "spark_jobs.stores", "spark_jobs.source.sink_stream")


def import_beforehand(modules: Iterable[str]) -> None:
    """Imports modules for the processes that this one forks. One that can't be imported is named by the process that
    needs it."""
    for module in modules:
        with suppress(ImportError):
            import_module(module)


def is_spark_archive(path: str) -> bool:
    """Says whether Spark has put this entry on the import path: pyspark.zip, py4j's archive, and a core jar. PySpark is
    installed in this environment, so they are not needed."""
    name = path.rpartition("/")[2]
    return name == "pyspark.zip" or (name.startswith(("py4j-", "spark-core_")) and name.endswith((".zip", ".jar")))
