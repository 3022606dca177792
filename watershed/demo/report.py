"""The end of the demo: the table of differences, and the figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from watershed.demo.beside import BesideNow
from watershed.demo.books import Balance, Sales
from watershed.demo.drift import SideBySide
from watershed.demo.figures import Spread, duration
from watershed.demo.panels import render_lags
from watershed.verify.model import TableResult

EXAMPLES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of the run."""

    seconds: float  # of the workload
    committed_rows: int
    transactions: int
    captured_rows: int  # records published while the workload ran
    first_row_s: float  # from the demo's start
    loaded_s: Mapping[str, float]  # store → from capture's start until it held all existing rows
    caught_up_s: Mapping[str, float]  # store → from the workload's end until it had applied the last LSN
    freshness: Mapping[str, Mapping[str, Spread]]  # store → part of the run → spread
    by_position: frozenset[str]  # stores whose freshness is known from their sink's applied position
    memory_mib: Mapping[str, int]


def print_differences(console: Console, found: Mapping[str, Sequence[TableResult]]) -> int:
    """Prints the result of each comparison, by store and table. Returns the number of rows that differ."""
    table = Table(title="Every row and column against PostgreSQL", title_justify="left")
    for title in ("store", "table"):
        table.add_column(title)
    for title in ("source rows", "store rows", "differ"):
        table.add_column(title, justify="right")
    table.add_column("")
    total = 0
    for store, comparisons in found.items():
        for one in comparisons:
            total += one.drift
            table.add_row(
                store,
                str(one.table),
                f"{one.source_rows:,}",
                f"{one.store_rows:,}",
                _count(one.drift),
                one.remark,
            )
        table.add_section()
    console.print(table)
    for store, comparisons in found.items():
        for one in comparisons:
            for line in one.lines(EXAMPLES_SHOWN):
                console.print(Text(line, style="red"), soft_wrap=True)
            if one.drift > EXAMPLES_SHOWN:
                console.print(Text(f"{store}: {one.table}: {one.drift - EXAMPLES_SHOWN:,} more", style="red"))
    return total


def print_balance(console: Console, balance: Balance) -> None:
    """Prints the totals from events beside those of SQL, and their differences."""
    console.print()
    table = Table(title="The books, kept from events alone", title_justify="left")
    table.add_column("")
    for title in ("by events", "in SQL"):
        table.add_column(title, justify="right")
    books = balance.books
    for name, by_events, by_sql in zip(Sales._fields, books.sales, balance.sql, strict=True):
        table.add_row(name, Text(f"{by_events:,}", style="green" if by_events == by_sql else "bold red"), f"{by_sql:,}")
    console.print(table)
    console.print(Text(f"{books.events:,} events; {books.repeated:,} were received again and ignored", style="dim"))
    for problem in balance.problems:
        console.print(Text(f"books: {problem}", style="red"), soft_wrap=True)


def print_side_by_side(console: Console, found: SideBySide) -> None:
    """Prints how far the cache of an application that writes twice has drifted."""
    console.print()
    table = Table(title="Two writes without a log, beside the log", title_justify="left")
    table.add_column("cache of the same orders")
    for title in ("orders", "differ from PostgreSQL"):
        table.add_column(title, justify="right")
    table.add_row("written by the application after its COMMIT", f"{found.orders:,}", _count(found.naive))
    table.add_row("kept by Watershed", f"{found.orders:,}", _count(found.kept))
    console.print(table)


def print_lags(console: Console, now: BesideNow) -> None:
    """Prints the lag chart of the whole run."""
    if now.lags:
        console.print()
        console.print(Text("Lag of the stores"))
        console.print(render_lags(now))


def print_figures(console: Console, run: Run) -> None:
    console.print()
    table = Table(title="Figures", title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column()
    rate = run.captured_rows / run.seconds if run.seconds else 0.0
    table.add_row("committed", f"{run.committed_rows:,} row changes in {run.transactions:,} transactions")
    table.add_row("captured", f"{run.captured_rows:,} records, {rate:,.0f}/s over {run.seconds:.0f} s")
    table.add_row("first synced row", f"{run.first_row_s:.1f} s after the start")
    table.add_row("memory at most, MiB", ", ".join(f"{name} {mib:,}" for name, mib in run.memory_mib.items()))
    console.print(table)
    console.print()
    stores = Table(title="Freshness, commit to readable", title_justify="left")
    stores.add_column("store")
    stores.add_column("part of the run")
    for title in ("rows timed", "p50", "p95", "worst", "existing rows after", "last LSN after"):
        stores.add_column(title, justify="right")
    for store, parts in run.freshness.items():
        for place, (part, spread) in enumerate(parts.items()):
            stores.add_row(
                (store + ("*" if store in run.by_position else "")) if place == 0 else "",
                part,
                f"{spread.count}",
                duration(spread.p50),
                duration(spread.p95),
                duration(spread.worst),
                duration(run.loaded_s.get(store)) if place == 0 else "",
                duration(run.caught_up_s.get(store)) if place == 0 else "",
            )
        stores.add_section()
    console.print(stores)
    if run.by_position:
        console.print(Text("* by its sink's applied position; the others by reading the row itself", style="dim"))


def _count(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "green")
