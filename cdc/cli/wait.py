"""`cdc wait`: waits until stores show what was written."""

import json
import time
from typing import Annotated

import typer

from cdc.cli.options import CONFIG, ConfigFile
from cdc.client.waiting import TIMEOUT_S, wait_for
from cdc.config.settings import load_config
from cdc.daemon.logs import configure_logs


def wait(
    lsn: Annotated[str, typer.Option(help="As pg_current_wal_insert_lsn() returns after the commit.")],
    sink: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="One or several; all that have a position by default.")
    ] = None,
    timeline: Annotated[int | None, typer.Option(help="Of the LSN; another one than the source's is refused.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait in all.", min=0)] = TIMEOUT_S,
    config: ConfigFile = CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Wait until the stores show everything that committed up to an LSN, sweeps included. Exits 1 after --timeout, 4
    where the LSN is of another history."""
    configure_logs(level="error")
    began = time.monotonic()
    wait_for(load_config(config), sink or None, lsn, timeout, timeline)
    if as_json:
        typer.echo(json.dumps({"is_applied": True, "lsn": lsn, "seconds": round(time.monotonic() - began, 3)}))
