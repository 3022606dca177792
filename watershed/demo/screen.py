"""The demo's output: one live screen in a terminal, a plain line every few seconds elsewhere (such as a CI log)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from watershed.demo.beside import BesideNow
from watershed.demo.books import BooksNow
from watershed.demo.figures import Lag, duration, sparkline
from watershed.demo.monitor import Figures
from watershed.demo.panels import plain_beside, render_beside
from watershed.status.fill_progress import FillProgress

PLAIN_INTERVAL_S = 10.0
SPARK_WIDTH = 40
LATE_S = {"search": 3.0, "cache": 3.0, "warehouse": 30.0}  # lag from which a store is shown as behind


@dataclass(frozen=True, slots=True)
class View:
    """The state of the demo at one moment."""

    phase: str
    elapsed_s: float  # of the phase
    total_s: float | None  # None: not known
    committed_rows: int
    committed_rate: float
    figures: Figures | None  # None until something can be measured
    rates: tuple[float, ...]  # rows/s captured, one a second
    existing: tuple[FillProgress, ...] = ()  # the progress of existing rows, by table and store
    books: BooksNow | None = None  # None until the consumer of events has opened them
    beside: BesideNow = field(default_factory=BesideNow)


class Screen:
    """Prints lines with `say`, and a live view with `show`, which replaces the view before. A context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
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
        self._console.print(line, soft_wrap=not self._console.is_terminal)

    def show(self, view: View) -> None:
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(render(view), refresh=True)
            return
        now = time.monotonic()
        if view.figures and (view.phase != self._plain_phase or now - self._plain_at >= PLAIN_INTERVAL_S):
            self._plain_at, self._plain_phase = now, view.phase
            self.say(plain(view))


def clock(seconds: float) -> str:
    return f"{int(seconds // 60):02}:{int(seconds % 60):02}"


def plain(view: View) -> str:
    """Returns the view as one line."""
    figures = view.figures
    assert figures
    total = f"/{clock(view.total_s)}" if view.total_s is not None else ""
    parts = [
        f"{view.phase} {clock(view.elapsed_s)}{total}",
        f"captured {figures.captured_rows:,} at {figures.captured_rate:,.0f}/s",
        "behind: " + ", ".join(f"{name} {_behind(store.lag)}" for name, store in figures.stores.items()),
    ]
    if view.books:
        parts.append(f"{view.books.events:,} events, revenue {view.books.sales.revenue:,}")
    parts += [f"{progress.name} {_described(progress)}" for progress in view.existing if progress.status != "done"]
    timed = [
        f"{name} {duration(store.recent.p50)}/{duration(store.recent.p95)}"
        for name, store in figures.stores.items()
        if store.recent.count
    ]
    if timed:
        parts.append("readable p50/p95: " + ", ".join(timed))
    parts += plain_beside(view.beside)
    return "  |  ".join(parts)


def _described(progress: FillProgress) -> str:
    """Returns a description of the progress of existing rows."""
    unit = "rows" if progress.what == "table" else "records"
    if not progress.total or progress.is_ended:
        return ", ".join(filter(None, (progress.status, f"{progress.done:,} {unit}", progress.message)))
    left = "" if progress.eta_s is None else f", {duration(progress.eta_s)} left"
    return f"{progress.done * 100 // progress.total} % of {progress.total:,} {unit} at {progress.per_s:,.0f}/s{left}"


def _behind(lag: Lag) -> str:
    return f"{duration(lag.seconds)} ({lag.rows:,})" if lag.rows else "0"


def render(view: View) -> RenderableType:
    """Returns the live screen."""
    parts: list[RenderableType] = [Text(), _header(view)]
    if view.existing:
        parts += [Text(), _existing(view.existing)]
    if view.figures:
        parts += [Text(), _path(view, view.figures), Text(), _stores(view.figures)]
        parts += [*render_beside(view.beside), Text(), _memory(view.figures)]
    return Group(*parts)


def _header(view: View) -> RenderableType:
    grid = Table.grid(padding=(0, 2), expand=False)
    shown = clock(view.elapsed_s)
    if view.total_s is None:
        grid.add_row(Text(view.phase, style="bold"), Text(shown, style="dim"))
        return grid
    bar = ProgressBar(total=view.total_s, completed=min(view.elapsed_s, view.total_s), width=40)
    grid.add_row(Text(view.phase, style="bold"), bar, Text(f"{shown} / {clock(view.total_s)}", style="dim"))
    return grid


def _existing(existing: Sequence[FillProgress]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for progress in existing:
        total = float(max(1, progress.total))
        done = total if progress.status == "done" else min(total, float(progress.done))
        grid.add_row(
            Text(progress.name),
            ProgressBar(total=total, completed=done, width=24),
            Text(_described(progress), style="dim", no_wrap=True),
        )
    return grid


def _path(view: View, figures: Figures) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(justify="right")
    grid.add_column(justify="right")
    grid.add_column()
    grid.add_row("committed", f"{view.committed_rows:,} rows", f"{view.committed_rate:,.0f}/s", "")
    grid.add_row(
        "captured",
        f"{figures.captured_rows:,} rows",
        f"{figures.captured_rate:,.0f}/s",
        Text(sparkline(view.rates, SPARK_WIDTH), style="cyan"),
    )
    if view.books:
        revenue = Text(f"revenue {view.books.sales.revenue:,} in {view.books.sales.orders:,} orders", style="cyan")
        grid.add_row("consumed", f"{view.books.events:,} events", "", revenue)
    return grid


def _stores(figures: Figures) -> RenderableType:
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    table.add_column("")
    for title in ("behind", "rows behind", "commit → readable p50", "p95", "changes written"):
        table.add_column(title, justify="right")
    table.add_row("capture", _late(figures.capture_lag.seconds, 3.0), f"{figures.capture_lag.rows:,}", "", "", "")
    for name, store in figures.stores.items():
        table.add_row(
            name,
            _late(store.lag.seconds, LATE_S.get(name, 3.0)),
            f"{store.lag.rows:,}",
            duration(store.recent.p50),
            duration(store.recent.p95),
            f"{store.written:,}",
        )
    return table


def _late(seconds: float, late_s: float) -> Text:
    return Text(duration(seconds) if seconds else "0", style="green" if seconds < late_s else "yellow")


def _memory(figures: Figures) -> RenderableType:
    held = "  ".join(f"{name} {mib:,}" for name, mib in figures.memory_mib.items())
    return Text(f"memory, MiB: {held}", style="dim") if held else Text()
