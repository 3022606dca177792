"""`cdc init`: writes a configuration for a database from its catalog."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from cdc.config.logs import configure_logs
from cdc.config.settings import SourceConfig
from cdc.model.errors import SourceError
from cdc.postgres.connection import connect
from watershed.cli.setup.new_file import NewConfiguration, configuration_text, source_sql
from watershed.cli.setup.prospects import capture_dsn, database_settings, table_candidates
from watershed.cli.setup.stack_file import require_new, write_new


def init(
    dsn: Annotated[
        str,
        typer.Option(help="The source database, for example postgresql://me@db:5432/shop.", envvar="CDC__SOURCE__DSN"),
    ],
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The file to write; it must not exist.", envvar="CDC_CONFIG")
    ] = Path("watershed.yml"),
    schema: Annotated[list[str] | None, typer.Option(help="Only tables of this schema; repeatable.")] = None,
    bootstrap_servers: Annotated[str, typer.Option(help="Addresses of the Kafka brokers.")] = "localhost:9092",
    prefix: Annotated[str, typer.Option(help="First part of all topic names; the database's name by default.")] = "",
    role: Annotated[str, typer.Option(help="The role that `cdc run` will use.")] = "watershed",
    slot: Annotated[str, typer.Option(help="Name of the replication slot and of the publication.")] = "watershed",
) -> None:
    """Read the database, write a commented configuration, and print the SQL that the source needs. Changes nothing in
    the database and overwrites no file."""
    configure_logs(level="error")
    require_new(config, "another file with --config")
    kept = capture_dsn(dsn, role)
    asked = SourceConfig(dsn=SecretStr(dsn), tables=("public.x",))  # only its address is used
    with connect(asked, application="watershed init") as connection:
        database, is_logical, has_limit, has_role = database_settings(connection, role)
        tables = table_candidates(connection, schema or [])
    if not any(not found.trouble for found in tables):
        where = f"schema {', '.join(schema)}" if schema else f"database {database}"
        troubles = "; ".join(f"{found.table}: {found.trouble}: {found.remedy}" for found in tables)
        raise SourceError(f"{where} has no table that can be captured", troubles or "create one, with a primary key")
    new = NewConfiguration(
        dsn=kept,
        bootstrap_servers=bootstrap_servers,
        prefix=prefix or "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in database),
        slot=slot,
        role=role,
        has_role=has_role,
        is_logical=is_logical,
        has_wal_limit=has_limit,
        tables=tables,
    )
    write_new(config, configuration_text(new))
    good = sum(1 for found in tables if not found.trouble)
    typer.echo(f"{config} was written; tables to capture: {good}")
    if good < len(tables):
        typer.echo(
            f"tables that can't be captured as they are: {len(tables) - good}; the file's comments name the reasons"
        )
    typer.echo("\nAs a superuser or the tables' owner:\n")
    for statement in source_sql(new):
        typer.echo(f"  {statement}")
    typer.echo(f"\nThen, with the password of role {role} in PGPASSWORD: cdc check --config {config}")
