"""`cdc run`."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from cdc.config.settings import load_config
from cdc.daemon.failpoints import armed_probe
from cdc.daemon.logs import configure_logs
from cdc.daemon.service import Service
from cdc.status.conditions import Conditions

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.", envvar="CDC_CONFIG")]
LogLevelOption = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(envvar="CDC_LOG_LEVEL")]
LogJsonOption = Annotated[bool, typer.Option("--log-json", help="Log lines as JSON objects.", envvar="CDC_LOG_JSON")]


HttpPortOption = Annotated[
    int | None, typer.Option("--http-port", help="Instead of the configured port; 0: no server.", min=0, max=65535)
]


def run(
    config: ConfigOption = Path("watershed.yml"),
    log_level: LogLevelOption = "info",
    log_json: LogJsonOption = False,
    http_port: HttpPortOption = None,
) -> None:
    """Capture: publish every committed change of the source to Kafka, until SIGTERM."""
    configure_logs(level=log_level, as_json=log_json)
    settings = load_config(config)
    conditions = Conditions()
    service = Service(settings, armed_probe(os.environ), conditions)
    port = settings.http.port if http_port is None else http_port
    if port:
        from cdc.cli.view_readers import view_readers
        from cdc.http.routes import CAPTURE
        from cdc.http.server import serve

        serve(settings, port, "http.port", CAPTURE, conditions, view_readers(settings))
    service.run()
