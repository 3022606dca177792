"""`cdc wait`: waits until stores show what was written."""

import json
import time
from typing import Annotated

import typer

from cdc.cli.options import CONFIG, AsJson, ConfigFile, configuration
from cdc.client.waiting import TIMEOUT_S, read_lsn, wait_for
from cdc.model.errors import ConfigError
from cdc.status.waiting import WaitError


def wait(
    lsn: Annotated[str, typer.Option(help="As pg_current_wal_insert_lsn() returns after the commit.")],
    sink: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="One or several; all that have a position by default.")
    ] = None,
    timeline: Annotated[int | None, typer.Option(help="Of the LSN; another one than the source's is refused.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait in all.", min=0)] = TIMEOUT_S,
    config: ConfigFile = CONFIG,
    as_json: AsJson = False,
) -> None:
    """Wait until the stores show everything that committed up to an LSN, sweeps included. Exits 1 after --timeout, 4
    where the LSN is of another history, 2 for a text that is no LSN."""
    try:
        read_lsn(lsn)
    except WaitError as error:
        raise ConfigError(error.message, error.hint) from None
    began = time.monotonic()
    wait_for(configuration(config, log_level="error"), sink or None, lsn, timeout, timeline)
    if as_json:
        typer.echo(json.dumps({"is_applied": True, "lsn": lsn, "seconds": round(time.monotonic() - began, 3)}))
