"""How a task's error reaches the driver: as the text of an error of Spark's."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.config.settings import KafkaConfig
from cdc.model.errors import BrokerError, ConfigError, StackError, UnreachableError, WatershedError
from sinks.errors import FullError, RefusedError, SinkError
from spark_jobs.sink_thread import error_of_query
from spark_jobs.source import stream_of_sink
from spark_jobs.source.sink_options import SinkStreamOptions
from spark_jobs.task_errors import TaskError, error_of_task
from tests.support.waiting import eventually


def as_spark_tells(text: str) -> Exception:
    """An error with a task's traceback in it, between Spark's own lines."""
    return RuntimeError(
        "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times: PythonException: Traceback (most recent "
        f'call last):\n  File "writer.py", line 1\nspark_jobs.task_errors.TaskError: {text}\n\n\tat org.apache.spark'
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: RefusedError("a", "b"),
        lambda: ConfigError("a", "b"),
        lambda: SinkError('a "quoted"\nsecond line', "b \\ ü"),
        lambda: FullError("a", ""),
        lambda: UnreachableError("a", "b"),
        lambda: BrokerError("a", "b"),
    ],
)
def test_errors_keep_class_message_and_hint_on_their_way_to_the_driver(make: Callable[[], WatershedError]) -> None:
    made, found = make(), error_of_task(as_spark_tells(str(TaskError(make()))))
    assert found is not None
    assert (type(found), found.message, found.hint) == (type(made), made.message, made.hint)


def test_an_error_of_another_class_keeps_what_it_says() -> None:
    found = error_of_task(TaskError(StackError("a", "b")))
    assert (type(found), found and found.message) == (SinkError, "a")


def test_the_planner_s_error_is_recognised_among_spark_s_words() -> None:
    """As a query's exception has it, in Spark 4.1: after the traceback the line goes on."""
    error = ConfigError("kafka.sasl_password is missing", "add it")
    text = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
        "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: "
        f"Traceback (most recent call last):\ncdc.model.errors.ConfigError: {error.message}\n\nThe above exception was "
        f"the direct cause of the following exception:\nspark_jobs.task_errors.TaskError: {TaskError(error)} "
        "SQLSTATE: 38000 SQLSTATE: XXKST"
    )
    found = error_of_task(RuntimeError(text))
    assert (type(found), found and found.message, found and found.hint) == (ConfigError, error.message, "add it")


@pytest.mark.parametrize("text", ["out of memory", "watershed-task-error:[", 'watershed-task-error:["SinkError","a"]'])
def test_other_errors_are_not_taken_for_one_of_watersheds(text: str) -> None:
    assert error_of_task(as_spark_tells(text)) is None


@pytest.mark.whole
def test_the_planner_s_error_comes_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The real thing: an option that the Kafka client does not know, which the planner's process finds."""
    kafka = KafkaConfig(bootstrap_servers="127.0.0.1:1", options={"no.such.option": "1"})
    options = SinkStreamOptions("search", 1, (3, "m"), ("*.*",), (), 2, 1000, live_s=30.0)
    stream = stream_of_sink(spark.newSession(), kafka, "shop", options)
    writer = stream.writeStream.foreachBatch(lambda *_: None).option("checkpointLocation", str(tmp_path))
    query = writer.start()
    eventually(lambda: not query.isActive, 60, "the query ends")
    error = error_of_query(query)
    assert isinstance(error, ConfigError)
    assert "no.such.option" in error.message
    assert error.hint
