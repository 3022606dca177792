"""What Spark says about the queries of sinks, published for status and metrics: the figures of each batch that has
ended, and queries that ended with an error.

Positions, lag and counts of written rows are not among it: the sinks publish these themselves (SinkRecord).
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from cdc.model.errors import WatershedError
from cdc.model.job_records import QueryRecord
from spark_jobs.sync import QueryStopped
from spark_jobs.task_slots import Shortage

log = structlog.get_logger(__name__)

READ: Final = "read"  # the observed metrics of a sink's stream, see spark_jobs.source.stream_of_sink
_WRITTEN: Final = "addBatch"  # Spark's name of the time that foreachBatch takes


def query_name(prefix: str, sink: str, generation: int) -> str:
    """The name of a generation's query."""
    return f"{prefix} {sink} {generation}"


def _place(prefix: str, name: str | None) -> tuple[str, int] | None:
    """Returns sink and generation of a query; None for a query of others."""
    words = (name or "").split()
    if len(words) != 3 or words[0] != prefix or not words[2].isdecimal():
        return None
    return words[1], int(words[2])


class SinkQueryListener(StreamingQueryListener):
    """Spark calls it in a thread of its own, one event after the other."""

    def __init__(self, prefix: str, publish: Callable[[QueryRecord], None]) -> None:
        """`publish` must not wait."""
        self._prefix = prefix
        self._publish = publish
        self._lock = threading.Lock()  # of everything below
        self._shortage: Shortage | None = None
        self._running: dict[Any, tuple[str, int]] = {}  # by run
        self._last: dict[tuple[str, int], QueryRecord] = {}

    @property
    def running(self) -> tuple[str, ...]:
        """The sink of each running query."""
        return tuple(sink for sink, _ in tuple(self._running.values()))

    def note_shortage(self, found: Shortage | None) -> None:
        """Adds a lack of task slots, or its end (None), to the records of the running queries, and of all later ones.
        Any thread may call it."""
        with self._lock:
            self._shortage = found
            for place in {*self._running.values()}:
                self._change(place)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        if (place := _place(self._prefix, event.name)) is not None:
            with self._lock:
                self._running[event.runId] = place
                self._change(place)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        if (place := self._running.get(progress.runId)) is not None:
            with self._lock:
                self._change(place, **figures(progress), ended_us=time.time_ns() // 1000)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Does nothing: the last batch stays the last."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The error itself is published by the sink's worker, which knows the next step (SinkErrorRecord)."""
        with self._lock:
            place = self._running.pop(event.runId, None)
            if place is not None and event.exception is not None and QueryStopped.__name__ not in event.exception:
                self._change(place, failures=self._last[place].failures + 1)

    def _change(self, place: tuple[str, int], **fields: Any) -> None:
        sink, generation = place
        record = self._last.get(place) or QueryRecord(sink=sink, generation=generation)
        short = self._shortage or Shortage("", "")
        update = {**fields, "shortage": short.message, "shortage_next": short.next}
        self._last[place] = record = record.model_copy(update=update)
        self._publish(record)


def figures(progress: Mapping[str, Any]) -> dict[str, int]:
    """Returns the figures of a batch as QueryRecord has them. Spark's own rates are of pieces, and left out."""
    read = (progress["observedMetrics"] or {}).get(READ)
    counts = read.asDict() if read is not None else {}
    return {
        "batch": progress["batchId"],
        "batch_ms": progress["batchDuration"],
        "task_ms": progress["durationMs"].get(_WRITTEN, 0),
        "rows": progress["numInputRows"],
        "records": counts.get("records") or 0,  # Spark's sum of nothing is null
        "bytes": counts.get("bytes") or 0,
    }


class NewestRecords:
    """Publishes the newest record of each key in a thread, so that nobody waits for the brokers. While these are away,
    it keeps one record for each key, and logs once."""

    def __init__(self, send: Callable[[QueryRecord], None], pause_s: float = 1.0) -> None:
        """`send` raises WatershedError. `pause_s`: after an error."""
        self._send = send
        self._pause_s = pause_s
        self._changed = threading.Condition()
        self._waiting: dict[str, QueryRecord] = {}
        threading.Thread(target=self._run, name="figures of queries", daemon=True).start()

    def put(self, record: QueryRecord) -> None:
        """Takes a record, and returns at once."""
        with self._changed:
            self._waiting[record.record_key] = record
            self._changed.notify_all()

    def _run(self) -> None:
        is_failing = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                key, record = next(iter(self._waiting.items()))
                del self._waiting[key]
            try:
                self._send(record)
                is_failing = False
            except WatershedError as error:
                if not is_failing:
                    log.warning("figures of queries can't be published", because=error.message, next=error.hint)
                is_failing = True
                with self._changed:
                    self._waiting.setdefault(key, record)
                time.sleep(self._pause_s)
