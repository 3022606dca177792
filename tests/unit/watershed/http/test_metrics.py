"""Metrics of a status."""

from prometheus_client.parser import text_string_to_metric_families

from cdc.model.errors import UnreachableError
from tests.support.status_facts import MIB, Clock, config, full_status, reading, source, topics
from watershed.http.metrics import metrics_text
from watershed.status.model import Status


def samples(status: Status) -> dict[tuple[str, ...], float]:
    """(name, label values by name) → value."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(metrics_text(status, is_ready=True).decode())
        for sample in family.samples
    }


def test_everything_that_is_known_is_there() -> None:
    found = samples(full_status())
    assert found["watershed_source_wal_position_bytes",] == 2000
    assert found["watershed_slot_retained_wal_bytes",] == 1100
    assert found["watershed_slot_wal_limit_bytes",] == 10 * MIB
    assert found["watershed_slot_wal_exhaustion_seconds",] == (10 * MIB - 1100) / 1000
    assert found["watershed_slot_wal_status", "reserved"] == 1
    assert found["watershed_capture_lag_bytes",] == 1000
    assert found["watershed_capture_records_total",] == 0
    assert found["watershed_table_state", "not captured", "public.notes"] == 1
    assert found["watershed_table_dead_letters_total", "public.orders"] == 2
    assert found["watershed_snapshot_rows", "public.orders"] == 50
    assert found["watershed_sink_lag_records", "search"] == 7
    assert found["watershed_sink_written_changes_total", "search"] == 7
    assert found["watershed_sink_drift_rows", "search"] == 5
    assert found["watershed_sink_compared_timestamp_seconds", "search"] == 1e6
    assert found["watershed_sink_batch_seconds", "search"] == 2
    assert found["watershed_sink_batch_overhead_seconds", "search"] == 0.5
    assert found["watershed_sink_batch_rows", "search"] == 3
    assert found["watershed_sink_batch_records", "search"] == 500
    assert found["watershed_sink_batch_bytes", "search"] == 9000
    assert found["watershed_sink_batch_records_per_second", "search"] == 250
    assert found["watershed_sink_batch_ended_timestamp_seconds", "search"] == 5
    assert found["watershed_sink_query_failures_total", "search"] == 1
    assert found["watershed_problems", "table", "warning"] == 1
    assert found["watershed_view_up", "documents"] == 1
    assert found["watershed_view_state", "serving", "documents"] == 1
    assert found["watershed_view_state", "failed", "documents"] == 0
    assert found["watershed_view_waiting_changes", "documents"] == 30
    assert found["watershed_view_oldest_change_seconds", "documents"] == 2.25
    assert found["watershed_view_waiting_keys", "documents"] == 4
    assert found["watershed_view_rejected_rows", "documents"] == 1
    assert found["watershed_view_silent_seconds", "documents"] == 1.5
    assert found["watershed_view_failing_seconds", "documents"] == 0
    assert found["watershed_problems", "view", "warning"] == 1


def test_names_and_types_follow_prometheus_conventions() -> None:
    for family in text_string_to_metric_families(metrics_text(full_status(), is_ready=True).decode()):
        assert family.documentation.endswith(".")
        assert family.type in ("gauge", "counter")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert set(sample.labels) <= {
                "part",
                "severity",
                "status",
                "state",
                "table",
                "sink",
                "view",
                "version",
                "prefix",
            }


def test_what_is_not_known_has_no_sample() -> None:
    away = UnreachableError("away", "start it")
    found = samples(Clock().status(reading(source_error=away, topics_error=away)))
    assert (found["watershed_source_up",], found["watershed_brokers_up",]) == (0, 0)
    assert not [name for name, *_ in found if "lag" in name or "slot" in name or "sink" in name]


def test_a_slot_that_is_gone_has_no_status() -> None:
    found = samples(Clock().status(reading(source(slot=None), topics())))
    assert found["watershed_slot_active",] == 0
    assert not [name for name, *_ in found if name == "watershed_slot_wal_status"]


def test_of_a_view_whose_base_is_away_only_that_is_known() -> None:
    away = UnreachableError("the base of the view does not answer", "start it")
    found = samples(Clock(config(views=("documents",))).status(reading(views={"documents": away})))
    assert found["watershed_view_state", "unreachable", "documents"] == 1
    assert {name for name, *_ in found if name.startswith("watershed_view_")} == {
        "watershed_view_state",
        "watershed_view_failing_seconds",
    }


def test_what_could_not_be_delivered_is_counted_by_signal() -> None:
    text = metrics_text(full_status(), is_ready=True, dropped={"traces": 3, "lineage": 0}).decode()
    assert 'watershed_telemetry_dropped_total{signal="traces"} 3.0' in text
    assert 'watershed_telemetry_dropped_total{signal="lineage"} 0.0' in text
    assert "watershed_telemetry_dropped_total{" not in metrics_text(full_status(), is_ready=True).decode()
