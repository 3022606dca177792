"""`cdc stack`: starts and stops the development stack, detached from the terminal."""

import json
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cdc.model.errors import ConfigError
from watershed.cli.setup.stack_file import require_new, stack_configuration, write_new
from watershed.devstack.endpoints import SERVICES, VARIABLES, given_addresses
from watershed.devstack.postgres import VERSIONS
from watershed.devstack.stack import ServerStatus, Stack
from watershed.status.listing import Listing, wide_console

DEFAULT_FOLDER = Path(".watershed/stack")

app = typer.Typer(no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
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
    default_ports: Annotated[
        bool, typer.Option("--default-ports", help="Ports 5432, 9092, 9200 and 6379, instead of free ones.")
    ] = False,
    write_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a configuration for these servers; it must not exist.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the servers that are not running yet, wait until they answer, and leave them running until `down`. With
    --write-config it writes a watershed.yml with their addresses, the database's tables and a sink for each store."""
    if write_config is not None:
        _require_writable(write_config, services or SERVICES)
    console = Console(stderr=True)
    stack = Stack(
        folder, postgres_version=postgres_version, detached=True, progress=console, default_ports=default_ports
    )
    with console.status("starting"):
        endpoints = stack.start(*services or ())
    _show(stack, folder, as_json=as_json)
    if write_config is not None:
        from watershed.cli.setup.prospects import tables_to_capture  # brings psycopg

        text = stack_configuration(endpoints.addresses, given_addresses(), tables_to_capture(endpoints.dsn))
        write_new(write_config, text)
        typer.echo(f"{write_config} was written; cdc check --config {write_config} says what is missing", err=True)


def _require_writable(file: Path, services: Collection[str]) -> None:
    """Raises ConfigError before anything is started."""
    if missing := [name for name in ("postgres", "kafka") if name not in services]:
        raise ConfigError(
            f"a configuration needs {' and '.join(missing)}, which is not among the servers to start",
            "name postgres and kafka too, or leave out --write-config",
        )
    require_new(file, "another file with --write-config")


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
    as_json: AsJson = False,
) -> None:
    """Print which servers are running, and their addresses. Exits with 1 if a server that was started has died."""
    servers = _show(Stack(folder, detached=True), folder, as_json=as_json)
    if any(server.state == "died" for server in servers):
        raise typer.Exit(1)


def _show(stack: Stack, folder: Path, *, as_json: bool) -> list[ServerStatus]:
    servers = stack.status()
    if as_json:
        fields = [asdict(server) | {"log": server.log and str(server.log)} for server in servers]
        typer.echo(json.dumps({"folder": str(folder.absolute()), "servers": fields}))
    else:
        _print(servers)
    return servers


def _print(servers: list[ServerStatus]) -> None:
    table = Listing("server", "state", "address", "pid")
    for server in servers:
        where = f"named in {VARIABLES[server.service]}" if server.state == "given" else server.address or ""
        table.add_row(server.service, server.state, where, server.pid or "")
    console = wide_console()
    console.print(table)
    for server in servers:
        if server.superuser:
            console.print(f"PostgreSQL's superuser: {server.superuser}", highlight=False, soft_wrap=True)
