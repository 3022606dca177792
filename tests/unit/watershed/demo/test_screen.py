"""A live screen in a terminal, plain lines elsewhere, and tables at the end that name what differs and count it."""

from decimal import Decimal
from io import StringIO

from rich.console import Console, RenderableType

from cdc.model.events import TableId
from watershed.demo.books import Ledger, Sales
from watershed.demo.charts import Kill, LagChart, Spread
from watershed.demo.followed import Seen
from watershed.demo.screen import (
    DemoScreen,
    StoreFigures,
    flow_lines,
    print_balance,
    print_figures,
    print_results,
    render_lags,
    render_lines,
    render_places,
    snapshot_lines,
)
from watershed.status.model import (
    BrokerStatus,
    CaptureStatus,
    SinkStatus,
    SnapshotStatus,
    SourceStatus,
    Status,
    TableStatus,
)
from watershed.status.screen import sinks_table
from watershed.verify.model import ColumnDifference, DriftKind, RowDifference, TableResult

ORDERS = TableId("public", "orders")


def sink(name: str, lag_s: float, records: int, written: int) -> SinkStatus:
    return SinkStatus(
        sink=name,
        type=name,
        generation=1,
        epoch=1,
        applied_lsn="0/1",
        lag_bytes=0,
        lag_records=records,
        lag_seconds=lag_s,
        unread_seconds=None,
        freshness_seconds=None,
        silent_seconds=None,
        waiting_seconds=0.0,
        written=written,
        stale=0,
        dead_letters=0,
        state="",
        error="",
        next="",
    )


def table(name: str, status: str, rows: int, total: int, left_s: float | None = None) -> TableStatus:
    snapshot = SnapshotStatus(
        status=status, rows=rows, rows_total=total, rows_per_second=50.0, seconds_left=left_s, message=""
    )
    return TableStatus(
        table=name,
        state="snapshotting",
        message="",
        next="",
        starts_by_itself=False,
        dead_letters=0,
        skipped=0,
        snapshot=snapshot,
    )


STATUS = Status(
    prefix="shop",
    unix_seconds=0.0,
    source=SourceStatus(is_reachable=True),
    brokers=BrokerStatus(is_reachable=True),
    capture=CaptureStatus(state="streaming", seq=86_500, lag_seconds=0.2, lost_events=0),
    tables=(table("public.products", "done", 200, 200),),
    sinks=(sink("search", 0.4, 120, 12_345), sink("warehouse", 0.0, 0, 999)),
    problems=(),
)
NEW, OLD = Seen("paid", "change 7"), Seen("new", "change 6")


def chart() -> LagChart:
    made = LagChart()
    for second, lag in enumerate((0.0, 2.0, 4.0)):
        made.observe(second, "cache", lag)
        made.observe(second, "warehouse", lag * 5)
    made.kill(Kill(1.0, "capture"))
    return made


def lines_of(*parts: RenderableType, phase: str = "workload", width: int = 110) -> list[str]:
    """The screen without a terminal, where each line stays."""
    output = StringIO()
    DemoScreen(Console(file=output, width=width)).show(phase, 65.0, 120.0, *parts)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def flow(status: Status = STATUS) -> RenderableType:
    recent = {"search": Spread(50, 0.35, 0.8, 1.0), "warehouse": Spread(0, None, None, None)}
    return render_lines([*flow_lines(status, 36_412, 301.0, 305.2, recent), *snapshot_lines(status)])


def test_the_screen_has_the_figures_of_each_store() -> None:
    lines = lines_of(sinks_table(STATUS), flow())
    assert next(line for line in lines if line.startswith("search")).split() == [
        *("search", "1", "0/1", "0", "B", "120", "0.40", "s", "?", "12,345", "0", "0")
    ]
    text = "\n".join(lines)
    assert "86,500 records at 305/s" in text and "36,412 rows at 301/s" in text
    assert "commit → readable p50 / p95  search 350 ms / 800 ms" in text, "the warehouse has none yet"
    assert "workload  01:05 / 02:00" in lines
    assert "public.products" not in text, "its existing rows are read"


def test_the_screen_fits_an_ordinary_terminal() -> None:
    parts = (sinks_table(STATUS), flow(), render_places({"row": NEW, "search": OLD}), render_lags(chart()))
    assert all(len(line) <= 100 for line in lines_of(*parts, width=100))


def test_without_a_terminal_a_phase_is_shown_once_in_a_while() -> None:
    output = StringIO()
    screen = DemoScreen(Console(file=output, width=160))
    screen.say("the shop has 50,000 rows")
    for _ in range(10):
        screen.show("workload", 65.0, 120.0, flow())
    screen.show("catching up", 65.0, None, flow())
    screen.show("comparing public.orders", 1.0)
    lines = output.getvalue().splitlines()
    assert lines[0] == "00:00  the shop has 50,000 rows"
    assert [line for line in lines if "01:05" in line] == ["workload  01:05 / 02:00", "catching up  01:05"]
    assert "comparing" not in output.getvalue(), "a phase without parts is for terminals"


def test_a_terminal_shows_the_latest_and_keeps_what_was_said() -> None:
    output = StringIO()
    console = Console(file=output, width=110, height=40, force_terminal=True, legacy_windows=False, _environ={})
    screen = DemoScreen(console)
    screen.show("workload", 65.0, 120.0, flow())
    screen.say("kill -9 capture")
    screen.show("catching up", 65.0, None, flow())
    screen.close()
    screen.say("comparing")
    text = output.getvalue()
    assert text.index("workload") < text.index("kill -9 capture") < text.index("catching up") < text.index("comparing")


def test_existing_rows_on_their_way_have_a_line_each() -> None:
    running = table("public.orders", "running", 300, 1000, left_s=14.0)
    status = STATUS.model_copy(update={"tables": (running, *STATUS.tables)})
    progress = "running, 300 rows, 30 % of about 1,000, 50/s, 14 s left"
    assert snapshot_lines(status) == [("public.orders", progress)]
    assert progress in next(line for line in lines_of(flow(status)) if line.startswith("public.orders"))


def ledger() -> Ledger:
    made = Ledger(Sales(12_345, Decimal("4567890.10"), 99))
    made.events, made.repeated = 1234, 17
    return made


def test_the_consumer_of_events_has_its_line() -> None:
    assert str(ledger()) == "1,234 events: revenue 4,567,890.10 in 12,345 orders"


def test_the_order_has_a_line_for_each_place() -> None:
    places = {"row": NEW, "event": NEW, "search": OLD, "cache": NEW, "warehouse": None}
    lines = lines_of(render_places(places))
    at = next(number for number, line in enumerate(lines) if "in every place" in line)
    assert [line.split(maxsplit=1) for line in lines[at + 1 : at + 6]] == [
        ["row", "paid, change 7"],
        ["event", "paid, change 7"],
        ["search", "new, change 6"],
        ["cache", "paid, change 7"],
        ["warehouse", "not there yet"],
    ]


def test_marks_are_below_the_bars() -> None:
    lines = lines_of(render_lags(chart()))
    bars = next(line for line in lines if line.startswith("cache      ▁"))
    mark = next(line for line in lines if "kill -9" in line)
    assert mark.index("▲") == bars.index("▅")
    assert bars.endswith("≤ 4.0 s")


# ---- the end


def console() -> tuple[Console, StringIO]:
    output = StringIO()
    return Console(file=output, width=140), output


def result(sink: str, *differences: RowDifference) -> TableResult:
    made = TableResult(sink, ORDERS, 1200, 1200)
    for one in differences:
        made.add(one)
    return made


def test_rows_that_differ_are_counted_and_named_under_their_store() -> None:
    made, output = console()
    changed = RowDifference(b'{"id":17}', DriftKind.WRONG, (ColumnDifference("note", "'river'", "'changed'"),))
    gone = RowDifference(b'{"id":19}', DriftKind.MISSING)
    print_results(made, [result("search"), result("cache", changed, gone)])
    lines = output.getvalue().splitlines()
    assert output.getvalue().count("1,200") == 4
    at = lines.index('cache: public.orders {"id":17}: wrong column')
    assert lines[at + 1 : at + 3] == [
        "  note is 'changed' in the store, 'river' in the source",
        'cache: public.orders {"id":19}: missing',
    ]
    assert "1 missing, 1 wrong column" in output.getvalue()


def test_only_some_differences_are_shown_and_it_says_so() -> None:
    made, output = console()
    many = [RowDifference(f'{{"id":{number}}}'.encode(), DriftKind.MISSING) for number in range(100)]
    print_results(made, [result("cache", *many)])
    assert output.getvalue().count(": missing") == 20
    assert "cache: public.orders: 80 more" in output.getvalue()


def test_figures_show_each_store_and_the_chart() -> None:
    made, output = console()
    figures = {"captured": "42,000 records, 350/s over 120 s", "memory, MiB": "capture 95, sinks 1,432"}
    stores = [
        StoreFigures("search", Spread(118, 0.3, 0.8, 1.1), 12.0, 0.8),
        StoreFigures("warehouse", Spread(), None, None),
    ]
    print_figures(made, chart(), figures, stores)
    text = output.getvalue()
    assert "42,000 records, 350/s over 120 s" in text
    assert "capture 95, sinks 1,432" in text
    assert "\nLag of the stores\n" in text and "kill -9: capture at 1.0 s" in text
    search = next(line for line in text.splitlines() if line.startswith("│ search"))
    cells = [cell.strip() for cell in search.strip("│").split("│")]
    assert cells == ["search", "118", "300 ms", "800 ms", "1.1 s", "12.0 s", "800 ms"]


def test_the_books_stand_beside_sql_and_what_is_wrong_is_named() -> None:
    made, output = console()
    print_balance(made, ledger(), Sales(12_345, Decimal("4567890.11"), 99))
    lines = output.getvalue().splitlines()
    assert [line for line in lines if "revenue" in line and "4,567,890.10" in line and "4,567,890.11" in line]
    assert "1,234 events; 17 were received again and ignored" in lines
    assert "books: revenue: 4,567,890.10 by events, 4,567,890.11 in SQL" in lines
