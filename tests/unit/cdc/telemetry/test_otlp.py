"""Spans and metrics through OpenTelemetry's SDK: in memory, and to a collector that answers, refuses or is away."""

import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

from cdc.config.telemetry import TelemetryConfig
from cdc.model.lsn import Lsn
from cdc.ports.published_batch import PublishedBatch
from cdc.telemetry.deliveries import Deliveries
from cdc.telemetry.otlp import Metrics, Spans, resource
from cdc.telemetry.process import Telemetry, open_telemetry
from cdc.telemetry.spans import TABLES_MAX, Span, published_span
from tests.support.receiver import Receiver
from tests.support.status_facts import full_status
from tests.support.waiting import eventually
from watershed.http.metrics import metric_families

BATCH = PublishedBatch(
    begun_us=1_000_000,
    ended_us=1_250_000,
    commit_s=0.0125,
    epoch=2,
    position_lsn=Lsn(0x1_0000_0100),
    commits=(Lsn(0x1_0000_0010), Lsn(0x1_0000_0020)),
    commit_ts_us=1_000_500,
    is_partial=False,
    records=4,
    rows=3,
    bytes=250,
    topics=("shop.public.a", "shop.outbox"),
)
SPAN = Span("publish shop", "producer", 1, 2)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def opened(receiver: Receiver, **options: Any) -> Telemetry:
    return open_telemetry(TelemetryConfig(otlp_endpoint=receiver.url, **options), "shop", "watershed-capture")


def spans_in(receiver: Receiver) -> list[Any]:
    requests = [ExportTraceServiceRequest.FromString(one.body) for one in receiver.taken("/v1/traces")]
    return [
        span
        for request in requests
        for resource_spans in request.resource_spans
        for scope in resource_spans.scope_spans
        for span in scope.spans
    ]


def test_a_kafka_transaction_becomes_a_span_with_its_lsns() -> None:
    exporter, counted = InMemorySpanExporter(), Deliveries("traces", "")
    spans = Spans(resource("watershed-capture", "shop"), exporter, counted)
    spans.record(published_span("shop", {"shop.public.a": "public.a"}, BATCH))
    spans.shutdown()
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.status.status_code) == ("publish shop", SpanKind.PRODUCER, StatusCode.UNSET)
    assert (span.start_time, span.end_time) == (1_000_000_000, 1_250_000_000)
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 4,
        "watershed.prefix": "shop",
        "watershed.epoch": 2,
        "watershed.position_lsn": "1/100",
        "watershed.commit_lsn.first": "1/10",
        "watershed.commit_lsn.last": "1/20",
        "watershed.delay_ms": 249.5,
        "watershed.commit_ms": 12.5,
        "watershed.rows": 3,
        "watershed.bytes": 250,
        "watershed.is_partial": False,
        "watershed.tables": ("public.a",),
        "watershed.table_count": 1,
    }
    assert counted.dropped == 0


def test_a_span_names_a_bounded_number_of_tables() -> None:
    topics = {f"shop.public.t{number:03}": f"public.t{number:03}" for number in range(100)}
    batch = PublishedBatch(**{name: getattr(BATCH, name) for name in BATCH.__slots__} | {"topics": tuple(topics)})
    attributes = published_span("shop", topics, batch).attributes
    assert attributes["watershed.table_count"] == 100
    assert attributes["watershed.tables"] == [f"public.t{number:03}" for number in range(TABLES_MAX)]


def test_a_failed_attempt_is_a_span_with_its_error() -> None:
    exporter = InMemorySpanExporter()
    spans = Spans(resource("watershed-sinks", "shop"), exporter, Deliveries("traces", ""))
    spans.record(Span("apply cache", "consumer", 1, 2, error="cache: no answer"))
    spans.shutdown()
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "cache: no answer")


def test_a_defect_of_a_span_does_not_reach_capture() -> None:
    with capture_logs() as logs:
        Telemetry("shop").record_published({}, cast("Any", None))
    assert [one["log_level"] for one in logs] == ["error"]


class HangingExporter(SpanExporter):
    def __init__(self) -> None:
        self.released = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        self.released.wait(10.0)
        return SpanExportResult.SUCCESS


def test_nothing_waits_for_a_collector_that_hangs_and_nothing_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    exporter, counted = HangingExporter(), Deliveries("traces", "")
    spans = Spans(resource("watershed-capture", "shop"), exporter, counted)
    begun = time.monotonic()
    for _ in range(1_000):
        spans.record(SPAN)
    assert time.monotonic() - begun < 1.0
    assert counted.dropped == 400
    exporter.released.set()
    spans.shutdown()


def test_spans_that_the_sampler_leaves_out_take_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    counted = Deliveries("traces", "")
    spans = Spans(resource("watershed-capture", "shop"), InMemorySpanExporter(), counted)
    for _ in range(1_000):
        spans.record(SPAN)
    assert counted.dropped == 0
    spans.shutdown()


def test_the_metrics_are_those_of_prometheus() -> None:
    reader = InMemoryMetricReader()
    metrics = Metrics(resource("watershed-capture", "shop"), reader)

    def families() -> Sequence[Any]:
        return metric_families(full_status(), is_ready=True, dropped={"traces": 3})

    metrics.export(families)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        (metric.name, *sorted((point.attributes or {}).items())): point.value
        for resource_metrics in data.resource_metrics
        for scope in resource_metrics.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if hasattr(point, "value")
    }
    expected = {
        (family.name, *sorted(sample.labels.items())): sample.value
        for family in families()
        for sample in family.samples
    }
    assert found == expected
    assert found["watershed_telemetry_dropped", ("signal", "traces")] == 3
    metrics.shutdown()


def test_all_metrics_of_one_export_are_of_one_status() -> None:
    reader, asked = InMemoryMetricReader(), []
    metrics = Metrics(resource("watershed-capture", "shop"), reader)

    def families() -> Sequence[Any]:
        asked.append(1)
        return metric_families(full_status(), is_ready=True)

    metrics.export(families)
    reader.get_metrics_data()
    assert len(asked) == 2, "once for the names, once for the values"
    metrics.shutdown()


def test_a_collector_gets_spans_and_metrics_over_http(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=orders")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=data")
    telemetry = opened(receiver, otlp_headers={"Authorization": "Bearer hidden"})
    telemetry.export_metrics(lambda: metric_families(full_status(), is_ready=True))
    telemetry.record_published({"shop.public.a": "public.a"}, BATCH)
    eventually(lambda: bool(spans_in(receiver) and receiver.taken("/v1/metrics")), 5.0, "both have arrived")
    (request,) = receiver.taken("/v1/traces")
    assert request.headers["authorization"] == "Bearer hidden"
    assert request.headers["x-team"] == "data"
    about = ExportTraceServiceRequest.FromString(request.body).resource_spans[0].resource.attributes
    named = {one.key: one.value.string_value for one in about}
    assert named["service.name"] == "orders"
    assert named["deployment.environment.name"] == "test"
    assert named["watershed.prefix"] == "shop"
    assert b"hidden" not in request.body
    metrics = ExportMetricsServiceRequest.FromString(receiver.taken("/v1/metrics")[0].body)
    names = {metric.name for metric in metrics.resource_metrics[0].scope_metrics[0].metrics}
    assert "watershed_sink_lag_records" in names
    telemetry.close()
    assert telemetry.dropped() == {"traces": 0, "metrics": 0}


def test_a_span_that_waits_is_delivered_at_the_end(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    telemetry = opened(receiver)
    telemetry.record(SPAN)
    telemetry.close(5.0)
    assert [span.name for span in spans_in(receiver)] == ["publish shop"]


@pytest.mark.parametrize("code", [302, 401, 404, 503])
def test_a_collector_that_refuses_is_said_once_and_counted(receiver: Receiver, code: int) -> None:
    receiver.code, receiver.location = code, "https://collector.example/v1/traces?key=hunter2"
    with capture_logs() as logs:
        telemetry = opened(receiver)
        for _ in range(2):
            before = telemetry.dropped()["traces"]
            telemetry.record(SPAN)
            eventually(partial(has_dropped, telemetry, before + 1), 5.0, "the span is given up")
        receiver.code = 200
        telemetry.record(SPAN)
        eventually(lambda: len(spans_in(receiver)) > 0 and "traces" in said(logs, "info"), 5.0, "it is delivered again")
        telemetry.close()
    assert said(logs, "warning").count("traces") == 1
    (warning,) = [one for one in logs if one["log_level"] == "warning" and one.get("signal") == "traces"]
    assert warning["next"].startswith("check telemetry.otlp_endpoint")
    assert warning["because"]
    assert "hunter2" not in str(logs)


def has_dropped(telemetry: Telemetry, count: int) -> bool:
    return telemetry.dropped()["traces"] == count


def said(logs: Sequence[Any], level: str) -> list[str]:
    return [one["signal"] for one in logs if one["log_level"] == level and "signal" in one]


def test_a_collector_that_is_away_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as gone:
        url = gone.url
    with capture_logs() as logs:
        telemetry = open_telemetry(TelemetryConfig(otlp_endpoint=url), "shop", "watershed-capture")
        begun = time.monotonic()
        telemetry.record(SPAN)
        assert time.monotonic() - begun < 0.2
        eventually(lambda: telemetry.dropped()["traces"] == 1, 5.0, "the span is given up")
        begun = time.monotonic()
        telemetry.close(0.3)
        assert time.monotonic() - begun < 1.0
    assert said(logs, "warning").count("traces") == 1


def test_a_slow_collector_does_not_hold_the_end(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "20")
    receiver.answers_after_s = 5.0
    telemetry = opened(receiver)
    telemetry.record(SPAN)
    begun = time.monotonic()
    telemetry.close(0.2)
    assert time.monotonic() - begun < 1.0
