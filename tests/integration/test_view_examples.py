"""The examples of the recipes' page: changes of the base, and the rows that a view has after each, written out here."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pytest

from tests.conftest import PostgresServer, new_database
from tests.support.view_tables import ALL, recipes
from tests.support.views import Views, base_config, base_sink, until_idle

pytestmark = pytest.mark.whole

RECIPES: Final = recipes()
Rows = Sequence[dict[str, Any]]


class Case(NamedTuple):
    """`steps`: statements, in which @10:30 is a time of the first day of 2026; and the rows after them, in the order
    of the view's key. A row may have more columns than those that are named."""

    view: str
    steps: Sequence[tuple[str, Rows]]


def at(clock: str) -> str:
    return f"2026-01-01T{clock}:00+00:00"


def _order(number: int, *lines: dict[str, Any]) -> dict[str, Any]:
    return {"id": number, "placed_at": at("10:00"), "lines": list(lines)}


def _post(number: int, clock: str, text: str) -> dict[str, Any]:
    return {"post": number, "author": 2, "at": at(clock), "text": text}


def _session(first: str, last: str, clicks: int) -> dict[str, Any]:
    return {"from": at(first), "to": at(last), "clicks": clicks}


LINE: Final = {"no": 1, "sku": "s1", "price": 5}
DOCUMENTS: Final = (
    Case(
        "nested_customers",
        [
            (
                "INSERT INTO customers VALUES (7, 'Ada'), (8, 'Bob'); INSERT INTO orders VALUES (1, 7, @10:00);"
                "INSERT INTO kept.lines VALUES (1, 1, 's1', 5)",
                [{"id": 7, "name": "Ada", "orders": [_order(1, LINE)]}, {"id": 8, "name": "Bob", "orders": []}],
            ),
            ("UPDATE orders SET customer_id = 8", [{"id": 7, "orders": []}, {"id": 8, "orders": [_order(1, LINE)]}]),
            ("DELETE FROM kept.lines", [{"id": 7, "orders": []}, {"id": 8, "orders": [_order(1)]}]),
            ("DELETE FROM orders", [{"id": 7, "orders": []}, {"id": 8, "orders": []}]),
            ("DELETE FROM customers WHERE id = 7", [{"id": 8, "orders": []}]),
        ],
    ),
    Case(
        "timelines",
        [
            (
                "INSERT INTO users VALUES (1, 'Ada'); INSERT INTO follows VALUES (1, 2);"
                "INSERT INTO posts VALUES (10, 2, @10:00, 'a'), (11, 2, @10:01, 'b'), (12, 3, @10:02, 'c')",
                [{"user_id": 1, "posts": [_post(11, "10:01", "b"), _post(10, "10:00", "a")]}],
            ),
            ("DELETE FROM posts WHERE id = 11", [{"user_id": 1, "posts": [_post(10, "10:00", "a")]}]),
            ("DELETE FROM follows", [{"user_id": 1, "posts": []}]),
        ],
    ),
)
AGGREGATES: Final = (
    Case(
        "visitors_of_pages",
        [
            (
                "INSERT INTO clicks VALUES (1, 1, @10:00, '/a'), (2, 2, @10:00, '/a'), (3, 2, @10:00, '/a')",
                [
                    {
                        "url": "/a",
                        "clicks": 3,
                        "visitors": 2,
                        "sketch": {"787": 3, "800": 2},
                        "visitors_estimated": 2,
                    }
                ],
            ),
            ("DELETE FROM clicks WHERE id = 1", [{"url": "/a", "clicks": 2, "visitors": 1, "visitors_estimated": 1}]),
        ],
    ),
    Case(
        "payments_of_customers",
        [
            (
                "INSERT INTO payments VALUES (1, 1, @10:00, 'paid', 10), (2, 1, @10:01, 'paid', 30)",
                [{"customer_id": 1, "payments": 2, "total": 40, "median": 20, "p95": 29, "largest": [2, 1]}],
            ),
            (
                "DELETE FROM payments WHERE id = 2",
                [{"customer_id": 1, "payments": 1, "total": 10, "median": 10, "p95": 10, "largest": [1]}],
            ),
        ],
    ),
)
JOINS: Final = (
    Case(
        "taxed_purchases",
        [
            (
                "INSERT INTO purchases VALUES (1, 'DE', '2020-06-30Z', 100);"
                "INSERT INTO rates VALUES ('DE', '2007-01-01Z', 0.19)",
                [{"id": 1, "rate_then": 0.19, "rate_newest": 0.19}],
            ),
            (
                "INSERT INTO rates VALUES ('DE', '2020-07-01Z', 0.16);"
                "INSERT INTO purchases VALUES (2, 'DE', '2020-07-02Z', 100)",
                [
                    {"id": 1, "rate_then": 0.19, "rate_newest": 0.16},
                    {"id": 2, "rate_then": 0.16, "rate_newest": 0.16},
                ],
            ),
            (  # entered late, valid from before the first purchase
                "INSERT INTO rates VALUES ('DE', '2020-06-01Z', 0.18)",
                [
                    {"id": 1, "rate_then": 0.18, "rate_newest": 0.16},
                    {"id": 2, "rate_then": 0.16, "rate_newest": 0.16},
                ],
            ),
        ],
    ),
    Case(
        "search_results",
        [
            ("INSERT INTO searches VALUES (1, 7, @10:00, 'w')", [{"id": 1, "clicks": 0, "urls": []}]),
            (
                "INSERT INTO clicks VALUES (5, 7, @10:04, '/a'), (6, 7, @10:11, '/b'), (7, 8, @10:05, '/c')",
                [{"id": 1, "clicks": 1, "first_click": at("10:04"), "urls": ["/a"]}],
            ),
            (  # a click that comes late
                "INSERT INTO clicks VALUES (8, 7, @10:02, '/d')",
                [{"id": 1, "clicks": 2, "first_click": at("10:02"), "urls": ["/d", "/a"]}],
            ),
        ],
    ),
    Case(
        "clicked_searches",
        [
            ("INSERT INTO searches VALUES (1, 7, @10:00, 'w')", []),
            (
                "INSERT INTO clicks VALUES (5, 7, @10:04, '/a'), (6, 7, @10:11, '/b')",
                [{"search": 1, "click": 5, "words": "w", "url": "/a", "after": "00:04:00"}],
            ),
            ("UPDATE clicks SET at = @10:10 WHERE id = 6", [{"search": 1, "click": 5}, {"search": 1, "click": 6}]),
        ],
    ),
)
HOPS: Final = ("09:15", "09:30", "09:45", "10:00")
WINDOWS: Final = (
    Case(
        "revenue_by_hour",
        [
            (
                "INSERT INTO payments VALUES (1, 1, @10:05, 'paid', 20)",
                [{"hour": at("10:00"), "payments": 1, "revenue": 20}],
            ),
            (  # comes late
                "INSERT INTO payments VALUES (3, 1, @11:00, 'paid', 1), (2, 1, @10:59, 'paid', 5)",
                [
                    {"hour": at("10:00"), "payments": 2, "revenue": 25, "largest": 20},
                    {"hour": at("11:00"), "payments": 1, "revenue": 1, "largest": 1},
                ],
            ),
            (
                "UPDATE payments SET status = 'refunded' WHERE id IN (1, 3)",
                [{"hour": at("10:00"), "payments": 1, "revenue": 5, "largest": 5}],
            ),
            ("UPDATE payments SET at = NULL", []),
        ],
    ),
    Case(
        "payments_without_time",
        [
            (
                "INSERT INTO payments VALUES (1, 1, NULL, 'paid', 3), (2, 1, 'infinity', 'paid', 4)",
                [{"id": 1}, {"id": 2}],
            ),
            ("UPDATE payments SET at = @10:00 WHERE id = 1", [{"id": 2, "amount": 4}]),
        ],
    ),
    Case(
        "revenue_hopping",
        [
            (
                "INSERT INTO payments VALUES (1, 1, @10:05, 'paid', 20), (2, 1, @09:20, 'failed', 3)",
                [{"begins": at(clock), "payments": 1, "revenue": 20} for clock in HOPS],
            ),
            (
                "UPDATE payments SET status = 'paid' WHERE id = 2",
                [
                    {"begins": at("08:30"), "payments": 1, "revenue": 3},
                    {"begins": at("08:45"), "payments": 1, "revenue": 3},
                    {"begins": at("09:00"), "payments": 1, "revenue": 3},
                    {"begins": at("09:15"), "payments": 2, "revenue": 23},
                    *({"begins": at(clock), "payments": 1, "revenue": 20} for clock in HOPS[1:]),
                ],
            ),
        ],
    ),
    Case(
        "paid_within_hour",
        [
            (
                "INSERT INTO payments VALUES (1, 1, @10:00, 'paid', 10), (2, 1, @10:30, 'paid', 20),"
                "(3, 1, @11:00, 'paid', 5), (4, 2, @10:30, 'paid', 100)",
                [{"id": number, "within_hour": value} for number, value in ((1, 10), (2, 30), (3, 25), (4, 100))],
            ),
            (  # comes late
                "INSERT INTO payments VALUES (5, 1, @10:15, 'paid', 1)",
                [
                    {"id": number, "within_hour": value}
                    for number, value in ((1, 10), (2, 31), (3, 26), (4, 100), (5, 11))
                ],
            ),
        ],
    ),
    Case(
        "sessions",
        [
            (
                "INSERT INTO users VALUES (7, 'Ada');"
                "INSERT INTO clicks VALUES (1, 7, @10:00, '/a'), (2, 7, @10:50, '/a')",
                [{"user_id": 7, "sessions": [_session("10:00", "10:00", 1), _session("10:50", "10:50", 1)]}],
            ),
            (  # comes late, and joins both
                "INSERT INTO clicks VALUES (3, 7, @10:25, '/a')",
                [{"user_id": 7, "sessions": [_session("10:00", "10:50", 3)]}],
            ),
            (
                "DELETE FROM clicks WHERE id = 3",
                [{"user_id": 7, "sessions": [_session("10:00", "10:00", 1), _session("10:50", "10:50", 1)]}],
            ),
        ],
    ),
)
READINGS: Final = (
    "INSERT INTO readings VALUES (1, 1, @03:00, @03:10, @10:10, 1), (2, 1, @10:00, @10:30, @10:30, 3),"
    "(3, 1, '1970-01-01Z', @10:10, @10:10, 9), (4, 1, NULL, @10:10, @10:10, 9)"
)
CLOCKS: Final = (
    Case(
        "readings_by_quarter",
        [
            (READINGS, [{"device_id": 1, "quarter": at("10:00"), "readings": 2, "mean": 2, "stragglers": 1}]),
            (
                "UPDATE readings SET received_at = @10:19 WHERE id = 2",  # now its clock is 11 minutes fast
                [
                    {"device_id": 1, "quarter": at("09:45"), "readings": 1, "mean": 3, "stragglers": 1},
                    {"device_id": 1, "quarter": at("10:00"), "readings": 1, "mean": 1, "stragglers": 0},
                ],
            ),
        ],
    ),
    Case("absurd_readings", [(READINGS, [{"id": 3}, {"id": 4, "measured_at": None}])]),
)
STORED: Final = (
    Case(
        "alerts",
        [
            (
                "INSERT INTO saved_searches VALUES (1, 'bikes', 300, 'red -old', '$ ? (@.gears > 3)');"
                """INSERT INTO documents VALUES (9, 'bikes', 'Red bike', 280, '{"gears": 7}')""",
                [{"search": 1, "document": 9, "title": "Red bike", "price": 280}],
            ),
            ("UPDATE documents SET price = 320", []),
            ("UPDATE saved_searches SET price_max = NULL", [{"search": 1, "document": 9, "price": 320}]),
            ("UPDATE documents SET title = 'Red old bike'", []),
            ("INSERT INTO saved_searches VALUES (2, 'bikes')", [{"search": 2, "document": 9}]),
            ("DELETE FROM saved_searches", []),
        ],
    ),
)
FAILURES: Final = (
    "INSERT INTO customers VALUES (1, 'Ada'); INSERT INTO payments VALUES "
    "(1, 1, @10:00, 'failed', 1), (2, 1, @10:05, 'failed', 1), (3, 1, @10:20, 'failed', 1)"
)
PATTERNS: Final = (
    Case(
        "paid_after_failures",
        [
            (FAILURES, []),
            ("INSERT INTO payments VALUES (4, 1, @10:30, 'paid', 1)", [{"id": 4, "since": at("10:00")}]),
            ("INSERT INTO payments VALUES (9, 1, @10:10, 'paid', 1)", []),
            ("DELETE FROM payments WHERE id = 9", [{"id": 4, "since": at("10:00")}]),
            ("UPDATE payments SET at = @11:01 WHERE id = 4", []),  # more than an hour after the first
        ],
    ),
    Case(
        "failures_of_customers",
        [
            (FAILURES, []),
            ("INSERT INTO payments VALUES (4, 1, @10:30, 'paid', 1)", [{"customer_id": 1, "alarms": [4]}]),
            ("INSERT INTO payments VALUES (9, 1, @10:10, 'paid', 1)", []),
        ],
    ),
)
TIMERS: Final = (
    Case(
        "overdue_invoices",
        [
            ("INSERT INTO invoices VALUES (1, 1, @10:30), (2, 1, @10:30), (3, 1, @10:31)", []),
            ("INSERT INTO receipts VALUES (1, 2, @10:30)", []),
            ("INSERT INTO ticks VALUES (@10:30)", [{"id": 1, "due_at": at("10:30")}]),
            ("INSERT INTO receipts VALUES (2, 1, @10:20)", []),  # comes late
            ("INSERT INTO ticks VALUES (@10:31)", [{"id": 3, "due_at": at("10:31")}]),
            ("INSERT INTO receipts VALUES (3, 3, @10:32)", [{"id": 3}]),  # too late
            ("UPDATE invoices SET due_at = @10:45 WHERE id = 3", []),
        ],
    ),
    Case(
        "unclicked_searches",
        [
            ("INSERT INTO searches VALUES (1, 7, @10:00, 'w', @10:11), (2, 8, @10:00, 'w', @10:11)", []),
            ("INSERT INTO clicks VALUES (1, 8, @10:09, '/a'), (2, 7, @10:11, '/a')", []),
            ("INSERT INTO ticks VALUES (@10:11)", [{"id": 1, "user_id": 7, "words": "w"}]),
            ("INSERT INTO clicks VALUES (3, 7, @10:10, '/a')", []),  # comes late
        ],
    ),
    Case(
        "failures_not_repeated",
        [
            (
                "INSERT INTO payments VALUES (1, 1, @10:00, 'failed', 9, @11:01), (2, 2, @10:00, 'failed', 9, @11:01)",
                [],
            ),
            ("INSERT INTO payments VALUES (3, 2, @10:40, 'paid', 9, @11:41), (4, 1, @09:59, 'paid', 9, @11:00)", []),
            ("INSERT INTO ticks VALUES (@11:00), (@11:01)", [{"id": 1, "customer_id": 1, "at": at("10:00")}]),
            ("INSERT INTO payments VALUES (5, 1, @11:00, 'failed', 9, @12:01)", []),  # comes late, and fails, too
            ("INSERT INTO ticks VALUES (@12:01)", [{"id": 5}]),
        ],
    ),
)
EVENTS: Final = (
    Case(
        "balances",
        [
            ("INSERT INTO account_events VALUES (1, 2, 'deposited', 50)", []),  # the first event comes late
            (
                "INSERT INTO account_events VALUES (1, 1, 'opened', NULL, 'Ada')",
                [{"account_id": 1, "version": 2, "balance": 50, "owner": "Ada", "is_closed": False}],
            ),
            (
                "INSERT INTO account_events VALUES (1, 3, 'withdrawn', 20, NULL), (1, 4, 'renamed', NULL, 'Bob')",
                [{"account_id": 1, "version": 4, "balance": 30, "owner": "Bob", "is_closed": False}],
            ),
        ],
    ),
    Case(
        "histories",
        [
            (
                "INSERT INTO account_events VALUES (1, 1, 'opened', 0), (1, 2, 'deposited', 5), (1, 3, 'withdrawn', 2)",
                [
                    {
                        "account_id": 1,
                        "history": [
                            {"no": 1, "kind": "opened", "amount": 0, "balance": 0},
                            {"no": 2, "kind": "deposited", "amount": 5, "balance": 5},
                            {"no": 3, "kind": "withdrawn", "amount": 2, "balance": 3},
                        ],
                    }
                ],
            )
        ],
    ),
)
CASES: Final = (*DOCUMENTS, *AGGREGATES, *JOINS, *WINDOWS, *CLOCKS, *STORED, *PATTERNS, *TIMERS, *EVENTS)


@pytest.fixture(scope="module")
def views(postgres: PostgresServer) -> Iterator[Views]:
    """A base with all tables, for every case."""
    with new_database(postgres) as dsn:
        config = base_config(dsn)
        with base_sink(config, ALL):
            yield Views(config, dsn)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.view)
def test_each_example_of_the_page_has_the_rows_that_it_says(case: Case, views: Views) -> None:
    query = RECIPES[case.view]
    try:
        with views.job(case.view, query) as maintainer:
            for statement, wanted in case.steps:
                views.query(re.sub(r"@(\d\d:\d\d)", r"timestamptz '2026-01-01 \1Z'", statement))
                until_idle(maintainer)
                keys = ", ".join(f"v.{name}" for name in query.key)
                found = views.query(f"SELECT row_to_json(v)::text FROM views.{case.view} v ORDER BY {keys}")
                rows = [json.loads(text) for (text,) in found]
                assert len(rows) == len(wanted), f"after {statement}: {rows}"
                named = [{name: row[name] for name in one} for row, one in zip(rows, wanted, strict=True)]
                assert named == [*wanted], f"after {statement}"
    finally:
        with views.base() as base:
            base.remove(case.view)
        views.query("TRUNCATE " + ", ".join(one.id.name for one in ALL))


def test_every_query_of_the_page_has_an_example() -> None:
    assert RECIPES.keys() == {case.view for case in CASES}
