"""One status for the HTTP server and for OpenTelemetry, also where only one of them is there."""

from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from cdc.daemon.conditions import Conditions
from cdc.telemetry.deliveries import Deliveries
from cdc.telemetry.otlp import Metrics, resource
from cdc.telemetry.process import Telemetry
from tests.support.status_facts import config, full_status
from watershed.http import observed_process as module
from watershed.http.routes import CAPTURE
from watershed.http.server import ListenAddress
from watershed.status.model import Status


class FakeMonitor:
    def __init__(self) -> None:
        self.starts = 0

    def start(self) -> None:
        self.starts += 1

    def status(self) -> Status:
        return full_status()


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> FakeMonitor:
    made = FakeMonitor()
    monkeypatch.setattr(module, "make_monitor", lambda *_: made)
    return made


def values(reader: InMemoryMetricReader) -> dict[str, float]:
    data: Any = reader.get_metrics_data()
    (scope,) = data.resource_metrics[0].scope_metrics
    return {metric.name: metric.data.data_points[0].value for metric in scope.metrics}


def test_metrics_are_exported_without_a_server(monitor: FakeMonitor) -> None:
    reader, counted = InMemoryMetricReader(), Deliveries("traces", "")
    counted.drop(4)
    telemetry = Telemetry("shop", metrics=Metrics(resource("watershed-capture", "shop"), reader), deliveries=[counted])
    module.show_process(config(), None, CAPTURE, Conditions(), [], telemetry)
    found = values(reader)
    assert monitor.starts == 1
    assert found["watershed_capture_lag_bytes"] == 1000
    assert found["watershed_telemetry_dropped"] == 4
    assert found["watershed_ready"] == (not CAPTURE.reasons(full_status()))


def test_the_server_starts_the_monitor_and_counts_what_was_dropped(
    monitor: FakeMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Any] = []
    monkeypatch.setattr(module, "serve", lambda *given: served.append(given))
    address = ListenAddress(Path("watershed.yml"), 8480, "http.port")
    telemetry = Telemetry("shop", deliveries=[Deliveries("lineage", "")])
    module.show_process(config(), address, CAPTURE, Conditions(), [], telemetry)
    ((_, at, scope, shown, dropped),) = served
    assert (at, scope, shown, monitor.starts) == (address, CAPTURE, cast("Any", monitor), 0)
    assert dropped() == {"lineage": 0}
