"""What switches telemetry on and off, and what a process without it does not do."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from signal import SIG_BLOCK, pthread_sigmask
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.config.telemetry import TelemetryConfig
from cdc.daemon.thread_signals import PROCESS_SIGNALS, without_signals
from cdc.model.errors import ConfigError
from cdc.telemetry.process import Endpoints, endpoints, open_telemetry

COLLECTOR = "http://collector:4318"
GIVEN = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    yield


@pytest.mark.parametrize(
    ("file", "environment", "found"),
    [
        (None, {}, (None, None)),
        (COLLECTOR, {}, (f"{COLLECTOR}/v1/traces", f"{COLLECTOR}/v1/metrics")),
        (f"{COLLECTOR}/otlp/", {}, (f"{COLLECTOR}/otlp/v1/traces", f"{COLLECTOR}/otlp/v1/metrics")),
        (None, {GIVEN: "http://other"}, ("", "")),
        (COLLECTOR, {GIVEN: "http://other"}, (f"{COLLECTOR}/v1/traces", f"{COLLECTOR}/v1/metrics")),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://other/v1/traces"}, ("", None)),
        (COLLECTOR, {"OTEL_METRICS_EXPORTER": "none"}, (f"{COLLECTOR}/v1/traces", None)),
        (COLLECTOR, {"OTEL_TRACES_EXPORTER": "none"}, (None, f"{COLLECTOR}/v1/metrics")),
        (COLLECTOR, {"OTEL_SDK_DISABLED": "True"}, (None, None)),
    ],
)
def test_the_file_goes_before_the_environment_which_can_switch_off(
    file: str | None, environment: dict[str, str], found: tuple[str | None, str | None]
) -> None:
    assert endpoints(TelemetryConfig(otlp_endpoint=file), environment) == Endpoints(*found)


def test_a_process_without_telemetry_imports_nothing_of_it_and_starts_no_thread() -> None:
    code = """
import sys, threading
from cdc.config.telemetry import TelemetryConfig
from cdc.telemetry.process import open_telemetry
import spark_jobs.observing
telemetry = open_telemetry(TelemetryConfig(), "shop", "watershed-capture")
assert not (telemetry.has_spans or telemetry.has_metrics or telemetry.has_lineage)
telemetry.close()
assert telemetry.dropped() == {}
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cdc.telemetry.otlp", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)


def test_a_process_without_sinks_has_no_lineage() -> None:
    telemetry = open_telemetry(TelemetryConfig(openlineage_url=COLLECTOR), "shop", "watershed-capture")
    assert (telemetry.has_lineage, telemetry.dropped()) == (False, {})


def test_a_missing_sdk_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    missing(monkeypatch)
    with pytest.raises(ConfigError) as refused:
        open_telemetry(TelemetryConfig(otlp_endpoint=COLLECTOR), "shop", "watershed-capture")
    assert "which is not installed" in refused.value.message
    assert refused.value.hint.startswith("pip install 'watershed-cdc[telemetry]'")


def test_what_only_the_environment_asks_for_does_not_prevent_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GIVEN, COLLECTOR)
    missing(monkeypatch)
    with capture_logs() as logs:
        telemetry = open_telemetry(TelemetryConfig(), "shop", "watershed-capture")
    assert not telemetry.has_spans
    (warning,) = logs
    assert (warning["log_level"], warning["event"]) == ("warning", "OpenTelemetry is off")
    assert "pip install" in warning["next"]


@pytest.mark.parametrize(("name", "value"), [("OTEL_BSP_MAX_QUEUE_SIZE", "10"), ("OTEL_METRIC_EXPORT_INTERVAL", "0")])
def test_a_setting_that_the_sdk_refuses_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        open_telemetry(TelemetryConfig(otlp_endpoint=COLLECTOR), "shop", "watershed-capture")
    assert refused.value.message.startswith("OpenTelemetry's SDK refuses a setting: ")
    assert "OTEL_* variables" in refused.value.hint


def test_another_protocol_than_http_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL is grpc"):
        open_telemetry(TelemetryConfig(otlp_endpoint=COLLECTOR), "shop", "watershed-capture")


@pytest.mark.parametrize(
    ("url", "is_said"),
    [("http://collector.invalid", True), ("https://collector.invalid", False), ("http://[::1]", False)],
)
def test_a_credential_that_travels_unencrypted_is_said(url: str, is_said: bool) -> None:
    given = {"openlineage_url": url, "openlineage_api_key": "hunter2"}
    with capture_logs() as logs:
        open_telemetry(TelemetryConfig.model_validate(given), "shop", "watershed-sinks", has_lineage=True).close(0.0)
    said = [one for one in logs if one.get("option") == "telemetry.openlineage_api_key"]
    assert bool(said) is is_said
    assert "hunter2" not in str(logs)


def test_threads_of_telemetry_get_no_signal_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gets SIGTERM or SIGHUP would end the process at once, before capture has drained."""
    masks: list[set[Any]] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        masks.append(set(pthread_sigmask(SIG_BLOCK, [])))
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    config = TelemetryConfig(otlp_endpoint="http://127.0.0.1:9", openlineage_url="http://127.0.0.1:9")
    before = pthread_sigmask(SIG_BLOCK, [])
    telemetry = open_telemetry(config, "shop", "watershed-sinks", has_lineage=True)
    monkeypatch.undo()
    assert len(masks) >= 3, "spans, metrics, lineage"
    assert all(mask >= PROCESS_SIGNALS for mask in masks)
    assert pthread_sigmask(SIG_BLOCK, []) == before
    telemetry.close(0.1)


def test_threads_are_started_without_signals_and_the_mask_is_restored_after_an_error() -> None:
    before = pthread_sigmask(SIG_BLOCK, [])
    with pytest.raises(ValueError, match="x"), without_signals():
        assert set(pthread_sigmask(SIG_BLOCK, [])) >= PROCESS_SIGNALS
        raise ValueError("x")
    assert pthread_sigmask(SIG_BLOCK, []) == before
