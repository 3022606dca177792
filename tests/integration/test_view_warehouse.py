"""`cdc view run` beside capture and a sink: totals in an Iceberg table, read by PyIceberg, over kills of the job and of
its Java process."""

import json
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import psutil  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError

from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.sink_job import SinkJob
from tests.support.view_process import ViewProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

TABLES: Final = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text);
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, placed_on date);
CREATE TABLE lines (order_id bigint, no int, price numeric(8,2), PRIMARY KEY (order_id, no));
INSERT INTO customers SELECT n, 'name ' || n FROM generate_series(1, 60) AS n;
INSERT INTO orders SELECT n, n % 70, date '2026-01-01' + n FROM generate_series(1, 1500) AS n;
INSERT INTO lines SELECT n, no, n % 90 + no / 4.0 FROM generate_series(1, 1500) AS n, generate_series(1, 3) AS no;
"""
# Of all three tables: changed, moved from one row of the view to another, and deleted.
CHANGES: Final = (
    "UPDATE lines SET price = price + 1 WHERE order_id % 5 = 0",
    "UPDATE orders SET customer_id = customer_id + 1 WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id BETWEEN 200 AND 300; DELETE FROM lines WHERE order_id % 4 = 1 AND no = 2",
    "DELETE FROM customers WHERE id % 10 = 0",
    "UPDATE lines SET order_id = order_id + 2000 WHERE order_id % 7 = 0; INSERT INTO orders VALUES (2007, 1)",
    "TRUNCATE lines; INSERT INTO lines VALUES (2, 1, 9.5)",
)
TOTALS: Final = """
SELECT o.id, c.name, o.placed_on, l.total, l.lines
  FROM orders o LEFT JOIN customers c ON c.id = o.customer_id
  LEFT JOIN (SELECT order_id, sum(price)::numeric(12,2) AS total, count(*) AS lines FROM lines GROUP BY order_id) l
    ON l.order_id = o.id
"""
DEADLINE_S: Final = 90.0
ENDS_S_MAX: Final = 30.0


@pytest.fixture
def shop(postgres: PostgresServer, kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Captured]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("views")
    tables = ["public.customers", "public.orders", "public.lines"]
    with (
        new_database(postgres) as base,
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, TABLES, tables) as made,
    ):
        indexes = {"public.orders": {"indexes": [["customer_id"]]}}
        target = {"type": "warehouse", "catalog_uri": f"jdbc:sqlite:{folder}/lake/catalog.db"}
        made.settings = {
            "sinks": {"base": {"type": "sql", "url": url_of(base), "shapes": indexes}},
            "views": {
                "totals": {
                    "base": "base",
                    "sql": TOTALS,
                    "key": ["id"],
                    "target": target | {"location": f"{folder}/lake/tables"},
                }
            },
            "spark": {
                "checkpoint_location": str(folder / "checkpoints"),
                "options": INTERPRETED,
                "warehouse_trigger_ms": 2000,
            },
        }
        made.start()
        yield made


def kill_java(view: ViewProcess) -> None:
    (java,) = [one for one in psutil.Process(view.process.pid).children() if one.name() == "java"]
    java.kill()


@contextmanager
def held(shop: Captured) -> Iterator[Table]:
    """The view's table, opened as any reader opens it."""
    lake = shop.folder / "lake"
    database, tables = f"sqlite:///{lake}/catalog.db", (lake / "tables").as_uri()
    catalog = SqlCatalog("watershed", uri=database, warehouse=tables, init_catalog_tables="false")
    with closing(catalog):
        yield catalog.load_table((f"{shop.name}_totals", "views", "totals"))


def await_equal(shop: Captured) -> None:
    wanted = shop.query(f"SELECT * FROM ({TOTALS}) v ORDER BY id")
    seen: list[Any] = []

    def is_equal() -> bool:
        try:
            with held(shop) as table:
                rows = table.scan().to_arrow().to_pylist()
        except (NoSuchTableError, NoSuchNamespaceError, OperationalError):  # not yet, nor its catalog
            return False
        seen[:] = sorted(tuple(row.values())[:5] for row in rows)
        return seen == wanted

    eventually(is_equal, DEADLINE_S, lambda: f"{seen[:3]} are {wanted[:3]}, {len(seen)} rows {len(wanted)}")


@pytest.mark.long  # tests/unit/spark_jobs/test_view_targets.py ends jobs inside of one process
def test_totals_in_a_warehouse_follow_three_tables_over_kills(shop: Captured) -> None:
    view = ViewProcess(shop, "totals", is_forked=False)
    with SinkJob(shop.config(), "base"):
        try:
            await_equal(shop)
            checked = json.loads(shop.cdc("view", "check", "--json"))
            levels = {finding["about"]: finding["level"] for finding in checked["target"]}
            assert {"store totals": "ok", "Java": "ok"}.items() <= levels.items()
            for number, change in enumerate(CHANGES):
                shop.query(change)
                if number == 2:
                    view.kill()
                    view = ViewProcess(shop, "totals", is_forked=False)
            await_equal(shop)
            with held(shop) as table:
                assert len(table.snapshots()) <= 2 * len(CHANGES)
            kill_java(view)
            assert view.process.wait(ENDS_S_MAX) == 1
            assert "Spark's Java process ended by itself" in view.said()
            shop.query("DELETE FROM customers WHERE id % 2 = 0")
            view = ViewProcess(shop, "totals", is_forked=False)
            await_equal(shop)
            view.process.terminate()
            assert view.process.wait(ENDS_S_MAX) == 0
            assert "Traceback" not in view.said()
            removed = shop.cdc("view", "remove", "totals", "--target", "--yes")
            assert f"{shop.name}_totals.views.totals" in removed
            with pytest.raises(NoSuchTableError), held(shop):
                pass
        except BaseException as error:
            error.add_note(view.said())
            raise
        finally:
            view.kill()
