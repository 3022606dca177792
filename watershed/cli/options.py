"""The options that several commands share, and the functions that read them."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from cdc.config.config_file import Config, load_config
from cdc.config.logs import configure_logs
from cdc.model.events import TableId

CONFIG: Final = Path("watershed.yml")

AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.", envvar="CDC_CONFIG")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(envvar="CDC_LOG_LEVEL")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.", envvar="CDC_LOG_JSON")]
Timeout = Annotated[float | None, typer.Option(help="Total seconds to wait.", min=0.1)]
Wait = Annotated[bool, typer.Option(help="Wait until the end, and show the progress.")]
HttpPort = Annotated[
    int | None,
    typer.Option("--http-port", help="HTTP port, instead of the configured one. 0: no server.", min=0, max=65535),
]


def configuration(file: Path, *, log_level: str = "warning", log_json: bool = False) -> Config:
    """Reads the configuration of a command, and sets the level and the format of its log. Raises ConfigError."""
    configure_logs(level=log_level, as_json=log_json)
    return load_config(file)


def table_id(name: str) -> TableId:
    """Returns the table that an argument of the command line names. Raises BadParameter if it names none."""
    try:
        return TableId.parse(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
