"""The demo's output: one live screen in a terminal, the same every few seconds elsewhere (such as a CI log), and the
tables at the end.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from watershed.demo.books import Ledger, Sales
from watershed.demo.charts import LagChart, Spread, duration
from watershed.demo.followed import ORDER, Seen
from watershed.demo.naive import Drift
from watershed.status.model import Status
from watershed.status.screen import sinks_table, snapshot_text
from watershed.verify.model import TableResult

PLAIN_INTERVAL_S: Final = 20.0
EXAMPLES_SHOWN: Final = 20  # differing rows of each table and store


@dataclass(frozen=True, slots=True)
class View:
    """The state of the demo at one moment."""

    phase: str
    elapsed_s: float  # of the phase
    total_s: float | None = None  # None: not known
    status: Status | None = None  # None until there is something to see
    committed: tuple[int, float] = (0, 0.0)  # row changes, and their rate
    captured_rate: float = 0.0
    ledger: Ledger | None = None  # None until the books are open
    places: Mapping[str, Seen | None] = field(default_factory=dict)  # empty until the order was read
    recent: Mapping[str, Spread] = field(default_factory=dict)  # store → freshness of the last changes
    chart: LagChart = field(default_factory=LagChart)
    views: Sequence[tuple[str, str]] = ()  # title and text of their lines


class DemoScreen:
    """Prints lines with `say`, and a live view with `show`, which replaces the view before. A context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._plain_at = 0.0
        self._plain_phase = ""
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

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

    def show(self, view: View) -> None:
        if self.console.is_terminal:
            if self._live is None:
                self._live = Live(console=self.console, auto_refresh=False)
                self._live.start()
            self._live.update(render(view), refresh=True)
            return
        now = time.monotonic()
        if view.status and (view.phase != self._plain_phase or now - self._plain_at >= PLAIN_INTERVAL_S):
            self._plain_at, self._plain_phase = now, view.phase
            self.console.print(render(view), "")


def clock(seconds: float) -> str:
    return f"{int(seconds // 60):02}:{int(seconds % 60):02}"


def render(view: View) -> RenderableType:
    """Returns the live screen."""
    times = clock(view.elapsed_s) + ("" if view.total_s is None else f" / {clock(view.total_s)}")
    parts: list[RenderableType] = [Text.assemble((view.phase, "bold"), f"  {times}")]
    if view.status:
        parts += [sinks_table(view.status), _grid(_lines(view, view.status))]
        parts += [_followed(view.places)] if view.places else []
        parts += [render_lags(view.chart)] if view.chart.lines() else []
    return Group(*(one for part in parts for one in (Text(), part)))


def _lines(view: View, status: Status) -> Iterable[tuple[str, Text]]:
    """Yields title and text of each line below the sinks' figures."""
    committed, rate = view.committed
    lines = [
        ("committed", f"{committed:,} rows at {rate:,.0f}/s"),
        ("captured", f"{status.capture.seq or 0:,} records at {view.captured_rate:,.0f}/s"),
    ]
    if timed := {store: spread for store, spread in view.recent.items() if spread.count}:
        texts = (f"{store} {duration(one.p50)} / {duration(one.p95)}" for store, one in timed.items())
        lines.append(("commit → readable p50 / p95", ", ".join(texts)))
    if view.ledger:
        sales = view.ledger.sales
        text = f"{view.ledger.events:,} events: revenue {sales.revenue:,} in {sales.orders:,} orders"
        lines.append(("consumed", text))
    for table in status.tables:
        if table.snapshot and table.snapshot.status in ("running", "waiting", "paused"):
            lines.append((table.table, snapshot_text(table)))
    return [(title, Text(text, no_wrap=True, overflow="ellipsis")) for title, text in (*lines, *view.views)]


def _grid(rows: Iterable[Sequence[RenderableType]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    for row in rows:
        grid.add_row(*row)
    return grid


def _followed(places: Mapping[str, Seen | None]) -> RenderableType:
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


class Figures(NamedTuple):
    """The measurements of a run."""

    seconds: float  # of the workload
    committed_rows: int
    captured_rows: int  # records published while the workload ran
    first_row_s: float  # from the demo's start
    loaded_s: Mapping[str, float]  # store → from capture's start until it held all existing rows
    caught_up_s: Mapping[str, float]  # store → from the workload's end until it had applied the last LSN
    freshness: Mapping[str, Spread]
    memory_mib: Mapping[str, int]  # process, with its descendants, at the workload's end


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


def print_figures(console: Console, run: Figures, chart: LagChart) -> None:
    if chart.lines():
        console.print("", "Lag of the stores", render_lags(chart), sep="\n")
    table = _table("Figures", ("", ""))
    rate = run.captured_rows / run.seconds
    table.add_row("committed", f"{run.committed_rows:,} row changes")
    table.add_row("captured", f"{run.captured_rows:,} records, {rate:,.0f}/s over {run.seconds:.0f} s")
    table.add_row("first synced row", f"{run.first_row_s:.1f} s after the start")
    table.add_row("memory, MiB", ", ".join(f"{name} {mib:,}" for name, mib in run.memory_mib.items()))
    console.print("", table, "")
    titles = ("changes timed", "p50", "p95", "worst", "existing rows after", "last LSN after")
    stores = _table("Freshness, commit to readable", ("store",), titles)
    for store, spread in run.freshness.items():
        times = (spread.p50, spread.p95, spread.worst, run.loaded_s.get(store), run.caught_up_s.get(store))
        stores.add_row(store, f"{spread.count}", *map(duration, times))
    console.print(stores)


def _count(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "green")
