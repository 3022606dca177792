"""OpenTelemetry: spans and metrics over OTLP/HTTP. Imported only in a process that sends them: it needs the SDK.

The SDK's own threads send. A span is dropped, and counted, where as many as fit are waiting; so is what the collector
does not take within the exporter's timeout. The environment's OTEL_* variables count as in every program with an SDK.
"""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode

from cdc import __version__
from cdc.telemetry.deliveries import Deliveries
from cdc.telemetry.spans import Span

QUEUE_MAX: Final = 2_048  # spans; OpenTelemetry's own default
# Series of one metric: tables, of which there are at most 10,000, by state. The SDK would merge all beyond 2,000.
SERIES_MAX: Final = 100_000
REASON_CHARS_MAX: Final = 300
FAMILIES_AGE_S: Final = 1.0  # all metrics of one export are of one status
_KINDS: Final = {"producer": SpanKind.PRODUCER, "consumer": SpanKind.CONSUMER}


class Family(Protocol):
    """A metric as prometheus_client has it, with its samples."""

    name: str
    documentation: str
    type: str
    samples: Any  # a list; each has `labels` and `value`


def resource(service: str, prefix: str) -> Resource:
    """Returns what all telemetry of this process has. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come first."""
    own = {
        "service.name": service,
        "service.version": __version__,
        "service.instance.id": str(uuid.uuid4()),
        "watershed.prefix": prefix,
    }
    return Resource.create(own).merge(OTELResourceDetector().detect())


class LastError(logging.Handler):
    """Keeps the last message of the SDK's loggers, which are otherwise silent: Deliveries says it once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()[:REASON_CHARS_MAX]

    def install(self) -> None:
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False


class Spans:
    """Spans that are over when they are given."""

    def __init__(self, resource: Resource, exporter: SpanExporter, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._lock = threading.Lock()
        self._waiting = 0  # spans that were given to the SDK, and of which it has not said what became of them
        self._waiting_max = _queue_max()
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(_Followed(exporter, self._on_exported), max_queue_size=self._waiting_max)
        )
        self._tracer = self._provider.get_tracer("watershed", __version__)

    def record(self, span: Span) -> None:
        """Takes a span, and returns at once."""
        with self._lock:
            is_full = self._waiting >= self._waiting_max
        if is_full:
            self._deliveries.drop(1)
            return
        made = self._tracer.start_span(
            span.name, kind=_KINDS[span.kind], attributes=span.attributes, start_time=span.begun_us * 1_000
        )
        if span.error:
            made.set_status(Status(StatusCode.ERROR, span.error))
        if made.is_recording():  # else the sampler leaves it out
            with self._lock:
                self._waiting += 1
        made.end(span.ended_us * 1_000)

    def _on_exported(self, count: int) -> None:
        with self._lock:
            self._waiting -= count

    def shutdown(self) -> None:
        """Sends what is waiting. May take as long as the exporter's timeout."""
        self._provider.shutdown()


def _queue_max() -> int:
    text = os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE, "")
    return int(text) if text.isdecimal() and int(text) else QUEUE_MAX


class _Followed(SpanExporter):
    """Says how many spans another exporter is done with."""

    def __init__(self, exporter: SpanExporter, on_exported: Callable[[int], None]) -> None:
        self._exporter = exporter
        self._on_exported = on_exported

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            return self._exporter.export(spans)
        finally:
            self._on_exported(len(spans))

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Session(requests.Session):
    """The SDK takes a redirect, which it does not follow, for a delivery."""

    def request(self, *args: Any, **options: Any) -> requests.Response:
        answer = super().request(*args, **options)
        if 300 <= answer.status_code < 400:
            place = answer.headers.get("Location", "").partition("?")[0]
            raise requests.HTTPError(f"{answer.status_code} {answer.reason}: the collector's address is {place}")
        return answer


def _session() -> requests.Session | None:
    """Returns None where the environment names a session of another package, with its credentials."""
    return None if any(name.endswith("_CREDENTIAL_PROVIDER") for name in os.environ) else _Session()


class SpanSender(OTLPSpanExporter):
    """The SDK's exporter, with its results noted."""

    def __init__(self, endpoint: str | None, headers: Mapping[str, str], deliveries: Deliveries, why: LastError):
        super().__init__(endpoint, headers=headers, session=_session())
        self._deliveries = deliveries
        self._why = why

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            self._deliveries.on_success()
        else:
            self._deliveries.on_failure(self._why.text, given_up=len(spans))
        return result


class MetricSender(OTLPMetricExporter):
    """The SDK's exporter, with its results noted."""

    def __init__(self, endpoint: str | None, headers: Mapping[str, str], deliveries: Deliveries, why: LastError):
        super().__init__(endpoint, headers=headers, session=_session())
        self._deliveries = deliveries
        self._why = why

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **kwargs)
        if result is MetricExportResult.SUCCESS:
            self._deliveries.on_success()
        else:
            self._deliveries.on_failure(self._why.text, given_up=1)
        return result


def metric_reader(sender: MetricSender) -> MetricReader:
    """Returns what asks for metrics at OTEL_METRIC_EXPORT_INTERVAL and sends them."""
    return PeriodicExportingMetricReader(
        sender, cardinality_limits={ObservableGauge: SERIES_MAX, ObservableCounter: SERIES_MAX}
    )


class Metrics:
    """Exports metrics that prometheus_client's classes describe: one list serves both."""

    def __init__(self, resource: Resource, reader: MetricReader) -> None:
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("watershed", __version__)

    def export(self, families: Callable[[], Sequence[Family]]) -> None:
        """Exports these metrics from now on. `families`: returns all of them, also those without a sample."""
        newest = _Newest(families)
        for family in families():
            create = (
                self._meter.create_observable_counter
                if family.type == "counter"
                else self._meter.create_observable_gauge
            )
            create(family.name, [_callback(newest, family.name)], description=family.documentation)

    def shutdown(self) -> None:
        """Sends the last values. May take as long as the exporter's timeout."""
        self._provider.shutdown()


class _Newest:
    """The families of one moment, for the callbacks of all metrics."""

    def __init__(self, families: Callable[[], Sequence[Family]]) -> None:
        self._families = families
        self._read_at = float("-inf")  # monotonic seconds
        self._last: dict[str, Family] = {}

    def of(self, name: str) -> Family | None:
        now = time.monotonic()
        if now - self._read_at > FAMILIES_AGE_S:
            self._last = {family.name: family for family in self._families()}
            self._read_at = now
        return self._last.get(name)


def _callback(newest: _Newest, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        family = newest.of(name)
        return [] if family is None else [Observation(float(each.value), each.labels) for each in family.samples]

    return observe
