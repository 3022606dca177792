"""Views over a base that a real SQL sink keeps: whatever is applied to it, and wherever the job ends, each view is its
query's result."""

import random
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Final

import psycopg
import pytest
from pydantic import SecretStr

from cdc.config.sink_settings import SqlConfig
from cdc.config.view_settings import ViewConfig
from cdc.model.errors import ConfigError, SinkError
from cdc.model.events import TableId, pack_version
from sinks.contract import Sink
from sinks.sql.sink import SqlSink
from tests.conformance.stores import url_of
from tests.conformance.tables import Table, table
from views.base import Base, NotUniqueError
from views.maintainer import ViewMaintainer, define

CUSTOMERS: Final = table("public", "customers", ("id",), {"id": "int8", "name": "text", "region": "text"})
ORDERS: Final = table(
    "public", "orders", ("id",), {"id": "int8", "customer_id": "int8", "placed_at": "timestamptz", "note": "json"}
)
LINES: Final = table(
    "public", "lines", ("order_id", "no"), {"order_id": "int8", "no": "int4", "sku": "text", "price": "numeric"}
)
TABLES: Final = (CUSTOMERS, ORDERS, LINES)

VIEWS: Final[Mapping[str, tuple[str, list[str]]]] = {
    "documents": (
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
    "totals": (
        """
        SELECT o.id, c.name, l.total, l.lines, o.note
          FROM public.orders o LEFT JOIN customers c ON c.id = o.customer_id
          LEFT JOIN (SELECT order_id, sum(price) AS total, count(*) AS lines FROM lines GROUP BY order_id) l
            ON l.order_id = o.id
        """,
        ["id"],
    ),
    "by_hour": (
        """
        SELECT date_trunc('hour', o.placed_at) AS hour, count(DISTINCT o.id) AS orders, sum(l.price) AS revenue,
               (percentile_disc(0.5) WITHIN GROUP (ORDER BY l.price))::float8 AS median
          FROM orders o JOIN lines l ON l.order_id = o.id GROUP BY 1
        """,
        ["hour"],
    ),
    "regions": (
        """
        SELECT c.region, l.sku, min(l.price)::float8 AS lowest, max(o.placed_at) AS latest, avg(l.price) AS mean
          FROM customers AS c, orders AS o, lines AS l
         WHERE c.id = o.customer_id AND o.id = l.order_id AND l.price > 1
         GROUP BY c.region, l.sku HAVING sum(l.price) > 2
        """,
        ["region", "sku"],
    ),
    "largest": (
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
    "pairs": (
        "SELECT a.id AS one, b.id AS other, a.region FROM customers a JOIN customers b ON b.region = a.region "
        "AND b.id > a.id",
        ["one", "other"],
    ),
}


class Workload:
    """Random changes of three tables, applied to the base as its sink's job does."""

    def __init__(self, sink: SqlSink, seed: int) -> None:
        self._sink = sink
        self._chance = random.Random(seed)
        self._version = pack_version(1, 1)

    def step(self) -> None:
        changes = {}
        for _ in range(self._chance.randint(1, 12)):
            kind = self._chance.choice(TABLES)
            key = self._key(kind)
            self._version += 1
            is_delete = self._chance.random() < 0.3
            changes[kind.id, tuple(key.values())] = (
                kind.delete(self._version, **key)
                if is_delete
                else kind.upsert(self._version, **key, **self._values(kind))
            )
        self._sink.apply(list(changes.values()))

    def truncate(self) -> None:
        self._version += 1
        self._sink.sweep(self._chance.choice(TABLES).id, self._version)

    def _key(self, kind: Table) -> dict[str, int]:
        number = self._chance.randint(1, 8)
        return {"order_id": number, "no": self._chance.randint(1, 3)} if kind is LINES else {"id": number}

    def _values(self, kind: Table) -> dict[str, Any]:
        chance = self._chance
        if kind is CUSTOMERS:
            return {"name": f"n{chance.randint(1, 3)}", "region": chance.choice(["north", "söuth", None])}
        if kind is ORDERS:
            hour = chance.choice([f"2026-01-01T0{chance.randint(0, 3)}:10:00Z", None])
            note = chance.choice(['{"a":1}', '{"a": 1}', None])
            return {"customer_id": chance.choice([None, *range(1, 9)]), "placed_at": hour, "note": note}
        return {"sku": f"s{chance.randint(0, 3)}", "price": chance.choice(["1", "1.0", "2.50", "17.3", None])}


@pytest.fixture
def base_config(fresh_database: str) -> SqlConfig:
    shapes = {"public.lines": {"table": "kept.lines", "indexes": [["order_id"]]}}
    return SqlConfig.model_validate({"url": SecretStr(url_of(fresh_database)), "shapes": shapes})


@pytest.fixture
def base_sink(base_config: SqlConfig) -> Iterator[SqlSink]:
    with closing(SqlSink.open(base_config, "shop")) as sink:
        sink.begin_generation(1)
        for one in TABLES:
            sink.prepare(one.schema)
        yield sink


class Views:
    """Opens jobs of views on the base; their target is another schema of the same database."""

    def __init__(self, base: SqlConfig, dsn: str) -> None:
        self._base = base
        self.dsn = dsn
        self.waits = 0

    def config(self, text: str, key: list[str], **options: Any) -> ViewConfig:
        target = {"type": "sql", "url": self._base.url.get_secret_value(), "own_schema": "of_views"}
        return ViewConfig.model_validate({"base": "base", "sql": text, "key": key, "target": target, **options})

    def base(self) -> Base:
        return Base(self._base, "shop")

    def open(self, name: str, config: ViewConfig, base: Base) -> ViewMaintainer:
        def target() -> Sink:
            assert isinstance(config.target, SqlConfig)
            section = config.target.model_copy(update={"own_schema": f"of_{name}"})
            return SqlSink.open(section, "shop")

        def wait() -> None:
            self.waits += 1

        return ViewMaintainer(define(name, config, base), base, target, wait)

    def query(self, statement: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SET search_path = public, kept")
            return connection.execute(statement.encode()).fetchall()

    def assert_equal(self, name: str, text: str, key: list[str]) -> int:
        there = " AND ".join(f"v.{column} IS NOT NULL" for column in key)
        wanted = self.query(f"SELECT row_to_json(v)::text FROM ({text}) v WHERE {there} ORDER BY 1")
        assert self.query(f"SELECT row_to_json(v)::text FROM views.{name} v ORDER BY 1") == wanted
        return len(wanted)


@pytest.fixture
def views(base_config: SqlConfig, fresh_database: str) -> Views:
    return Views(base_config, fresh_database)


def until_idle(maintainer: ViewMaintainer) -> None:
    while maintainer.step():
        pass


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("seed", range(2))
def test_a_view_is_its_query_whatever_is_applied_and_wherever_the_job_ends(
    name: str, seed: int, views: Views, base_sink: SqlSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, key = VIEWS[name]
    config = views.config(text, key, keys_per_batch=3)
    workload, chance = Workload(base_sink, seed), random.Random(seed)
    for _ in range(5):
        workload.step()
    rows = 0
    for _ in range(4):  # each is a job, which ends without warning at some moment
        with views.base() as base, closing(views.open(name, config, base)) as maintainer:
            maintainer.start()
            for _ in range(chance.randint(1, 8)):
                workload.step()
                if chance.random() < 0.15:
                    workload.truncate()
                if chance.random() < 0.7:
                    maintainer.step()
            if chance.random() < 0.5:
                until_idle(maintainer)
                rows += views.assert_equal(name, text, key)
            else:
                monkeypatch.setattr(base, "written", _killed)
                _step_until_killed(maintainer)
    with views.base() as base, closing(views.open(name, config, base)) as maintainer:
        maintainer.start()
        until_idle(maintainer)
        rows += views.assert_equal(name, text, key)
    assert rows > 0
    assert views.waits == 1, "the view was filled once, at its beginning"


class _KilledError(Exception):
    pass


def _killed(*_: object) -> None:
    raise _KilledError


def _step_until_killed(maintainer: ViewMaintainer) -> None:
    with suppress(_KilledError):
        until_idle(maintainer)


def test_a_base_table_that_is_created_again_has_the_view_filled_again(views: Views, base_sink: SqlSink) -> None:
    text, key = VIEWS["totals"]
    workload = Workload(base_sink, 1)
    for _ in range(5):
        workload.step()
    with views.base() as base, closing(views.open("totals", views.config(text, key), base)) as maintainer:
        maintainer.start()
        base_sink.begin_generation(2)
        for one in TABLES:
            base_sink.discard(one.id)
            base_sink.prepare(one.schema)
        for _ in range(5):
            workload.step()
        until_idle(maintainer)
        assert views.assert_equal("totals", text, key) > 0
    assert views.waits == 2


def test_a_query_that_changes_has_the_view_filled_again_in_its_new_form(views: Views, base_sink: SqlSink) -> None:
    base_sink.apply([CUSTOMERS.upsert(pack_version(1, n), id=n, name=f"n{n}", region="r") for n in range(1, 5)])
    for text in (
        "SELECT id, name FROM customers",
        "SELECT id, region AS name, name AS other FROM customers WHERE id > 2",
    ):
        with views.base() as base, closing(views.open("named", views.config(text, ["id"]), base)) as maintainer:
            maintainer.start()
            assert views.assert_equal("named", text, ["id"]) > 0


def test_two_rows_of_one_key_are_named_and_the_last_good_state_is_kept(views: Views, base_sink: SqlSink) -> None:
    text = "SELECT region, name FROM customers"
    base_sink.apply([CUSTOMERS.upsert(pack_version(1, 1), id=1, name="a", region="north")])
    with views.base() as base, closing(views.open("twice", views.config(text, ["region"]), base)) as maintainer:
        maintainer.start()
        base_sink.apply([CUSTOMERS.upsert(pack_version(1, 2), id=2, name="b", region="north")])
        with pytest.raises(NotUniqueError, match="2 rows have the key region = north"):
            until_idle(maintainer)
    assert views.query("SELECT region, name FROM views.twice") == [("north", "a")]
    with (
        views.base() as base,
        closing(views.open("twice", views.config(text, ["region"], keys_per_batch=1), base)) as maintainer,
        pytest.raises(NotUniqueError, match="2 rows have the key"),
    ):
        base.ask_rebuild("twice")
        maintainer.start()


def test_two_jobs_do_not_keep_one_view(views: Views, base_sink: SqlSink) -> None:
    config = views.config("SELECT id FROM customers", ["id"])
    with (
        views.base() as one,
        views.base() as other,
        closing(views.open("alone", config, one)),
        pytest.raises(SinkError, match="another process keeps it"),
    ):
        views.open("alone", config, other)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT id FROM nowhere", "it reads public.nowhere, which its base does not hold"),
        ("SELECT c.id, c.missing FROM customers c", "missing"),
        ("DELETE FROM customers", "not one SELECT"),
        ("SELECT id FROM customers; SELECT 1", "not one SELECT"),
        ("SELEC id", "can't be read|not one SELECT"),
        ("SELECT id, now() AS at FROM customers", "not deterministic"),
        ("SELECT id, nextval('s') AS n FROM customers", r"nextval\(\) is not deterministic"),
        ("SELECT id, random() AS n FROM customers", "not deterministic"),
        ("SELECT id, row_number() OVER (ORDER BY id) AS n FROM customers", "window functions"),
        ("SELECT id FROM customers ORDER BY id LIMIT 10", "LIMIT"),
        ("SELECT c.id, (SELECT count(*) FROM orders o) AS n FROM customers c", "can't be traced to the view's key"),
        ("SELECT c.id FROM customers c CROSS JOIN orders o", "can't be traced to the view's key"),
        ("SELECT c.id FROM orders o RIGHT JOIN customers c ON c.id = o.customer_id", "RIGHT JOIN"),
        ("SELECT id FROM customers UNION SELECT id FROM orders", "UNION|not one SELECT"),
        (
            "SELECT c.id, jsonb_agg(o.id) AS os FROM customers c JOIN orders o ON o.customer_id = c.id GROUP BY c.id",
            "write ORDER BY inside",
        ),
        ("SELECT name FROM customers", "key has column id, which the query does not return"),
        ("SELECT max(id) AS id FROM customers", "computed from many rows"),
        (
            "SELECT c.id FROM customers c JOIN orders o ON TRUE LEFT JOIN lines l ON l.no = c.id AND l.order_id = o.id",
            "a change of public.orders can't be traced",
        ),
        (
            "WITH t AS (SELECT id FROM orders) SELECT a.id FROM t a JOIN t b ON b.id = a.id",
            "uses t of its WITH twice",
        ),
    ],
)
def test_a_query_that_can_not_be_kept_is_refused_by_name(
    text: str, said: str, views: Views, base_sink: SqlSink
) -> None:
    with views.base() as base, pytest.raises(ConfigError, match=f"view bad.*({said})"):
        define("bad", views.config(text, ["id"]), base)


def test_indexes_that_are_missing_are_named(views: Views, base_sink: SqlSink) -> None:
    text, key = VIEWS["documents"]
    with views.base() as base:
        definition = define("documents", views.config(text, key), base)
        assert base.missing_indexes(definition) == [(TableId("public", "orders"), ("customer_id",))]


def test_a_new_query_leaves_no_triggers_on_tables_that_it_does_not_read(views: Views, base_sink: SqlSink) -> None:
    for text in ("SELECT id, name FROM customers", "SELECT id, placed_at FROM orders"):
        with views.base() as base, closing(views.open("moved", views.config(text, ["id"]), base)) as maintainer:
            maintainer.start()
    base_sink.apply([CUSTOMERS.upsert(pack_version(1, 1), id=1, name="a", region="north")])
    assert views.query("SELECT count(*) FROM watershed_views_shop.changes") == [(0,)]
    with views.base() as base:
        base.remove("moved")
    base_sink.apply([ORDERS.upsert(pack_version(1, 2), id=1, customer_id=1, placed_at=None, note=None)])
    for own in ("views", "changes", "keys"):
        assert views.query(f"SELECT count(*) FROM watershed_views_shop.{own}") == [(0,)]


def test_a_base_that_was_lost_has_greater_versions_than_the_target(views: Views, base_sink: SqlSink) -> None:
    text, key = VIEWS["totals"]
    workload = Workload(base_sink, 3)
    for _ in range(2):
        workload.step()
        with views.base() as base, closing(views.open("totals", views.config(text, key), base)) as maintainer:
            maintainer.start()
            for _ in range(5):
                workload.step()
                until_idle(maintainer)
            assert views.assert_equal("totals", text, key) > 0
        views.query("DROP SCHEMA watershed_views_shop CASCADE; SELECT 1")


def test_a_row_that_the_query_can_not_compute_is_named_and_the_others_go_on(views: Views, base_sink: SqlSink) -> None:
    text = "SELECT id, 100 / (customer_id - 3) AS share FROM orders"

    def put(version: int, **customers: int) -> None:
        base_sink.apply(
            [
                ORDERS.upsert(pack_version(1, version), id=int(key[1:]), customer_id=number, placed_at=None, note=None)
                for key, number in customers.items()
            ]
        )

    put(1, o1=1, o2=2)
    with views.base() as base, closing(views.open("shares", views.config(text, ["id"]), base)) as maintainer:
        maintainer.start()
        put(2, o1=3, o2=5, o4=4)
        until_idle(maintainer)
        rejected = views.query("SELECT key, reason FROM watershed_views_shop.rejected")
        assert rejected == [(["1"], "the query fails: division by zero")]
        assert views.query("SELECT id, share FROM views.shares ORDER BY id") == [(1, -50), (2, 50), (4, 100)]
        put(3, o1=13)
        until_idle(maintainer)
        assert views.query("SELECT count(*) FROM watershed_views_shop.rejected") == [(0,)]
        assert views.assert_equal("shares", text, ["id"]) == 3


@pytest.mark.parametrize("column", ["price", "price * 2"])
def test_a_key_whose_equal_values_have_several_texts_is_refused(column: str, views: Views, base_sink: SqlSink) -> None:
    with views.base() as base:
        text = f"SELECT {column} AS k, count(*) AS n FROM lines GROUP BY 1"
        with pytest.raises(ConfigError, match="column k of its key has type numeric, of which equal values"):
            base.described(define("prices", views.config(text, ["k"]), base))
        exact = f"SELECT ({column})::numeric(20,2) AS k, count(*) AS n FROM lines GROUP BY 1"
        columns = base.described(define("prices", views.config(exact, ["k"]), base))
        assert [one.type_name for one in columns] == ["numeric(20,2)", "bigint"]
