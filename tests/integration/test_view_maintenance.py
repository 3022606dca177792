"""Views over a base that a real SQL sink keeps: whatever is applied to it, and wherever the job ends, each view is its
query's result."""

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final
from unittest.mock import patch

import pytest

from cdc.config.stores import SqlConfig
from cdc.model.errors import ConfigError
from cdc.model.events import TableId, pack_version
from sinks.errors import SinkError
from sinks.sql.sink import SqlSink
from tests.conformance.tables import table
from tests.support.view_queries import VIEWS
from tests.support.view_tables import CUSTOMERS, ORDERS, SHOP, Query
from tests.support.views import Views, Workload, base_sink, random_run, until_idle
from watershed.status.view_facts import ViewFacts
from watershed.views import statements
from watershed.views.definition import ViewDefinition
from watershed.views.maintainer import define
from watershed.views.states import ViewState

pytestmark = pytest.mark.whole

NAMED: Final = Query("SELECT id, name FROM customers", ["id"])


def customer(number: int, version: int = 1, **values: Any) -> Any:
    return CUSTOMERS.upsert(pack_version(1, version), id=number, **values)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_its_query_whatever_is_applied_and_wherever_the_job_ends(
    name: str, views: Views, shop: SqlSink
) -> None:
    run = random_run(name, VIEWS[name], views, Workload(shop, SHOP, 1), 1)
    assert run.rows > 0
    assert views.waits == run.fillings, "the view was filled until a filling came to its end, and then no more"


@pytest.mark.parametrize(
    ("expression", "source"),
    [
        ("c.region IS NULL", "customers c"),
        ("c.name::char(5)", "customers c"),
        ("('10.0.0.' || c.id)::inet", "customers c"),
        ("date_part('epoch', o.placed_at)::bigint", "orders o"),
    ],
)
def test_a_key_has_one_text_whichever_way_it_was_found(
    expression: str, source: str, views: Views, shop: SqlSink
) -> None:
    """A cast to text prints some types differently than a result's column."""
    query = Query(f"SELECT {expression} AS k, count(*) AS rows FROM {source} GROUP BY 1 -- ü", ["k"])
    assert random_run("keyed", query, views, Workload(shop, SHOP, 3), 3, jobs=1).rows > 0


def test_rows_that_change_while_keys_are_found_are_not_missed(views: Views, shop: SqlSink) -> None:
    """Two rows made a view row; the second changes just after the first one's change was taken."""
    shop.apply([customer(number, region="north") for number in (1, 2)])
    touched = ViewDefinition.touched

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        views.query("UPDATE customers SET region = 'east' WHERE id = 2 AND region = 'north'")
        return touched(*arguments, **options)

    with views.job("pairs", VIEWS["pairs"]) as maintainer:
        assert views.assert_equal("pairs", VIEWS["pairs"]) == 1
        views.query("UPDATE customers SET region = 'south' WHERE id = 1")
        with patch.object(ViewDefinition, "touched", meanwhile):
            maintainer.step()
        until_idle(maintainer)
        assert views.assert_equal("pairs", VIEWS["pairs"]) == 0


def test_columns_may_have_any_name(views: Views, config: SqlConfig) -> None:
    types = {"n": "int8", "o": "text", "source": "int8", "image": "text", "r": "int8", "k": "text"}
    odd = table("public", "odd", ("n",), types)
    query = Query("SELECT x.source, max(x.o) AS o, max(x.image) AS k, sum(x.r) AS n FROM odd x GROUP BY 1", ["source"])
    with base_sink(config, [odd]) as sink, views.job("named", query) as maintainer:
        sink.apply([odd.upsert(pack_version(1, n), n=n, o="a", source=n % 2, image="i", r=n) for n in range(4)])
        until_idle(maintainer)
        assert views.assert_equal("named", query) == 2


@pytest.mark.parametrize(
    ("statement", "waits"),
    [
        ("ALTER TABLE customers ADD COLUMN added text DEFAULT 'x'", 1),
        ("ALTER TABLE customers DROP COLUMN region", 1),
        ("ALTER TABLE customers DROP COLUMN name; ALTER TABLE customers ADD COLUMN name text", 2),
        ("ALTER TABLE customers ALTER name TYPE bigint USING length(name)", 2),
        (
            "CREATE TABLE other (LIKE customers INCLUDING ALL); INSERT INTO other SELECT id, 'new', region FROM "
            "customers; ALTER TABLE customers RENAME TO old; ALTER TABLE other RENAME TO customers",
            2,
        ),
    ],
)
def test_columns_that_change_under_a_view_are_followed(statement: str, waits: int, views: Views, shop: SqlSink) -> None:
    shop.apply([customer(number, name=f"n{number}", region="r") for number in range(1, 5)])
    with views.job("named", NAMED) as maintainer:
        views.query(statement)
        try:
            until_idle(maintainer)
        except SinkError as error:
            assert "columns of its base have changed" in error.message
    with views.job("named", NAMED) as maintainer:  # as `cdc view run` goes on
        assert views.assert_equal("named", NAMED) == 4
        views.query("DELETE FROM customers WHERE id = 1")
        until_idle(maintainer)
        assert views.assert_equal("named", NAMED) == 3
    assert views.waits == waits


def test_a_column_that_is_gone_is_named(views: Views, shop: SqlSink) -> None:
    with views.job("named", NAMED) as maintainer:
        views.query("ALTER TABLE customers RENAME name TO title")
        with pytest.raises(SinkError):
            until_idle(maintainer)
    with pytest.raises(ConfigError, match="view named: Column 'name' could not be resolved"), views.job("named", NAMED):
        pass


def test_columns_that_a_star_names_may_be_added(views: Views, shop: SqlSink) -> None:
    query = Query("SELECT * FROM customers", ["id"])
    with views.job("all", query) as maintainer:
        views.query("ALTER TABLE customers ADD COLUMN added text")
        shop.apply([customer(1, name="n")])
        with pytest.raises(SinkError, match="columns of its base have changed"):
            until_idle(maintainer)
    with views.job("all", query) as maintainer:
        until_idle(maintainer)
        assert views.assert_equal("all", query) == 1
    assert views.waits == 2


def test_a_base_table_that_is_created_again_has_the_view_filled_again(views: Views, shop: SqlSink) -> None:
    workload = Workload(shop, SHOP, 1)
    for _ in range(5):
        workload.step()
    with views.job("totals", VIEWS["totals"]) as maintainer:
        shop.begin_generation(2)
        for one in SHOP:
            shop.discard(one.id)
            shop.prepare(one.schema)
        for _ in range(5):
            workload.step()
        until_idle(maintainer)
        assert views.assert_equal("totals", VIEWS["totals"]) > 0
    assert views.waits == 2


def test_a_query_that_changes_has_the_view_filled_again_in_its_new_form(views: Views, shop: SqlSink) -> None:
    shop.apply([customer(number, name=f"n{number}", region="r") for number in range(1, 5)])
    for text in (
        "SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer_id",
        "SELECT id, name FROM customers",
        "SELECT id, region AS name, name AS other FROM customers WHERE id > 2",
    ):
        query = Query(text, ["id"])
        with views.job("named", query):
            assert views.assert_equal("named", query) == len(views.query(text))
    triggers = views.query("SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE tgname ~ 'watershed_named'")
    assert triggers == [("customers",)], "the first query's triggers are gone"


def test_two_rows_of_one_key_are_named_and_the_last_good_state_is_kept(views: Views, shop: SqlSink) -> None:
    query = Query("SELECT region, name FROM customers", ["region"])
    rows = " and ".join(f'{{"region":"north","name":"{name}"}}' for name in "ab")
    shown = f"2 rows have the key region = north, such as {rows}"
    shop.apply([customer(1, name="a", region="north")])
    with views.job("twice", query) as maintainer:
        shop.apply([customer(2, name="b", region="north"), customer(3, name="c", region="south")])
        until_idle(maintainer)
        assert views.query("SELECT key, reason FROM watershed_views_shop.rejected") == [(["north"], shown)]
        assert views.query("SELECT region, name FROM views.twice ORDER BY 1") == [("north", "a"), ("south", "c")]
        with views.base() as base:
            found = base.key_finding(maintainer._definition)
            assert (found.level, found.message) == ("fail", shown)
            base.ask_rebuild("twice")
        with pytest.raises(SinkError) as message:
            until_idle(maintainer)
        assert shown in message.value.message
        assert views.query("SELECT region, name FROM views.twice ORDER BY 1") == [("north", "a"), ("south", "c")]
        shop.apply([customer(1, 2, name="a", region="west")])  # a moment later, as the source has it
        until_idle(maintainer)
        assert views.assert_equal("twice", query) == 3
        with views.base() as base:
            assert base.key_finding(maintainer._definition).level == "ok"


def test_a_check_of_keys_that_takes_too_long_is_ended(views: Views, shop: SqlSink) -> None:
    shop.apply([customer(1, name="a", region="north")])
    slow = Query(
        "SELECT name FROM customers WHERE id < (SELECT count(*) FROM generate_series(1, 1000000000))", ["name"]
    )
    with views.base() as base:
        found = base.key_finding(define("slow", views.config(slow), base), within_s=0.1)
        assert (found.level, "longer than 0.1 s" in found.message) == ("warn", True)
        found = base.key_finding(define("named", views.config(NAMED), base))
        assert (found.level, found.message) == ("ok", "no two rows have the same key"), "the connection goes on"


def test_an_error_stays_noted_until_the_view_does_its_work_again(views: Views, shop: SqlSink) -> None:
    def counts() -> ViewFacts:
        with views.base() as base:
            found = base.counts("named")
            assert found is not None
            return found

    def note(message: str, state: str | None = None) -> ViewFacts:
        with views.base() as base:
            base.note_error("named", SinkError(message, "start it"), state)
        return counts()

    with views.job("named", NAMED):
        assert (counts().state, counts().is_kept, counts().error, counts().failing_s) == ("serving", True, None, 0.0)
    first, second = note("the target is away"), note("the target refuses")
    assert (first.error, first.is_kept, second.error) == ("the target is away", False, "the target refuses")
    assert second.failing_s > first.failing_s > 0, "it has failed since the first of them"
    with views.job("named", NAMED) as maintainer:
        assert (counts().error, counts().is_kept) == ("the target refuses", True), "a start alone proves nothing"
        shop.apply([customer(1, name="a")])
        until_idle(maintainer)
        assert (counts().error, counts().next, counts().failing_s) == (None, None, 0.0)
    assert note("no key", "failed").state == "failed"
    with views.base() as base:
        base.note("named", ViewState("other", "filling", 1, 1, []))
    assert (counts().state, counts().error) == ("filling", None), "a view that had stopped begins again"


def test_changes_that_wait_are_counted_up_to_a_bound(views: Views, shop: SqlSink) -> None:
    """Every process that shows a view counts them every second, however many wait."""
    with views.job("named", NAMED), views.base() as base:
        shop.apply([customer(number, name="a") for number in range(1, 6)])
        with patch.object(statements, "COUNTED_MAX", 3):
            found = base.counts("named")
        assert found is not None
        assert found.changes == 3
        assert found.oldest_s is not None


def test_two_jobs_do_not_keep_one_view(views: Views, shop: SqlSink) -> None:
    config = views.config(NAMED)
    with (
        views.base() as one,
        views.base() as other,
        closing(views.open("alone", config, one)),
        pytest.raises(SinkError, match="another process runs it"),
    ):
        views.open("alone", config, other)


@pytest.mark.parametrize(
    ("text", "message"),
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
        ("SELECT id FROM customers UNION SELECT id FROM orders LIMIT 3", "in no order"),
        (
            "SELECT c.id, jsonb_agg(o.id) AS os FROM customers c JOIN orders o ON o.customer_id = c.id GROUP BY c.id",
            "write ORDER BY inside",
        ),
        ("SELECT name FROM customers", "key has column id, which the query does not return"),
        ("SELECT max(id) AS id FROM customers", "computed from many rows"),
        ("SELECT range_agg(int8range(id, id)) AS id FROM customers", r"range_agg\(\) computes its key from many rows"),
        (
            "SELECT c.id FROM customers c JOIN orders o ON TRUE LEFT JOIN lines l ON l.no = c.id AND l.order_id = o.id",
            "a change of public.orders can't be traced",
        ),
        (
            "WITH t AS (SELECT id FROM orders) SELECT a.id FROM t a JOIN t b ON b.id = a.id",
            "uses t of its WITH more than once",
        ),
    ],
)
def test_a_query_that_can_not_be_kept_is_refused_by_name(text: str, message: str, views: Views, shop: SqlSink) -> None:
    with views.base() as base, pytest.raises(ConfigError, match=f"view bad.*({message})"):
        define("bad", views.config(Query(text, ["id"])), base)


@pytest.mark.parametrize(
    "expression",
    [
        "o.note",
        "o.placed_at - o.placed_at",
        "to_jsonb(o.customer_id)",
        "l.price * 2",
        "ARRAY[l.price]",
        "l.price::real",
    ],
)
def test_a_key_whose_equal_values_have_several_texts_is_refused(expression: str, views: Views, shop: SqlSink) -> None:
    text = f"SELECT {expression} AS k FROM orders o JOIN lines l ON l.order_id = o.id"
    with views.base() as base, pytest.raises(ConfigError, match=r"column k of its key has type .*, whose equal"):
        base.described(define("bad", views.config(Query(text, ["k"])), base))


def test_a_number_with_a_scale_may_be_the_key(views: Views, shop: SqlSink) -> None:
    query = Query("SELECT l.price::numeric(20,2) AS k, count(*) AS rows FROM lines l GROUP BY 1", ["k"])
    assert random_run("prices", query, views, Workload(shop, SHOP, 4), 4, jobs=1).rows > 0


def test_a_removed_view_leaves_nothing_in_its_base(views: Views, shop: SqlSink) -> None:
    with views.job("named", NAMED), views.base() as base:
        base.remove("named")
    shop.apply([customer(1, name="a", region="north")])
    for own in ("views", "changes", "keys"):
        assert views.query(f"SELECT count(*) FROM watershed_views_shop.{own}") == [(0,)]


def test_a_base_that_was_lost_has_greater_versions_than_the_target(views: Views, shop: SqlSink) -> None:
    workload = Workload(shop, SHOP, 3)
    for _ in range(2):
        workload.step()
        with views.job("totals", VIEWS["totals"]) as maintainer:
            for _ in range(5):
                workload.step()
                until_idle(maintainer)
            assert views.assert_equal("totals", VIEWS["totals"]) > 0
        views.query("DROP SCHEMA watershed_views_shop CASCADE")


def test_a_row_that_the_query_can_not_compute_is_named_and_the_others_go_on(views: Views, shop: SqlSink) -> None:
    query = Query("SELECT id, 100 / (customer_id - 3) AS share FROM orders", ["id"])

    def put(version: int, customers: Mapping[int, int]) -> None:
        shop.apply([ORDERS.upsert(pack_version(1, version), id=n, customer_id=c) for n, c in customers.items()])

    put(1, {1: 1, 2: 2})
    with views.job("shares", query) as maintainer:
        put(2, {1: 3, 2: 5, 4: 4})
        until_idle(maintainer)
        rejected = views.query("SELECT key, reason FROM watershed_views_shop.rejected")
        assert rejected == [(["1"], "the query fails: division by zero")]
        assert views.query("SELECT id, share FROM views.shares ORDER BY id") == [(1, -50), (2, 50), (4, 100)]
        put(3, {1: 13})
        until_idle(maintainer)
        assert views.query("SELECT count(*) FROM watershed_views_shop.rejected") == [(0,)]
        assert views.assert_equal("shares", query) == 3


def test_indexes_that_are_missing_are_named(views: Views, shop: SqlSink) -> None:
    with views.base() as base:
        definition = define("documents", views.config(VIEWS["documents"]), base)
        assert base.missing_indexes(definition) == [(TableId("public", "orders"), ("customer_id",))]


def test_a_job_that_goes_on_wakes_at_a_change(views: Views, shop: SqlSink) -> None:
    query = Query("SELECT id FROM customers", ["id"])
    for number in (1, 2):
        with views.base() as base, closing(views.open("awake", views.config(query), base)) as maintainer:
            maintainer.start()
            shop.apply([CUSTOMERS.upsert(pack_version(1, number), id=number, name="a")])
            began = time.monotonic()
            base.wait(60)
            assert time.monotonic() - began < 30
            until_idle(maintainer)
    assert views.waits == 1
