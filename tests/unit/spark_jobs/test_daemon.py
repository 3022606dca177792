"""Which archives the Python workers leave out of their import path."""

import sys

import pytest
import structlog
from pyspark.sql import SparkSession

from spark_jobs.daemon import leave_out_archives

OURS = ["/env/lib/pyspark.zip", "/env/lib/py4j-0.10.9.9-src.zip", "/env/jars/spark-core_2.13-4.1.3.jar"]
OTHERS = ["/env/site-packages", "/job/users.zip", "/job/pyspark.zip.d", "/python311.zip"]


def test_sparks_own_archives_are_left_out_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [OTHERS[0], *OURS, *OTHERS[1:], OURS[0]])
    monkeypatch.setattr(sys, "path_importer_cache", dict.fromkeys([*OURS, *OTHERS]))
    leave_out_archives()
    assert sys.path == OTHERS
    assert list(sys.path_importer_cache) == OTHERS


def test_workers_log_from_a_level_on(spark: SparkSession) -> None:
    """Without a level they wrote each error of the Kafka client for as long as the brokers were away."""
    levels = spark.sparkContext.parallelize([0], 1).map(lambda _: structlog.get_config()["wrapper_class"].__name__)
    assert levels.collect()[0] in {f"BoundLoggerFilteringAt{level}" for level in ("Info", "Warning", "Error")}
