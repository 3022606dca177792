"""A view whose definition changes: readers see the former rows as a whole until the new ones take their place."""

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, Final, cast
from unittest.mock import patch

import pytest
from opensearchpy import OpenSearch
from redis import Redis

from cdc.config.sink_settings import CacheConfig, SearchConfig, SqlConfig
from cdc.model.events import pack_version
from sinks.cache.sink import CacheSink
from sinks.registry import make_sink
from sinks.search.slots import SearchSlots
from sinks.sql.sink import SqlSink
from tests.support.view_tables import CUSTOMERS, SHOP, Query
from tests.support.views import Views, base_config, base_sink, killed_at
from views.base import Base
from views.generations import TargetGenerations
from views.maintainer import ViewMaintainer, define
from views.target import Target

NAMED: Final = Query("SELECT id, name FROM customers", ["id"])


@pytest.fixture
def config(fresh_database: str) -> SqlConfig:
    return base_config(fresh_database)


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

    def begin_and_read(*arguments: Any) -> Target:
        made = begin(*arguments)
        views.query("INSERT INTO customers (id, name) VALUES (9, 'later') ON CONFLICT DO NOTHING")
        seen.append(sorted(views.query("SELECT * FROM views.named")))
        return made

    with views.job("named", NAMED):
        pass
    with patch.object(TargetGenerations, "begin", begin_and_read):
        with killed_at(owner, method, is_before=is_before), views.job("named", query):
            pytest.fail("the job was to be killed")
        is_swapped = (owner, method, is_before) in [(TargetGenerations, "serve", False), (Base, "written", True)]
        found = sorted(views.query("SELECT * FROM views.named"))
        assert found == (sorted(views.query(changed)) if is_swapped else former)
        with views.job("named", query):
            assert views.assert_equal("named", query) == len(wanted) + 1
    assert seen == [former] * (1 if is_swapped else 2)
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
        assert slots.generation(slots.serving()) == 3, "the second one was begun and not served"


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
