"""A cache that is rebuilt in place: each row is written again; what was not met goes."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis as redis_client
from pydantic import SecretStr

from cdc.config.store_shapes import CacheShape
from cdc.config.stores import CacheConfig
from cdc.model.events import Column, TableId, TableSchema
from sinks.cache.saved_position import joined
from sinks.cache.sink import CacheSink
from sinks.cache.slots import CacheSlots
from sinks.contract import Change, Outcome
from sinks.errors import SinkError
from sinks.retries import Retries
from tests.support.redis_cluster import cluster_client
from tests.unit.sinks.cache.conftest import OwnRedis

QUICK = Retries(attempt_count_max=2, delay_s_first=0.01)
USERS = TableId("public", "users")
SCHEMA = TableSchema(
    USERS, 1, 16_400, (Column("id", 20, -1, "bigint", False), Column("email", 25, -1, "text", True)), ("id",), "t"
)


def upsert(key: int, version: int, email: str) -> Change:
    return Change(USERS, {"id": key}, version, {"id": key, "email": email}, 1)


class Cache:
    """A prefix with a shape that has lookup keys; in a cluster the prefix is the hash tag."""

    def __init__(self, url: str, prefix: str) -> None:
        escaped = prefix.replace("{", "{{").replace("}", "}}")
        shape = CacheShape(key=f"{escaped}/{{id}}", value="json", lookups=(f"{escaped}/by/{{email}}",))
        self.config = CacheConfig(url=SecretStr(url), shapes={"public.users": shape})
        self.prefix = prefix
        single = redis_client.Redis.from_url
        is_clustered = self.config.in_cluster
        self.client: Any = cluster_client(url, decode=True) if is_clustered else single(url, decode_responses=True)

    def open(self, rebuilds: int | None = None) -> CacheSink:
        sink = CacheSink.open(self.config, self.prefix, QUICK, slot=f"g{rebuilds}" if rebuilds else None)
        sink.begin_generation(rebuilds or 1)
        sink.prepare(SCHEMA)
        return sink

    def email(self, key: int) -> str | None:
        held = self.client.get(f"{self.prefix}/{key}")
        return None if held is None else str(json.loads(held)["email"])


@pytest.fixture(params=["server", "cluster"])
def cache(request: pytest.FixtureRequest, unique: str) -> Iterator[Cache]:
    if request.param == "server":
        made = Cache(request.getfixturevalue("redis"), unique)
    else:
        made = Cache(request.getfixturevalue("redis_cluster").url, f"{{{unique}}}")
    yield made
    keys = list(made.client.scan_iter(f"{made.prefix}*", count=1000))
    made.client.delete(*keys)
    made.client.close()


def test_rows_are_written_again_at_their_versions_and_strangers_go(cache: Cache) -> None:
    with closing(cache.open()) as serving, closing(CacheSlots(cache.config, cache.prefix, QUICK)) as slots:
        serving.apply([upsert(1, 10, "a"), upsert(2, 11, "b"), upsert(3, 12, "c"), upsert(4, 13, "d")])
        cache.client.set(f"{cache.prefix}/1", json.dumps({"id": 1, "email": "edited"}))
        cache.client.delete(f"{cache.prefix}/2", f"{cache.prefix}/by/b")
        with closing(cache.open(rebuilds=2)) as building:
            assert (building.generation(), serving.generation(), slots.others()) == (2, 1, {"g2": 2})
            results = building.apply([upsert(1, 10, "a"), upsert(2, 11, "b"), upsert(3, 9, "older")])
            assert [result.outcome for result in results] == [Outcome.WRITTEN, Outcome.WRITTEN, Outcome.STALE]
            serving.apply([upsert(5, 20, "e")])
            assert slots.remove_unmet("g2", 19) == 1, "row 4, and not row 5, which is newer"
        assert [cache.email(key) for key in (1, 2, 3, 4, 5)] == ["a", "b", "c", None, "e"]
        assert [cache.client.get(f"{cache.prefix}/by/{name}") for name in "abcde"] == ["1", "2", "3", None, "5"]
        slots.serve("g2")
        assert (serving.generation(), slots.others(), slots.generation("")) == (2, {}, 2)
        assert not list(cache.client.scan_iter("*users*.met", count=1000))


def test_a_row_that_the_mapping_leaves_out_goes_at_its_version(cache: Cache) -> None:
    with closing(cache.open()) as serving, closing(cache.open(rebuilds=2)) as building:
        serving.apply([upsert(1, 10, "a")])
        gone = Change(USERS, {"id": 1}, 10, None, 1)
        assert building.apply([gone])[0].outcome is Outcome.WRITTEN
        assert cache.email(1) is None
        assert serving.apply([upsert(1, 10, "a")])[0].outcome is Outcome.STALE


def test_a_rebuild_that_begins_again_has_met_nothing(cache: Cache) -> None:
    with closing(cache.open()) as serving, closing(CacheSlots(cache.config, cache.prefix, QUICK)) as slots:
        serving.apply([upsert(1, 10, "a")])
        with closing(cache.open(rebuilds=2)) as building:
            building.apply([upsert(1, 10, "a")])
        with closing(cache.open(rebuilds=3)):
            assert slots.others() == {"g3": 3}
            assert slots.remove_unmet("g3", 100) == 1
        assert cache.email(1) is None


def test_a_rebuild_of_some_tables_removes_nothing_of_the_others(cache: Cache) -> None:
    with closing(cache.open()) as serving, closing(CacheSlots(cache.config, cache.prefix, QUICK)) as slots:
        serving.apply([upsert(1, 10, "a")])
        serving.save_position("former", None)
        with closing(cache.open(rebuilds=2)) as building:
            building.save_position("of both", None)
            assert slots.remove_unmet("g2", 100, [TableId("public", "other")]) == 0
            slots.check_room([USERS])
        slots.serve("g2", adopts=True)
        assert (cache.email(1), serving.generation(), serving.saved_position()) == ("a", 2, "of both")
        assert slots.remove_unmet("g2", 100, [USERS]) == 1


def test_a_note_keeps_the_counts_of_tables_that_a_rebuild_did_not_write() -> None:
    joined_note = joined(b'{"a.b": 3, "a.c": 4}\nformer', b'{"a.b": 5}\nnew')
    assert joined_note == b'{"a.b": 5, "a.c": 4}\nnew'
    assert joined(None, b"{}\nnew") == b"{}\nnew"


def test_a_full_server_has_no_room_for_it(own_redis: OwnRedis, unique: str) -> None:
    config = CacheConfig(url=SecretStr(own_redis.url))
    with closing(CacheSlots(config, unique, QUICK)) as slots, redis_client.Redis.from_url(own_redis.url) as client:
        slots.check_room()
        client.config_set("maxmemory", 1)
        with pytest.raises(SinkError, match="a rebuild needs about 0 bytes, and 0 are left below maxmemory"):
            slots.check_room()
        client.config_set("maxmemory", 0)
