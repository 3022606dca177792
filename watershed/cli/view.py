"""`cdc view`: checks and runs views, whose rows a query derives from captured tables and a target store keeps."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cdc.config.config_file import Config
from cdc.config.event_logs import SCHEMA_OF_LOGS
from cdc.config.stores import WarehouseConfig
from cdc.config.views import ViewConfig
from cdc.daemon.conditions import Conditions
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.telemetry.process import open_telemetry
from sinks.errors import SinkError
from watershed.cli.check import spark_findings
from watershed.cli.event_log import check_logs, chosen_logs, rebuild_log, remove_log
from watershed.cli.exit_codes import FAILED
from watershed.cli.interrupts import sigterm_as_interrupt
from watershed.cli.options import CONFIG, ConfigFile, HttpPort, LogJson, LogLevel, configuration
from watershed.cli.view_readers import view_readers
from watershed.status.listing import Listing, wide_console
from watershed.status.view_facts import ViewFacts
from watershed.views.event_log_base import EventLogFigures
from watershed.views.maintainer import RowEncoder, define
from watershed.views.running import run_views
from watershed.views.states import ViewFigures
from watershed.views.targets import (
    base_section,
    open_base,
    target_contents,
    target_findings,
)

app = typer.Typer(no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object for each view.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Views and event logs; all by default.")]


@app.command()
def check(
    names: Names = None,
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Check the query of each view against its base (the SQL store that it reads): which tables it reads, which rows a
    change of each table affects, which indexes are missing, and whether two rows have the same key. Check whether the
    target can hold the rows, and for an event log its topics and rights. Changes nothing. Exits with 2 if a query can't
    be maintained, 1 if rows have the same key, a target can't hold them, or a log can't be loaded."""
    settings = _with_functions(config)
    has_failed = check_logs(settings, chosen_logs(settings, names), as_json=as_json)
    refused: list[ConfigError] = []
    for name, section in _chosen(settings, names).items():
        try:
            has_failed |= _checked(settings, name, section, as_json=as_json)
        except ConfigError as error:
            refused.append(error)
    for one in refused[:-1]:
        typer.echo(f"error: {one}", err=True)
    if refused:
        raise refused[-1]
    if has_failed:
        raise typer.Exit(FAILED)


def _checked(settings: Config, name: str, section: ViewConfig, *, as_json: bool) -> bool:
    """Prints the findings about a view. Returns whether its rows can't be written. Raises ConfigError for a query that
    can't be maintained."""
    with open_base(settings, name) as base:
        definition = define(name, section, base)
        columns = base.described(definition)
        missing = base.missing_indexes(definition)
        key = base.key_finding(definition)
    target = list(target_findings(settings, name, RowEncoder(definition, columns).schema))
    if isinstance(section.target, WarehouseConfig):
        target += spark_findings(settings)
    has_failed = any(finding.level == "fail" for finding in (key, *target))
    if as_json:
        found = {
            "view": name,
            "columns": {column.name: column.type_name for column in columns},
            "tables": [str(table) for table in definition.query.tables],
            "fold": section.fold and section.fold.model_dump(mode="json"),
            "missing_indexes": [{"table": str(table), "columns": list(index)} for table, index in missing],
            "key": asdict(key),
            "target": [asdict(finding) for finding in target],
        }
        typer.echo(json.dumps(found))
        return has_failed
    typer.echo(f"{name}: ok; {', '.join(f'{column.name} {column.type_name}' for column in columns)}")
    ways = [(one.table, *(table for _, table, _ in one.steps), "key") for one in definition.query.traces]
    for way in dict.fromkeys(ways):  # parts of a UNION may have the same
        typer.echo(f"  a change of {' → '.join(map(str, way))}")
    if definition.fold:
        typer.echo(f"  fold by {definition.fold.config.function}, in the order {', '.join(definition.fold.order)}")
    for table, index in missing:
        typer.echo(
            f"  warning: no index of {table} begins with {', '.join(index)}, so each change reads the whole table\n"
            f"    next: {_index_hint(section.base, table, index, definition.places[table])}"
        )
    for part, finding in [("key", key), *(("target", one) for one in target)]:
        level = "" if finding.level == "ok" else f"{finding.level}: "
        typer.echo(f"  {part}: {level}{finding.message}")
        if finding.next:
            typer.echo(f"    next: {finding.next}")
    return has_failed


@app.command()
def run(
    names: Names = None,
    config: ConfigFile = CONFIG,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
    http_port: HttpPort = None,
) -> None:
    """Keep views equal to the results of their queries, and load event logs, until SIGTERM. A view or a log that fails
    stops with an error, which `cdc view status` shows; the others continue, and the command exits with 1 at its end."""
    settings = _with_functions(config, log_level=log_level, log_json=log_json)
    logs = chosen_logs(settings, names)
    chosen, conditions = _chosen(settings, names), Conditions()
    telemetry = open_telemetry(settings.telemetry, settings.topics.prefix, "watershed-views")
    port = settings.http.view_port if http_port is None else http_port
    if port or telemetry.has_metrics:
        from watershed.http.observed_process import show_process
        from watershed.http.routes import views_scope
        from watershed.http.server import ListenAddress

        address = ListenAddress(config, port, "http.view_port") if port else None
        scope = views_scope(frozenset(chosen))
        show_process(settings, address, scope, conditions, view_readers(settings), telemetry)
    try:
        with sigterm_as_interrupt():
            has_failed = run_views(settings, chosen, logs, conditions, partial(typer.echo, err=True))
    finally:
        telemetry.close()
    if has_failed:
        raise typer.Exit(FAILED)


def _index_hint(base: str, table: TableId, columns: Sequence[str], place: Sequence[str]) -> str:
    if table.schema == SCHEMA_OF_LOGS:
        return f"in the base, CREATE INDEX ON {'.'.join(place)} ({', '.join(columns)})"
    return f"in sink {base}, shapes: {{{table}: {{indexes: [[{', '.join(columns)}]]}}}}"


@app.command()
def status(
    names: Names = None,
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Show each view with its state, pending changes, rows that its target rejects and last error, and each event log
    with its state, how many records it is behind its topics, rejected records and last error."""
    settings = configuration(config)
    found: list[ViewFacts] = []
    for name in chosen_logs(settings, names):
        with closing(EventLogFigures(settings, name)) as of_log:
            found.append(of_log.counts())
    for name in _chosen(settings, names):
        with closing(ViewFigures(base_section(settings, name), settings.topics.prefix)) as figures:
            found.append(figures.of(name))
    if as_json:
        for one in found:
            typer.echo(json.dumps(asdict(one)))
        return
    table = Listing("view", "state", "behind", "changes", "oldest", "keys", "rejected", "last write", texts=["error"])
    for one in found:
        age, written = (("" if s is None else f"{s:.1f} s") for s in (one.oldest_s, one.applied_s))
        error = one.error or ""
        error += f"\nnext: {one.next}" if one.next else ""
        behind = "" if one.behind is None else str(one.behind)
        waiting = str(one.changes), age, str(one.keys), str(one.rejected)
        table.add_row(one.name, one.state, behind, *waiting, written, error)
    wide_console().print(table)


@app.command()
def rebuild(name: Annotated[str, typer.Argument(metavar="NAME")], config: ConfigFile = CONFIG) -> None:
    """Have the job of a view, `cdc view run`, compute every row again; or have an event log loaded again from its
    topics, keeping events that the topics no longer hold. Targets serve their present rows until then."""
    settings = configuration(config)
    if chosen_logs(settings, [name]):
        rebuild_log(settings, name)
        return
    with open_base(settings, name) as base:
        base.install()
        if not base.ask_rebuild(name):
            raise SinkError(f"view {name} has never run", f"cdc view run {name} fills it")
    typer.echo(f"{name}: rebuild requested; cdc view run does it, and cdc view status shows when the view is serving")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    target: Annotated[bool, typer.Option("--target", help="Also remove what the view created in its target.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")] = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Remove a view's triggers and notes from its base, and on request its rows from the target; or an event log with
    its events. Asks for confirmation. Stop its job first, and remove it from the configuration afterwards."""
    settings = configuration(config, log_level="error")
    if chosen_logs(settings, [name]):
        if target:
            raise ConfigError(f"{name} is an event log, which has no target", "leave out --target")
        remove_log(settings, name, asks=not yes)
        return
    with open_base(settings, name) as base:
        base.install()
        if not base.lock(name):
            raise SinkError(
                f"view {name}: a process maintains it", "stop that process (cdc view run), then remove the view"
            )
        found = target_contents(settings, name, removes=False) if target else []
        if not yes:
            what = ["its triggers and notes in the base", *found]
            typer.confirm(f"This removes of view {name}: {', '.join(what)}. Continue?", abort=True)
        base.remove(name)
        if target:
            target_contents(settings, name, removes=True)
    typer.echo(f"{name}: removed" + (f" with {', '.join(found)}" if found else ""))


def _with_functions(config: Path, *, log_level: str = "warning", log_json: bool = False) -> Config:
    """Reads the configuration file. Adds its folder to the end of the import path, for the functions of folds."""
    settings = configuration(config, log_level=log_level, log_json=log_json)
    sys.path.append(str(config.resolve().parent))
    return settings


def _chosen(settings: Config, names: list[str] | None) -> dict[str, ViewConfig]:
    """Returns the views among the names, or all views without names. `chosen_logs` has checked the names."""
    return {name: settings.views[name] for name in names or settings.views if name in settings.views}
