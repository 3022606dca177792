"""The probe that shows whether rows flow, and Sparks that are refused."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc.model.errors import ConfigError
from spark_jobs import pipelining
from spark_jobs.pipelining import TRIES, check_versions, differences, probe
from spark_jobs.session import PIPELINING
from spark_jobs.source.warming import NEVER, ProbeSource, Received

SOME_VERSION = pyspark.__version__


@pytest.fixture(autouse=True)
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where both processes leave and look for marks."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


class FakeSpark:
    """A session whose settings are ours, but for `other`. `delays`: how long each try takes."""

    def __init__(self, *took_ms: int, version: str = SOME_VERSION, **other: str) -> None:
        self.version = version
        self.tried = 0
        self._took_ms = took_ms
        settings = {**PIPELINING, **{name.replace("__", "."): value for name, value in other.items()}}
        self.conf = settings
        self.sparkContext = SimpleNamespace(getConf=lambda: settings)
        self.dataSource = SimpleNamespace(register=lambda _: None)
        self.read = self

    def format(self, _: str) -> "FakeSpark":
        return self

    def options(self, **_: str) -> "FakeSpark":
        return self

    def load(self) -> "FakeSpark":
        return self

    def mapInArrow(self, *_: object) -> "FakeSpark":  # noqa: N802
        return self

    def collect(self) -> list[Any]:
        self.tried += 1
        return [SimpleNamespace(bytes=self._took_ms[self.tried - 1])]


def rows(source: ProbeSource) -> Iterator[Any]:
    reader = source.reader(StructType())
    return iter(reader.read(reader.partitions()[0]))


def source(wait_s: float) -> ProbeSource:
    return ProbeSource({"name": "t", "wait_s": str(wait_s)})


def test_a_row_that_arrives_while_the_source_runs_is_seen(marks: Path) -> None:
    """The writer takes each row when it is there."""
    (batch,) = Received("t")(rows(source(60)))
    (took_ms,) = batch.column("bytes").to_pylist()
    assert 0 <= took_ms < 60_000
    assert list(marks.iterdir()) == []


def test_rows_that_arrive_when_the_source_has_ended_are_seen(marks: Path) -> None:
    (batch,) = Received("t")(iter(list(rows(source(0.02)))))
    assert batch.column("bytes").to_pylist() == [NEVER]
    assert list(marks.iterdir()) == []


def test_a_spark_through_which_rows_flow_is_taken_at_the_second_try_too() -> None:
    for took in ((13,), (NEVER, 900)):
        spark: Any = FakeSpark(*took)
        probe(spark)
        assert spark.tried == len(took)


def test_a_wrong_setting_is_named_with_its_right_value() -> None:
    spark: Any = FakeSpark(*[NEVER] * TRIES, spark__sql__execution__arrow__maxRecordsPerBatch="10000")
    assert differences(spark) == {"spark.sql.execution.arrow.maxRecordsPerBatch": "10000"}
    with pytest.raises(ConfigError, match="a row of the data source did not reach mapInArrow in 20 s") as refused:
        probe(spark)
    assert "set spark.sql.execution.arrow.maxRecordsPerBatch=1 (it is 10000)" in refused.value.hint
    assert "spark.options" in refused.value.hint
    absent: Any = FakeSpark(*[NEVER] * TRIES, spark__python__daemon__module="")
    with pytest.raises(ConfigError) as refused:
        probe(absent)
    assert "set spark.python.daemon.module=spark_jobs.daemon (it is not set)" in refused.value.hint


def test_with_the_right_settings_the_version_is_named() -> None:
    spark: Any = FakeSpark(*[NEVER] * TRIES, version="4.9.1")
    with pytest.raises(ConfigError) as refused:
        probe(spark)
    assert refused.value.hint == "run Spark 4.1, with which Watershed is tested; this is 4.9.1"


def test_another_setting_that_does_no_harm_is_only_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[dict[str, str]] = []
    monkeypatch.setattr(pipelining, "log", SimpleNamespace(warning=lambda _, **fields: warned.append(fields),
                                                           debug=lambda *_, **__: None))  # fmt: skip
    spark: Any = FakeSpark(40, spark__python__unix__domain__socket__enabled="false")
    probe(spark)
    assert warned == [{"setting": "spark.python.unix.domain.socket.enabled", "found": "false", "needed": "true"}]


def test_a_probe_that_spark_did_not_run_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lasting error comes again with the first batch, and is reported by the sink that it concerns."""

    def fail(*_: object) -> int:
        raise PySparkException("no executor")

    monkeypatch.setattr(pipelining, "_tried", fail)
    spark: Any = FakeSpark()
    probe(spark)


@pytest.mark.parametrize(
    ("version", "message"),
    [("4.0.2", "lacks the Python Data Source API"), ("3.5.1", "lacks"), ("4.9.0", "do not understand each other")],
)
def test_another_version_of_spark_is_named(version: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        check_versions(SimpleNamespace(version=version))
    assert "run Spark" in refused.value.hint
    check_versions(SimpleNamespace(version=SOME_VERSION))


@pytest.mark.whole
def test_rows_flow_through_spark_with_our_settings_and_not_without(spark: SparkSession) -> None:
    """The real thing."""
    probe(spark.newSession())
    other = spark.newSession()
    other.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    with pytest.raises(ConfigError) as refused:
        probe(other, wait_s=0.5)
    assert "set spark.sql.execution.arrow.maxRecordsPerBatch=1 (it is 10000)" in refused.value.hint
