"""`cdc sink run`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from cdc.config import load_config
from cdc.logs import configure_logs

app = typer.Typer(no_args_is_help=True)


@app.callback()
def sink() -> None:
    """Keep derived stores in step with the topics."""


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="search, cache, warehouse: one or several.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration file.", envvar="CDC_CONFIG")] = Path(
        "watershed.yml"
    ),
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option(envvar="CDC_LOG_LEVEL")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.", envvar="CDC_LOG_JSON")] = False,
) -> None:
    """Run sinks until SIGTERM, all in one Spark application."""
    configure_logs(level=log_level, as_json=log_json)
    settings = load_config(config)
    from spark_jobs.runner import run_sinks  # brings Spark

    run_sinks(settings, list(dict.fromkeys(names)))
