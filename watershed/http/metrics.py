"""Metrics in Prometheus' text format, made from the status at each scrape."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cdc import __version__
from cdc.model.lsn import parse_lsn
from watershed.status.model import Part, QueryStatus, SinkStatus, Status, TableStatus, ViewStatus, WalBudget

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_PARTS: Final[tuple[Part, ...]] = ("source", "brokers", "capture", "table", "sink", "view")
_TABLE: Final = ("streaming", "not streaming", "snapshotting", "stopped", "not captured")
_SNAPSHOT: Final = ("waiting", "running", "paused", "done", "cancelled", "failed")
_VIEW: Final = ("unreachable", "never run", "filling", "filled", "serving", "rebuild", "failed")
_WAL: Final = ("reserved", "extended", "unreserved", "lost")


NOTHING_DROPPED: Final[Mapping[str, int]] = MappingProxyType({})


def metrics_text(status: Status, *, is_ready: bool, dropped: Mapping[str, int] = NOTHING_DROPPED) -> bytes:
    """Returns the metrics in Prometheus' format. Unknown values have no sample. `dropped`: see Telemetry.dropped."""
    return generate_latest(_Collected(metric_families(status, is_ready=is_ready, dropped=dropped)))


def metric_families(
    status: Status, *, is_ready: bool, dropped: Mapping[str, int] = NOTHING_DROPPED
) -> Sequence[Metric]:
    """Returns every metric with its name, meaning and labels, and the samples that are known."""
    return [*_process(status, is_ready=is_ready), *_source(status), *_capture(status),
            *_tables(status.tables), *_sinks(status.sinks), *_views(status.views), _telemetry(dropped)]  # fmt: skip


def _telemetry(dropped: Mapping[str, int]) -> Metric:
    return _count_by("signal", "telemetry_dropped_total", "What the process could not deliver: spans (traces), exports "
                     "(metrics), events (lineage).", dropped.items())  # fmt: skip


class _Collected(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _gauge(name: str, text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(f"watershed_{name}", text, value)


def _process(status: Status, *, is_ready: bool) -> Iterable[Metric]:
    build = GaugeMetricFamily("watershed_build_info", "The running version.", labels=["version", "prefix"])
    build.add_metric([__version__, status.prefix], 1)
    yield build
    yield _gauge("ready", "Whether /readyz is green.", is_ready)
    problems = GaugeMetricFamily("watershed_problems", "Errors and warnings by part of the pipeline.",
                                 labels=["part", "severity"])  # fmt: skip
    for part in _PARTS:
        for severity in ("error", "warning"):
            count = sum(1 for one in status.problems if (one.part, one.severity) == (part, severity))
            problems.add_metric([part, severity], count)
    yield problems


def _source(status: Status) -> Iterable[Metric]:
    source, slot = status.source, status.source.slot
    yield _gauge("source_up", "Whether PostgreSQL answers.", source.is_reachable)
    yield _gauge("brokers_up", "Whether Kafka answers.", status.brokers.is_reachable)
    lsn = None if source.lsn is None else float(parse_lsn(source.lsn))
    yield _gauge("source_wal_position_bytes", "End of the flushed WAL, as a byte position.", lsn)
    budget = WalBudget() if slot is None else slot.budget
    yield _gauge("slot_active", "Whether a process streams from the slot.", None if slot is None else slot.is_active)
    yield _gauge("slot_retained_wal_bytes", "WAL that the slot retains.", budget.retained_bytes)
    yield _gauge("slot_wal_limit_bytes", "WAL that the slot may retain.", budget.limit_bytes)
    yield _gauge("slot_wal_remaining_bytes", "WAL that can still be written before the limit is reached.",
                 budget.remaining_bytes)  # fmt: skip
    yield _gauge("slot_wal_exhaustion_seconds", "Time until the limit is reached, if nothing is confirmed from now on.",
                 budget.seconds_left)  # fmt: skip
    statuses = [(state, slot.wal_status == state) for state in _WAL] if slot is not None and slot.exists else []
    yield _by("status", "slot_wal_status", "1 for the present value of pg_replication_slots.wal_status.", statuses)


def _capture(status: Status) -> Iterable[Metric]:
    capture = status.capture
    lsn = None if capture.lsn is None else float(parse_lsn(capture.lsn))
    yield _gauge("capture_position_bytes", "Position before which all commits are published.", lsn)
    yield _gauge("capture_epoch", "Epoch. It rises when a gap is healed, and after a promotion.", capture.epoch)
    yield CounterMetricFamily("watershed_capture_records_total", "Row records published in this epoch.", capture.seq)
    yield _gauge("capture_lag_bytes", "WAL between the position and the end of the flushed WAL.", capture.lag_bytes)
    yield _gauge("capture_lag_seconds", "Age of the oldest WAL that is not published.", capture.lag_seconds)
    yield _gauge("capture_silent_seconds", "Time since the position moved.", capture.silent_seconds)
    yield _gauge("capture_last_commit_timestamp_seconds", "Commit time of the newest published transaction.",
                 capture.last_commit_unix_seconds)  # fmt: skip
    yield _gauge("capture_lost_event_ranges", "Gaps whose outbox events were not published and not republished.",
                 capture.lost_events)  # fmt: skip


def _by(kind: str, name: str, text: str, samples: Iterable[tuple[str, float | None]]) -> Metric:
    family = GaugeMetricFamily(f"watershed_{name}", text, labels=[kind])
    for label, value in samples:
        if value is not None:
            family.add_metric([label], value)
    return family


def _count_by(kind: str, name: str, text: str, samples: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(f"watershed_{name}", text, labels=[kind])
    for label, value in samples:
        family.add_metric([label], value)
    return family


def _one_of(
    name: str, text: str, labels: Sequence[str], known: Sequence[str], present: Iterable[tuple[str, str]]
) -> Metric:
    """Returns 1 for the present state of each thing, and 0 for the other `known` ones. `present`: thing and state."""
    family = GaugeMetricFamily(f"watershed_{name}", text, labels=labels)
    for label, state in present:
        for other in known:
            family.add_metric([label, other], state == other)
    return family


def _tables(tables: Sequence[TableStatus]) -> Iterable[Metric]:
    read = [(table.table, table.snapshot) for table in tables if table.snapshot is not None]
    yield _one_of("table_state", "1 for the state that the table is in.", ["table", "state"], _TABLE,
                  [(table.table, table.state) for table in tables])  # fmt: skip
    yield _one_of("snapshot_status", "1 for the status of the table's last snapshot.", ["table", "status"], _SNAPSHOT,
                  [(name, one.status) for name, one in read])  # fmt: skip
    yield _by("table", "snapshot_rows", "Rows that the last snapshot has published.",
              [(name, one.rows) for name, one in read])  # fmt: skip
    yield _by("table", "snapshot_rows_expected", "Estimated number of rows of the last snapshot.",
              [(name, one.rows_total or None) for name, one in read])  # fmt: skip
    yield _by("table", "table_rows_owed", "1 if committed rows may be missing from the table's topic.",
              [(table.table, bool(table.owed)) for table in tables])  # fmt: skip
    yield _count_by("table", "table_dead_letters_total", "Changes that became dead letters of capture.",
                    [(table.table, table.dead_letters) for table in tables])  # fmt: skip
    yield _count_by("table", "table_skipped_changes_total", "Changes that were skipped as unpublishable.",
                    [(table.table, table.skipped) for table in tables])  # fmt: skip


def _sinks(sinks: Sequence[SinkStatus]) -> Iterable[Metric]:
    def by(name: str, text: str, value: Callable[[SinkStatus], float | None]) -> Metric:
        return _by("sink", name, text, [(sink.sink, value(sink)) for sink in sinks])

    yield by("sink_generation", "Generation of the store.", lambda sink: sink.generation)
    yield by("sink_applied_position_bytes", "Position before which all commits are readable in the store.",
             lambda sink: float(parse_lsn(sink.applied_lsn)))  # fmt: skip
    yield by(
        "sink_lag_bytes",
        "WAL between the applied position and the end of the flushed WAL.",
        lambda sink: sink.lag_bytes,
    )
    yield by("sink_lag_records", "Records that are published and not applied.", lambda sink: sink.lag_records)
    yield by("sink_lag_seconds", "Age of the oldest WAL that is not applied.", lambda sink: sink.lag_seconds)
    yield by("sink_unread_seconds", "Upper bound of the age of the oldest record that is not applied.",
             lambda sink: sink.unread_seconds)  # fmt: skip
    yield by("sink_freshness_seconds", "Time from the newest applied commit until it was readable.",
             lambda sink: sink.freshness_seconds)  # fmt: skip
    yield by("sink_dead_letters", "Rows that the store rejected and has not replaced by a later version.",
             lambda sink: sink.dead_letters)  # fmt: skip
    yield by("sink_drift_rows", "Rows that differed from the source at the last comparison of their tables.",
             lambda sink: sink.comparison.drift_rows if sink.comparison is not None else None)  # fmt: skip
    yield by("sink_compared_timestamp_seconds", "Start of the last comparison of the store with the source.",
             _compared_s)  # fmt: skip
    yield by("sink_silent_seconds", "Time since the sink's position moved.", lambda sink: sink.silent_seconds)
    yield _count_by("sink", "sink_written_changes_total", "Changes written since the job started.",
                    [(sink.sink, sink.written) for sink in sinks])  # fmt: skip
    yield _count_by("sink", "sink_stale_changes_total", "Changes that the store already had, or newer ones.",
                    [(sink.sink, sink.stale) for sink in sinks])  # fmt: skip
    yield from _queries([(sink.sink, sink.query) for sink in sinks if sink.query is not None])


def _queries(queries: Sequence[tuple[str, QueryStatus]]) -> Iterable[Metric]:
    """What Spark says."""

    def by(name: str, text: str, value: Callable[[QueryStatus], float | None]) -> Metric:
        return _by("sink", f"sink_{name}", text, [(sink, value(query)) for sink, query in queries])

    yield by("batch_seconds", "Duration of the query's last batch.", lambda query: query.batch_seconds)
    yield by("batch_overhead_seconds", "Part of the last batch in which Spark planned, and nothing was written.",
             lambda query: query.overhead_seconds)  # fmt: skip
    yield by("batch_rows", "Rows of the last batch in Spark; each is a piece of many records.",
             lambda query: query.rows)  # fmt: skip
    yield by("batch_records", "Records of the last batch.", lambda query: query.records)
    yield by("batch_bytes", "Size of the last batch's records in Spark.", lambda query: query.bytes)
    yield by("batch_records_per_second", "Records of the last batch by its duration.",
             lambda query: query.records_per_second)  # fmt: skip
    yield by("batch_ended_timestamp_seconds", "End of the last batch.", lambda query: query.ended_unix_seconds)
    yield _count_by("sink", "sink_query_failures_total", "Queries that ended with an error since the process started.",
                    [(sink, query.failures) for sink, query in queries])  # fmt: skip


def _views(views: Sequence[ViewStatus]) -> Iterable[Metric]:
    def by(name: str, text: str, value: Callable[[ViewStatus], float | None]) -> Metric:
        return _by("view", name, text, [(view.view, value(view)) for view in views])

    yield _one_of("view_state", "1 for the state that the view is in.", ["view", "state"], _VIEW,
                  [(view.view, view.state) for view in views if view.state != "unknown"])  # fmt: skip
    yield by("view_up", "Whether a process is running the view.", lambda view: view.is_kept)
    yield by("view_failing_seconds", "Time since the view has had an error, or its base has not answered.",
             lambda view: view.failing_seconds)  # fmt: skip
    yield by("view_waiting_changes", "Changes of base tables that have not been traced to keys yet; at most 100,000.",
             lambda view: view.waiting_changes)  # fmt: skip
    yield by("view_oldest_change_seconds", "Age of the oldest waiting change; 0 if none is waiting.",
             lambda view: view.oldest_change_seconds)  # fmt: skip
    yield by("view_waiting_keys", "Rows that still must be computed; at most 100,000.", lambda view: view.waiting_keys)
    yield by("view_rejected_rows", "Rows that the target rejects or the query can't compute; at most 100,000.",
             lambda view: view.rejected_rows)  # fmt: skip
    yield _by("event_log", "event_log_lag_records", "Records of its topics that the event log has not loaded.",
              [(view.view, view.behind_records) for view in views if view.behind_records is not None])  # fmt: skip
    yield by("view_silent_seconds", "Time since rows of the view were written.", lambda view: view.silent_seconds)


def _compared_s(sink: SinkStatus) -> float | None:
    runs = sink.comparison.runs if sink.comparison is not None else ()
    return runs[0].begun_unix_seconds if runs else None
