"""Queries over the shop's tables, one for each construct that a view may contain."""

from collections.abc import Mapping
from typing import Final

from tests.support.view_tables import Query

VIEWS: Final[Mapping[str, Query]] = {
    "documents": Query(
        """
        SELECT c.id, c.name,
               (SELECT coalesce(jsonb_agg(jsonb_build_object('id', o.id, 'at', o.placed_at, 'lines',
                  (SELECT jsonb_agg(jsonb_build_object('sku', l.sku, 'price', l.price) ORDER BY l.no)
                     FROM lines l WHERE l.order_id = o.id)) ORDER BY o.id), '[]')
                  FROM orders o WHERE o.customer_id = c.id) AS orders
          FROM customers c
        """,
        ["id"],
    ),
    "totals": Query(
        """
        SELECT o.id, c.name, l.total, l.lines, o.note
          FROM public.orders o LEFT JOIN customers c ON c.id = o.customer_id
          LEFT JOIN (SELECT order_id, sum(price) AS total, count(*) AS lines FROM lines GROUP BY order_id) l
            ON l.order_id = o.id
        """,
        ["id"],
    ),
    "by_hour": Query(
        """
        SELECT date_trunc('hour', o.placed_at) AS hour, count(DISTINCT o.id) AS orders, sum(l.price) AS revenue,
               (percentile_disc(0.5) WITHIN GROUP (ORDER BY l.price))::float8 AS median
          FROM orders o JOIN lines l ON l.order_id = o.id GROUP BY 1
        """,
        ["hour"],
    ),
    "regions": Query(
        """
        SELECT c.region, l.sku, min(l.price)::float8 AS lowest, max(o.placed_at) AS latest, avg(l.price) AS mean
          FROM customers AS c, orders AS o, lines AS l
         WHERE c.id = o.customer_id AND o.id = l.order_id AND l.price > 1
         GROUP BY c.region, l.sku HAVING sum(l.price) > 2
        """,
        ["region", "sku"],
    ),
    "largest": Query(
        """
        WITH named AS (SELECT id, name FROM customers WHERE name <> 'n3')
        SELECT n.id, n.name,
               (SELECT jsonb_agg(x.id ORDER BY x.id) FROM (SELECT o.id FROM orders o WHERE o.customer_id = n.id
                  ORDER BY o.placed_at DESC NULLS LAST, o.id DESC LIMIT 2) x) AS latest
          FROM named n
         WHERE n.id IN (SELECT customer_id FROM orders) AND NOT EXISTS
               (SELECT 1 FROM orders o JOIN lines l ON l.order_id = o.id WHERE o.customer_id = n.id AND l.sku = 's0')
        """,
        ["id"],
    ),
    "pairs": Query(
        "SELECT a.id AS one, b.id AS other, a.region FROM customers a JOIN customers b ON b.region = a.region "
        "AND b.id > a.id",
        ["one", "other"],
    ),
    "feed": Query(
        """
        SELECT 'order' AS kind, o.id, 0 AS no, c.name AS what
          FROM orders o LEFT JOIN customers c ON c.id = o.customer_id
         UNION ALL
        SELECT 'line', l.order_id, l.no, (SELECT o.note::text FROM orders o WHERE o.id = l.order_id) FROM lines l
        """,
        ["kind", "id", "no"],
    ),
    "regions_and_skus": Query(
        """
        SELECT x.label, count(*) AS rows, sum(x.price) AS prices
          FROM (SELECT region AS label, NULL::numeric AS price FROM customers UNION ALL SELECT sku, price FROM lines) x
         GROUP BY 1
        """,
        ["label"],
    ),
    "all": Query("SELECT 'all' AS k, count(*) AS orders, (SELECT sum(price) FROM lines) AS revenue FROM orders", ["k"]),
}
