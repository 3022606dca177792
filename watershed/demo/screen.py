"""The demo's output: one live screen in a terminal, a plain line every few seconds elsewhere (such as a CI log), and
the tables at the end.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from watershed.demo.books import Balance, Ledger, Sales
from watershed.demo.charts import LagChart, Spread, duration
from watershed.demo.followed import NOTE, ORDER, Seen
from watershed.demo.naive import Drift
from watershed.status.model import SnapshotStatus, Status
from watershed.verify.model import TableResult

if TYPE_CHECKING:
    from watershed.demo.view_watch import Hour, ViewsNow

PLAIN_INTERVAL_S: Final = 10.0
LATE_S: Final = {"warehouse": 30.0}  # lag from which a part is shown as behind
LATE_S_DEFAULT: Final = 3.0
LINES_SHOWN: Final = 3  # of an order
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
    views: "ViewsNow | None" = None
    memory_mib: Mapping[str, int] = field(default_factory=dict)


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

    def say(self, text: str, style: str = "") -> None:
        """Prints a line with the time since the demo's start."""
        line = Text(f"{clock(time.monotonic() - self._began)}  ", style="dim")
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
            self.say("  |  ".join(plain(view)))


def clock(seconds: float) -> str:
    return f"{int(seconds // 60):02}:{int(seconds % 60):02}"


# ---- what both show


def lines(view: View) -> Iterator[tuple[str, str]]:
    """Yields title and text of each line below the stores' figures."""
    assert view.status
    committed, rate = view.committed
    yield "committed", f"{committed:,} rows at {rate:,.0f}/s"
    yield "captured", f"{view.status.capture.seq or 0:,} records at {view.captured_rate:,.0f}/s"
    if view.ledger:
        sales = view.ledger.sales
        yield "consumed", f"{view.ledger.events:,} events: revenue {sales.revenue:,} in {sales.orders:,} orders"
    for table in view.status.tables:
        if table.snapshot and table.snapshot.status in ("running", "waiting", "paused"):
            yield table.table, _progress(table.snapshot)
    if view.views:
        yield "document", described(view.views.document)
        yield from (("revenue", hour_text(hour)) for hour in view.views.hours)
        changed = "; ".join(("", *view.views.changed_alerts[:1]))
        yield "alerts", f"{view.views.alerts:,} orders meet a saved search{changed}"


def _progress(found: SnapshotStatus) -> str:
    if not found.rows_total:
        return ", ".join(filter(None, (found.status, f"{found.rows:,} rows", found.message)))
    left = "" if found.seconds_left is None else f", {duration(found.seconds_left)} left"
    share = found.rows * 100 // found.rows_total
    return f"{share} % of {found.rows_total:,} rows at {found.rows_per_second:,.0f}/s{left}"


def plain(view: View) -> Iterator[str]:
    """Yields the parts of the view as one line."""
    assert view.status
    yield f"{view.phase} {clock(view.elapsed_s)}" + ("" if view.total_s is None else f"/{clock(view.total_s)}")
    for sink in view.status.sinks:
        recent = view.recent.get(sink.sink, Spread.of(()))
        timed = f", readable p50/p95 {duration(recent.p50)}/{duration(recent.p95)}" if recent.count else ""
        yield f"{sink.sink}: {duration(sink.lag_seconds)} behind ({sink.lag_records:,} records){timed}"
    for title, text in lines(view):
        yield f"{title}: {text}"
    if view.places:
        notes = (f"{place} {seen.note.removeprefix(NOTE) if seen else '–'}" for place, seen in view.places.items())
        yield f"changes of one order: {', '.join(notes)}"


# ---- the live screen


def render(view: View) -> RenderableType:
    """Returns the live screen."""
    parts: list[RenderableType] = [_header(view)]
    if view.status:
        rows = [(title, Text(text, no_wrap=True, overflow="ellipsis")) for title, text in lines(view)]
        parts += [_stores(view.status, view.recent), _grid(rows, first="dim")]
        parts += [_followed(view.places)] if view.places else []
        parts += [render_lags(view.chart)] if view.chart.lines() else []
        parts += [Text(f"memory, MiB: {_memory(view.memory_mib)}", style="dim")]
    return Group(*(one for part in parts for one in (Text(), part)))


def _memory(memory_mib: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {mib:,}" for name, mib in memory_mib.items())


def _grid(rows: Iterable[Sequence[RenderableType]], first: str = "") -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=first)
    for row in rows:
        grid.add_row(*row)
    return grid


def _header(view: View) -> RenderableType:
    phase, shown = Text(view.phase, style="bold"), clock(view.elapsed_s)
    if view.total_s is None:
        return _grid([(phase, Text(shown, style="dim"))])
    bar = ProgressBar(total=view.total_s, completed=min(view.elapsed_s, view.total_s), width=40)
    return _grid([(phase, bar, Text(f"{shown} / {clock(view.total_s)}", style="dim"))])


def _stores(status: Status, recent: Mapping[str, Spread]) -> RenderableType:
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    table.add_column("")
    for title in ("behind", "records behind", "commit → readable p50", "p95", "changes written"):
        table.add_column(title, justify="right")
    table.add_row("capture", _late("capture", status.capture.lag_seconds), "", "", "", "")
    for sink in status.sinks:
        spread, lag = recent.get(sink.sink, Spread.of(())), _late(sink.sink, sink.lag_seconds)
        times = duration(spread.p50), duration(spread.p95)
        table.add_row(sink.sink, lag, f"{sink.lag_records:,}", *times, f"{sink.written:,}")
    return table


def _late(name: str, lag_s: float | None) -> Text:
    is_late = lag_s is None or lag_s >= LATE_S.get(name, LATE_S_DEFAULT)
    return Text(duration(lag_s) if lag_s != 0 else "0", style="yellow" if is_late else "green")


def _followed(places: Mapping[str, Seen | None]) -> RenderableType:
    rows = [("", Text(f"order {ORDER} in every place", style="dim"))]
    for place, seen in places.items():
        style = "green" if seen == places["row"] else "yellow"
        rows.append((place, Text("not there yet" if seen is None else str(seen), no_wrap=True, style=style)))
    return _grid(rows, first="dim")


def described(document: Mapping[str, Any] | None) -> str:
    """Returns an order's nested document: the order with its customer, and its lines."""
    if document is None:
        return "not there yet"
    customer, lines = document["customer"] or {}, document["lines"]
    items = [f"{line['quantity']} × {line['product']} at {line['unit_price']}" for line in lines[:LINES_SHOWN]]
    more = [f"{len(lines) - LINES_SHOWN} more"] if len(lines) > LINES_SHOWN else []
    head = f"{document['status']}, {document['note']}, of {customer.get('name', 'nobody')}"
    return f"{head}: {'; '.join(items + more) or 'no lines'}"


def hour_text(hour: "Hour") -> str:
    now = "no revenue any more" if hour.revenue is None else f"{hour.revenue:,}"
    was = "" if hour.before is None else f", corrected from {hour.before:,}"
    return f"{hour.hour:%Y-%m-%d %H:%M}  {now}{was}"


def render_lags(chart: LagChart) -> RenderableType:
    """Returns the lag chart, with the kills marked."""
    lines = chart.lines()
    rows: list[Sequence[RenderableType]] = [("", Text(chart.title(), style="dim"), "")]
    rows += [
        (line.name, Text(line.bars, style="cyan", no_wrap=True), f"≤ {duration(line.largest_s)}") for line in lines
    ]
    indent = " " * (max(len(line.name) for line in lines) + 2)
    marks = Text(indent + chart.marks(), style="bold yellow", no_wrap=True, overflow="ellipsis")
    return Group(_grid(rows), marks)


# ---- the end


class Figures(NamedTuple):
    """The measurements of a run."""

    seconds: float  # of the workload
    committed_rows: int
    transactions: int
    captured_rows: int  # records published while the workload ran
    first_row_s: float  # from the demo's start
    loaded_s: Mapping[str, float]  # store → from capture's start until it held all existing rows
    caught_up_s: Mapping[str, float]  # store → from the workload's end until it had applied the last LSN
    freshness: Mapping[str, Mapping[str, Spread]]  # store → part of the run → spread
    memory_mib: Mapping[str, int]


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
    for place, one in enumerate(results):
        rows = f"{one.source_rows:,}", f"{one.store_rows:,}", _count(one.drift)
        is_last = place + 1 == len(results) or results[place + 1].sink != one.sink
        table.add_row(one.sink, str(one.table), *rows, one.remark, end_section=is_last)
    console.print(table)
    for one in results:
        for line in one.lines(EXAMPLES_SHOWN):
            console.print(Text(line, style="red"), soft_wrap=True)
        if one.drift > EXAMPLES_SHOWN:
            console.print(Text(f"{one.sink}: {one.table}: {one.drift - EXAMPLES_SHOWN:,} more", style="red"))


def print_balance(console: Console, balance: Balance) -> None:
    """Prints the totals from events beside those of SQL, and their differences."""
    table = _table("The books, kept from events alone", ("",), ("by events", "in SQL"))
    ledger = balance.ledger
    for name, by_events, by_sql in zip(Sales._fields, ledger.sales, balance.sql, strict=True):
        table.add_row(name, Text(f"{by_events:,}", style="green" if by_events == by_sql else "bold red"), f"{by_sql:,}")
    console.print("", table)
    console.print(Text(f"{ledger.events:,} events; {ledger.repeated:,} were received again and ignored", style="dim"))
    for problem in balance.problems:
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
    rate = run.captured_rows / run.seconds if run.seconds else 0.0
    table.add_row("committed", f"{run.committed_rows:,} row changes in {run.transactions:,} transactions")
    table.add_row("captured", f"{run.captured_rows:,} records, {rate:,.0f}/s over {run.seconds:.0f} s")
    table.add_row("first synced row", f"{run.first_row_s:.1f} s after the start")
    table.add_row("memory at most, MiB", _memory(run.memory_mib))
    console.print("", table, "")
    titles = ("changes timed", "p50", "p95", "worst", "existing rows after", "last LSN after")
    stores = _table("Freshness, commit to readable", ("store", "part of the run"), titles)
    for store, parts in run.freshness.items():
        for place, (part, spread) in enumerate(parts.items()):
            took = (run.loaded_s.get(store), run.caught_up_s.get(store)) if place == 0 else (None, None)
            times = (spread.p50, spread.p95, spread.worst, *took)
            name = store if place == 0 else ""
            stores.add_row(name, part, f"{spread.count}", *map(duration, times), end_section=place + 1 == len(parts))
    console.print(stores)


def _count(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "green")
