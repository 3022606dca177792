"""A view notes changes of the columns that its query reads, wherever the query names them."""

from datetime import UTC, datetime

import pytest

from cdc.model.errors import ConfigError
from cdc.model.events import pack_version
from sinks.errors import SinkError
from sinks.sql.sink import SqlSink
from tests.support.view_tables import CUSTOMERS, ORDERS, Query
from tests.support.views import Views, until_idle
from watershed.views.maintainer import define


@pytest.mark.parametrize(
    ("sql", "key", "change"),
    [
        (
            "SELECT region, count(*) AS n FROM customers GROUP BY region HAVING max(name) > 'n5'",
            "region",
            "UPDATE customers SET name = 'n9'",
        ),
        (
            "SELECT id, json_typeof(note -> 'a') AS kind FROM orders",
            "id",
            """UPDATE orders SET note = '{"a": [1]}'""",
        ),
        (
            "SELECT id, date_trunc(note ->> 'unit', placed_at) AS at FROM orders",
            "id",
            """UPDATE orders SET note = '{"unit": "hour"}'""",
        ),
        (
            "SELECT region, count(*) FILTER (WHERE name > 'n5') AS n FROM customers GROUP BY region",
            "region",
            "UPDATE customers SET name = 'n9'",
        ),
        (
            "SELECT c.region, string_agg(c.id::text, ',' ORDER BY c.name, c.id) AS ids FROM customers c GROUP BY 1",
            "region",
            "UPDATE customers SET name = 'n' || (9 - id)",
        ),
        (
            "SELECT DISTINCT ON (region) region, id FROM customers ORDER BY region, name DESC, id",
            "region",
            "UPDATE customers SET name = 'n' || (9 - id)",
        ),
    ],
)
def test_a_change_of_any_column_that_the_query_reads_reaches_the_view(
    sql: str, key: str, change: str, views: Views, shop: SqlSink
) -> None:
    shop.apply([CUSTOMERS.upsert(pack_version(1, 1), id=n, name=f"n{n}", region="r") for n in range(1, 5)])
    placed = datetime(2026, 11, 1, 12, 34, 56, tzinfo=UTC)
    shop.apply(
        [ORDERS.upsert(pack_version(1, 1), id=1, customer_id=1, placed_at=placed.isoformat(), note='{"unit": "day"}')]
    )
    query = Query(sql, [key])
    with views.job("read", query) as maintainer:
        until_idle(maintainer)
        before = views.query("SELECT * FROM views.read v ORDER BY 1")
        views.query(change)
        until_idle(maintainer)
        views.assert_equal("read", query)
        assert views.query("SELECT * FROM views.read v ORDER BY 1") != before, "the change shows in the view's rows"


def test_a_table_of_the_base_that_was_dropped_is_waited_for(views: Views, shop: SqlSink) -> None:
    query = Query("SELECT id, name FROM customers", ["id"])
    shop.apply([CUSTOMERS.upsert(pack_version(1, 1), id=n, name=f"n{n}") for n in (1, 2)])
    with views.job("named", query) as maintainer:
        views.query("ALTER TABLE customers RENAME TO away")
        with pytest.raises(SinkError):
            until_idle(maintainer)
    with (
        pytest.raises(SinkError, match=r"view named: table public\.customers no longer exists in its base") as gone,
        views.job("named", query),
    ):
        pass
    assert gone.value.hint.startswith("restart its sink base, which fills the table")
    assert views.query("SELECT count(*) FROM views.named") == [(2,)], "the rows of before serve"
    views.query("ALTER TABLE away RENAME TO customers")
    views.query("DELETE FROM customers WHERE id = 2")
    with views.job("named", query):
        assert views.assert_equal("named", query) == 1


def test_a_query_that_postgresql_refuses_is_refused_when_it_is_defined(views: Views, shop: SqlSink) -> None:
    with views.base() as base, pytest.raises(ConfigError, match="PostgreSQL refuses its sql: function nosuch"):
        define("wrong", views.config(Query("SELECT id, nosuch(name) AS n FROM customers", ["id"])), base)
    assert views.query("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'watershed_wrong%'") == [(0,)]
