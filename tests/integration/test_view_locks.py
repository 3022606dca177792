"""Locks that views take in their base: readers and writers of its tables wait a moment at most, and no change is missed
for that."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest

from cdc.config.stores import SqlConfig
from cdc.model.events import pack_version
from sinks.errors import SinkError
from sinks.sql.sink import SqlSink
from tests.support.view_tables import CUSTOMERS, SHOP, Query
from tests.support.views import Views, base_sink, until_idle
from tests.support.waiting import eventually

NAMED: Final = Query("SELECT c.id, c.name FROM customers c", ["id"])
PLACED: Final = Query("SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer_id", ["id"])
USED: Final = (
    "view named: it can't lock tables of its base, because other transactions have used them for more than 2 s"
)
TRIGGERS: Final = "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname ~ '^watershed_named_' ORDER BY 1"


@pytest.fixture
def shop(config: SqlConfig) -> Iterator[SqlSink]:
    with base_sink(config, SHOP) as sink:
        sink.apply([customer(number, name=f"n{number}") for number in range(1, 4)])
        yield sink


@pytest.fixture
def views(config: SqlConfig, fresh_database: str, shop: SqlSink) -> Views:
    return Views(config, fresh_database)


def customer(number: int, version: int = 1, **values: Any) -> Any:
    return CUSTOMERS.upsert(pack_version(1, version), id=number, **values)


@contextmanager
def open_transaction(views: Views, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that stays open. The server ends it after a time, so that a test that waits for it fails."""
    with psycopg.connect(views.dsn, options="-c idle_in_transaction_session_timeout=15s") as connection:
        for statement in statements:
            connection.execute(statement.encode())
        yield connection


def ask_rebuild(views: Views) -> None:
    with views.base() as base:
        assert base.ask_rebuild("named")


@pytest.mark.parametrize("is_rebuilt", [True, False])
def test_a_view_is_filled_while_another_one_reads_its_tables(is_rebuilt: bool, views: Views, shop: SqlSink) -> None:
    """A cursor of a filling keeps its tables until it ends; the sink and all readers would wait behind whoever waits
    for it."""
    if is_rebuilt:
        with views.job("named", NAMED):
            pass
        ask_rebuild(views)
    with open_transaction(views, "DECLARE filling CURSOR FOR SELECT * FROM customers") as other:
        with views.job("named", NAMED) as maintainer:
            shop.apply([customer(4, name="n4")])
            until_idle(maintainer)
            assert views.assert_equal("named", NAMED) == 4
        assert len(other.execute("FETCH ALL FROM filling").fetchall()) == 3


def test_a_filling_waits_for_no_writer_if_the_triggers_are_right(views: Views) -> None:
    with views.job("named", NAMED):
        pass
    ask_rebuild(views)
    late = "UPDATE customers SET name = 'late' WHERE id = 2"
    with open_transaction(views, late) as writer, views.job("named", NAMED) as maintainer:
        assert views.assert_equal("named", NAMED) == 3
        writer.commit()
        until_idle(maintainer)
        assert views.assert_equal("named", NAMED) == 3
    assert views.query("SELECT name FROM views.named WHERE id = 2") == [("late",)]


def test_writers_do_not_wait_while_former_notes_are_deleted(views: Views) -> None:
    """There may be millions of them. A lock on one keeps the deletion from its end."""
    by_region = Query("SELECT c.region, max(c.name) AS name FROM customers c GROUP BY c.region", ["region"])
    with views.job("named", NAMED):
        views.query("UPDATE customers SET name = 'noted', region = 'north'")
    notes = "SELECT 1 FROM watershed_views_shop.changes FOR UPDATE"
    deleting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ '^DELETE'"

    def fill() -> int:
        with views.job("named", by_region):
            return views.assert_equal("named", by_region)

    with ThreadPoolExecutor(1) as pool:
        with open_transaction(views, notes) as holder:
            filled = pool.submit(fill)
            eventually(lambda: views.query(deleting) == [(1,)], describe="the deletion waits for the lock")
            views.query("SET lock_timeout = '1s'; UPDATE customers SET name = 'written' WHERE id = 1")
            holder.rollback()
        assert filled.result() == 1
    assert views.query("SELECT name FROM views.named") == [("written",)]


def test_what_a_former_trigger_notes_meanwhile_is_not_taken_for_the_new_query(views: Views) -> None:
    """An image of the former query lacks the column by which the new one finds its key."""
    by_region = Query("SELECT c.region, max(c.name) AS name FROM customers c GROUP BY c.region", ["region"])
    views.query("UPDATE customers SET region = 'north'")
    with views.job("named", NAMED):
        pass
    with open_transaction(views, "UPDATE customers SET name = 'z' WHERE id = 1") as writer:
        with pytest.raises(SinkError, match=USED), views.job("named", by_region):
            pass
        assert views.query(TRIGGERS) == [("customers",)] * 4, "the former triggers note changes until then"
        writer.commit()
    with views.job("named", by_region) as maintainer:
        assert views.assert_equal("named", by_region) == 1
        views.query("UPDATE customers SET name = 'zz' WHERE id = 1")
        until_idle(maintainer)
        assert views.query("SELECT name FROM views.named") == [("zz",)]


def test_a_trigger_that_was_disabled_is_made_again(views: Views) -> None:
    with views.job("named", NAMED):
        pass
    views.query("ALTER TABLE customers DISABLE TRIGGER watershed_named_0_update")
    views.query("UPDATE customers SET name = 'unseen' WHERE id = 1")
    ask_rebuild(views)
    with views.job("named", NAMED) as maintainer:
        views.query("UPDATE customers SET name = 'seen' WHERE id = 2")
        until_idle(maintainer)
        assert views.assert_equal("named", NAMED) == 3


def test_whoever_reads_a_table_that_a_view_leaves_is_not_kept_from_it(views: Views, shop: SqlSink) -> None:
    """Triggers of a table can't be dropped while it is read: the view gives up after a moment, and is tried again."""
    with views.job("named", PLACED):
        pass
    before = views.query(TRIGGERS)
    assert before == [("customers",)] * 4 + [("orders",)] * 4
    with open_transaction(views, "SELECT count(*) FROM orders") as reader:
        with pytest.raises(SinkError, match=USED), views.job("named", NAMED):
            pass
        with views.base() as base, pytest.raises(SinkError, match=USED):
            base.remove("named")
        assert views.query(TRIGGERS) == before
        reader.commit()
    with views.job("named", NAMED) as maintainer:
        assert views.query(TRIGGERS) == [("customers",)] * 4
        shop.apply([customer(1, 2, name="other")])
        until_idle(maintainer)
        assert views.assert_equal("named", NAMED) == 3
    with views.base() as base:
        base.remove("named")
    assert views.query(TRIGGERS) == []
    assert views.query("SELECT count(*) FROM pg_proc WHERE proname ~ '^watershed_named_'") == [(0,)]
