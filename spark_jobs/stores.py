"""Stores that tasks write directly."""

from collections.abc import Sequence
from typing import Any

from sinks.contract import Change, Result, Sink
from sinks.reduction import reduce_changes
from sinks.registry import make_sink
from spark_jobs.task_report import SchemaCatalog, SinkTaskConfig


class StoreTarget:
    """A store that tasks write directly, through its sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def reduced(self, changes: Sequence[Change]) -> list[Change]:
        return reduce_changes(changes)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        return self._sink.apply(changes)

    def finish(self) -> tuple[Any, ...]:
        return ()

    def close(self) -> None:
        self._sink.close()


def open_store(task_config: SinkTaskConfig, catalog: SchemaCatalog) -> StoreTarget:
    """Connects to the store. Raises SinkError."""
    sink = make_sink(task_config.sink, task_config.section, task_config.prefix, task_config.slot)
    for schema_history in catalog.schema_histories.values():
        sink.attach(schema_history.newest)
    return StoreTarget(sink)
