"""What one process sends, as section `telemetry` and OpenTelemetry's environment variables say. Without an address
nothing of it is imported and no thread starts."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from cdc.config.http_settings import is_trusted_url
from cdc.config.telemetry import TelemetryConfig
from cdc.daemon.thread_signals import without_signals
from cdc.kafka.daemon_thread import start_thread
from cdc.model.errors import ConfigError
from cdc.ports.published_batch import PublishedBatch
from cdc.telemetry.deliveries import Deliveries, Signal
from cdc.telemetry.event_sender import EventSender, http_post
from cdc.telemetry.spans import Span, published_span

if TYPE_CHECKING:  # imported late: it needs the SDK
    from cdc.telemetry.otlp import Family, Metrics, Spans

log = structlog.get_logger(__name__)

CLOSE_S_MAX: Final = 1.0  # in which a process that ends delivers what is waiting
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
HTTP: Final = ("http/protobuf",)
NEXT_OTLP: Final = (
    "check telemetry.otlp_endpoint (or OTEL_EXPORTER_OTLP_ENDPOINT) and its credentials: a collector that takes OTLP "
    "over HTTP, usually on port 4318"
)
NEXT_LINEAGE: Final = "check telemetry.openlineage_url and telemetry.openlineage_api_key"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where signals go. None: nowhere; "": where the environment says."""

    traces: str | None
    metrics: str | None


def endpoints(config: TelemetryConfig, environment: Mapping[str, str]) -> Endpoints:
    """Returns the addresses that the file gives, or that the environment does, which can also switch signals off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Endpoints(None, None)

    def of(signal: str) -> str | None:
        name = signal.upper()
        if environment.get(f"OTEL_{name}_EXPORTER", "").strip().lower() == "none":
            return None
        if config.otlp_endpoint is not None:
            return f"{config.otlp_endpoint}/v1/{signal}"
        is_given = environment.get(ENDPOINT) or environment.get(f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT")
        return "" if is_given else None

    return Endpoints(of("traces"), of("metrics"))


class Telemetry:
    """The telemetry of this process. Its methods return at once; `close` waits for a moment."""

    def __init__(
        self,
        prefix: str,
        spans: "Spans | None" = None,
        metrics: "Metrics | None" = None,
        lineage: EventSender | None = None,
        deliveries: Sequence[Deliveries] = (),
    ) -> None:
        self._prefix = prefix
        self._spans = spans
        self._metrics = metrics
        self._lineage = lineage
        self._deliveries = deliveries

    @property
    def has_spans(self) -> bool:
        return self._spans is not None

    @property
    def has_metrics(self) -> bool:
        return self._metrics is not None

    @property
    def has_lineage(self) -> bool:
        return self._lineage is not None

    def record(self, span: Span) -> None:
        if self._spans is not None:
            self._spans.record(span)

    def record_published(self, tables: Mapping[str, str], batch: PublishedBatch) -> None:
        """Records the span of a Kafka transaction. `tables`: topic → schema.table. Never raises."""
        try:
            self.record(published_span(self._prefix, tables, batch))
        except Exception:  # a defect of ours here must not stop capture
            log.exception("telemetry failed", next="report this with the log's traceback")

    def send_lineage(self, event: Mapping[str, Any]) -> None:
        if self._lineage is not None:
            self._lineage.send(event)

    def export_metrics(self, families: Callable[[], Sequence["Family"]]) -> None:
        """Exports these metrics from now on. `families`: must not wait."""
        if self._metrics is not None:
            self._metrics.export(families)

    def dropped(self) -> dict[str, int]:
        """Returns what was not delivered since the process started, by signal: spans, exports of metrics, events."""
        return {one.signal: one.dropped for one in self._deliveries}

    def begin_close(self) -> Future[None]:
        """Delivers what is waiting, in a thread."""
        parts = [one for one in (self._spans, self._metrics, self._lineage) if one is not None]
        threads = [start_thread(one.shutdown) for one in parts]

        def wait_for_all() -> None:
            wait(threads)

        return start_thread(wait_for_all)

    def close(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """Delivers what is waiting, as far as it is possible in this time."""
        wait([self.begin_close()], timeout_s)


def open_telemetry(config: TelemetryConfig, prefix: str, service: str, *, has_lineage: bool = False) -> Telemetry:
    """Begins to send what is configured. `service`: OpenTelemetry's service.name. `has_lineage`: the process has events
    of lineage to send. Raises ConfigError if the SDK is not installed, or another protocol than HTTP is asked for;
    where only the environment asks, that is a warning."""
    with without_signals():
        return _opened(config, prefix, service, has_lineage=has_lineage)


def _opened(config: TelemetryConfig, prefix: str, service: str, *, has_lineage: bool) -> Telemetry:
    deliveries: list[Deliveries] = []

    def follow(signal: Signal, hint: str) -> Deliveries:
        deliveries.append(Deliveries(signal, hint))
        return deliveries[-1]

    spans, metrics, lineage = None, None, None
    to = endpoints(config, os.environ)
    if (to.traces, to.metrics) != (None, None):
        try:
            spans, metrics = _open_otlp(config, to, prefix, service, follow)
        except ConfigError as error:
            if config.otlp_endpoint is not None:
                raise
            log.warning("OpenTelemetry is off", because=error.message, next=error.hint)
    if config.openlineage_url is not None and has_lineage:
        key = config.openlineage_api_key
        headers = {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}
        if headers:
            _warn_if_unencrypted(config.openlineage_url, "telemetry.openlineage_api_key")
        post = http_post(f"{config.openlineage_url}/api/v1/lineage", headers)
        lineage = EventSender(post, follow("lineage", NEXT_LINEAGE))
    return Telemetry(prefix, spans, metrics, lineage, deliveries)


def _warn_if_unencrypted(url: str, option: str) -> None:
    if not is_trusted_url(url):
        log.warning("a credential travels unencrypted: use an https:// address", option=option)


def _open_otlp(
    config: TelemetryConfig, to: Endpoints, prefix: str, service: str, follow: Callable[[Signal, str], Deliveries]
) -> tuple["Spans | None", "Metrics | None"]:
    protocol = os.environ.get(PROTOCOL, "").strip()
    if protocol and protocol not in HTTP:
        raise ConfigError(
            f"{PROTOCOL} is {protocol}, and Watershed sends OTLP over HTTP only",
            f"set {PROTOCOL}=http/protobuf for this process, with an endpoint such as http://collector.example:4318",
        )
    try:
        from cdc.telemetry.otlp import LastError, Metrics, MetricSender, Spans, SpanSender, metric_reader, resource
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise ConfigError(
            "telemetry over OTLP needs OpenTelemetry's SDK, which is not installed",
            "pip install 'watershed-cdc[telemetry]', or set OTEL_SDK_DISABLED=true",
        ) from error
    headers = {name: value.get_secret_value() for name, value in config.otlp_headers.items()}
    described, why = resource(service, prefix), LastError()
    why.install()
    spans, metrics = None, None
    try:
        if to.traces is not None:
            counted = follow("traces", NEXT_OTLP)
            spans = Spans(described, SpanSender(to.traces or None, headers, counted, why), counted)
        if to.metrics is not None:
            sender = MetricSender(to.metrics or None, headers, follow("metrics", NEXT_OTLP), why)
            metrics = Metrics(described, metric_reader(sender))
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"OpenTelemetry's SDK refuses a setting: {' '.join(str(error).split())}",
            "correct the OTEL_* variables of this process",
        ) from error
    if headers and config.otlp_endpoint is not None:
        _warn_if_unencrypted(config.otlp_endpoint, "telemetry.otlp_headers")
    log.info("OpenTelemetry is on", traces=spans is not None, metrics=metrics is not None)
    return spans, metrics
