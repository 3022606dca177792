"""Errors of Watershed that are raised in a task, or while a batch is planned: Spark passes only the text of a traceback
on to the driver."""

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
def passed_on() -> Iterator[None]:
    """Raises Watershed's errors of this context as TaskError."""
    try:
        yield
    except WatershedError as error:
        raise TaskError(error) from error


def error_of_task(error: BaseException) -> WatershedError | None:
    """Returns Watershed's error that was the cause of Spark's error. None if it had another cause."""
    _, found, rest = str(error).partition(_MARK)
    if not found:
        return None
    try:
        kind, message, hint = msgspec.json.decode(rest.partition("\n")[0], type=list[str])
    except (msgspec.DecodeError, ValueError):
        return None
    return _KINDS.get(kind, SinkError)(message, hint)
