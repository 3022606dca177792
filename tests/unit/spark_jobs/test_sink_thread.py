"""What a sink's thread reports of an error that ended its attempt."""

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cdc.config.config_file import load_config
from cdc.daemon.conditions import Conditions
from cdc.model.errors import BrokerError, ConfigError, WatershedError
from cdc.model.sink_records import STALLED_S
from spark_jobs import sink_thread as module
from spark_jobs.serving import ServingThread
from spark_jobs.task_errors import TaskError
from tests.support.sink_job import write_config
from tests.support.status_facts import applied

CUT_OFF = Py4JError("An error occurred while calling o103.set")
SINKS = {
    "cache": {"url": "redis://127.0.0.1:1"},
    "lake": {"type": "warehouse", "catalog_uri": "jdbc:sqlite:x", "location": "/y"},
}


def session(process: Any) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))


def sink_thread(folder: Path, conditions: Conditions, process: Any = None, sink: str = "cache") -> ServingThread:
    def refuse(_: object) -> NoReturn:
        raise AssertionError("nothing is opened")

    config = load_config(write_config(folder, "127.0.0.1:1", "shop", SINKS, warehouse_trigger_ms=12_000))
    return ServingThread(sink, config, session(process), refuse, threading.Event(), conditions)


def test_a_java_process_that_was_killed_is_named_and_not_the_call_that_it_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    conditions = Conditions()
    tested = sink_thread(tmp_path, conditions, killed)

    def cut_off() -> NoReturn:
        raise CUT_OFF

    monkeypatch.setattr(tested, "_run_once", cut_off)
    monkeypatch.setattr(tested, "_publish_error", lambda *_, **__: None)
    monkeypatch.setattr(module, "JVM_END_S_MAX", 20.0)
    tested.run()
    (condition,) = conditions.all()
    assert condition.state == "stopped"
    assert condition.message == "cache: Spark's Java process ended by itself (killed by signal 9)"
    assert condition.next.startswith("start the command again: it continues where it was")


@pytest.mark.parametrize(("sink", "store", "patience_s"), [("cache", "cache", 0.0), ("lake", "warehouse", 24.0)])
def test_the_published_record_names_the_store_and_how_long_it_may_be_silent(
    tmp_path: Path, sink: str, store: str, patience_s: float
) -> None:
    """Processes whose configuration does not have the sink yet judge by it whether it makes progress."""
    control: Any = SimpleNamespace(excluded=(), schema_histories={})
    record = sink_thread(tmp_path, Conditions(), sink=sink)._complete(control, applied())
    assert (record.store, record.patience_s) == (store, STALLED_S + patience_s)


class EndedQuery:
    """A query that ended when its next batch was planned."""

    isActive = False  # noqa: N815

    def __init__(self, error: Exception) -> None:
        self._error = error

    def exception(self) -> Exception:
        return self._error


@pytest.mark.parametrize(("own", "state"), [(ConfigError, "stopped"), (BrokerError, "retrying")])
def test_the_planner_s_error_decides_whether_the_query_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: type[WatershedError], state: str
) -> None:
    """It comes as an error of Spark's, as its text."""
    conditions = Conditions()
    tested = sink_thread(tmp_path, conditions, sink="cache")
    spark_s = PySparkException(f"Failed when Python streaming data source perform latestOffset: \n"
                               f"TaskError: {TaskError(own('no password', 'add it'))}\n")  # fmt: skip
    shared = SimpleNamespace(has_new_writes=threading.Event(), is_behind=False)
    sync: Any = SimpleNamespace(state=shared, batch_runner=SimpleNamespace(failure=None))
    query: Any = EndedQuery(spark_s)

    monkeypatch.setattr(tested, "_run_once", lambda: tested._watch(query, sync, lambda: False))
    monkeypatch.setattr(tested, "_publish_error", lambda *_, **__: None)
    if state == "retrying":
        monkeypatch.setattr(tested._stop, "is_set", lambda: bool(conditions.all()))
    tested.run()
    (condition,) = conditions.all()
    assert (condition.state, condition.message, condition.next) == (state, "cache: no password", "add it")
