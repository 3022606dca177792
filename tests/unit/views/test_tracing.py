"""The keys that a change concerns, derived from a query; queries that are refused, with the reason."""

import pytest

from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from views.tracing import TracedQuery, trace

CUSTOMERS, ORDERS, LINES = (TableId("public", name) for name in ("customers", "orders", "lines"))
COLUMNS = {
    CUSTOMERS: ("id", "name", "region"),
    ORDERS: ("id", "customer_id", "placed_at"),
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
    ("text", "key", "reason"),
    [
        ("SELECT id FROM", "id", "can't be read"),
        ("DELETE FROM orders", "id", "not one SELECT"),
        ("SELECT id FROM orders; SELECT 1", "id", "not one SELECT"),
        ("SELECT id FROM payments", "id", "public.payments, which its base does not hold"),
        ("SELECT id, nobody FROM orders", "id", "nobody"),
        ("SELECT id FROM orders", "name", "key has column name, which the query does not return"),
        ("SELECT count(*) AS many FROM orders", "many", "computed from many rows"),
        ("SELECT 1 AS one, id FROM orders", "one", "not made of one table's columns"),
        ("SELECT id FROM orders UNION SELECT id FROM customers", "id", "not one SELECT"),
        ("SELECT id FROM (SELECT id FROM orders UNION SELECT id FROM customers) x", "id", "UNION"),
        ("WITH RECURSIVE n AS (SELECT 1 AS id) SELECT id FROM n", "id", "RECURSIVE"),
        ("SELECT id, now() AS at FROM orders", "id", "not deterministic"),
        ("SELECT customer_id, array_agg(id) AS ids FROM orders GROUP BY 1", "customer_id", "ORDER BY inside"),
        ("SELECT o.id FROM orders o FULL JOIN customers c ON c.id = o.customer_id", "id", "FULL JOIN"),
        ("SELECT id FROM orders ORDER BY id LIMIT 3", "id", "LIMIT"),
        ("SELECT DISTINCT ON (customer_id) id, customer_id FROM orders", "customer_id", "DISTINCT ON"),
        ("SELECT id, row_number() OVER (ORDER BY placed_at) AS place FROM orders", "id", "window functions"),
        ("SELECT o.id FROM orders o, customers c WHERE o.id > c.id", "id", "public.customers can't be traced"),
    ],
)
def test_a_query_that_cannot_be_traced_is_refused_with_the_reason(text: str, key: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        traced(text, key)
    assert str(caught.value).startswith("view found: ")
