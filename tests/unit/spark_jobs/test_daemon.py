"""Which archives the Python workers leave out of their import path, what they share, and how they send rows."""

import sys
from importlib.util import find_spec

import pytest
import structlog
from pyspark import daemon
from pyspark.sql import SparkSession

from spark_jobs.daemon import FlushedFile, flush_outputs, leave_out_archives
from spark_jobs.python_processes import SHARED

OURS = ["/env/lib/pyspark.zip", "/env/lib/py4j-0.10.9.9-src.zip", "/env/jars/spark-core_2.13-4.1.3.jar"]
OTHERS = ["/env/site-packages", "/job/users.zip", "/job/pyspark.zip.d", "/python311.zip"]


def test_sparks_own_archives_are_left_out_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [OTHERS[0], *OURS, *OTHERS[1:], OURS[0]])
    monkeypatch.setattr(sys, "path_importer_cache", dict.fromkeys([*OURS, *OTHERS]))
    leave_out_archives()
    assert sys.path == OTHERS
    assert list(sys.path_importer_cache) == OTHERS


def test_what_workers_share_exists() -> None:
    """The daemon does not say what it could not import: the workers would each import it."""
    assert [name for name in SHARED if find_spec(name) is None] == []


class Output:
    """A worker's output, which says in `calls` what was done."""

    name = "socket"

    def __init__(self) -> None:
        self.calls: list[object] = []

    def write(self, data: bytes) -> int:
        self.calls.append(data)
        return len(data)

    def flush(self) -> None:
        self.calls.append("flush")


def test_a_worker_sends_what_it_writes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def run(infile: object, outfile: FlushedFile) -> None:
        given.extend([infile, outfile.name, outfile.write(b"row")])

    monkeypatch.setattr(daemon, "worker_main", run)
    flush_outputs()
    output = Output()
    daemon.worker_main("in", output)
    assert given == ["in", "socket", 3] and output.calls == [b"row", "flush"]


def test_workers_log_from_a_level_on(spark: SparkSession) -> None:
    """Without a level they wrote each error of the Kafka client for as long as the brokers were away."""
    levels = spark.sparkContext.parallelize([0], 1).map(lambda _: structlog.get_config()["wrapper_class"].__name__)
    assert levels.collect()[0] in {f"BoundLoggerFilteringAt{level}" for level in ("Info", "Warning", "Error")}
