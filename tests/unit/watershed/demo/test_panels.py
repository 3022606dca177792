"""The followed order, the views and the lag chart on the screen and in a plain line."""

from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO

from rich.console import Console, Group

from watershed.demo.beside import BesideNow
from watershed.demo.followed import FollowedNow, Seen
from watershed.demo.lag_chart import LagLine
from watershed.demo.panels import described, hour_text, plain_beside, render_beside
from watershed.demo.view_figures import Hour, ViewsNow

NEW, OLD = Seen("paid", "change 7"), Seen("new", "change 6")
DOCUMENT = {
    "status": "paid",
    "note": "change 7",
    "customer": {"name": "Ada"},
    "lines": [{"quantity": 8, "product": "amber", "unit_price": 25.00}] * 4,
}
NOW = BesideNow(
    FollowedNow({"row": NEW, "event": NEW, "search": OLD, "cache": NEW, "warehouse": None}),
    "behind; a column is a second",
    [LagLine("cache", "▁▂█", 4.0), LagLine("warehouse", "▁▁█", 21.0)],
    " ▲  kill -9: capture at 1.0 s",
    ViewsNow(
        DOCUMENT,
        (Hour(datetime(2026, 9, 1, 12, tzinfo=UTC), Decimal("1225.00"), Decimal("1200.00")),),
        41,
        ("order 3 meets “new”",),
        0,
    ),
)


def text() -> list[str]:
    output = StringIO()
    Console(file=output, width=120).print(Group(*render_beside(NOW)))
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_the_order_has_a_line_for_each_place() -> None:
    assert [
        line.split(maxsplit=1) for line in text() if line.startswith(("row", "event", "search", "warehouse  n"))
    ] == [
        ["row", "paid, change 7"],
        ["event", "paid, change 7"],
        ["search", "new, change 6"],
        ["warehouse", "not there yet"],
    ]


def test_places_that_have_the_rows_content_are_current() -> None:
    assert NOW.followed
    assert [place for place in NOW.followed.places if NOW.followed.is_current(place)] == ["row", "event", "cache"]


def test_marks_are_below_the_bars() -> None:
    lines = text()
    bars = next(line for line in lines if line.startswith("cache      ▁"))
    mark = next(line for line in lines if "kill -9" in line)
    assert mark.index("▲") == bars.index("▂")
    assert bars.endswith("≤ 4.0 s")


def test_views_show_the_document_the_corrections_and_the_alerts() -> None:
    lines = text()
    assert "document  paid, change 7, of Ada: " + "; ".join(["8 × amber at 25.0"] * 3) + "; 1 more" in lines
    assert "revenue   2026-09-01 12:00  1,225.00, corrected from 1,200.00" in lines
    assert "alerts    41 orders meet a saved search" in lines
    assert "          order 3 meets “new”" in lines


def test_a_plain_line_has_the_same() -> None:
    assert plain_beside(NOW) == [
        "changes of one order: row 7, event 7, search 6, cache 7, warehouse –",
        "document: " + described(DOCUMENT)[0],
        "revenue: 2026-09-01 12:00  1,225.00, corrected from 1,200.00",
        "41 alerts; order 3 meets “new”",
    ]
    assert plain_beside(BesideNow()) == render_beside(BesideNow()) == []


def test_what_is_not_there_is_said() -> None:
    assert described(None) == ["not there yet"]
    assert described(DOCUMENT | {"customer": None, "lines": []}) == ["paid, change 7, of nobody: no lines"]
    assert hour_text(Hour(datetime(2026, 9, 1, 12, tzinfo=UTC), None, Decimal(5))).endswith(
        "no revenue any more, corrected from 5"
    )
