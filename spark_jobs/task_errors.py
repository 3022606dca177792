"""Errors of Watershed that are raised in one of Spark's Python processes, in a task or in the one that plans batches:
Spark passes only the text of a traceback on to the driver, among its own."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from cdc.model.errors import BrokerError, ConfigError, UnreachableError, WatershedError
from sinks.errors import FullError, RefusedError, SinkError

_MARK: Final = "watershed-task-error:"
_KINDS: Final = {
    kind.__name__: kind for kind in (RefusedError, FullError, ConfigError, UnreachableError, BrokerError, SinkError)
}


class TaskError(Exception):
    """Raised in one of Spark's Python processes; its text holds the error."""

    def __init__(self, error: WatershedError) -> None:
        fields = [type(error).__name__, error.message, error.hint]
        super().__init__(f"{_MARK}{msgspec.json.encode(fields).decode()}")


@contextmanager
def as_task_error() -> Iterator[None]:
    """Raises TaskError for an error of Watershed in this context."""
    try:
        yield
    except WatershedError as error:
        raise TaskError(error) from error


def error_of_task(error: BaseException) -> WatershedError | None:
    """Returns the error that a task or the planner raised, if one of Watershed's was the cause of Spark's error."""
    _, found, rest = str(error).partition(_MARK)
    if not found:
        return None
    try:
        fields, _ = json.JSONDecoder().raw_decode(rest)  # Spark's own words may follow, on the same line too
        kind, message, hint = msgspec.convert(fields, list[str])
    except (msgspec.ValidationError, ValueError):
        return None
    return _KINDS.get(kind, SinkError)(message, hint)
