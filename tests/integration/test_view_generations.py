"""A view whose definition changes: readers see the former rows as a whole until the new ones take their place."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final, cast
from unittest.mock import patch

import psycopg
import pytest
from opensearchpy import OpenSearch
from redis import Redis

from cdc.config.stores import CacheConfig, SearchConfig, SqlConfig
from cdc.model.events import pack_version
from sinks.cache.sink import CacheSink
from sinks.errors import SinkError
from sinks.registry import make_sink
from sinks.retries import Retries
from sinks.search.slots import SearchSlots
from sinks.sql.sink import SqlSink
from tests.support.view_tables import CUSTOMERS, SHOP, Query
from tests.support.views import Views, base_sink, killed_at, until_idle
from watershed.status.view_facts import ViewFacts
from watershed.views.base import Base
from watershed.views.maintainer import ViewMaintainer, define
from watershed.views.target import TargetGenerations, ViewTarget

pytestmark = pytest.mark.long

NAMED: Final = Query("SELECT id, name FROM customers", ["id"])


@pytest.fixture
def shop(config: SqlConfig) -> Iterator[SqlSink]:
    with base_sink(config, SHOP) as sink:
        sink.apply([CUSTOMERS.upsert(pack_version(1, 1), id=number, name=f"n{number}") for number in range(1, 4)])
        yield sink


@pytest.fixture
def views(config: SqlConfig, fresh_database: str, shop: SqlSink) -> Views:
    return Views(config, fresh_database)


@pytest.mark.parametrize(
    ("owner", "method", "is_before"),
    [
        (SqlSink, "apply", False),
        (SqlSink, "sweep", False),
        (TargetGenerations, "serve", True),
        (TargetGenerations, "serve", False),
        (Base, "written", True),
    ],
)
@pytest.mark.parametrize("changed", ["SELECT id, upper(name) AS name FROM customers", "SELECT id FROM customers"])
def test_readers_see_the_former_view_as_a_whole_until_the_changed_one_takes_its_place(
    changed: str, owner: type, method: str, is_before: bool, views: Views
) -> None:
    """With the same columns and with others; the job ends at some moment of the filling."""
    query = Query(changed, ["id"])
    former, wanted = (sorted(views.query(text)) for text in (NAMED.text, changed))
    seen = []
    begin = TargetGenerations.begin

    def begin_and_read(*arguments: Any) -> ViewTarget:
        made = begin(*arguments)
        views.query("INSERT INTO customers (id, name) VALUES (9, 'later') ON CONFLICT DO NOTHING")
        seen.append(sorted(views.query("SELECT * FROM views.named")))
        return made

    with views.job("named", NAMED):
        pass
    with patch.object(TargetGenerations, "begin", begin_and_read):
        with killed_at(owner, method, is_before=is_before), views.job("named", query):
            pytest.fail("the job was to be killed")
        is_filled, is_swapped = method == "serve", (method, is_before) == ("serve", False)
        found = sorted(views.query("SELECT * FROM views.named"))
        assert found == (sorted(views.query(changed)) if is_swapped else former)
        with views.job("named", query) as maintainer:
            until_idle(maintainer)
            assert views.assert_equal("named", query) == len(wanted) + 1
    assert seen == [former] * (1 if is_filled else 2)
    assert views.waits == (2 if is_filled else 3), "what was filled once takes its place without another filling"
    assert views.query("SELECT tablename FROM pg_tables WHERE schemaname = 'views'") == [("named",)]


UPPER: Final = Query("SELECT id, upper(name) AS name FROM customers", ["id"])


def state(views: Views) -> ViewFacts:
    with views.base() as base:
        found = base.counts("named")
        assert found is not None
        return found


@contextmanager
def read_by_somebody(views: Views) -> Iterator[None]:
    """A transaction that has read the view's table, which can't be renamed meanwhile, and is tried once each time."""
    with psycopg.connect(views.dsn) as reader, patch("sinks.sql.slots.Retries", partial(Retries, 1)):
        assert len(reader.execute("SELECT * FROM views.named").fetchall()) == 3
        yield


def keep_until_error(views: Views, query: Query) -> None:
    """As `cdc view run` does between two errors."""
    with pytest.raises(SinkError) as message, views.job("named", query) as maintainer:
        until_idle(maintainer)
    with views.base() as base:
        base.note_error("named", message.value)


def test_a_filled_generation_follows_its_base_until_readers_let_it_take_its_place(views: Views) -> None:
    with views.job("named", NAMED):
        pass
    former = sorted(views.query("SELECT * FROM views.named"))
    with read_by_somebody(views):
        keep_until_error(views, UPPER)
        shown = state(views)
        assert (shown.state, views.waits) == ("filled", 2)
        for number in (8, 9):
            views.query(f"INSERT INTO customers (id, name) VALUES ({number}, 'later')")
            with patch("watershed.views.maintainer.SWAP_RETRY_S", 0.0 if number == 9 else 60.0):
                keep_until_error(views, UPPER)
            again = state(views)
            assert (again.state, again.changes, again.keys, again.error) == ("filled", 0, 0, shown.error)
            assert again.failing_s > shown.failing_s, "the error stays noted while changes are applied"
            assert sorted(views.query("SELECT * FROM views.named")) == former
    with views.job("named", UPPER) as maintainer:
        until_idle(maintainer)
    assert views.assert_equal("named", UPPER) == 5
    assert (state(views).state, state(views).error) == ("serving", None)
    assert views.waits == 2, "it was filled once"
    assert views.query("SELECT tablename FROM pg_tables WHERE schemaname = 'views'") == [("named",)]


DROP_THE_NEW_TABLE: Final = """
DO $$ DECLARE name text;
BEGIN
  SELECT tablename INTO STRICT name FROM pg_tables WHERE schemaname = 'views' AND tablename <> 'named';
  EXECUTE format('DROP TABLE views.%I', name);
END $$
"""
MADE_AGAIN: Final = (
    "CREATE TABLE other (LIKE customers INCLUDING ALL); INSERT INTO other SELECT * FROM customers; "
    "DROP TABLE customers; ALTER TABLE other RENAME TO customers"
)
ASK_REBUILD: Final = "UPDATE watershed_views_shop.views SET state = 'rebuild'"


@pytest.mark.parametrize("statement", [ASK_REBUILD, DROP_THE_NEW_TABLE, MADE_AGAIN])
def test_a_filled_generation_that_is_no_longer_right_is_filled_again(statement: str, views: Views) -> None:
    with views.job("named", NAMED):
        pass
    with read_by_somebody(views):
        keep_until_error(views, UPPER)
    views.query(statement)
    with views.job("named", UPPER) as maintainer:
        until_idle(maintainer)
    assert views.assert_equal("named", UPPER) == 3
    assert (state(views).state, views.waits) == ("serving", 3)


def test_a_query_that_changes_once_more_is_filled_beside_the_former_rows(views: Views) -> None:
    other = Query("SELECT id, lower(name) AS name FROM customers", ["id"])
    with views.job("named", NAMED):
        pass
    with read_by_somebody(views):
        keep_until_error(views, UPPER)
    with killed_at(TargetGenerations, "serve", is_before=True), views.job("named", other):
        pytest.fail("the job was to be killed")
    assert views.assert_equal("named", NAMED) == 3
    with views.job("named", other) as maintainer:
        until_idle(maintainer)
    assert views.assert_equal("named", other) == 3
    assert views.waits == 3
    assert views.query("SELECT tablename FROM pg_tables WHERE schemaname = 'views'") == [("named",)]


@pytest.mark.parametrize(
    "changed", ["SELECT id, upper(name) AS name FROM customers", "SELECT id, 7 AS n FROM customers"]
)
def test_searches_find_the_former_documents_until_the_new_ones_take_their_place(
    changed: str, views: Views, opensearch: str, unique: str
) -> None:
    section = SearchConfig.model_validate({"type": "search", "url": opensearch})
    target = partial(make_sink, "named", section, unique)
    generations = TargetGenerations(partial(SearchSlots, section, unique), target)

    def found() -> list[dict[str, Any]]:
        with OpenSearch([opensearch]) as client:
            hits = client.search(index=f"{unique}.views.named", body={"sort": "id"})["hits"]["hits"]
        names = ("id", "name", "n")
        return [{name: hit["_source"][name] for name in names if name in hit["_source"]} for hit in hits]

    def run(text: str) -> None:
        config = views.config(Query(text, ["id"]))
        with views.base() as base:
            definition = define("named", config, base)
            with closing(ViewMaintainer(definition, base, target, lambda: None, generations=generations)) as maintainer:
                maintainer.start()
                until_idle(maintainer)

    run(NAMED.text)
    former = found()
    with killed_at(TargetGenerations, "serve", is_before=True):
        run(changed)
    assert found() == former == [{"id": number, "name": f"n{number}"} for number in (1, 2, 3)]
    run(changed)
    values: list[dict[str, Any]] = (
        [{"n": 7}] * 3 if "7" in changed else [{"name": f"N{number}"} for number in (1, 2, 3)]
    )
    assert found() == [{"id": number} | value for number, value in enumerate(values, 1)]
    with closing(SearchSlots(section, unique)) as slots:
        assert slots.others() == {}
        assert slots.generation(slots.serving()) == 2, "it was filled once"


@pytest.mark.parametrize(
    ("changed", "key"),
    [("SELECT id, 7 AS n FROM customers WHERE id > 1", "id"), ("SELECT name AS k, id FROM customers", "k")],
)
def test_a_cache_has_the_former_rows_until_each_is_replaced_or_swept(
    changed: str, key: str, views: Views, redis: str, unique: str
) -> None:
    """With other columns and with another key; the job ends before it has swept what the view has no more."""
    section = CacheConfig.model_validate({"type": "cache", "url": redis})

    def found() -> list[dict[str, Any]]:
        with Redis.from_url(redis) as client:
            texts = [client.hget(one, "doc") for one in client.scan_iter(f"{unique}:views.named:*")]
        return sorted((json.loads(cast("bytes", text)) for text in texts if text), key=str)

    def run(query: Query) -> None:
        config = views.config(query).model_copy(update={"target": section})
        with views.base() as base:
            definition = define("named", config, base)
            target = partial(make_sink, "named", section, unique)
            with closing(ViewMaintainer(definition, base, target, lambda: None)) as maintainer:
                maintainer.start()

    run(NAMED)
    former = found()
    assert former == [{"id": number, "name": f"n{number}"} for number in (1, 2, 3)]
    query = Query(changed, [key])
    with killed_at(CacheSink, "apply", is_before=True):
        run(query)
    assert found() == former
    with killed_at(CacheSink, "sweep", is_before=True):
        run(query)
    wanted = [dict(zip(("id", "n") if key == "id" else ("k", "id"), row, strict=True)) for row in views.query(changed)]
    kept = [row for row in former if key == "k" or row["id"] == 1]
    assert found() == sorted([*wanted, *kept], key=str)
    run(query)
    assert found() == sorted(wanted, key=str)
