"""The minutes that views read: exactly those that have passed are in the base, and rows appear at their deadlines."""

import re
import threading
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from pydantic import ValidationError

from cdc.config.config_file import Config
from cdc.config.stores import SqlConfig
from cdc.config.views import MINUTES
from sinks.errors import SinkError
from tests.conformance.stores import url_of
from tests.support.view_tables import INVOICES, PAGE, RECEIPTS, Query
from tests.support.views import Views, base_config, base_sink, until_idle
from tests.support.waiting import eventually
from watershed.views import supervisor
from watershed.views.base import Base
from watershed.views.clock import ClockBase, ClockSupervisor, bases_with_clock

MINUTES_OF_A_DAY: Final = 24 * 60
OVERDUE: Final = Query(
    "SELECT i.id, i.due_at FROM invoices i JOIN clock.minutes m ON m.at = i.due_at "
    "WHERE NOT EXISTS (SELECT 1 FROM receipts r WHERE r.invoice_id = i.id AND r.at <= i.due_at)",
    ["id"],
)


@pytest.fixture
def clock(config: SqlConfig) -> Iterator[ClockBase]:
    with ClockBase(config, "shop") as base:
        base.install()
        base.create_minutes()
        yield base


class ClockViews(Views):
    """Jobs of views that may read the clock."""

    def base(self) -> Base:
        return Base(self._base, "shop", [MINUTES])

    def minutes(self) -> tuple[int, str, str]:
        """Their number, the first and the last."""
        count = "SELECT count(*), min(at)::text, max(at)::text FROM watershed_views_shop.minutes"
        (found,) = self.query(count)
        return found[0], found[1].removesuffix(":00+00"), found[2].removesuffix(":00+00")


@pytest.fixture
def views(config: SqlConfig, fresh_database: str) -> ClockViews:
    return ClockViews(config, fresh_database)


def test_a_minute_is_inserted_once_it_has_begun_and_deleted_behind_the_horizon(
    clock: ClockBase, views: ClockViews
) -> None:
    assert clock.advance(1, is_first=True, now="2026-01-02 12:00:59.999Z") == MINUTES_OF_A_DAY + 1
    assert views.minutes() == (MINUTES_OF_A_DAY + 1, "2026-01-01 12:00", "2026-01-02 12:00")
    assert clock.advance(1, now="2026-01-02 12:00:59.999Z") == 0
    assert clock.advance(1, now="2026-01-02 12:01:00Z") == 1
    assert views.minutes() == (MINUTES_OF_A_DAY + 1, "2026-01-01 12:01", "2026-01-02 12:01")


def test_exactly_the_minutes_of_an_outage_are_inserted(clock: ClockBase, views: ClockViews) -> None:
    clock.advance(1, is_first=True, now="2026-01-02 12:00Z")
    assert clock.advance(1, is_first=True, now="2026-01-02 12:07:30Z") == 7
    assert views.minutes() == (MINUTES_OF_A_DAY + 1, "2026-01-01 12:07", "2026-01-02 12:07")
    assert clock.advance(1, is_first=True, now="2026-01-12 00:00Z") == MINUTES_OF_A_DAY + 1, "not of ten days"
    assert views.minutes() == (MINUTES_OF_A_DAY + 1, "2026-01-11 00:00", "2026-01-12 00:00")


def test_a_clock_that_is_set_back_or_has_another_horizon_leaves_no_gap(clock: ClockBase, views: ClockViews) -> None:
    clock.advance(1, is_first=True, now="2026-01-02 12:00Z")
    assert clock.advance(1, now="2026-01-02 11:00Z") == 0
    assert clock.advance(1, now="2026-01-02 12:01Z") == 1
    assert clock.advance(2, is_first=True, now="2026-01-02 12:01Z") == MINUTES_OF_A_DAY, "older ones"
    views.query("DELETE FROM watershed_views_shop.minutes WHERE at = '2026-01-02 10:00Z'")
    assert clock.advance(2, is_first=True, now="2026-01-02 12:01Z") == 1
    assert views.minutes()[0] == 2 * MINUTES_OF_A_DAY + 1
    assert clock.advance(1, is_first=True, now="2026-01-02 12:01Z") == 0
    assert views.minutes()[0] == MINUTES_OF_A_DAY + 1


def test_a_row_appears_at_its_deadline_and_leaves_with_its_minute(clock: ClockBase, views: ClockViews) -> None:
    def seen(now: str, *, is_first: bool = False) -> list[int]:
        clock.advance(1, is_first=is_first, now=now)
        until_idle(maintainer)
        return [number for (number,) in views.query("SELECT id FROM views.overdue ORDER BY 1")]

    with base_sink(base_config(views.dsn), [INVOICES, RECEIPTS]):
        views.query(
            "INSERT INTO invoices SELECT n, 1, timestamptz '2026-01-02 12:00Z' + n * interval '1 minute' "
            "FROM generate_series(1, 9) n"
        )
        with views.job("overdue", OVERDUE) as maintainer:
            assert seen("2026-01-02 12:00:59Z", is_first=True) == []
            assert seen("2026-01-02 12:01Z") == [1]
            views.query("INSERT INTO receipts VALUES (1, 3, '2026-01-02 12:02Z'), (2, 4, '2026-01-02 12:05Z')")
            assert seen("2026-01-02 12:01Z") == [1]
            assert seen("2026-01-02 12:04:10Z", is_first=True) == [1, 2, 4], "after an outage; 3 was paid in time"
            views.query("INSERT INTO receipts VALUES (3, 1, '2026-01-02 11:00Z')")
            assert seen("2026-01-02 12:04:10Z") == [2, 4], "a receipt that came late"
            assert seen("2026-01-03 12:03Z") == [4, 5, 6, 7, 8, 9], "the minutes of 1 and 2 are behind the horizon"
            assert seen("2026-01-03 12:20Z") == []


def test_a_view_waits_for_its_clock(config: SqlConfig, views: ClockViews) -> None:
    waits = "view overdue: no job has created clock.minutes in its base yet"
    with base_sink(config, [INVOICES, RECEIPTS]):
        with pytest.raises(SinkError, match=waits), views.job("overdue", OVERDUE):
            pass
        with ClockBase(config, "shop") as base:
            base.install()
            base.create_minutes()
        with views.job("overdue", OVERDUE):
            views.query("DROP TABLE watershed_views_shop.minutes")
        with pytest.raises(SinkError, match=waits), views.job("overdue", OVERDUE):
            pass


def sections(dsn: str) -> dict[str, Any]:
    view = {"base": "copy", "sql": OVERDUE.text, "key": OVERDUE.key, "target": {"type": "topic"}}
    return {
        "source": {"dsn": dsn, "tables": ["public.invoices", "public.receipts"]},
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "topics": {"prefix": "shop"},
        "sinks": {"copy": {"type": "sql", "url": url_of(dsn)}, "other": {"type": "sql", "url": url_of(dsn) + "2"}},
        "views": {
            "overdue": view,
            "plain": view | {"base": "other", "sql": "SELECT i.id FROM invoices i"},
            "bad": view | {"base": "other", "sql": "SELECT FROM WHERE"},
        },
    }


def test_one_of_two_processes_keeps_the_clock_and_the_other_one_takes_over(
    fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RETRY_S_MIN", 0.05)
    settings = Config.model_validate(sections(fresh_database))
    assert bases_with_clock(settings, [*settings.views]) == ["copy"]
    assert bases_with_clock(settings, ["plain", "bad"]) == []

    def holders() -> list[Any]:
        with psycopg.connect(fresh_database) as connection:
            return connection.execute(
                "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
                "WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND d.datname = current_database()"  # of two keys
                " AND l.granted"
            ).fetchall()

    def count() -> int:
        with psycopg.connect(fresh_database) as connection:
            if connection.execute("SELECT to_regclass('watershed_views_shop.minutes')").fetchone() == (None,):
                return 0
            found = connection.execute("SELECT count(*) FROM watershed_views_shop.minutes WHERE at <= now()").fetchone()
            return found[0] if found else 0

    endings = [threading.Event(), threading.Event()]
    threads = [threading.Thread(target=ClockSupervisor(settings, "copy").run, args=(ending,)) for ending in endings]
    try:
        threads[0].start()
        (first,) = eventually(holders)
        threads[1].start()
        eventually(lambda: count() >= 7 * MINUTES_OF_A_DAY)
        assert holders() == [first]
        endings[0].set()
        threads[0].join()
        eventually(lambda: [first] != holders() != [])
        assert 7 * MINUTES_OF_A_DAY <= count() <= 7 * MINUTES_OF_A_DAY + 2
    finally:
        for ending in endings:
            ending.set()
        for thread in threads:
            thread.join()


def test_the_name_of_the_clock_is_no_captured_tables() -> None:
    given = sections("postgresql://localhost/none")
    given["source"]["tables"].append("clock.minutes")
    with pytest.raises(ValidationError, match=re.escape("clock.minutes is a captured table")):
        Config.model_validate(given)


def test_the_pages_trigger_rounds_deadlines_up_to_whole_minutes(fresh_database: str) -> None:
    (made,) = re.findall(r"<!-- deadlines -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with psycopg.connect(fresh_database, options="-c timezone=UTC") as connection:
        connection.execute("CREATE TABLE searches (id bigint PRIMARY KEY, at timestamptz)")
        connection.execute(made.encode())
        connection.execute(
            "INSERT INTO searches VALUES (1, '2026-01-01 10:00Z'), (2, '2026-01-01 10:00:59Z'), (3, NULL);"
            "UPDATE searches SET at = '2026-01-01 10:01Z' WHERE id = 2"
        )
        found = connection.execute("SELECT id, due_at::text FROM searches ORDER BY id").fetchall()
    assert found == [(1, "2026-01-01 10:11:00+00"), (2, "2026-01-01 10:12:00+00"), (3, None)]
