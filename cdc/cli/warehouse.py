"""`cdc warehouse`: upkeep of the warehouse's tables."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from cdc.config.settings import load_config
from cdc.config.sink_settings import WarehouseConfig, sink_config
from cdc.daemon.logs import configure_logs
from cdc.model.errors import ConfigError

app = typer.Typer(no_args_is_help=True)


@app.callback()
def warehouse() -> None:
    """The warehouse's tables."""


@app.command()
def maintain(
    sink: Annotated[
        list[str] | None,
        typer.Option("--sink", metavar="NAME", help="A sink of type warehouse; all by default."),
    ] = None,
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration file.", envvar="CDC_CONFIG")] = Path(
        "watershed.yml"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each table.")] = False,
) -> None:
    """Merge files, expire snapshots older than snapshot_days, forget the versions of keys that were deleted longer than
    tombstone_ttl_s ago. Beside a running sink: where a batch writes to the same files, the batch goes first."""
    configure_logs(level="warning", as_json=False)
    settings = load_config(config)
    names = sink or [name for name, section in settings.sinks.items() if isinstance(section, WarehouseConfig)]
    if not names:
        raise ConfigError("the configuration has no sink of type warehouse", "add one to section sinks")
    for name in names:
        if not isinstance(sink_config(settings.sinks, name), WarehouseConfig):
            raise ConfigError(f"the sink {name} is not a warehouse", "name one whose type is warehouse")
    from spark_jobs.upkeep import maintain_warehouse, session  # brings Spark

    with session(settings) as spark:
        for name in names:
            for done in maintain_warehouse(settings, name, spark):
                if as_json:
                    typer.echo(json.dumps({"sink": name, **dataclasses.asdict(done)}))
                    continue
                left = "; files that batches wrote to were left for the next time" if done.gave_way else ""
                typer.echo(
                    f"{name}: {done.table}: {done.rewritten_files} files became {done.added_files}, "
                    f"{done.expired_snapshots} snapshots expired{left}"
                )
