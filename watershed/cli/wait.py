"""`cdc wait`: waits until stores show all changes up to an LSN."""

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from cdc.config.config_file import Config
from cdc.model.errors import ConfigError
from watershed.cli.options import CONFIG, AsJson, ConfigFile, configuration
from watershed.client.applied import WaitError
from watershed.client.pipeline_watch import PipelineWatch
from watershed.client.waiting import TIMEOUT_S, read_lsn, wait_for


def wait(
    lsn: Annotated[str, typer.Option(help="The LSN that pg_current_wal_insert_lsn() returns after the commit.")],
    sink: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Repeatable; by default all configured ones that have a position."),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="SCHEMA.TABLE", help="Repeatable; all tables that the stores hold by default."),
    ] = None,
    accept_rejected: Annotated[
        bool, typer.Option("--accept-rejected", help="Answer although rows are missing that were rejected.")
    ] = False,
    timeline: Annotated[int | None, typer.Option(help="The LSN's timeline. It must be that of the source.")] = None,
    system_identifier: Annotated[
        str | None, typer.Option(metavar="ID", help="That of the LSN's server. It must be that of the source.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Total seconds to wait.", min=0)] = TIMEOUT_S,
    config: ConfigFile = CONFIG,
    as_json: AsJson = False,
) -> None:
    """Wait until the stores show all transactions that committed up to an LSN, and sweeps (the removal of rows that a
    snapshot did not find). While rows of a table are owed (its snapshot runs, it is stopped), there is no answer: name
    the tables that you read. Exits with 7 after --timeout, 1 for rejected rows, 2 if the text is not an LSN, 4 if it
    belongs to another timeline or epoch."""
    try:
        read_lsn(lsn)
    except WaitError as error:
        raise ConfigError(error.message, error.hint) from None
    began = time.monotonic()
    settings = configuration(config, log_level="error")
    names = sink or _with_position(settings, config)
    wait_for(
        settings,
        names or None,
        lsn,
        timeout,
        timeline,
        tables=table or (),
        accepts_rejected=accept_rejected,
        system_identifier=system_identifier,
    )
    if as_json:
        typer.echo(json.dumps({"is_applied": True, "lsn": lsn, "seconds": round(time.monotonic() - began, 3)}))


def _with_position(settings: Config, file: Path) -> list[str]:
    """Returns the configured sinks that have published a position, and prints which others have: a sink that was
    removed from the file stays where it is. Nothing for a file without sinks. Raises WaitError if no configured sink
    has one; UnreachableError, BrokerError."""
    if not settings.sinks:
        return []
    with closing(PipelineWatch.of(settings)) as watch:
        watch.read_to_end()
        published = sorted({record.sink for record in watch.sinks()})
    for name in published:
        if name not in settings.sinks:
            typer.echo(f"not waited for: sink {name} has a position, but is not in section sinks of {file}; "
                       f"--sink {name} waits for it", err=True)  # fmt: skip
    names = [name for name in published if name in settings.sinks]
    if not names:
        raise WaitError("no sink of the configuration has published a position yet", "start one: cdc sink run NAME")
    return names
