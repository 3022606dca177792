"""The parts of `cdc view` that concern event logs, which views read."""

import json
from collections.abc import Iterable
from dataclasses import asdict

import typer

from cdc.config.config_file import Config
from cdc.config.event_logs import log_table
from cdc.model.errors import ConfigError
from cdc.model.suggestions import did_you_mean
from sinks.errors import SinkError
from watershed.views.event_log import log_findings, open_log_base
from watershed.views.parsing import named_tables


def chosen_logs(settings: Config, names: list[str] | None) -> list[str]:
    """Returns those of the names that are event logs; all logs without names. Raises ConfigError for a name that is
    neither a view's nor a log's."""
    known = {**settings.views, **settings.event_logs}
    if not known:
        raise ConfigError("the configuration has no views", "add one to section views")
    for name in names or ():
        if name not in known:
            raise ConfigError(
                f"the configuration has no view {name!r}{did_you_mean(name, known)}",
                f"its views and logs: {', '.join(known)}",
            )
    return [name for name in names or settings.event_logs if name in settings.event_logs]


def check_logs(settings: Config, logs: Iterable[str], *, as_json: bool) -> bool:
    """Prints the findings about the logs. Returns whether one of them can't be loaded."""
    has_failed = False
    for log in logs:
        findings = list(log_findings(settings, log))
        has_failed |= any(finding.level == "fail" for finding in findings)
        if as_json:
            typer.echo(json.dumps({"event_log": log, "findings": [asdict(finding) for finding in findings]}))
            continue
        for finding in findings:
            typer.echo(f"{log}: {finding.level}: {finding.message}")
            if finding.next:
                typer.echo(f"  next: {finding.next}")
    return has_failed


def rebuild_log(settings: Config, log: str) -> None:
    """Has the job of a log load it again."""
    with open_log_base(settings, log) as base:
        base.install()
        if not base.ask_rebuild(log):
            raise SinkError(f"event log {log} has never been loaded", f"cdc view run {log} loads it")
    typer.echo(f"{log}: rebuild requested; cdc view run {log} loads the log again, then its views")


def remove_log(settings: Config, log: str, *, asks: bool) -> None:
    """Removes a log from its base."""
    with open_log_base(settings, log) as base:
        base.install()
        if not base.lock(log):
            raise SinkError(
                f"event log {log}: a process is loading it", "stop that process (cdc view run), then remove the log"
            )
        for name, section in settings.views.items():
            if log_table(log) in named_tables(name, section.sql) and base.state(name) is not None:
                raise SinkError(f"event log {log}: view {name} reads it", f"first run cdc view remove {name}")
        if asks:
            typer.confirm(f"This removes event log {log} with all of its events. Continue?", abort=True)
        base.remove(log)
    typer.echo(f"{log}: removed")
