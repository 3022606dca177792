"""The base as it is shipped: PostgreSQL tables that the SQL sink keeps, and the view's own loop."""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql
from pydantic import SecretStr

from cdc.config.stores import SqlConfig
from cdc.config.views import ViewConfig
from cdc.model.events import TableId, TableSchema
from sinks.contract import Change, Outcome, Result
from sinks.sql.sink import SqlSink
from tests.bench.view_bases_shop import TABLES, Document
from tests.conformance.stores import url_of
from watershed.views.base import Base
from watershed.views.maintainer import ViewMaintainer, define

DOCUMENT: Final = """
SELECT c.id, c.name, c.email, c.phone,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('id', o.id, 'status', o.status, 'note', o.note, 'total', o.total,
          'lines', (SELECT coalesce(jsonb_agg(jsonb_build_object('no', l.line_no, 'product', l.product_id,
                      'quantity', l.quantity, 'price', l.unit_price) ORDER BY l.line_no), '[]')
                      FROM order_lines l WHERE l.order_id = o.id)) ORDER BY o.id), '[]')
          FROM orders o WHERE o.customer_id = c.id) AS orders
  FROM customers c
"""


class NullTarget:
    """A target that keeps the rows of the last round in memory, and does nothing else. Implements
    watershed.views.targets.ViewTarget."""

    def __init__(self) -> None:
        self.taken: list[Change] = []

    def generation(self) -> int | None:
        return None

    def begin_generation(self, generation: int) -> None:
        """There is nothing to mark."""

    def discard(self, table: TableId) -> None:
        """There is nothing to delete."""

    def prepare(self, schema: TableSchema) -> None:
        """There is nothing to create."""

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        self.taken += changes
        return [Result(Outcome.WRITTEN)] * len(changes)

    def sweep(self, table: TableId, floor: int) -> int:
        del table, floor
        return 0

    def make_readable(self, tables: Collection[TableId]) -> None:
        """There are no readers."""

    def close(self) -> None:
        """There is nothing to release."""


class PostgresqlBase:
    """Implements tests.bench.view_bases_shop.KeyedBase."""

    def __init__(self, dsn: str) -> None:
        """`dsn`: of an empty database."""
        shapes = {"public.orders": {"indexes": [["customer_id"]]}}
        config = SqlConfig.model_validate({"url": SecretStr(url_of(dsn)), "shapes": shapes})
        self._dsn = dsn
        self._sink = SqlSink.open(config, "shop")
        self._sink.begin_generation(1)
        for one in TABLES:
            self._sink.prepare(one.schema)
        self._base = Base(config, "shop")
        self._target = NullTarget()
        unused = {"type": "search", "url": "http://localhost:9200"}
        section = ViewConfig.model_validate({"base": "base", "sql": DOCUMENT, "key": ["id"], "target": unused})
        definition = define("documents", section, self._base)
        self._places = definition.places.values()
        self._maintainer = ViewMaintainer(definition, self._base, lambda: self._target, lambda: None)

    def fill(self, batches: Iterator[list[Change]]) -> None:
        for some in batches:
            self._sink.apply(some)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        self._maintainer.start()
        self._target.taken = []

    def write(self, changes: list[Change]) -> None:
        self._sink.apply(changes)

    def compute(self, written: Any) -> list[Change]:
        del written  # the base has noted it
        while self._maintainer.step():
            pass
        taken, self._target.taken = self._target.taken, []
        return taken

    def documents(self, computed: Any) -> dict[int, Document | None]:
        return {change.key["id"]: change.row and _nested(change.row) for change in computed}

    def run_if_due(self) -> None:
        """The server's autovacuum does it, also during the measurement."""

    def sizes(self) -> dict[str, float]:
        """The tables with their indexes."""
        names = [sql.Identifier(*place).as_string() for place in self._places]
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            found = connection.execute(
                "SELECT sum(pg_total_relation_size(p::regclass)) FROM unnest(%s::text[]) p", (names,)
            ).fetchall()
        return {"disk_mb": float(found[0][0]) / 1e6}

    def close(self) -> None:
        self._maintainer.close()
        self._base.close()
        self._sink.close()


def _nested(row: dict[str, Any]) -> Document:
    orders = row["orders"]
    return row | {"orders": json.loads(orders if isinstance(orders, str) else json.dumps(orders), parse_float=str)}
