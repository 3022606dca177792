"""`cdc source`: continues capture on another server."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from cdc.config.config_file import Config
from cdc.model.control import SignalAnswer, SignalRecord
from watershed.cli.options import CONFIG, ConfigFile, Timeout, Wait, configuration
from watershed.cli.snapshot import HEAL_ANSWER_S_MAX
from watershed.cli.snapshot_run import SnapshotRun
from watershed.cli.snapshot_screen import screen_for
from watershed.verify.move_check import MoveCheck, check_move

app = typer.Typer(no_args_is_help=True)


@app.callback()
def source() -> None:
    """Continue capture on another server."""


@app.command()
def move(
    to: Annotated[
        str | None, typer.Option(metavar="DSN", help="The new server; by default the one that source.dsn names.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only compare. Send nothing to capture.")] = False,
    accept_differences: Annotated[
        bool,
        typer.Option("--accept-differences", help="Continue there although tables, columns or sampled rows differ."),
    ] = False,
    replace_slot: Annotated[
        bool, typer.Option("--replace-slot", help="Drop the slot of that name that is there, and create it again.")
    ] = False,
    wait: Wait = True,
    timeout: Timeout = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Continue in the same topics with a database that was upgraded, restored or replicated to another server. Compares
    the tables and a sample of rows with the topics first. Then capture, which must have been started with the new
    server in source.dsn, begins a new epoch, compares all rows, and publishes those that differ. Exits with 1 if the
    database is not the same, or capture refuses."""
    settings = configuration(config)
    target = (
        settings.source
        if to is None
        else settings.source.model_copy(update={"dsn": SecretStr(to), "standby_dsn": None})
    )
    found = check_move(settings, target, replaces_slot=replace_slot)
    _show(found, as_json=as_json)
    if not accept_differences:
        found.require_same()
    if check:
        return
    record = SignalRecord(
        action="move", server=found.server, replaces_slot=replace_slot, requested_us=time.time_ns() // 1000
    )
    _run(settings, config, timeout, as_json=as_json).send(record, waits=wait)
    if not as_json:
        typer.echo(
            f"slot {settings.source.slot} of the former server still keeps its log: if you do not go back, SELECT "
            f"pg_drop_replication_slot('{settings.source.slot}') there"
        )


def _run(settings: Config, file: Path, timeout: float | None, *, as_json: bool) -> SnapshotRun:
    def show(identity: str, answer: SignalAnswer) -> None:
        if as_json:
            typer.echo(json.dumps({"what": "answer", "signal": identity, **answer.model_dump(mode="json")}))
        elif answer.is_accepted:
            typer.echo(answer.message)

    ends = None if timeout is None else time.monotonic() + timeout
    screen = screen_for(Console(), as_json=as_json)
    return SnapshotRun(settings, file, screen, show, timeout or HEAL_ANSWER_S_MAX, ends)


def _show(found: MoveCheck, *, as_json: bool) -> None:
    if as_json:
        tables = [
            {
                "table": str(one.table),
                "sampled": one.sampled,
                "missing": one.missing,
                "differing": one.differing,
                "problem": one.problem,
                "warnings": list(one.warnings),
            }
            for one in found.tables
        ]
        typer.echo(json.dumps({"what": "check", "system_identifier": found.server[0], "tables": tables}))
        return
    typer.echo(f"database {found.server[1]} of the server with system identifier {found.server[0]}:")
    shown = Table("table", "rows sampled", "missing there", "differing", "columns")
    for one in found.tables:
        shown.add_row(
            str(one.table), f"{one.sampled:,}", f"{one.missing:,}", f"{one.differing:,}", one.columns or "the same"
        )
    Console().print(shown)
    for one in found.tables:
        for warning in one.warnings:
            typer.echo(f"warning: {warning}")
