"""`cdc outbox`: what events need in the source database, and its upkeep."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from cdc.cli.run import ConfigOption
from cdc.config import load_config
from cdc.errors import ConfigError, SourceError
from cdc.events import TableId
from cdc.postgres.connection import connect
from cdc.postgres.outbox import prune as prune_table

Revision = Literal["0001", "base"]

app = typer.Typer(no_args_is_help=True)


@app.command()
def migrate(
    config: ConfigOption = Path("watershed.yml"),
    schema: Annotated[str, typer.Option(help="Of all that is created.")] = "cdc",
    table: Annotated[str, typer.Option(help="The outbox table.")] = "outbox",
    grant: Annotated[list[str] | None, typer.Option(help="A role that may publish; repeatable.")] = None,
    capture: Annotated[str | None, typer.Option(help="The role of cdc run, if it is not the owner.")] = None,
    downgrade: Annotated[
        Revision | None, typer.Option(help="Back to 0001, without the function, or to base, without the table too.")
    ] = None,
    only_sql: Annotated[bool, typer.Option("--sql", help="Print the SQL, execute nothing.")] = False,
) -> None:
    """Create the outbox table and the function that publishes without one, or bring them to the newest version."""
    try:
        from sqlalchemy.exc import SQLAlchemyError

        from cdc.migrations import Names, migration_sql, revert, reverting_sql
        from cdc.migrations import migrate as run_migrations
    except ImportError as error:
        raise ConfigError("cdc outbox migrate needs Alembic", "pip install 'watershed-cdc[outbox]'") from error
    names = Names(schema, table, publishers=tuple(grant or ()), capture=capture)
    if only_sql:
        typer.echo(migration_sql(names) if downgrade is None else reverting_sql(names, downgrade))
        return
    source = load_config(config).source
    try:
        if downgrade is None:
            run_migrations(source, names)
        else:
            revert(source, names, downgrade)
    except SQLAlchemyError as error:
        words = str(getattr(error, "orig", error)).partition("\n")[0]
        raise SourceError(
            f"the outbox was not changed: {words}", "as a role that may: cdc outbox migrate --sql | psql"
        ) from error
    gone = {"0001": f"{schema}.{names.function}() is gone", "base": f"{schema}.{table} is gone"}
    there = f"{schema}.{table} and {schema}.{names.function}() are there, in their newest version"
    typer.echo(gone.get(downgrade or "", there))


@app.command()
def prune(
    config: ConfigOption = Path("watershed.yml"),
    table: Annotated[str | None, typer.Option(help="One of outbox.tables; all by default.")] = None,
    every: Annotated[float | None, typer.Option(help="Again and again, with so many seconds between.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds that capture has to confirm what is committed.")] = 60.0,
) -> None:
    """Delete rows of outbox tables whose events are published, after their `retention_s`."""
    settings = load_config(config)
    tables = [found for found in settings.outbox.tables if table in (None, found.table)]
    if not tables:
        raise ConfigError(f"{table or 'no table'} is in outbox.tables", "name one of them")
    while True:
        with connect(settings.source, application="watershed prune") as connection:
            for found in tables:
                rows = sum(
                    prune_table(
                        connection,
                        TableId.parse(found.table),
                        found.table_field_event_id,
                        settings.source.slot,
                        found.retention_s,
                        found.retention_column,
                        time.sleep,
                        wait,
                    )
                )
                typer.echo(f"{found.table}: {rows} rows deleted")
        if every is None:
            return
        time.sleep(every)
