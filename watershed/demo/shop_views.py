"""The three views that `cdc demo --views` keeps beside the shop: a nested document for each order, revenue by hour, and
alerts from searches that are saved as rows of a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from cdc.model.errors import SourceError
from cdc.model.events import TableId
from watershed.demo.followed import FOLLOWED_TOTAL
from watershed.devstack.endpoints import Endpoints

BASE: Final = "base"  # the sink that keeps the tables which the views read
DATABASE: Final = "shop_views"  # of the base
SEARCHES: Final = "saved_searches"
SCHEMA_OF_VIEWS: Final = "views"

# A saved search is a row like any other: an application adds, changes and removes it while the views are kept.
SAVED_SEARCHES: Final = """
CREATE TABLE saved_searches (
  id          integer PRIMARY KEY,
  name        text NOT NULL,
  status      order_status NOT NULL,
  total_from  numeric(12,2) NOT NULL
);
INSERT INTO saved_searches VALUES
  (1, 'expensive and returned', 'returned', 400.00),
  (2, 'expensive and shipped', 'shipped', 495.00);
"""
NEW_SEARCH: Final = "INSERT INTO saved_searches VALUES (3, 'expensive and new', 'new', 497.50)"
NARROWED_SEARCH: Final = "UPDATE saved_searches SET total_from = 499.00 WHERE id = 1"
assert FOLLOWED_TOTAL >= 499, "the order that the screen follows meets the searches"


@dataclass(frozen=True, slots=True)
class ShopView:
    """One view, and what it is compared with."""

    name: str
    sql: str
    key: tuple[str, ...]
    columns: Mapping[str, str]  # in the query's order; types are named as in watershed.verify.equality

    @property
    def table(self) -> TableId:
        """The name under which the target holds the rows."""
        return TableId(SCHEMA_OF_VIEWS, self.name)


DOCUMENTS: Final = ShopView(
    "order_documents",
    """
SELECT o.id, o.status, o.placed_at, o.total, o.note,
       (SELECT jsonb_build_object('id', c.id, 'name', c.name, 'email', c.email, 'loyal', c.loyal)
          FROM public.customers c WHERE c.id = o.customer_id) AS customer,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('no', l.line_no, 'product', p.title, 'quantity', l.quantity,
                 'unit_price', l.unit_price) ORDER BY l.line_no), '[]')
          FROM public.order_lines l JOIN public.products p ON p.id = l.product_id
         WHERE l.order_id = o.id) AS lines
  FROM public.orders o
""",
    ("id",),
    {
        "id": "int8", "status": "text", "placed_at": "timestamptz", "total": "numeric", "note": "text",
        "customer": "jsonb", "lines": "jsonb",
    },
)  # fmt: skip
REVENUE: Final = ShopView(
    "revenue_by_hour",
    """
SELECT date_trunc('hour', o.placed_at) AS hour, count(DISTINCT o.id) AS orders,
       sum(l.quantity * l.unit_price) AS revenue
  FROM public.orders o JOIN public.order_lines l ON l.order_id = o.id
 GROUP BY 1
""",
    ("hour",),
    {"hour": "timestamptz", "orders": "int8", "revenue": "numeric"},
)
ALERTS: Final = ShopView(
    "alerts",
    """
SELECT s.id AS search_id, o.id AS order_id, s.name AS search, o.total
  FROM public.saved_searches s JOIN public.orders o ON o.status = s.status AND o.total >= s.total_from
""",
    ("search_id", "order_id"),
    {"search_id": "int4", "order_id": "int8", "search": "text", "total": "numeric"},
)
SHOP_VIEWS: Final = (DOCUMENTS, REVENUE, ALERTS)


def with_views(content: dict[str, Any], endpoints: Endpoints) -> dict[str, Any]:
    """Returns the demo's configuration with the base and the views added."""
    url = base_url(endpoints.dsn)
    base = {
        "type": "sql",
        "url": url,
        "mapping": {
            "public.customers": {"include": ["id", "name", "email", "loyal"]},
            "public.products": {"include": ["id", "title"]},
            "public.orders": {"include": ["id", "customer_id", "status", "placed_at", "total", "note"]},
            "public.order_lines": {"include": ["order_id", "line_no", "product_id", "quantity", "unit_price"]},
        },
        "shapes": {
            "public.orders": {"indexes": [["customer_id"], ["status"]]},
            "public.order_lines": {"indexes": [["product_id"]]},
        },
    }
    targets = {
        DOCUMENTS.name: {"type": "search", "url": endpoints.opensearch_url},
        REVENUE.name: {"type": "sql", "url": url},
        ALERTS.name: {"type": "topic"},
    }
    views = {
        view.name: {"base": BASE, "sql": view.sql, "key": list(view.key), "target": targets[view.name]}
        for view in SHOP_VIEWS
    }
    source = content["source"] | {"tables": [*content["source"]["tables"], f"public.{SEARCHES}"]}
    return content | {"source": source, "sinks": content["sinks"] | {BASE: base}, "views": views}


def base_url(dsn: str) -> str:
    """Returns the address of the base: another database of the same server."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{DATABASE}"))


def create_base(dsn: str) -> None:
    """Creates the base's empty database. Raises SourceError."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    except psycopg.Error as error:
        raise SourceError(f"the base of the views can't be created: {error}", "see PostgreSQL's log") from error


def execute(dsn: str, statement: str) -> None:
    """Runs a statement on the shop, as an application would. Raises SourceError."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(statement.encode())
    except psycopg.Error as error:
        raise SourceError(f"the saved searches can't be written: {error}", "see PostgreSQL's log") from error
