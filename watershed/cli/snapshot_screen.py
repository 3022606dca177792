"""Output of the progress of snapshots and of filling stores: bars in a terminal, a line every few seconds elsewhere,
JSON for programs.
"""

import json
import time
from collections.abc import Sequence
from typing import Final, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from watershed.status.fill_progress import FillProgress
from watershed.status.listing import Listing
from watershed.status.screen import span

LINE_INTERVAL_S: Final = 5.0
JSON_INTERVAL_S: Final = 1.0
BAR_WIDTH: Final = 24
_UNITS: Final = {"table": "rows", "sink": "records"}


class ProgressScreen(Protocol):
    """Shows progress as it is reported."""

    def say(self, text: str) -> None:
        """Prints a message, which stays on the screen."""

    def show(self, progress: Sequence[FillProgress]) -> None:
        """Shows the present progress; called several times a second."""

    def close(self) -> None:
        """Ends the output; the last state stays visible."""


def screen_for(console: Console, *, as_json: bool) -> ProgressScreen:
    if as_json:
        return JsonLines()
    return Bars(console) if console.is_terminal else Lines()


class Bars:
    """A bar for each table and sink."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=BAR_WIDTH),
            TextColumn("{task.fields[figures]}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            auto_refresh=False,
        )
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._is_started = False

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, progress: Sequence[FillProgress]) -> None:
        if not self._is_started:
            self._is_started = True
            self._progress.start()
        for entry in progress:
            name = entry.what, entry.name
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(entry.name, total=None, figures="")
            is_done = entry.status == "done"
            total = entry.total or (max(1, entry.done) if is_done else None)  # without: a bar that pulses
            self._progress.update(
                self._tasks[name],
                total=total,
                completed=total if is_done and total else entry.done,
                figures=brief(entry),
            )
        self._progress.refresh()

    def close(self) -> None:
        if self._is_started:
            self._progress.stop()


class Lines:
    """Lines of text: one whenever a status changes, and one every LINE_INTERVAL_S while it runs."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], tuple[str, float]] = {}  # status, when

    def say(self, text: str) -> None:
        typer.echo(text)

    def show(self, progress: Sequence[FillProgress]) -> None:
        now = time.monotonic()
        for entry in progress:
            name = entry.what, entry.name
            status, at = self._shown.get(name, ("", 0.0))
            if status != entry.status or (not entry.is_ended and now - at >= LINE_INTERVAL_S):
                self._shown[name] = entry.status, now
                typer.echo(f"{entry.name}: {entry.status}, {figures(entry)}")

    def close(self) -> None:
        """Does nothing: every line was printed at once."""


class JsonLines:
    """JSON objects, one per line: the fields of a FillProgress, or `{"what": "said", "text": …}`."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], tuple[FillProgress, float]] = {}

    def say(self, text: str) -> None:
        typer.echo(json.dumps({"what": "said", "text": text}))

    def show(self, progress: Sequence[FillProgress]) -> None:
        now = time.monotonic()
        for entry in progress:
            name = entry.what, entry.name
            last, at = self._shown.get(name, (None, 0.0))
            is_due = last is None or last.status != entry.status or now - at >= JSON_INTERVAL_S
            if entry != last and is_due:
                self._shown[name] = entry, now
                typer.echo(json.dumps(entry.as_json()))

    def close(self) -> None:
        """Does nothing: every object was printed at once."""


def brief(entry: FillProgress) -> str:
    """Returns a description that fits beside a bar in a terminal of 80 columns."""
    if entry.status != "running":
        return ", ".join(filter(None, (entry.status, entry.message or f"{entry.done:,}{_published(entry)}")))
    parts = [(f"{entry.done:,} of {entry.total:,}" if entry.total else f"{entry.done:,}") + _published(entry)]
    if entry.per_s:
        parts.append(f"{entry.per_s:,.0f}/s")
    if (eta_s := entry.eta_s) is not None:
        parts.append(f"{span(eta_s)} left")
    return ", ".join([*parts, *filter(None, [entry.message])])


def figures(entry: FillProgress) -> str:
    """Returns a description of the progress: rows, share, rate, time left, and the reason for waiting."""
    unit = _UNITS[entry.what] if entry.published is None else "rows compared"
    parts = [f"{entry.done:,} {unit}"]
    if entry.total and not entry.is_ended:
        parts = [f"{entry.done:,} of about {entry.total:,} {unit} ({entry.done * 100 // entry.total} %)"]
    parts[0] += _published(entry)
    if entry.per_s and not entry.is_ended:
        parts.append(f"{entry.per_s:,.0f}/s")
    if (eta_s := entry.eta_s) is not None:
        parts.append(f"{span(eta_s)} left")
    if entry.message:
        waits = "waits for " if entry.status == "waiting" and entry.what == "table" else ""
        parts.append(waits + entry.message)
    return ", ".join(parts)


def _published(entry: FillProgress) -> str:
    return "" if entry.published is None else f", {entry.published:,} published"


def status_table(progress: Sequence[FillProgress]) -> Listing:
    """Returns the table of `cdc snapshot status`."""
    table = Listing("table", "status", texts=["rows"])
    for entry in progress:
        table.add_row(entry.name, entry.status, figures(entry))
    return table
