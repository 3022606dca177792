"""What `cdc sink run` refuses before it starts anything, and Spark that does not start."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from cdc.config.config_file import Config, load_config
from cdc.model.errors import ConfigError
from cdc.model.job_records import SinkErrorRecord
from cdc.model.topic_record import TopicRecord
from sinks.errors import SinkError
from spark_jobs import runner
from spark_jobs.runner import run_sinks
from tests.support.sink_job import write_config

CACHE = {"cache": {"url": "redis://127.0.0.1:1"}}


def config(folder: Path, sinks: Mapping[str, object], **spark: Any) -> Config:
    return load_config(write_config(folder, "127.0.0.1:1", "shop", sinks, **spark))


@pytest.mark.parametrize("name", ["nope", "search"])
def test_a_sink_without_a_section_is_refused_with_those_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"no sink '{name}'") as refused:
        run_sinks(config(tmp_path, CACHE), [name])
    assert "sinks with a section are: cache" in refused.value.hint


@pytest.mark.parametrize(
    "error",
    [
        PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited\nmore"),
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
    ],
)
def test_spark_that_does_not_start_is_said_with_a_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Its Java process was killed, for example."""

    def session(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(runner, "_session", session)
    with pytest.raises(SinkError, match="Spark did not start: ") as stopped:
        run_sinks(config(tmp_path, CACHE), ["cache"])
    assert stopped.value.message.endswith(str(error).splitlines()[0])
    assert "spark.driver_memory" in stopped.value.hint


def test_a_request_to_stop_while_spark_starts_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal reaches the Java process, too, which ends with it."""
    handlers: dict[int, Any] = {}

    def session(*_: object) -> NoReturn:
        handlers[signal.SIGTERM](signal.SIGTERM, None)
        raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited")

    def end(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(signal, "signal", lambda number, handler: handlers.update({number: handler}))
    monkeypatch.setattr(runner, "_session", session)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(SystemExit) as ended:
        run_sinks(config(tmp_path, CACHE), ["cache"])
    assert ended.value.code == 0


class FakeSpark:
    """A session with these settings."""

    def __init__(self, **settings: str) -> None:
        self.conf = {name.replace("__", "."): value for name, value in settings.items()}


@pytest.mark.parametrize(
    ("spark", "is_submitted", "slots", "looks"),
    [
        (FakeSpark(), True, [0, 1, 3], 3),
        (FakeSpark(), True, [None], 1),  # a Spark that does not say
        (FakeSpark(spark__dynamicAllocation__enabled="true"), True, [], 0),  # executors come with the first tasks
        (FakeSpark(), False, [], 0),
    ],
)
def test_a_cluster_s_executors_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, spark: FakeSpark, is_submitted: bool, slots: list[int | None], looks: int
) -> None:
    """Otherwise the number of tasks of each query would be computed without them."""
    looked: list[int | None] = []

    def check(_: object) -> int | None:
        looked.append(slots[len(looked)])
        return looked[-1]

    monkeypatch.setattr(runner, "is_submitted", lambda: is_submitted)
    monkeypatch.setattr(runner, "task_slots", check)
    monkeypatch.setattr(runner, "POLL_S", 0.0)
    runner._wait_for_executors(spark, 2)  # type: ignore[arg-type]
    assert len(looked) == looks


def test_executors_that_do_not_come_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "is_submitted", lambda: True)
    monkeypatch.setattr(runner, "task_slots", lambda _: 0)
    monkeypatch.setattr(runner, "EXECUTORS_S_MAX", 0.01)
    monkeypatch.setattr(runner, "POLL_S", 0.001)
    runner._wait_for_executors(FakeSpark(), 2)  # type: ignore[arg-type]


def test_an_error_that_ends_the_process_is_published_for_each_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[TopicRecord] = []
    monkeypatch.setattr(runner, "deliver", lambda _, record: sent.append(record))
    found = config(tmp_path, CACHE)
    runner._publish_error(found, ["cache", "search"], ConfigError("rows do not flow", "set it"))
    records = [SinkErrorRecord.decode(record.value or b"", record.topic) for record in sent]
    assert [(one.sink, one.message, one.next, one.is_final) for one in records] == [
        ("cache", "cache: rows do not flow", "set it", True),
        ("search", "search: rows do not flow", "set it", True),
    ]
    runner._publish_error(found, ["cache"], ValueError("ours"))
    assert len(sent) == 2, "an error of ours is a traceback"
