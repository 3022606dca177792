"""The demo's output: one live screen in a terminal, the same every few seconds elsewhere (such as a CI log), and the
tables at the end.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from watershed.demo.books import Ledger, Sales
from watershed.demo.charts import LagChart, Spread, duration
from watershed.demo.followed import ORDER, Seen
from watershed.demo.naive import Drift
from watershed.status.model import Status
from watershed.status.screen import snapshot_text
from watershed.verify.model import TableResult

PLAIN_INTERVAL_S: Final = 20.0
EXAMPLES_SHOWN: Final = 20  # differing rows of each table and store

Lines = list[tuple[str, str]]
"""Title and text of each line."""


class StoreFigures(NamedTuple):
    """The measurements of a store in a run; None where there is none."""

    store: str
    freshness: Spread
    loaded_s: float | None  # from capture's start until it held all existing rows
    caught_up_s: float | None  # from the workload's end until it had applied the last LSN


class DemoScreen:
    """Prints lines with `say`, and a live view with `show`, which replaces the view before."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._plain_at = 0.0
        self._plain_phase = ""
        self._began = time.monotonic()

    def close(self) -> None:
        """Leaves the live screen; later output of `say` is plain."""
        if self._live:
            self._live.update(Text(), refresh=True)
            self._live.stop()
            self._live = None

    def elapsed_s(self) -> float:
        """Returns the seconds since the demo's start."""
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        """Prints a line with the time since the demo's start."""
        line = Text(f"{clock(self.elapsed_s())}  ", style="dim")
        line.append(text, style=style)
        self.console.print(line, soft_wrap=not self.console.is_terminal)

    def show(self, phase: str, elapsed_s: float, total_s: float | None = None, *parts: RenderableType) -> None:
        """Shows a phase: the seconds since it began and those that it takes (None: not known), and these parts."""
        times = clock(elapsed_s) + ("" if total_s is None else f" / {clock(total_s)}")
        title = Text.assemble((phase, "bold"), f"  {times}")
        view = Group(*(one for part in (title, *parts) for one in (Text(), part)))
        if self.console.is_terminal:
            if self._live is None:
                self._live = Live(console=self.console, auto_refresh=False)
                self._live.start()
            self._live.update(view, refresh=True)
            return
        now = time.monotonic()
        if parts and (phase != self._plain_phase or now - self._plain_at >= PLAIN_INTERVAL_S):
            self._plain_at, self._plain_phase = now, phase
            self.console.print(view, "")


def clock(seconds: float) -> str:
    return f"{int(seconds // 60):02}:{int(seconds % 60):02}"


def flow_lines(
    status: Status, committed: int, committed_rate: float, captured_rate: float, recent: Mapping[str, Spread]
) -> Lines:
    """Returns what goes through the pipeline. `recent`: store → freshness of the last changes."""
    lines = [
        ("committed", f"{committed:,} rows at {committed_rate:,.0f}/s"),
        ("captured", f"{status.capture.seq or 0:,} records at {captured_rate:,.0f}/s"),
    ]
    if timed := {store: spread for store, spread in recent.items() if spread.count}:
        texts = (f"{store} {duration(one.p50)} / {duration(one.p95)}" for store, one in timed.items())
        lines.append(("commit → readable p50 / p95", ", ".join(texts)))
    return lines


def snapshot_lines(status: Status) -> Lines:
    """Returns a line for each table whose existing rows are on their way."""
    moving = ("running", "waiting", "paused")
    return [(one.table, snapshot_text(one)) for one in status.tables if one.snapshot and one.snapshot.status in moving]


def render_lines(lines: Iterable[tuple[str, str]]) -> RenderableType:
    return _grid((title, Text(text, no_wrap=True, overflow="ellipsis")) for title, text in lines)


def _grid(rows: Iterable[Sequence[RenderableType]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    for row in rows:
        grid.add_row(*row)
    return grid


def render_places(places: Mapping[str, Seen | None]) -> RenderableType:
    """Returns the followed order as it is in each place."""
    rows = [("", Text(f"order {ORDER} in every place", style="dim"))]
    for place, seen in places.items():
        style = "green" if seen == places["row"] else "yellow"
        rows.append((place, Text("not there yet" if seen is None else str(seen), no_wrap=True, style=style)))
    return _grid(rows)


def render_lags(chart: LagChart) -> RenderableType:
    """Returns the lag chart, with the kills marked."""
    lines, title = chart.lines(), f"behind, over the run; a column is {chart.column_s()} s"
    rows: list[Sequence[RenderableType]] = [("", Text(title, style="dim"), "")]
    rows += [(name, Text(bars, style="cyan", no_wrap=True), f"≤ {duration(largest)}") for name, bars, largest in lines]
    indent = " " * (max(len(name) for name, *_ in lines) + 2)
    return Group(_grid(rows), Text(indent + chart.marks(), style="bold yellow", no_wrap=True, overflow="ellipsis"))


# ---- the end


def _table(title: str, texts: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", show_header=bool(numbers))
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def print_results(console: Console, results: Sequence[TableResult]) -> None:
    """Prints the result of each comparison, and rows that differ."""
    table = _table("Every row and column against PostgreSQL", ("store", "table"), ("source", "store", "differ", ""))
    for one in results:
        table.add_row(
            one.sink, str(one.table), f"{one.source_rows:,}", f"{one.store_rows:,}", _count(one.drift), one.remark
        )
    console.print(table)
    for one in results:
        for line in one.lines(EXAMPLES_SHOWN):
            console.print(Text(line, style="red"), soft_wrap=True)
        if one.drift > EXAMPLES_SHOWN:
            console.print(Text(f"{one.sink}: {one.table}: {one.drift - EXAMPLES_SHOWN:,} more", style="red"))


def print_balance(console: Console, ledger: Ledger, sql: Sales) -> None:
    """Prints the totals from events beside those of SQL, and their differences."""
    table = _table("The books, kept from events alone", ("",), ("by events", "in SQL"))
    for name, by_events, by_sql in zip(Sales._fields, ledger.sales, sql, strict=True):
        table.add_row(name, Text(f"{by_events:,}", style="green" if by_events == by_sql else "bold red"), f"{by_sql:,}")
    console.print("", table)
    console.print(Text(f"{ledger.events:,} events; {ledger.repeated:,} were received again and ignored", style="dim"))
    for problem in ledger.problems(sql):
        console.print(Text(f"books: {problem}", style="red"), soft_wrap=True)


def print_drift(console: Console, found: Drift) -> None:
    """Prints how far the cache of an application that writes twice has drifted."""
    titles = ("orders", "differ from PostgreSQL")
    table = _table("Two writes without a log, beside the log", ("cache of the same orders",), titles)
    table.add_row("written by the application after its COMMIT", f"{found.orders:,}", _count(found.naive))
    table.add_row("kept by Watershed", f"{found.orders:,}", _count(found.kept))
    console.print("", table)


def print_figures(
    console: Console, chart: LagChart, figures: Mapping[str, str], stores: Iterable[StoreFigures]
) -> None:
    if chart.lines():
        console.print("", "Lag of the stores", render_lags(chart), sep="\n")
    table = _table("Figures", ("", ""))
    for row in figures.items():
        table.add_row(*row)
    console.print("", table, "")
    titles = ("changes timed", "p50", "p95", "worst", "existing rows after", "last LSN after")
    freshness = _table("Freshness, commit to readable", ("store",), titles)
    for store, spread, loaded_s, caught_up_s in stores:
        times = (spread.p50, spread.p95, spread.worst, loaded_s, caught_up_s)
        freshness.add_row(store, f"{spread.count}", *map(duration, times))
    console.print(freshness)


def _count(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "green")
