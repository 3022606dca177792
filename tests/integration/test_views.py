"""`cdc view run` beside capture and a sink: nested documents in a real index, read by a plain client."""

import json
import re
import secrets
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.forked import run
from tests.support.http_server import HttpServer, free_port
from tests.support.sink_job import SinkJob
from tests.support.view_process import ViewProcess
from tests.support.waiting import eventually

TABLES: Final = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text);
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, placed_on date, attributes jsonb);
CREATE TABLE lines (order_id bigint, no int, sku text, price numeric(8,2), photo bytea, PRIMARY KEY (order_id, no));
"""
FILL: Final = """
INSERT INTO customers SELECT n, 'name ' || n FROM generate_series(1, 60) AS n;
INSERT INTO orders SELECT n, n % 70, date '2026-01-01' + n, '{"gift": true}' FROM generate_series(1, 150) AS n;
INSERT INTO lines SELECT n, no, 's' || n % 7, n + no / 4.0
  FROM generate_series(1, 150) AS n, generate_series(1, 3) AS no;
"""
# Of all three tables: changed, moved from one document to another, and deleted at every level.
CHANGES: Final = (
    "UPDATE lines SET price = price + 1 WHERE order_id % 5 = 0",
    "UPDATE orders SET customer_id = customer_id + 1 WHERE id % 3 = 0",
    "DELETE FROM lines WHERE order_id % 4 = 1 AND no = 2",
    "DELETE FROM orders WHERE id BETWEEN 20 AND 30; DELETE FROM lines WHERE order_id BETWEEN 20 AND 30",
    "DELETE FROM customers WHERE id % 10 = 0",
    "UPDATE customers SET name = name || '!' WHERE id % 2 = 0",
    "INSERT INTO customers VALUES (10, 'back'), (61, 'new'); UPDATE customers SET id = 1000 WHERE id = 1",
    "TRUNCATE lines; INSERT INTO lines VALUES (2, 1, 'only', 9.5)",
)
DOCUMENT: Final = """
SELECT c.id, c.name,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('id', o.id, 'placed_on', o.placed_on, 'attributes', o.attributes,
          'lines', (SELECT coalesce(jsonb_agg(jsonb_build_object('sku', l.sku, 'price', l.price) ORDER BY l.no), '[]')
                      FROM lines l WHERE l.order_id = o.id)) ORDER BY o.id), '[]')
          FROM orders o WHERE o.customer_id = c.id) AS orders
  FROM public.customers c
"""
DEADLINE_S: Final = 90.0


@pytest.fixture(scope="module")
def shop(
    postgres: PostgresServer, kafka: KafkaBroker, opensearch: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Captured]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("views")
    tables = ["public.customers", "public.orders", "public.lines"]
    with (
        new_database(postgres) as base,
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, TABLES, tables) as made,
    ):
        made.settings = {
            "sinks": {
                "base": {
                    "type": "sql",
                    "url": url_of(base),
                    "mapping": {"public.lines": {"exclude": ["photo"]}},
                    "shapes": {
                        "public.orders": {"indexes": [["customer_id"]]},
                        "public.lines": {"indexes": [["order_id"]]},
                    },
                },
            },
            "views": {
                "customer_documents": {
                    "base": "base",
                    "sql": DOCUMENT,
                    "key": ["id"],
                    "target": {"type": "search", "url": opensearch},
                },
            },
            "http": {"port": free_port()},
            "spark": {"checkpoint_location": str(folder / "checkpoints"), "options": INTERPRETED},
        }
        made.query(FILL)
        made.start()
        yield made


@pytest.fixture(scope="module")
def base_job(shop: Captured) -> Iterator[SinkJob]:
    with SinkJob(shop.config(), "base") as job:
        yield job


def documents(shop: Captured, opensearch: str) -> list[dict[str, Any]]:
    """Returns what a plain client finds under the view's alias, by id."""
    prefix = f"{shop.name}_customer_documents".lower()
    alias = f"{prefix}.views.customer_documents"
    request = urllib.request.Request(  # noqa: S310  the test's own server
        f"{opensearch}/{alias}/_search",
        data=json.dumps({"size": 1000, "query": {"match_all": {}}}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        hits = json.load(answer)["hits"]["hits"]
    found = [{name: value for name, value in hit["_source"].items() if not name.startswith("ws_")} for hit in hits]
    # An empty array is no value to OpenSearch: the sink keeps it in `ws_json` alone.
    return sorted(({"orders": []} | one for one in found), key=lambda one: one["id"])


def await_equal(shop: Captured, opensearch: str) -> None:
    wanted = [json.loads(row[0]) for row in shop.query(f"SELECT row_to_json(v)::text FROM ({DOCUMENT}) v ORDER BY id")]
    seen: list[Any] = []

    def is_equal() -> bool:
        try:
            seen[:] = documents(shop, opensearch)
        except urllib.error.HTTPError:  # no index yet
            return False
        return seen == wanted

    def difference() -> str:
        wrong = [(one, other) for one, other in zip(seen, wanted, strict=False) if one != other]
        return f"{len(seen)} documents are {len(wanted)} rows; {wrong[:1]}"

    eventually(is_equal, DEADLINE_S, difference)


def test_nested_documents_follow_three_tables_over_kills(
    shop: Captured, opensearch: str, request: pytest.FixtureRequest
) -> None:
    view = ViewProcess(shop)
    try:
        request.getfixturevalue("base_job")  # later than the view, which waits for its tables
        await_equal(shop, opensearch)
        for number, change in enumerate(CHANGES):
            shop.query(change)
            if number % 3 == 1:
                view.kill()
                view = ViewProcess(shop)
            await_equal(shop, opensearch)
        (status,) = [json.loads(line) for line in shop.cdc("view", "status", "--json").splitlines()]
        assert (status["state"], status["changes"], status["keys"], status["rejected"]) == ("serving", 0, 0, 0)
        server = HttpServer(shop.settings["http"]["port"])  # it observes the base every second

        def shown() -> tuple[str, bool, int]:
            view = server.json("/v1/views/customer_documents")
            return view["state"], view["is_kept"], view["waiting_changes"]

        eventually(lambda: shown() == ("serving", True, 0), 20.0, lambda: f"no change waits: {shown()}")
        checked = json.loads(shop.cdc("view", "check", "--json"))
        assert checked["columns"] == {"id": "bigint", "name": "text", "orders": "jsonb"}
        assert checked["missing_indexes"] == []
        shop.cdc("view", "rebuild", "customer_documents")
        eventually(lambda: view.said().count("view is filled") == 2, DEADLINE_S, view.said)
        await_equal(shop, opensearch)
        assert view.terminate() == 0
        assert "Traceback" not in view.said()
    except BaseException as error:
        error.add_note(view.said())
        raise
    finally:
        view.kill()


@contextmanager
def base_away(shop: Captured, url: str) -> Iterator[None]:
    """The database of the base refuses connections meanwhile."""
    database = str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])
    name = sql.Identifier(database)
    with psycopg.connect(shop.superuser_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        try:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (database,))
            yield
        finally:
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))


WEIGHTS: Final = """
SELECT o.customer_id, count(*) AS orders, sum(public.weight(o.id)) AS weight
  FROM public.orders o WHERE o.customer_id IS NOT NULL GROUP BY o.customer_id
"""
FILLED: Final = re.compile("view is filled .*view=weights")
HAS_LINES: Final = "SELECT to_regclass('public.lines') IS NOT NULL"
WEIGHT: Final = """
CREATE OR REPLACE FUNCTION public.weight(bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT $1'
"""
BROKEN_WEIGHT: Final = """
CREATE OR REPLACE FUNCTION public.weight(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the scales are broken'; END $$
"""
WEIGHED: Final = "SELECT customer_id, count(*), sum(id) FROM orders WHERE customer_id < 100 GROUP BY 1 ORDER BY 1"


def kept(stored: Path) -> list[tuple[int, int, int]]:
    """Returns the rows of the view's target."""
    with closing(sqlite3.connect(stored)) as connection:
        found = connection.execute("SELECT customer_id, orders, weight FROM views_weights WHERE customer_id < 100")
        return sorted((key, count, int(weight)) for key, count, weight in found)


def test_a_view_whose_query_begins_to_fail_is_red_until_it_is_mended(
    shop: Captured, base_job: SinkJob, tmp_path: Path
) -> None:
    """The query calls a function of the base, which is replaced by one that fails."""
    stored, view_port = tmp_path / "weights.db", free_port()
    base_url = shop.settings["sinks"]["base"]["url"]
    target = {"type": "sql", "url": f"sqlite:///{stored}"}
    weights = {"base": "base", "sql": WEIGHTS, "key": ["customer_id"], "target": target}
    shop.settings["views"] = {"weights": weights, "unused": weights | {"target": {"type": "topic"}}}
    shop.settings["http"] |= {"view_port": view_port}
    server = HttpServer(view_port)

    with psycopg.connect(base_url, autocommit=True) as base:
        eventually(lambda: base.execute(HAS_LINES).fetchone() == (True,), DEADLINE_S, base_job.said)
        base.execute(WEIGHT)
        view = ViewProcess(shop, "weights")
        try:
            eventually(lambda: FILLED.search(view.said()), DEADLINE_S, view.said)
            server.await_sample('watershed_view_state{state="serving",view="weights"} 1.0')
            assert (server.reasons(), kept(stored)) == ([], shop.query(WEIGHED))
            unused, weights_now = server.json("/v1/views")["views"]  # in the order of the file
            assert (weights_now["view"], weights_now["state"], weights_now["is_kept"]) == ("weights", "serving", True)
            assert (weights_now["waiting_changes"], weights_now["waiting_keys"], weights_now["error"]) == (0, 0, "")
            assert (unused["view"], unused["state"], unused["is_kept"]) == ("unused", "never run", False)
            server.await_sample('watershed_view_up{view="weights"} 1.0')

            base.execute(BROKEN_WEIGHT)
            shop.query("INSERT INTO orders (id, customer_id) VALUES (9001, 40), (9002, 41)")
            reason = server.await_reason("the scales are broken", DEADLINE_S)
            assert reason == "view weights: the base of the view refuses a statement: the scales are broken"
            failing = server.json("/v1/views/weights")
            assert (failing["state"], failing["rejected_rows"]) == ("serving", 0)
            assert failing["waiting_changes"] + failing["waiting_keys"] > 0
            assert (failing["failing_seconds"] >= 5, failing["next"]) == (
                True,
                "see the server's log for this error; the job tries again",
            )
            done = run(["status", "--json", "--config", str(shop.config())], deadline_s=60.0)
            assert done.returncode == 1, done.stderr
            message = json.loads(done.stdout)
            assert {one["view"]: one["error"] for one in message["views"]} == {
                "weights": failing["error"],
                "unused": "",
            }
            assert kept(stored) != shop.query(WEIGHED), "the target keeps its rows of before"

            base.execute(WEIGHT)
            server.await_ready(DEADLINE_S)
            eventually(lambda: kept(stored) == shop.query(WEIGHED), DEADLINE_S, lambda: f"{kept(stored)}")
            repaired = server.json("/v1/views/weights")
            assert (repaired["error"], repaired["failing_seconds"]) == ("", 0.0)

            with base_away(shop, base_url):
                server.await_reason("view weights: the base of the view does not answer", 60.0)
                away = server.json("/v1/views/weights")
                assert (away["state"], away["waiting_changes"], away["is_kept"]) == ("unreachable", None, None)
                begun = time.monotonic()
                assert HttpServer(shop.settings["http"]["port"]).json("/v1/status")["source"]["is_reachable"]
                assert time.monotonic() - begun < 1.0, "a status waits for no base"
            server.await_ready(DEADLINE_S)
            assert view.terminate() == 0
        except BaseException as error:
            error.add_note(view.said())
            raise
        finally:
            view.kill()
