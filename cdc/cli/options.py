"""The options that several commands have, and what commands make of them."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from cdc.config.settings import Config, load_config
from cdc.daemon.logs import configure_logs
from cdc.model.events import TableId

CONFIG: Final = Path("watershed.yml")

AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.", envvar="CDC_CONFIG")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(envvar="CDC_LOG_LEVEL")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.", envvar="CDC_LOG_JSON")]
Timeout = Annotated[float | None, typer.Option(help="Seconds to wait in all.", min=0.1)]
Wait = Annotated[bool, typer.Option(help="Show the progress until the end.")]
HttpPort = Annotated[
    int | None, typer.Option("--http-port", help="Instead of the configured port; 0: no server.", min=0, max=65535)
]


def configuration(file: Path, *, log_level: str = "warning", log_json: bool = False) -> Config:
    """Reads the configuration of a command, which from now on logs what is as grave as `log_level`. Raises
    ConfigError."""
    configure_logs(level=log_level, as_json=log_json)
    return load_config(file)


def table_id(name: str) -> TableId:
    """Returns the table that a word of the command line names. Raises BadParameter for another word."""
    try:
        return TableId.parse(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
