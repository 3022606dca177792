"""A live screen in a terminal, plain lines elsewhere."""

from dataclasses import replace
from decimal import Decimal
from io import StringIO

from rich.console import Console

from watershed.demo.books import BooksNow, Sales
from watershed.demo.figures import Lag, Spread
from watershed.demo.monitor import Figures, StoreFigures
from watershed.demo.screen import Screen, View, plain, render
from watershed.status.fill_progress import FillProgress


def view(phase: str = "workload", total_s: float | None = 120.0) -> View:
    stores = {
        "search": StoreFigures(1, Lag(0.4, 120), Spread(50, 0.35, 0.8, 1.0), 12_345, 1),
        "warehouse": StoreFigures(1, Lag(0.0, 0), Spread(0, None, None, None), 999, 0),
    }
    figures = Figures(86_500, 305.2, 1, Lag(0.2, 60), stores, {"capture": 95, "sinks": 1432})
    return View(phase, 65.0, total_s, 36_412, 301.0, figures, (0.0, 300.0, 305.0))


def text_of(width: int = 110) -> str:
    output = StringIO()
    Console(file=output, width=width).print(render(view()))
    return output.getvalue()


def test_the_live_screen_has_the_four_figures_of_each_store() -> None:
    text = text_of()
    line = next(line for line in text.splitlines() if line.startswith("search"))
    assert line.split() == ["search", "400", "ms", "120", "350", "ms", "800", "ms", "12,345"]
    assert "86,500 rows" in text and "305/s" in text and "36,412 rows" in text
    assert "01:05 / 02:00" in text
    assert "▁██" in text
    assert "sinks 1,432" in text


def test_the_live_screen_fits_an_ordinary_terminal() -> None:
    assert all(len(line.rstrip()) <= 100 for line in text_of(100).splitlines())


def test_a_plain_line_has_the_same_and_leaves_out_what_is_not_known() -> None:
    line = plain(view())
    assert line == (
        "workload 01:05/02:00  |  captured 86,500 at 305/s  |  behind: search 400 ms (120), warehouse 0"
        "  |  readable p50/p95: search 350 ms/800 ms"
    )
    assert plain(view("catching up", None)).startswith("catching up 01:05  |")


def test_without_a_terminal_a_phase_is_shown_once_in_a_while() -> None:
    output = StringIO()
    with Screen(Console(file=output, width=160)) as screen:
        screen.say("the shop has 50,000 rows")
        for _ in range(10):
            screen.show(view())
        screen.show(view("catching up", None))
    lines = output.getvalue().splitlines()
    assert lines[0] == "00:00  the shop has 50,000 rows"
    assert [line.split("  ")[1].split(" ")[0] for line in lines[1:]] == ["workload", "catching"]


def test_a_terminal_shows_the_latest_and_keeps_what_was_said() -> None:
    output = StringIO()
    console = Console(file=output, width=110, height=40, force_terminal=True, legacy_windows=False, _environ={})
    with Screen(console) as screen:
        screen.show(view())
        screen.say("kill -9 capture")
        screen.show(view("catching up", None))
        screen.close()
        screen.say("comparing")
    text = output.getvalue()
    assert text.index("workload") < text.index("kill -9 capture") < text.index("catching up") < text.index("comparing")


EXISTING = (
    FillProgress("table", "public.orders", "running", 300, 1000, 50.0),
    FillProgress("table", "public.products", "done", 200, 200, 0.0),
    FillProgress("sink", "warehouse", "waiting", 0, 0, 0.0, "Spark starts"),
)


def test_existing_rows_on_their_way_have_a_bar_each() -> None:
    output = StringIO()
    Console(file=output, width=110).print(render(replace(view(), existing=EXISTING)))
    lines = output.getvalue().splitlines()
    orders, products, warehouse = (
        next(line for line in lines if line.startswith(name))
        for name in ("public.orders", "public.products", "warehouse        ")
    )
    assert "30 % of 1,000 rows at 50/s, 14.0 s left" in orders
    assert "━" * 24 in products and "done, 200 rows" in products
    assert "waiting, 0 records, Spark starts" in warehouse


def test_a_plain_line_tells_existing_rows_that_are_not_there_yet() -> None:
    line = plain(replace(view(), existing=EXISTING))
    told = "public.orders 30 % of 1,000 rows at 50/s, 14.0 s left  |  warehouse waiting, 0 records, Spark starts"
    assert f"  |  {told}  |  readable p50/p95" in line
    assert "public.products" not in line


def test_the_consumer_of_events_has_its_line() -> None:
    told = replace(view(), books=BooksNow(1234, 0, Sales(12_345, Decimal("4567890.10"), 99)))
    output = StringIO()
    Console(file=output, width=100).print(render(told))
    assert "1,234 events" in output.getvalue()
    assert "revenue 4,567,890.10 in 12,345 orders" in output.getvalue()
    assert "1,234 events, revenue 4,567,890.10  |  readable" in plain(told)
