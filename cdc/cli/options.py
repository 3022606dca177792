"""The options that several commands have."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

CONFIG: Final = Path("watershed.yml")

ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.", envvar="CDC_CONFIG")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(envvar="CDC_LOG_LEVEL")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.", envvar="CDC_LOG_JSON")]
HttpPort = Annotated[
    int | None, typer.Option("--http-port", help="Instead of the configured port; 0: no server.", min=0, max=65535)
]
