"""`cdc dlq`: lists and handles dead letters, the rows that the stores of sinks rejected."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cdc.config.config_file import Config
from cdc.config.stores import sink_config
from watershed.cli.options import CONFIG, ConfigFile, configuration, table_id
from watershed.client.dead_letters import (
    DeadLetter,
    chosen_dead_letters,
    discard_dead_letters,
    key_text,
    read_dead_letters,
    replay_dead_letters,
)
from watershed.status.listing import Listing, wide_console

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Sink = Annotated[str, typer.Argument(metavar="SINK", help="The sink's name in the configuration.")]
TableOption = Annotated[str | None, typer.Option("--table", metavar="SCHEMA.TABLE", help="Only rows of this table.")]
KeyOption = Annotated[
    list[str] | None,
    typer.Option("--key", help="Only the row with this key. A key of several columns is a JSON list. Repeatable."),
]

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_dead_letters(
    sinks: Annotated[list[str] | None, typer.Argument(metavar="SINK...", help="Sinks to list; all by default.")] = None,
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """List the rows that a store rejected and has not replaced by a later version since."""
    loaded = _loaded(config, sinks or ())
    dead_letters = read_dead_letters(loaded, sinks or loaded.sinks)
    if as_json:
        typer.echo(json.dumps({"dead_letters": [_as_json(dead_letter) for dead_letter in dead_letters]}))
        return
    shown = Listing("sink", "generation", "table", "key", "version", texts=["reason"])
    for dead_letter in dead_letters:
        row = dead_letter.row
        generation = "" if dead_letter.generation is None else str(dead_letter.generation)
        shown.add_row(dead_letter.sink, generation, str(row.table), key_text(row.key), row.version, row.reason)
    wide_console().print(shown if dead_letters else "no sink has dead letters")


@app.command()
def show(sink: Sink, table: TableOption = None, key: KeyOption = None, config: ConfigFile = CONFIG) -> None:
    """Print everything that is known about rejected rows, one JSON object per line."""
    for dead_letter in _chosen(_loaded(config, [sink]), sink, table, key):
        typer.echo(json.dumps(_as_json(dead_letter)))


@app.command()
def replay(
    sink: Sink, table: TableOption = None, key: KeyOption = None, as_json: AsJson = False, config: ConfigFile = CONFIG
) -> None:
    """Publish the rows again, as they are in the source now. A dead letter ends when the store accepts its row."""
    loaded = _loaded(config, [sink])
    asked: dict[str, int] = {}
    for name, count in replay_dead_letters(loaded, _chosen(loaded, sink, table, key)):
        asked[str(name)] = count
        if not as_json:
            typer.echo(f"capture publishes {count} rows of {name} again")
    if as_json:
        typer.echo(json.dumps({"sink": sink, "replayed": asked}))
    elif not asked:
        typer.echo(f"sink {sink} has no such dead letters")


@app.command()
def discard(
    sink: Sink,
    table: TableOption = None,
    key: KeyOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the sink.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Delete dead letters without publishing their rows. The store keeps its older version of a row, or none."""
    if everything == (table is not None):
        raise typer.BadParameter("name the rows with --table and --key, or use --all")
    loaded = _loaded(config, [sink])
    dead_letters = _chosen(loaded, sink, table, key)
    discard_dead_letters(loaded, dead_letters)
    if as_json:
        typer.echo(json.dumps({"sink": sink, "discarded": len(dead_letters)}))
    else:
        typer.echo(f"{len(dead_letters)} dead letters of sink {sink} are discarded")


def _loaded(config: Path, sinks: Sequence[str]) -> Config:
    loaded = configuration(config)
    for sink in sinks:
        sink_config(loaded.sinks, sink)
    return loaded


def _chosen(config: Config, sink: str, table: str | None, keys: Sequence[str] | None) -> list[DeadLetter]:
    if keys and table is None:
        raise typer.BadParameter("--key requires --table")
    return chosen_dead_letters(config, sink, [] if table is None else [table_id(table)], keys or ())


def _as_json(dead_letter: DeadLetter) -> dict[str, Any]:
    where = {"sink": dead_letter.sink, "generation": dead_letter.generation, "table": str(dead_letter.row.table)}
    return where | dead_letter.row.model_dump(mode="json")
