"""A view whose base was loaded in bulk: what a round costs depends neither on how much is noted nor on when PostgreSQL
looked at the tables last."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import pytest

from cdc.model.events import pack_version
from sinks.sql.sink import SqlSink
from tests.support.view_tables import CUSTOMERS, Query
from tests.support.views import Views, until_idle
from watershed.views import base as views_base
from watershed.views.base import Base
from watershed.views.definition import ViewDefinition

pytestmark = pytest.mark.whole

NAMED: Final = Query("SELECT id, name FROM customers", ["id"])
QUEUES: Final = ("changes", "keys")
ROUND: Final = 100
NOTED: Final = 20_000
LOAD: Final = f"INSERT INTO customers SELECT n, 'n' || n FROM generate_series(1, {NOTED}) AS n"
# What is in the queues when PostgreSQL looks at them, before the load.
LOOKS: Final = {
    "never": (),
    "at empty tables": ("ANALYZE {changes}, {keys}",),
    "at other views' rows": (
        "INSERT INTO {changes} (view, source, image) SELECT 'other', 's', '{{}}' FROM generate_series(1, 50000)",
        "INSERT INTO {keys} SELECT 'other', to_jsonb(n), now() FROM generate_series(1, 50000) AS n",
        "ANALYZE {changes}, {keys}",
    ),
    "at this view's rows": (
        "INSERT INTO {changes} (view, source, image) SELECT 'named', 's', '{{}}' FROM generate_series(1, 50000)",
        "INSERT INTO {keys} SELECT 'named', to_jsonb(n), now() FROM generate_series(1, 50000) AS n",
        "ANALYZE {changes}, {keys}",
        "DELETE FROM {changes}",
        "DELETE FROM {keys}",
    ),
}


def looked(views: Views, look: str) -> None:
    names = {queue: f"watershed_views_shop.{queue}" for queue in QUEUES}
    for name in names.values():
        views.query(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")
    for statement in LOOKS[look]:
        views.query(statement.format(**names))


@contextmanager
def counted(views: Views, read: list[int], method: str) -> Iterator[None]:
    """Adds to `read` how many rows of the queues each call of Base's method has read, by index or by the table."""
    original = getattr(Base, method)

    def rows() -> int:
        views.query("SELECT pg_stat_force_next_flush()")
        ((count,),) = views.query(
            "SELECT coalesce(sum(seq_tup_read + idx_tup_fetch + n_tup_ins), 0)::bigint FROM pg_stat_user_tables "
            "WHERE schemaname = 'watershed_views_shop' AND relname IN ('changes', 'keys')"
        )
        return int(count)

    def call(base: Base, *arguments: Any, **options: Any) -> Any:
        before = rows()
        found = original(base, *arguments, **options)
        base._connection.execute("SELECT pg_stat_force_next_flush()")
        base._connection.execute("SELECT 1")
        read.append(rows() - before)
        return found

    with patch.object(Base, method, call):
        yield


@pytest.mark.parametrize("look", LOOKS)
def test_a_round_reads_as_many_rows_of_the_queues_as_it_takes(look: str, views: Views, shop: SqlSink) -> None:
    del shop
    read: dict[str, list[int]] = {"collect": [], "keys": [], "written": []}
    with (
        views.job("named", NAMED, keys_per_batch=ROUND) as maintainer,
        patch.object(views_base, "CHANGES_PER_ROUND", ROUND),
    ):
        looked(views, look)
        views.query(LOAD)
        for method, found in read.items():
            with counted(views, found, method):
                for _ in range(3):
                    maintainer.step()
    assert all(1 <= count <= 6 * ROUND for found in read.values() for count in found), read


def test_a_backlog_is_worked_off_with_what_commits_late(views: Views, shop: SqlSink) -> None:
    """A transaction may commit after others whose changes have greater numbers, while the view is beyond these."""
    with views.job("named", NAMED) as maintainer, patch.object(views_base, "CHANGES_PER_ROUND", ROUND):
        shop.apply([CUSTOMERS.upsert(pack_version(1, 1), id=-1, name="first")])
        until_idle(maintainer)
        touched, calls = ViewDefinition.touched, []
        views.query("CREATE TABLE held AS TABLE watershed_views_shop.changes WITH NO DATA")
        views.query("UPDATE customers SET name = 'late' WHERE id = -1")
        moved = (
            "INSERT INTO {} (id, view, source, image) OVERRIDING SYSTEM VALUE SELECT id, view, source, image FROM {}"
        )
        views.query(moved.format("held", "watershed_views_shop.changes"))
        views.query("DELETE FROM watershed_views_shop.changes")
        views.query(f"INSERT INTO customers SELECT n, 'n' || n FROM generate_series(1, {5 * ROUND}) AS n")

        def meanwhile(*arguments: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                views.query(moved.format("watershed_views_shop.changes", "held"))
            return touched(*arguments, **options)

        with patch.object(ViewDefinition, "touched", meanwhile):
            until_idle(maintainer)
        until_idle(maintainer)
        assert views.assert_equal("named", NAMED) == 5 * ROUND + 1
        assert len(calls) == 6, "the late one is in the round after the pass"
        assert views.query("SELECT count(*) FROM watershed_views_shop.changes") == [(0,)]
        assert views.query("SELECT count(*) FROM watershed_views_shop.keys") == [(0,)]
