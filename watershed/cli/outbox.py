"""`cdc outbox`: creates and maintains the outbox table and its function in the source database."""

import time
from datetime import datetime
from functools import partial
from typing import Annotated, Literal

import typer

from cdc.config.config_file import Config
from cdc.config.outbox_settings import OutboxTable
from cdc.kafka.signals import deliver
from cdc.kafka.state_reader import read_lost_events, read_state
from cdc.model.errors import ConfigError, ConnectionLost, GapError, SourceError, UnreachableError
from cdc.model.events import TableId
from cdc.model.lost_events import lost_records, require_settled
from cdc.model.topics import Topics
from cdc.postgres.connection import at_slot, connect
from watershed.cli.options import CONFIG, ConfigFile, configuration
from watershed.cli.outbox_rows import OldEvents, PublishedProof
from watershed.cli.outbox_rows import prune as prune_table
from watershed.cli.outbox_rows import republish as republish_rows

Revision = Literal["0001", "base"]
TableOption = Annotated[str | None, typer.Option(help="A table of outbox.tables; all by default.")]

app = typer.Typer(no_args_is_help=True)


@app.command()
def migrate(
    config: ConfigFile = CONFIG,
    schema: Annotated[str, typer.Option(help="Schema of the table and the function.")] = "cdc",
    table: Annotated[str, typer.Option(help="Name of the outbox table.")] = "outbox",
    grant: Annotated[list[str] | None, typer.Option(help="A role that is allowed to publish. Repeatable.")] = None,
    capture: Annotated[str | None, typer.Option(help="The role of cdc run, if it is not the owner.")] = None,
    downgrade: Annotated[
        Revision | None, typer.Option(help="Revert to 0001 (drops the function) or to base (drops the table, too).")
    ] = None,
    only_sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead of executing it.")] = False,
) -> None:
    """Create the outbox table and the function that publishes without a table, or upgrade them to the latest one."""
    try:
        from sqlalchemy.exc import SQLAlchemyError

        from watershed.client.outbox_migrations import Names, migration_sql, revert, reverting_sql
        from watershed.client.outbox_migrations import migrate as run_migrations
    except ImportError as error:
        raise ConfigError("cdc outbox migrate needs Alembic", "pip install 'watershed-cdc[outbox]'") from error
    names = Names(schema, table, publishers=tuple(grant or ()), capture=capture)
    if only_sql:
        typer.echo(migration_sql(names) if downgrade is None else reverting_sql(names, downgrade))
        return
    source = configuration(config).source
    try:
        if downgrade is None:
            run_migrations(source, names)
        else:
            revert(source, names, downgrade)
    except SQLAlchemyError as error:
        words = str(getattr(error, "orig", error)).partition("\n")[0]
        raise SourceError(
            f"the outbox was not changed: {words}", "as a role with the rights: cdc outbox migrate --sql | psql"
        ) from error
    gone = {"0001": f"{schema}.{names.function}() was removed", "base": f"{schema}.{table} was removed"}
    there = f"{schema}.{table} and {schema}.{names.function}() exist in their newest version"
    typer.echo(gone.get(downgrade or "", there))


@app.command()
def prune(
    config: ConfigFile = CONFIG,
    table: TableOption = None,
    every: Annotated[float | None, typer.Option(help="Repeat, with a pause of so many seconds.", min=0.05)] = None,
    timeout: Annotated[
        float,
        typer.Option(help="Total seconds to wait, each time, until capture has confirmed the committed rows.", min=0),
    ] = 60.0,
) -> None:
    """Delete rows of outbox tables whose events are published and that are older than `retention_s`."""
    settings = configuration(config)
    tables = _chosen(settings, table)
    while True:
        try:
            with (
                connect(settings.source, application="watershed prune") as connection,
                at_slot(settings.source, connection) as server,
            ):
                for found in tables:
                    name = TableId.parse(found.table)
                    require_published = partial(_require_published, settings, name)
                    events = OldEvents(name, found.table_field_event_id, found.retention_column, found.retention_s)
                    proof = PublishedProof(server, settings.source.slot, timeout, time.sleep, require_published)
                    rows = sum(prune_table(connection, events, proof))
                    typer.echo(f"{found.table}: {rows} rows deleted")
        except (ConnectionLost, UnreachableError, GapError) as error:
            if every is None:
                raise
            typer.echo(f"not pruned: {error}", err=True)  # the next attempt may succeed
        if every is None:
            return
        time.sleep(every)


@app.command()
def republish(
    since: Annotated[str, typer.Option(help="A time with a time zone, compared with each table's `retention_column`.")],
    config: ConfigFile = CONFIG,
    table: TableOption = None,
) -> None:
    """Publish rows that are still in outbox tables again, under the same event ids. Use it after a gap, which loses
    events. The events are appended to the topics, after those that were published since."""
    try:
        moment = datetime.fromisoformat(since)
    except ValueError as error:
        raise typer.BadParameter(f"--since {since} is not a time such as 2026-01-31T12:00:00Z") from error
    if moment.tzinfo is None:
        raise typer.BadParameter(
            f"--since {since} has no time zone: write {moment.isoformat()}Z or {moment.isoformat()}+02:00"
        )
    settings = configuration(config)
    tables = _chosen(settings, table)
    lost = read_lost_events(settings)  # read first: a loss that is recorded later is not settled by this command
    with connect(settings.source, application="watershed republish") as connection:
        for found in tables:
            rows = republish_rows(connection, TableId.parse(found.table), found.retention_column, moment)
            typer.echo(f"{found.table}: {rows} rows are published again")
    settled = {found.table for found in tables} | ({""} if table is None or len(settings.outbox.tables) == 1 else set())
    for record in lost:
        if record.table in settled and record.to_lsn and not record.settled_us:
            done = record.settled(time.time_ns() // 1000)
            deliver(settings.kafka, *lost_records(Topics(settings.topics.prefix), done))


def _require_published(settings: Config, table: TableId) -> None:
    state = read_state(settings)
    record = state.tables.get(table)
    if record is None:
        raise GapError(
            f"{table} is not captured, so its rows are not published",
            "restart cdc run with this configuration; the slot of another one confirms without them",
        )
    if record.status == "stopped":
        raise GapError(f"{table} is stopped, so its rows are not published: {record.message}", record.next)
    require_settled(table, state.lost)


def _chosen(settings: Config, table: str | None) -> list[OutboxTable]:
    tables = [found for found in settings.outbox.tables if table in (None, found.table)]
    if not tables:
        which = f"table {table} is not" if table else "no table is"
        raise ConfigError(f"{which} in outbox.tables", "correct --table, or add the table to outbox.tables")
    return tables
