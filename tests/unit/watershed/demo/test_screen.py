"""A live screen in a terminal, plain lines elsewhere, and tables at the end that name what differs and count it."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO

from rich.console import Console

from cdc.model.events import TableId
from watershed.demo.books import Balance, Ledger, Sales
from watershed.demo.charts import Kill, LagChart, Spread
from watershed.demo.followed import Seen
from watershed.demo.screen import (
    DemoScreen,
    Figures,
    View,
    described,
    hour_text,
    plain,
    print_balance,
    print_figures,
    print_results,
    render,
)
from watershed.demo.view_watch import Hour, ViewsNow
from watershed.status.model import (
    BrokerStatus,
    CaptureStatus,
    SinkStatus,
    SnapshotStatus,
    SourceStatus,
    Status,
    TableStatus,
)
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
DOCUMENT = {
    "status": "paid",
    "note": "change 7",
    "customer": {"name": "Ada"},
    "lines": [{"quantity": 8, "product": "amber", "unit_price": 25.00}] * 4,
}
VIEWS = ViewsNow(
    DOCUMENT,
    (Hour(datetime(2026, 9, 1, 12, tzinfo=UTC), Decimal("1225.00"), Decimal("1200.00")),),
    41,
    ("order 3 meets “new”",),
)


def view(phase: str = "workload", total_s: float | None = 120.0) -> View:
    recent = {"search": Spread(50, 0.35, 0.8, 1.0), "warehouse": Spread(0, None, None, None)}
    return View(phase, 65.0, total_s, STATUS, (36_412, 301.0), 305.2, recent=recent, memory_mib={"sinks": 1432})


def chart() -> LagChart:
    made = LagChart()
    for second, lag in enumerate((0.0, 2.0, 4.0)):
        made.observe(second, {"cache": lag, "warehouse": lag * 5})
    made.kill(Kill(1.0, "capture"))
    return made


def lines_of(shown: View, width: int = 110) -> list[str]:
    output = StringIO()
    Console(file=output, width=width).print(render(shown))
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_the_live_screen_has_the_figures_of_each_store() -> None:
    lines = lines_of(view())
    line = next(line for line in lines if line.startswith("search"))
    assert line.split() == ["search", "400", "ms", "120", "350", "ms", "800", "ms", "12,345"]
    text = "\n".join(lines)
    assert "86,500 records at 305/s" in text and "36,412 rows at 301/s" in text
    assert "01:05 / 02:00" in text
    assert "sinks 1,432" in text
    assert "public.products" not in text, "its existing rows are read"


def test_the_live_screen_fits_an_ordinary_terminal() -> None:
    full = replace(view(), places={"row": NEW, "search": OLD}, chart=chart(), ledger=ledger())
    assert all(len(line) <= 100 for line in lines_of(full, 100))


def test_a_plain_line_has_the_same_and_leaves_out_what_is_not_known() -> None:
    assert list(plain(view())) == [
        "workload 01:05/02:00",
        "search: 400 ms behind (120 records), readable p50/p95 350 ms/800 ms",
        "warehouse: 0 ms behind (0 records)",
        "committed: 36,412 rows at 301/s",
        "captured: 86,500 records at 305/s",
    ]
    assert next(plain(view("catching up", None))) == "catching up 01:05"


def test_without_a_terminal_a_phase_is_shown_once_in_a_while() -> None:
    output = StringIO()
    with DemoScreen(Console(file=output, width=160)) as screen:
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
    with DemoScreen(console) as screen:
        screen.show(view())
        screen.say("kill -9 capture")
        screen.show(view("catching up", None))
        screen.close()
        screen.say("comparing")
    text = output.getvalue()
    assert text.index("workload") < text.index("kill -9 capture") < text.index("catching up") < text.index("comparing")


def test_existing_rows_on_their_way_have_a_line_each_and_a_part_of_the_plain_line() -> None:
    running = table("public.orders", "running", 300, 1000, left_s=14.0)
    status = STATUS.model_copy(update={"tables": (running, *STATUS.tables)})
    shown = replace(view(), status=status)
    progress = "30 % of 1,000 rows at 50/s, 14.0 s left"
    assert progress in next(line for line in lines_of(shown) if line.startswith("public.orders"))
    assert f"public.orders: {progress}" in plain(shown)
    waiting = table("public.orders", "waiting", 0, 0)
    assert "public.orders: waiting, 0 rows" in plain(
        replace(view(), status=STATUS.model_copy(update={"tables": (waiting,)}))
    )


def ledger() -> Ledger:
    made = Ledger(Sales(12_345, Decimal("4567890.10"), 99))
    made.events, made.repeated = 1234, 17
    return made


def test_the_consumer_of_events_has_its_line() -> None:
    shown = replace(view(), ledger=ledger())
    text = "1,234 events: revenue 4,567,890.10 in 12,345 orders"
    assert f"consumed   {text}" in lines_of(shown, 100)
    assert f"consumed: {text}" in plain(shown)


def test_the_order_has_a_line_for_each_place() -> None:
    shown = replace(view(), places={"row": NEW, "event": NEW, "search": OLD, "cache": NEW, "warehouse": None})
    lines = lines_of(shown)
    at = next(number for number, line in enumerate(lines) if "in every place" in line)
    assert [line.split(maxsplit=1) for line in lines[at + 1 : at + 6]] == [
        ["row", "paid, change 7"],
        ["event", "paid, change 7"],
        ["search", "new, change 6"],
        ["cache", "paid, change 7"],
        ["warehouse", "not there yet"],
    ]
    assert "changes of one order: row 7, event 7, search 6, cache 7, warehouse –" in plain(shown)


def test_marks_are_below_the_bars() -> None:
    lines = lines_of(replace(view(), chart=chart()))
    bars = next(line for line in lines if line.startswith("cache      ▁"))
    mark = next(line for line in lines if "kill -9" in line)
    assert mark.index("▲") == bars.index("▅")
    assert bars.endswith("≤ 4.0 s")


def test_views_show_the_document_the_corrections_and_the_alerts() -> None:
    shown = replace(view(), views=VIEWS)
    document = "paid, change 7, of Ada: " + "; ".join(["8 × amber at 25.0"] * 3) + "; 1 more"
    revenue = "2026-09-01 12:00  1,225.00, corrected from 1,200.00"
    alerts = "41 orders meet a saved search; order 3 meets “new”"
    found = lines_of(shown, 120)
    assert [f"document   {document}", f"revenue    {revenue}", f"alerts     {alerts}"] == found[-5:-2]
    assert list(plain(shown))[-3:] == [f"document: {document}", f"revenue: {revenue}", f"alerts: {alerts}"]


def test_what_is_not_there_is_said() -> None:
    assert described(None) == "not there yet"
    assert described(DOCUMENT | {"customer": None, "lines": []}) == "paid, change 7, of nobody: no lines"
    assert hour_text(Hour(datetime(2026, 9, 1, 12, tzinfo=UTC), None, Decimal(5))).endswith(
        "no revenue any more, corrected from 5"
    )


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


def test_figures_show_the_parts_of_the_run_and_the_chart() -> None:
    made, output = console()
    parts = {"before the kills": Spread(118, 0.3, 0.8, 1.1), "from the first kill on": Spread(0, None, None, None)}
    run = Figures(
        seconds=120.0,
        committed_rows=36_000,
        transactions=12_001,
        captured_rows=42_000,
        first_row_s=24.4,
        loaded_s={"search": 12.0},
        caught_up_s={"search": 0.8},
        freshness={"search": parts, "warehouse": parts},
        memory_mib={"capture": 95, "sinks": 1432},
    )
    print_figures(made, run, chart())
    text = output.getvalue()
    assert "42,000 records, 350/s over 120 s" in text
    assert "capture 95, sinks 1,432" in text
    assert "\nLag of the stores\n" in text and "kill -9: capture at 1.0 s" in text
    search = next(line for line in text.splitlines() if line.startswith("│ search"))
    cells = [cell.strip() for cell in search.strip("│").split("│")]
    assert cells == ["search", "before the kills", "118", "300 ms", "800 ms", "1.1 s", "12.0 s", "800 ms"]


def test_the_books_stand_beside_sql_and_what_is_wrong_is_named() -> None:
    made, output = console()
    sql = Sales(12_345, Decimal("4567890.11"), 99)
    print_balance(made, Balance(ledger(), sql, ("revenue: too little",)))
    lines = output.getvalue().splitlines()
    assert [line for line in lines if "revenue" in line and "4,567,890.10" in line and "4,567,890.11" in line]
    assert "1,234 events; 17 were received again and ignored" in lines
    assert "books: revenue: too little" in lines
