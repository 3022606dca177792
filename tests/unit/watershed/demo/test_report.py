"""The end of the demo names what differs, and counts it."""

from decimal import Decimal
from io import StringIO

from rich.console import Console

from cdc.model.events import TableId
from watershed.demo.books import Balance, BooksNow, Sales
from watershed.demo.figures import Spread
from watershed.demo.report import Run, print_balance, print_differences, print_figures
from watershed.verify.model import ColumnDifference, Difference, Kind, TableResult

ORDERS = TableId("public", "orders")


def console() -> tuple[Console, StringIO]:
    output = StringIO()
    return Console(file=output, width=140), output


def comparison(sink: str, *differences: Difference) -> TableResult:
    result = TableResult(sink, ORDERS, 1200, 1200)
    for one in differences:
        result.add(one)
    return result


def test_equal_stores_have_no_differences() -> None:
    made, output = console()
    assert print_differences(made, {"search": [comparison("search")], "cache": [comparison("cache")]}) == 0
    assert output.getvalue().count("1,200") == 4


def test_rows_that_differ_are_named_under_their_store() -> None:
    made, output = console()
    changed = Difference(b'{"id":17}', Kind.WRONG, (ColumnDifference("note", "'river'", "'changed'"),))
    gone = Difference(b'{"id":19}', Kind.MISSING)
    found = {"search": [comparison("search")], "cache": [comparison("cache", changed, gone)]}
    assert print_differences(made, found) == 2
    lines = output.getvalue().splitlines()
    at = lines.index('cache: public.orders {"id":17}: wrong column')
    assert lines[at + 1 : at + 3] == [
        "  note is 'changed' in the store, 'river' in the source",
        'cache: public.orders {"id":19}: missing',
    ]
    assert "1 missing, 1 wrong column" in output.getvalue()


def test_only_some_differences_are_shown_and_it_says_so() -> None:
    made, output = console()
    many = [Difference(f'{{"id":{number}}}'.encode(), Kind.MISSING) for number in range(100)]
    assert print_differences(made, {"cache": [comparison("cache", *many)]}) == 100
    assert output.getvalue().count(": missing") == 20
    assert "cache: public.orders: 80 more" in output.getvalue()


def test_figures_say_how_freshness_was_measured() -> None:
    made, output = console()
    spread = Spread(118, 0.3, 0.8, 1.1)
    parts = {"before the kills": spread, "from the first kill on": Spread(0, None, None, None)}
    print_figures(
        made,
        Run(
            seconds=120.0,
            committed_rows=36_000,
            transactions=12_001,
            captured_rows=42_000,
            first_row_s=24.4,
            loaded_s={"search": 12.0, "warehouse": 30.0},
            caught_up_s={"search": 0.8, "warehouse": 9.0},
            freshness={"search": parts, "warehouse": parts},
            by_position=frozenset({"warehouse"}),
            memory_mib={"capture": 95, "sinks": 1432},
        ),
    )
    text = output.getvalue()
    assert "42,000 records, 350/s over 120 s" in text
    assert "capture 95, sinks 1,432" in text
    assert "300 ms" in text and "–" in text
    assert "warehouse*" in text and "search*" not in text
    assert "by its sink's applied position" in text


def test_the_books_stand_beside_sql_and_what_is_wrong_is_named() -> None:
    made, output = console()
    sales, sql = Sales(12_345, Decimal("4567890.10"), 99), Sales(12_345, Decimal("4567890.11"), 99)
    print_balance(made, Balance(BooksNow(1234, 17, sales), sql, ("revenue: too little",)))
    lines = output.getvalue().splitlines()
    assert [line for line in lines if "revenue" in line and "4,567,890.10" in line and "4,567,890.11" in line]
    assert "1,234 events; 17 were received again and ignored" in lines
    assert "books: revenue: too little" in lines
