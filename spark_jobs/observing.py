"""Telemetry of sinks: a span for each position that readers see after something was written, and events of lineage.

It looks at what passes between SinkSync, the batches and the progress topic. A process without telemetry has no
SinkObserver.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import structlog

from cdc.config.config_file import Config
from cdc.config.secrets import hidden, secret_texts
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.lsn import format_lsn
from cdc.model.sink_records import SinkRecord
from cdc.telemetry.process import Telemetry
from cdc.telemetry.spans import Span, Value, table_attributes
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import FoundTopic, Offsets
from spark_jobs.batches import Batches, BatchReport, OnReport
from spark_jobs.lineage import EventType, LineageEvents, Position, SinkRun

log = structlog.get_logger(__name__)

RUNNING_S: Final = 60.0  # between two events of a run, at least


class SinkObserver:
    """Observes the sinks of a process."""

    def __init__(self, telemetry: Telemetry, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self.telemetry = telemetry
        self._config = config
        self._clock = clock
        self._secrets = secret_texts(config)

    def begin(self, run: SinkRun) -> "ObservedRun":
        """Observes a run, which begins now."""
        return ObservedRun(self.telemetry, self._config, run, self._clock, self._secrets)


def new_run_id() -> str:
    return str(uuid.uuid4())


class ObservedRun:
    """One run of a sink. An error of telemetry is logged, and does not reach the sink."""

    def __init__(
        self,
        telemetry: Telemetry,
        config: Config,
        run: SinkRun,
        clock: Callable[[], float],
        secrets: frozenset[str],
    ) -> None:
        self._telemetry = telemetry
        self._run = run
        self._clock = clock
        self._secrets = secrets
        self._events = LineageEvents(config, run) if telemetry.has_lineage else None
        self._work = _Work()
        self._position = Position()
        self._stale = 0
        self._written_tables: set[TableId] = set()  # since the last event
        self._sent_at = float("-inf")  # monotonic seconds
        self._described: dict[TableId, int] = {}  # version of the schema that an event has described
        self._guarded(partial(self._send, "START"))

    def batches(self, batches: Batches) -> Batches:
        """Returns the same batches, observed."""
        return _ObservedBatches(batches, self._work)

    def publishing(self, publish: Callable[[SinkRecord], None]) -> Callable[[SinkRecord], None]:
        """Returns what publishes a position, and notes it."""

        def published(record: SinkRecord) -> None:
            publish(record)
            self._guarded(partial(self._applied, record))

        return published

    def end(self, error: Exception | None) -> None:
        """The run has ended. `error`: with which; None: because something else goes on in its place."""
        self._guarded(partial(self._end, error))

    def _guarded(self, note: Callable[[], None]) -> None:
        try:
            note()
        except Exception:  # a defect of ours here must not stop the sink
            log.exception("telemetry failed", sink=self._run.sink, next="report this with the log's traceback")

    def _applied(self, record: SinkRecord) -> None:
        written, stale = record.written - self._position.written, record.stale - self._stale
        self._position, self._stale = Position(record.applied_lsn, record.written), record.stale
        if written + stale <= 0:
            return
        work, now_us = self._work.take(), _now_us()
        tables = [table for table, history in self._run.histories().items() if history.newest.topic in work.topics]
        if self._telemetry.has_spans:
            delay = {"watershed.delay_ms": round((now_us - record.commit_ts_us) / 1_000, 1)}
            attributes: dict[str, Value] = {
                **self._labels(),
                "watershed.applied_lsn": format_lsn(record.applied_lsn),
                "watershed.epoch": record.epoch,
                "watershed.records": work.records,
                "watershed.rows.written": written,
                "watershed.rows.stale": stale,
                "watershed.dead_letters": record.dead_letters,
                **(delay if record.commit_ts_us else {}),
                **table_attributes(map(str, tables)),
            }
            self._telemetry.record(
                Span(f"apply {self._run.sink}", "consumer", work.begun_us or now_us, now_us, attributes)
            )
        self._written_tables |= set(tables)
        if self._events is not None and self._clock() - self._sent_at >= RUNNING_S:
            self._send("RUNNING")

    def _end(self, error: Exception | None) -> None:
        if error is None:
            self._send("COMPLETE")
            return
        # Messages of other programs may contain values of rows.
        text = error.message if isinstance(error, WatershedError) else type(error).__name__
        text = hidden(text, self._secrets)
        now_us = _now_us()
        begun_us = self._work.take().begun_us or now_us
        self._telemetry.record(
            Span(f"apply {self._run.sink}", "consumer", begun_us, now_us, self._labels(), text or "failed")
        )
        self._send("FAIL", text)

    def _labels(self) -> dict[str, Value]:
        return {
            "watershed.sink": self._run.sink,
            "watershed.sink.type": self._run.section.type,
            "watershed.generation": self._run.generation,
            "watershed.role": self._run.role,
        }

    def _send(self, kind: EventType, error: str = "") -> None:
        """Sends an event that describes the tables that are new or altered since the last one."""
        if self._events is None:
            return
        histories = self._run.histories()
        versions = {table: history.newest.version for table, history in histories.items()}
        altered = {table for table, version in versions.items() if self._described.get(table) != version}
        tables = None if kind == "START" else altered | self._written_tables
        event = self._events.event(kind, _now_us(), self._position, tables=tables, described=altered, error=error)
        self._described = versions
        self._written_tables = set()
        if kind != "START":  # the first rows are reported at once
            self._sent_at = self._clock()
        self._telemetry.send_lineage(event)


class _Work:
    """What tasks have done since it was taken last. Several threads call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken_us = 0
        self._batch_us = 0
        self.begun_us = 0  # 0: nothing was done
        self.records = 0
        self.topics: set[str] = set()

    def begin_batch(self) -> None:
        self._batch_us = _now_us()

    def add(self, report: BatchReport, *, is_live: bool) -> None:
        """Adds a report. Tasks of a live batch write what has come since their last report; others report at the end of
        their batch."""
        if not report.records:
            return
        with self._lock:
            if not self.begun_us:
                writing_us = round(report.write_s * 1_000_000)
                since = _now_us() - writing_us if is_live else self._batch_us
                self.begun_us = max(self._batch_us, self._taken_us, since)
            self.records += report.records
            self.topics |= report.topics

    def take(self) -> "_Work":
        """Returns what was done since it was taken last."""
        taken = _Work()
        with self._lock:
            taken.begun_us, taken.records, taken.topics = self.begun_us, self.records, self.topics
            self.begun_us, self.records, self.topics = 0, 0, set()
            self._taken_us = _now_us()
        return taken


class _ObservedBatches:
    """Implements Batches."""

    def __init__(self, batches: Batches, work: _Work) -> None:
        self.is_live = batches.is_live
        self._batches = batches
        self._work = work

    def set_tables(self, schema_histories: Mapping[str, SchemaHistory]) -> None:
        self._batches.set_tables(schema_histories)

    def set_open_dead_letters(self, open_dead_letters: Mapping[str, int]) -> None:
        self._batches.set_open_dead_letters(open_dead_letters)

    def find_topics(self) -> Mapping[str, FoundTopic]:
        return self._batches.find_topics()

    def run(self, micro_batch: Any, end_offsets: Offsets, on_report: OnReport) -> BatchReport:
        self._work.begin_batch()

        def reported(report: BatchReport) -> bool:
            self._work.add(report, is_live=True)
            return on_report(report)

        report = self._batches.run(micro_batch, end_offsets, reported)
        self._work.add(report, is_live=self.is_live)
        return report


def _now_us() -> int:
    return time.time_ns() // 1_000
