"""`cdc run`: runs capture."""

import os

from cdc.config.config_file import load_config
from cdc.daemon.conditions import Conditions
from cdc.daemon.service import Service
from cdc.telemetry.process import open_telemetry
from watershed.cli.failpoints import armed_probe
from watershed.cli.options import CONFIG, ConfigFile, HttpPort, LogJson, LogLevel, configuration


def run(
    config: ConfigFile = CONFIG,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
    http_port: HttpPort = None,
) -> None:
    """Run capture: publish every committed change of the source to Kafka, until SIGTERM.

    SIGHUP lets it read the configuration file again, as cdc reload does."""
    settings = configuration(config, log_level=log_level, log_json=log_json)
    conditions = Conditions()
    telemetry = open_telemetry(settings.telemetry, settings.topics.prefix, "watershed-capture")
    on_published = telemetry.record_published if telemetry.has_spans else None
    probe = armed_probe(os.environ)
    service = Service(settings, probe, conditions.report, lambda: load_config(config), on_published)
    port = settings.http.port if http_port is None else http_port
    if port or telemetry.has_metrics:
        from watershed.cli.view_readers import view_readers
        from watershed.http.observed_process import show_process
        from watershed.http.routes import CAPTURE
        from watershed.http.server import ListenAddress

        address = ListenAddress(config, port, "http.port") if port else None
        show_process(settings, address, CAPTURE, conditions, view_readers(settings), telemetry)
    try:
        service.run()
    finally:
        telemetry.close()
