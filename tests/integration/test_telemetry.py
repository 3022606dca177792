"""Capture and a sink with a collector and a lineage server: what arrives there is what happened."""

import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
import redis as redis_client
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from cdc.model.lsn import parse_lsn
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.pipeline import Pipeline, pipeline_of
from tests.support.receiver import Receiver
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

TOKEN = "collector-0123456789abcdef"
BEFORE = 50  # rows that the pipeline begins with


def attributes(pairs: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in pairs}


def spans(receiver: Receiver) -> list[tuple[str, str, dict[str, Any]]]:
    """(service, name, attributes) of each."""
    return [
        (attributes(part.resource.attributes)["service.name"], span.name, attributes(span.attributes))
        for posted in receiver.taken("/v1/traces")
        for part in ExportTraceServiceRequest.FromString(posted.body).resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    ]


def metrics(receiver: Receiver) -> dict[str, dict[str, float]]:
    """Service → metric → its last value without labels, or the last of those with labels."""
    found: dict[str, dict[str, float]] = {}
    for posted in receiver.taken("/v1/metrics"):
        for part in ExportMetricsServiceRequest.FromString(posted.body).resource_metrics:
            service = attributes(part.resource.attributes)["service.name"]
            for scope in part.scope_metrics:
                for metric in scope.metrics:
                    data = metric.gauge if metric.HasField("gauge") else metric.sum
                    for point in data.data_points:
                        found.setdefault(service, {})[metric.name] = point.as_double
    return found


def events(receiver: Receiver) -> list[dict[str, Any]]:
    return [orjson.loads(posted.body) for posted in receiver.taken("/api/v1/lineage")]


def total(receiver: Receiver, name: str, attribute: str) -> int:
    return sum(int(found[attribute]) for _, span, found in spans(receiver) if span == name)


def newest(receiver: Receiver, name: str, attribute: str) -> int:
    lsns = [parse_lsn(found[attribute]) for _, span, found in spans(receiver) if span == name and attribute in found]
    return max(lsns, default=0)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Any:
    with Receiver() as receiver:
        monkeypatch.setenv("CDC__TELEMETRY__OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("CDC__TELEMETRY__OTLP_HEADERS", f'{{"authorization": "Bearer {TOKEN}"}}')
        monkeypatch.setenv("CDC__TELEMETRY__OPENLINEAGE_URL", receiver.url)
        monkeypatch.setenv("CDC__TELEMETRY__OPENLINEAGE_API_KEY", TOKEN)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
        yield receiver


def test_what_is_published_and_applied_is_what_the_collector_gets(
    postgres: PostgresServer, kafka: KafkaBroker, redis: str, tmp_path: Path, collector: Receiver
) -> None:
    with pipeline_of(postgres, kafka, redis, tmp_path, {"cache": {"url": redis}}) as pipeline:
        name = pipeline.items.name
        with psycopg.connect(pipeline.items.dsn, autocommit=True) as connection:
            for key in range(1_001, 1_201):
                lsn = pipeline.write(connection, key, "new")
        client = redis_client.Redis.from_url(redis)
        eventually(lambda: pipeline.read(client, 1_200) == "new", 60.0, "the last row is in the cache")
        _require_spans(collector, name, parse_lsn(lsn) - 1)
        _require_metrics(collector)
        _require_running_on_after_an_outage(collector, pipeline)
        # A process with a server and telemetry has threads that must not get the signal.
        pipeline.items.running().signal(signal.SIGHUP)
        pipeline.items.running().await_said("configuration read again")
        assert pipeline.job.terminate()[0] == 0
        assert pipeline.items.running().terminate() == 0
    _require_lineage(collector, name)
    assert {one.headers["authorization"] for one in collector.posted} == {f"Bearer {TOKEN}"}
    assert not any(TOKEN.encode() in one.body or b"'new'" in one.body for one in collector.posted)


def _require_spans(collector: Receiver, name: str, lsn: int) -> None:
    eventually(
        lambda: (
            newest(collector, f"publish {name}", "watershed.commit_lsn.last") >= lsn - 1_000
            and total(collector, f"publish {name}", "watershed.rows") == BEFORE + 200
        ),
        30.0,
        lambda: f"each row is in a span: {spans(collector)[-3:]}",
    )
    eventually(
        lambda: (
            newest(collector, "apply cache", "watershed.applied_lsn") >= lsn
            and total(collector, "apply cache", "watershed.rows.written") == BEFORE + 200
        ),
        30.0,
        lambda: f"each row that was applied is in a span: {spans(collector)[-3:]}",
    )
    applied = [found for _, span, found in spans(collector) if span == "apply cache"]
    assert all(found["watershed.generation"] == 1 and found["watershed.table_count"] == 1 for found in applied)
    services = Counter(service for service, _, _ in spans(collector))
    assert services.keys() == {"watershed-capture", "watershed-sinks"}


def _require_metrics(collector: Receiver) -> None:
    def known() -> Mapping[str, Mapping[str, float]]:
        found = metrics(collector)
        values = [found.get(service, {}) for service in ("watershed-capture", "watershed-sinks")]
        is_there = all(
            one.get("watershed_ready") == 1.0 and one.get("watershed_sink_written_changes", 0) >= 200 for one in values
        )
        return found if is_there else {}

    eventually(known, 30.0, lambda: f"both processes export the status: {metrics(collector)}")


def _require_running_on_after_an_outage(collector: Receiver, pipeline: Pipeline) -> None:
    """Refused telemetry holds nobody; the log says it once, and what was lost is counted."""
    collector.code = 503
    with psycopg.connect(pipeline.items.dsn, autocommit=True) as connection:
        lsn = pipeline.write(connection, 5_000, "in the outage")
    pipeline.job.wait_applied(parse_lsn(lsn) - 1, "cache")
    collector.code = 404  # 503 is tried again for ten seconds
    eventually(lambda: _dropped(pipeline, "metrics") > 0, 60.0, "an export of metrics is given up")
    collector.code = 200
    pipeline.items.running().await_said("telemetry is delivered again")
    assert pipeline.items.running().said().count("telemetry can't be delivered") <= 2, "once for each signal"


def _dropped(pipeline: Pipeline, signal_name: str) -> float:
    _, text = pipeline.capture_http.get("/metrics")
    lines = [line for line in text.splitlines() if line.startswith("watershed_telemetry_dropped_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if f'"{signal_name}"' in line)


def _require_lineage(collector: Receiver, name: str) -> None:
    found = events(collector)
    assert [found[0]["eventType"], found[-1]["eventType"]] == ["START", "COMPLETE"]
    assert {event["eventType"] for event in found[1:-1]} == {"RUNNING"}
    assert {event["job"]["name"] for event in found} == {f"{name}.cache"}
    assert len({event["run"]["runId"] for event in found}) == 1
    (source,), (target,) = found[0]["inputs"], found[0]["outputs"]
    assert source["namespace"].startswith("kafka://127.0.0.1:")
    assert source["name"] == f"{name}.public.items"
    assert target["name"] == f"{name}:public.items:<row id>"
    assert [column["name"] for column in target["facets"]["schema"]["fields"]] == ["id", "name"]
    assert found[-1]["run"]["facets"]["watershed"]["written"] == BEFORE + 201
