"""The keys that a change concerns, derived from a query; queries that are refused, with the reason."""

import pytest

from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from watershed.views.tracing import TracedQuery, trace

CUSTOMERS, ORDERS, LINES = (TableId("public", name) for name in ("customers", "orders", "lines"))
COLUMNS = {
    CUSTOMERS: ("id", "name", "region"),
    ORDERS: ("id", "customer_id", "placed_at", "region"),
    LINES: ("order_id", "no", "price"),
}


def traced(text: str, *key: str) -> TracedQuery:
    return trace("found", text, key, COLUMNS)


def test_a_nested_query_leads_from_the_inside_to_the_key() -> None:
    query = traced(
        "SELECT c.id, (SELECT jsonb_agg((SELECT sum(l.price) FROM lines l WHERE l.order_id = o.id) ORDER BY o.id) "
        "FROM orders o WHERE o.customer_id = c.id) AS sums FROM customers c",
        "id",
    )
    assert set(query.tables) == {CUSTOMERS, ORDERS, LINES}
    assert query.used == {CUSTOMERS: ("id",), ORDERS: ("customer_id", "id"), LINES: ("order_id", "price")}
    ways = {one.table: one for one in query.traces}
    assert ways[CUSTOMERS].steps == ()
    (customers,) = ways[ORDERS].steps
    (link,) = customers[2]
    assert (customers[1], link.start.column, link.end.column) == (CUSTOMERS, "customer_id", "id")
    assert [table for _, table, _ in ways[LINES].steps] == [ORDERS, CUSTOMERS]


def test_an_outer_joins_condition_says_nothing_about_its_left_side() -> None:
    """A new customer may concern orders; with the key in customers, an order without one would concern no key."""
    query = traced("SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON c.id = o.customer_id", "id")
    assert {one.table: [table for _, table, _ in one.steps] for one in query.traces} == {
        ORDERS: [],
        CUSTOMERS: [ORDERS],
    }
    with pytest.raises(ConfigError, match=r"a change of public\.orders can't be traced"):
        traced("SELECT c.id, o.id AS other FROM orders o LEFT JOIN customers c ON c.id = o.customer_id", "id")


@pytest.mark.parametrize(
    "choice",
    [
        "ORDER BY o.placed_at LIMIT 3",
        "ORDER BY o.placed_at OFFSET 1",
        "ORDER BY o.placed_at FETCH FIRST 2 ROWS ONLY",
    ],
)
def test_an_equality_outside_of_a_choice_among_rows_is_no_link(choice: str) -> None:
    """A new order of another customer may take the place of one of this customer's among the first three."""
    query = traced(
        "SELECT c.id, (SELECT max(x.id) FROM (SELECT o.id, o.customer_id FROM orders o WHERE o.region = c.region "
        f"{choice}) x WHERE x.customer_id = c.id) AS latest FROM customers c",
        "id",
    )
    (orders,) = [one for one in query.traces if one.table == ORDERS]
    ((_, _, links),) = orders.steps
    assert [(link.start.column, link.end.column) for link in links] == [("region", "region")]
    with pytest.raises(ConfigError, match=r"a change of public\.orders can't be traced"):
        traced(f"SELECT c.id FROM customers c WHERE c.id IN (SELECT o.customer_id FROM orders o {choice})", "id")


@pytest.mark.parametrize(
    "inner",
    [
        "SELECT DISTINCT ON (o.region) o.id, o.customer_id, 1 AS place FROM orders o WHERE o.region = c.region "
        "ORDER BY o.region, o.id",
        "SELECT o.id, o.customer_id, rank() OVER (ORDER BY o.placed_at) AS place FROM orders o "
        "WHERE o.region = c.region",
    ],
)
def test_a_window_or_a_distinct_on_is_a_choice_too(inner: str) -> None:
    query = traced(
        f"SELECT c.id, (SELECT max(x.place) FROM ({inner}) x WHERE x.customer_id = c.id) AS place FROM customers c",
        "id",
    )
    (orders,) = [one for one in query.traces if one.table == ORDERS]
    ((_, _, links),) = orders.steps
    assert [link.start.column for link in links] == ["region"]


def test_a_key_may_be_made_of_the_windows_of_a_row() -> None:
    query = traced(
        "SELECT w.begins, count(*) AS orders FROM orders o CROSS JOIN LATERAL "
        "generate_series(o.placed_at, o.placed_at, interval '1 hour') AS w(begins) "
        "WHERE isfinite(o.placed_at) AND o.id > 3 GROUP BY 1",
        "begins",
    )
    (orders,) = query.traces
    (key,) = orders.keys
    (function,) = orders.functions
    assert key.sql("postgres") == "f0.value"
    at = '"t0"."placed_at"'
    assert function.call.sql("postgres") == f"GENERATE_SERIES({at}, {at}, INTERVAL '1 HOUR')"
    assert [one.sql("postgres") for one in orders.conditions] == ['ISFINITE("t0"."placed_at")', '"t0"."id" > 3']
    assert query.used == {ORDERS: ("id", "placed_at")}


def test_a_condition_on_what_an_outer_join_adds_keeps_no_change_back() -> None:
    """An order that comes takes away the customer's row without one, though it does not meet the condition itself."""
    query = traced(
        "SELECT c.id FROM customers c LEFT JOIN orders o ON o.customer_id = c.id WHERE o.id IS NULL AND c.id > 3", "id"
    )
    assert {tuple(one.sql("postgres") for one in way.conditions) for way in query.traces} == {('"t0"."id" > 3',)}


def ways(query: TracedQuery) -> set[tuple[str, ...]]:
    """Each table with those on its way to the key, and the key."""
    return {
        (one.table.name, *(table.name for _, table, _ in one.steps), *(part.sql("postgres") for part in one.keys))
        for one in query.traces
    }


@pytest.mark.parametrize("operation", ["UNION", "UNION ALL", "EXCEPT", "INTERSECT"])
def test_each_branch_of_a_set_operation_leads_to_the_key_by_its_own_columns(operation: str) -> None:
    query = traced(
        f"SELECT 'order' AS kind, o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer_id {operation} "
        "SELECT 'line'::text, l.order_id, 'x' FROM lines l",
        "kind",
        "id",
    )
    assert ways(query) == {
        ("orders", "'order'", '"t0"."id"'),
        ("customers", "orders", "'order'", '"t0"."id"'),
        ("lines", "CAST('line' AS TEXT)", '"t2"."order_id"'),
    }


def test_a_table_outside_of_a_union_leads_to_the_key_through_each_branch() -> None:
    query = traced(
        "SELECT x.id, max(c.name) AS name FROM (SELECT id, customer_id AS c FROM orders UNION ALL "
        "(SELECT l.order_id, o.customer_id FROM lines l JOIN orders o ON o.id = l.order_id)) x "
        "JOIN customers c ON c.id = x.c GROUP BY 1",
        "id",
    )
    assert ways(query) == {
        ("orders", '"t0"."id"'),
        ("customers", "orders", '"t0"."id"'),
        ("lines", '"t1"."order_id"'),
        ("orders", "lines", '"t1"."order_id"'),
        ("customers", "orders", "lines", '"t1"."order_id"'),
    }


def test_a_union_around_which_a_subquery_stands_is_tied_to_the_row_around_it() -> None:
    query = traced(
        "WITH big AS (SELECT order_id FROM lines WHERE price > 3) SELECT c.id, (SELECT jsonb_agg(x.id ORDER BY x.id) "
        "FROM (SELECT o.id FROM orders o WHERE o.customer_id = c.id UNION SELECT b.order_id FROM big b JOIN orders p "
        "ON p.id = b.order_id WHERE p.customer_id = c.id ORDER BY 1 LIMIT 5) x) AS ids FROM customers c",
        "id",
    )
    assert {way[:-1] for way in ways(query)} == {
        ("customers",),
        ("orders", "customers"),
        ("lines", "orders", "customers"),
    }


def test_a_row_with_a_constant_key_depends_on_every_row() -> None:
    query = traced("SELECT 'all' AS k, count(*) AS n, (SELECT max(price) FROM lines) AS p FROM orders", "k")
    assert ways(query) == {("orders", "'all'"), ("lines", "'all'")}


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        (
            "SELECT region AS r FROM orders UNION SELECT upper(name) FROM customers",
            "r",
            "in a part of a UNION, which does not name it",
        ),
        ("SELECT id FROM orders UNION SELECT id FROM customers ORDER BY 1 LIMIT 3", "id", "LIMIT and OFFSET"),
        ("SELECT id FROM", "id", "can't be read"),
        ("DELETE FROM orders", "id", "not one SELECT"),
        ("SELECT id FROM orders; SELECT 1", "id", "not one SELECT"),
        ("SELECT id FROM payments", "id", "public.payments, which its base does not hold"),
        ("SELECT id, nobody FROM orders", "id", "nobody"),
        ("SELECT id FROM orders", "name", "key has column name, which the query does not return"),
        ("SELECT count(*) AS many FROM orders", "many", "computed from many rows"),
        ("WITH RECURSIVE n AS (SELECT 1 AS id) SELECT id FROM n", "id", "RECURSIVE"),
        ("SELECT id, now() AS at FROM orders", "id", "not deterministic"),
        ("SELECT customer_id, array_agg(id) AS ids FROM orders GROUP BY 1", "customer_id", "ORDER BY inside"),
        ("SELECT o.id FROM orders o FULL JOIN customers c ON c.id = o.customer_id", "id", "FULL JOIN"),
        ("SELECT id FROM orders ORDER BY id LIMIT 3", "id", "LIMIT"),
        ("SELECT id, to_jsonb(o) AS whole FROM orders o", "id", "is a whole row: name its columns"),
        ("SELECT id, to_jsonb(o.*) AS whole FROM orders o", "id", "is a whole row"),
        ("SELECT coalesce(id, 0) AS k, count(*) AS n FROM orders GROUP BY ROLLUP (id)", "k", "ROLLUP"),
        ("SELECT id, count(*) AS n FROM orders GROUP BY GROUPING SETS ((id), ())", "id", "GROUPING SETS"),
        ("SELECT id FROM orders TABLESAMPLE BERNOULLI (10)", "id", "not deterministic"),
        ("SELECT id, transaction_timestamp() AS at FROM orders", "id", "not deterministic"),
        ("SELECT id, age(placed_at) AS age FROM orders", "id", "not deterministic"),
        ("SELECT id, 'now'::timestamptz AS at FROM orders", "id", "not deterministic"),
        ("SELECT id, date 'today' AS at FROM orders", "id", "not deterministic"),
        ("SELECT id, current_user AS me FROM orders", "id", "not deterministic"),
        ("SELECT id, current_setting('TimeZone') AS zone FROM orders", "id", "not deterministic"),
        ("SELECT region, json_object_agg(id, id) AS ids FROM orders GROUP BY 1", "region", "ORDER BY inside"),
        ('SELECT region COLLATE "de" AS r FROM orders', "r", "has a COLLATE"),
        ("SELECT id FROM orders FOR UPDATE", "id", "has no place in a view"),
        ("SELECT @ id AS id FROM orders", "id", "has no place in a view"),
        (
            "SELECT c.id FROM customers c LEFT JOIN (orders o JOIN lines l ON l.order_id = o.id) ON o.customer_id "
            "= c.id",
            "id",
            "can't be traced",
        ),
        ("SELECT DISTINCT ON (customer_id) id, customer_id FROM orders", "customer_id", "DISTINCT ON"),
        ("SELECT id, row_number() OVER (ORDER BY placed_at) AS place FROM orders", "id", "window functions"),
        ("SELECT o.id FROM orders o, customers c WHERE o.id > c.id", "id", "public.customers can't be traced"),
    ],
)
def test_a_query_that_cannot_be_traced_is_refused_with_the_reason(text: str, key: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        traced(text, key)
    assert str(caught.value).startswith("view found: ")
