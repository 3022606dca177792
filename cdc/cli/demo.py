"""`cdc demo`: the whole path on servers of its own, with kill -9 in the middle and a comparison at the end."""

from pathlib import Path
from typing import Annotated

import typer

from cdc.cli.status_screen import wide_console
from cdc.model.errors import WatershedError


def demo(
    seconds: Annotated[float, typer.Option(help="How long the workload runs.", min=5)] = 120,
    rows: Annotated[int, typer.Option(help="Rows that exist before.", min=500, max=5_000_000)] = 50_000,
    rate: Annotated[float, typer.Option(help="Committed row changes a second.", min=1, max=20_000)] = 300,
    chaos: Annotated[bool, typer.Option(help="Kill capture and sinks with SIGKILL halfway.")] = True,
    hold: Annotated[float, typer.Option(help="Seconds to pause before the comparison.", min=0, envvar="DEMO_HOLD")] = 0,
    folder: Annotated[Path, typer.Option(help="Logs and data; emptied at the start.")] = Path(".watershed/demo"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running after the comparison, with commands to copy.")
    ] = False,
    bootstrap: Annotated[
        str, typer.Option(metavar="STORE", help="This store does not exist before: fill it beside the workload.")
    ] = "",
    views: Annotated[
        bool, typer.Option("--views", help="Keep three views, too: a nested document, revenue by hour, alerts.")
    ] = False,
) -> None:
    """An online shop, its PostgreSQL synced to a search index, a cache and a warehouse. Exits 0 only if every row and
    column of every store is equal at the end."""
    try:
        from demo.main import Options, run_demo
    except ImportError as error:
        raise WatershedError(
            f"the demo needs the Python package {error.name}", "pip install 'watershed-cdc[all]'"
        ) from error

    options = Options(seconds, rows, rate, chaos, hold, folder, keep, bootstrap, views)
    raise typer.Exit(run_demo(options, wide_console()))
