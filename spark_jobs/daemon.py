"""The daemon that forks Spark's Python workers, in place of `pyspark.daemon`.

PySpark calls `importlib.invalidate_caches()` before each task, which reads the directories of every archive on
`sys.path` again: pyspark.zip, py4j's archive and a core jar cost up to 0.5 s a task. PySpark is installed in this
environment, so these three entries serve nothing here. Other archives stay, those of `--py-files` among them.
"""

import sys


def leave_out_archives() -> None:
    """Remove Spark's own archives from the import path of this process and of the workers that it forks."""
    for path in [path for path in sys.path if _is_spark_archive(path)]:
        sys.path.remove(path)
    for path in [path for path in sys.path_importer_cache if _is_spark_archive(path)]:
        del sys.path_importer_cache[path]


def _is_spark_archive(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name == "pyspark.zip" or (name.startswith(("py4j-", "spark-core_")) and name.endswith((".zip", ".jar")))


if __name__ == "__main__":
    leave_out_archives()
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]
