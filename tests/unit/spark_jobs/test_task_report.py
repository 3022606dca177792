"""How a task's error reaches the driver."""

from collections.abc import Callable

import pytest

from cdc.model.errors import ConfigError, WatershedError
from sinks.errors import FullError, RefusedError, SinkError
from spark_jobs.task_report import TaskFailure


@pytest.mark.parametrize(
    "make",
    [
        lambda: RefusedError("a", "b"),
        lambda: ConfigError("a", "b"),
        lambda: SinkError("a", "b"),
        lambda: FullError("a", "b"),
    ],
)
def test_errors_keep_class_message_and_hint_on_their_way_to_the_driver(make: Callable[[], WatershedError]) -> None:
    error = TaskFailure.of(make()).error()
    assert (type(error), error.message, error.hint) == (type(make()), "a", "b")
