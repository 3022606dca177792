"""`cdc status`: the state of the pipeline. It reads only the source and the topics, so capture need not be running."""

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.live import Live

from cdc.config.config_file import Config
from cdc.daemon.conditions import Conditions
from watershed.cli.options import CONFIG, AsJson, ConfigFile, configuration
from watershed.cli.view_readers import view_readers
from watershed.http.server import make_monitor
from watershed.status.listing import wide_console
from watershed.status.model import Status
from watershed.status.monitor import Monitor
from watershed.status.screen import screen

ANSWER_S_MAX: Final = 20.0
# Rates and ages of lags are measured between two observations.
GLANCE_S: Final = 2.2
WATCH_S: Final = 1.0


def status(
    config: ConfigFile = CONFIG,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the state of the source, slot, WAL budget, capture, tables, snapshots, sinks and views. Exits with 1 if a
    problem stops a part of the pipeline. With --watch and --json, it prints one object per line."""
    settings = configuration(config, log_level="error")
    with closing(_monitor(settings, has_views=True)) as monitor:
        now = _glance(monitor)
        if watch:
            _watch(monitor.status, now, as_json=as_json)
        elif as_json:
            typer.echo(now.model_dump_json())
        else:
            wide_console().print(screen(now))
    if any(problem.severity == "error" for problem in now.problems):
        raise typer.Exit(1)


def sink_status(name: str | None, config: Path, *, as_json: bool) -> Status:
    """Returns the status with all sinks, or only with the sink `name`. Prints its sinks if `as_json`."""
    with closing(_monitor(configuration(config, log_level="error"))) as monitor:
        now = _glance(monitor)
    if name is not None:
        now = now.model_copy(update={"sinks": tuple(sink for sink in now.sinks if sink.sink == name)})
    if as_json:
        typer.echo(json.dumps({"sinks": [sink.model_dump(mode="json") for sink in now.sinks]}))
    return now


def _monitor(config: Config, *, has_views: bool = False) -> Monitor:
    monitor = make_monitor(config, Conditions(), view_readers(config) if has_views else ())
    monitor.start()
    return monitor


def _glance(monitor: Monitor) -> Status:
    monitor.await_answers(ANSWER_S_MAX)
    until = time.monotonic() + GLANCE_S
    now = monitor.status()
    while time.monotonic() < until:
        time.sleep(min(WATCH_S / 2, max(0.0, until - time.monotonic())))
        now = monitor.status()
    return now


def _watch(status: Callable[[], Status], first: Status, *, as_json: bool) -> None:
    if as_json:
        while True:
            typer.echo(status().model_dump_json())
            time.sleep(WATCH_S)
    with Live(screen(first), console=wide_console(), auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(screen(status()), refresh=True)
