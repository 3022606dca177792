"""A start that trusts the position that was published last, as before the store held one: for mutants."""

from collections.abc import Callable
from typing import Any

from cdc.model.sink_records import SinkRecord
from spark_jobs.serving import ServingThread
from spark_jobs.sink_thread import OpenSink, PipelineConnections

Begin = Callable[[ServingThread, OpenSink, PipelineConnections], Any]


def begins_where_it_published(begin: Begin) -> Begin:
    """Returns this method of ServingThread with the published position in place of the store's."""

    def begun(worker: ServingThread, opened: OpenSink, connections: PipelineConnections) -> Any:
        sink: Any = opened.sink
        held, read = sink.generation(), sink.saved_position

        def published() -> str | None:
            record = connections.control.sinks.get(SinkRecord.key_of(worker.name, held)) if held else None
            return read() if record is None else record.encode().decode()

        sink.saved_position = published
        try:
            return begin(worker, opened, connections)
        finally:
            del sink.saved_position

    return begun
