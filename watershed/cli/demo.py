"""`cdc demo`: runs the whole pipeline on temporary servers, with kill -9 halfway and a comparison at the end."""

from pathlib import Path
from typing import Annotated

import typer

from cdc.model.errors import WatershedError
from watershed.cli.interrupts import sigterm_as_interrupt
from watershed.status.listing import wide_console


def demo(
    seconds: Annotated[float, typer.Option(help="How long the workload runs.", min=5)] = 120,
    rows: Annotated[int, typer.Option(help="Rows that exist before capture starts.", min=500, max=5_000_000)] = 50_000,
    rate: Annotated[float, typer.Option(help="Committed row changes per second.", min=1, max=20_000)] = 300,
    chaos: Annotated[bool, typer.Option(help="Kill capture and sinks with SIGKILL halfway through.")] = True,
    hold: Annotated[float, typer.Option(help="Seconds to pause before the comparison.", min=0, envvar="DEMO_HOLD")] = 0,
    folder: Annotated[Path, typer.Option(help="Folder for logs and data. It is emptied first.")] = Path(
        ".watershed/demo"
    ),
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running after the comparison, and print commands to try.")
    ] = False,
    bootstrap: Annotated[
        str, typer.Option(metavar="STORE", help="Create this store only during the workload, and fill it then.")
    ] = "",
    views: Annotated[
        bool, typer.Option("--views", help="Also run three views: a nested document, revenue by hour, alerts.")
    ] = False,
) -> None:
    """Run an online shop whose PostgreSQL database is synced to a search index, a cache and a warehouse. Exits with 0
    only if every row and column of every store equals the source at the end."""
    try:
        from watershed.demo.main import DemoOptions, run_demo
    except ImportError as error:
        raise WatershedError(
            f"the demo needs the Python package {error.name}", "pip install 'watershed-cdc[demo]'"
        ) from error

    options = DemoOptions(seconds, rows, rate, chaos, hold, folder, keep, bootstrap, views)
    with sigterm_as_interrupt():
        raise typer.Exit(run_demo(options, wide_console()))
