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
