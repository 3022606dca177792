"""`cdc stack`: starts and stops the development stack, detached from the terminal."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from watershed.devstack.endpoints import VARIABLES
from watershed.devstack.postgres import VERSIONS
from watershed.devstack.stack import ServerStatus, Stack

DEFAULT_FOLDER = Path(".watershed/stack")

app = typer.Typer(no_args_is_help=True)
FolderOption = Annotated[Path, typer.Option("--folder", help="Folder of its data, logs and ports.")]


@app.command()
def up(
    services: Annotated[
        list[str] | None, typer.Argument(help=f"Which of {', '.join(VARIABLES)}; all by default.")
    ] = None,
    folder: FolderOption = DEFAULT_FOLDER,
    postgres_version: Annotated[
        int, typer.Option(help=f"One of {', '.join(map(str, VERSIONS))}; each has its own data.")
    ] = 18,
) -> None:
    """Start the servers that are not running yet, wait until they answer, and leave them running until `down`."""
    console = Console(stderr=True)
    stack = Stack(folder, postgres_version=postgres_version, detached=True, progress=console)
    with console.status("starting"):
        stack.start(*services or ())
    _print(stack.status())


@app.command()
def down(
    folder: FolderOption = DEFAULT_FOLDER,
    erase: Annotated[bool, typer.Option("--erase", help="Also delete data, logs and ports.")] = False,
) -> None:
    """Stop all servers that `up` started. Their data and ports are kept for the next `up`."""
    stack = Stack(folder, detached=True)
    stack.stop()
    if erase:
        stack.erase()


@app.command()
def status(
    folder: FolderOption = DEFAULT_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print which servers are running, and their addresses. Exits with 1 if a server that was started has died."""
    servers = Stack(folder, detached=True).status()
    if as_json:
        fields = [asdict(server) | {"log": server.log and str(server.log)} for server in servers]
        typer.echo(json.dumps({"folder": str(folder.absolute()), "servers": fields}))
    else:
        _print(servers)
    if any(server.state == "died" for server in servers):
        raise typer.Exit(1)


def _print(servers: list[ServerStatus]) -> None:
    table = Table("server", "state", "address", "pid", box=None)
    for server in servers:
        where = f"named in {VARIABLES[server.service]}" if server.state == "given" else server.address or ""
        table.add_row(server.service, server.state, where, str(server.pid or ""))
    console = Console(soft_wrap=True)
    console.print(table)
    for server in servers:
        if server.superuser:
            console.print(f"PostgreSQL's superuser: {server.superuser}", highlight=False)
