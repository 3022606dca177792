"""Spark's own archives on Python's import path: PySpark is installed in this environment, so they are not needed."""


def is_spark_archive(path: str) -> bool:
    """Says whether Spark has put this entry on the path: pyspark.zip, py4j's archive, and a core jar."""
    name = path.rpartition("/")[2]
    return name == "pyspark.zip" or (name.startswith(("py4j-", "spark-core_")) and name.endswith((".zip", ".jar")))
