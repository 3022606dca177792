"""`cdc position`: the LSN that every store has applied."""

from contextlib import closing
from datetime import UTC, datetime

import typer

from watershed.cli.options import CONFIG, AsJson, ConfigFile, configuration
from watershed.client.pipeline_watch import PipelineWatch
from watershed.status.position import position_of_stores


def position(config: ConfigFile = CONFIG, as_json: AsJson = False) -> None:
    """Show the LSN that every store has applied, since when, and the LSN of each store. A store may lack rows below its
    LSN that are owed (a snapshot runs, a table is stopped) or that it rejected; they are named."""
    settings = configuration(config, log_level="error")
    with closing(PipelineWatch.of(settings)) as watch:
        watch.read_to_end()
        found = position_of_stores(watch.positions())
    if as_json:
        typer.echo(found.model_dump_json())
        return
    if not found.stores:
        typer.echo("no sink has published a position yet")
        return
    where = "none: a store has not applied anything yet" if found.lsn is None else f"{found.lsn} of epoch {found.epoch}"
    typer.echo(f"every store: {where}{_since(found.since_unix_seconds)}")
    for store in found.stores:
        rejected = f"; {store.dead_letters} rows were rejected" if store.dead_letters else ""
        typer.echo(f"  {store.sink}: {store.lsn or 'nothing'}{_since(store.since_unix_seconds)}{rejected}")
        for table, reason in sorted(store.owed.items()):
            typer.echo(f"    rows of {table} are owed: {reason}")


def _since(unix_seconds: float | None) -> str:
    if unix_seconds is None:
        return ""
    return f" since {datetime.fromtimestamp(unix_seconds, UTC).strftime('%Y-%m-%d %H:%M:%S UTC')}"
