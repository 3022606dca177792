"""What a process shows of itself: its HTTP server, and the same metrics by OpenTelemetry."""

from collections.abc import Sequence

from prometheus_client.core import Metric

from cdc.config.config_file import Config
from cdc.daemon.conditions import Conditions
from cdc.daemon.thread_signals import without_signals
from cdc.telemetry.process import Telemetry
from watershed.http.metrics import metric_families
from watershed.http.routes import Scope
from watershed.http.server import ListenAddress, make_monitor, serve
from watershed.status.facts import ViewReader


def show_process(
    config: Config,
    address: ListenAddress | None,
    scope: Scope,
    conditions: Conditions,
    views: Sequence[ViewReader],
    telemetry: Telemetry,
) -> None:
    """Serves HTTP, if there is an address, and exports metrics, if telemetry has them. Raises ConfigError where the
    address can't be taken."""
    monitor = make_monitor(config, conditions, views)

    def families() -> Sequence[Metric]:
        status = monitor.status()
        return metric_families(status, is_ready=not scope.reasons(status), dropped=telemetry.dropped())

    if address is not None:
        serve(config, address, scope, monitor, telemetry.dropped)
    else:
        with without_signals():
            monitor.start()
    telemetry.export_metrics(families)
