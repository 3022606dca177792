"""What only the cache does. What it has in common with every sink is in tests/conformance."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis as client
from msgspec import structs
from pydantic import SecretStr

from cdc.config.stores import CacheConfig
from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.cache import calls
from sinks.cache import sink as cache_sink
from sinks.cache.server import RedisServer
from sinks.cache.sink import CacheSink
from sinks.contract import Change, Outcome
from sinks.errors import FullError, SinkError
from sinks.retries import Retries
from tests.unit.sinks.cache.conftest import OwnRedis

V = pack_version(1, 1)
TABLE = TableId("public", "labels")
SCHEMA = TableSchema(
    TABLE, 1, 16_400, (Column("name", 25, -1, "text", False), Column("uses", 20, -1, "bigint", True)), ("name",), "t"
)
QUICK = Retries(attempt_count_max=2, delay_s_first=0.01)


def upsert(name: str, version: int, uses: object = None) -> Change:
    return Change(TABLE, {"name": name}, version, {"name": name, "uses": uses}, 1)


def delete(name: str, version: int) -> Change:
    return Change(TABLE, {"name": name}, version, None, 1)


def opened(url: str, prefix: str = "shop", **section: int) -> CacheSink:
    return CacheSink.open(CacheConfig(url=SecretStr(url), **section), prefix, QUICK)


@pytest.fixture
def sink(own_redis: OwnRedis) -> Iterator[CacheSink]:
    made = opened(own_redis.url)
    made.begin_generation(1)
    made.prepare(SCHEMA)
    yield made
    made.close()


@pytest.fixture
def store(own_redis: OwnRedis) -> Iterator[client.Redis]:
    with client.Redis.from_url(own_redis.url, decode_responses=True) as connected:
        yield connected


def test_a_reader_finds_the_row_as_json_under_its_key(sink: CacheSink, store: client.Redis) -> None:
    sink.apply([upsert("a:b", V, 2**53 + 1)])
    document = store.hget("shop:public.labels:a:b", "doc")
    assert json.loads(str(document)) == {"name": "a:b", "uses": 2**53 + 1}


def test_a_deleted_row_expires_after_its_time(own_redis: OwnRedis, store: client.Redis) -> None:
    sink = opened(own_redis.url, tombstone_ttl_s=60)
    sink.begin_generation(1)
    sink.prepare(SCHEMA)
    sink.apply([upsert("a", V), upsert("b", V + 1)])
    sink.apply([delete("a", V + 2)])
    assert 50_000 < int(str(store.pttl("shop:public.labels.deleted:a"))) <= 60_000
    assert store.pttl("shop:public.labels:b") == -1
    sink.sweep(TABLE, pack_version(2, 0))
    assert 50_000 < int(str(store.pttl("shop:public.labels.deleted:b"))) <= 60_000
    assert store.exists("shop:public.labels:a", "shop:public.labels:b") == 0
    sink.close()


def test_the_configured_key_prefix_goes_before_the_topics(own_redis: OwnRedis, store: client.Redis) -> None:
    section = CacheConfig(url=SecretStr(own_redis.url), key_prefix="")
    sink = CacheSink.open(section, "shop", QUICK)
    sink.begin_generation(3)
    assert store.hget(":watershed", "generation") == "3"
    sink.close()


def test_prefixes_do_not_meet(own_redis: OwnRedis) -> None:
    """One looks like a pattern that fits the other's keys."""
    sinks = [opened(own_redis.url, prefix) for prefix in ("shop*", "shop1", "shop[0-9]")]
    for number, sink in enumerate(sinks):
        sink.begin_generation(1)
        sink.prepare(SCHEMA)
        sink.apply([upsert(f"row of {number}", V)])
    for number, sink in enumerate(sinks):
        assert [row.key["name"] for row in sink.rows(TABLE)] == [f"row of {number}"]
    assert sinks[0].sweep(TABLE, pack_version(2, 0)) == 1
    assert [len(list(sink.rows(TABLE))) for sink in sinks] == [0, 1, 1]
    for sink in sinks:
        sink.close()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
def test_a_server_that_evicts_is_refused(own_redis: OwnRedis, store: client.Redis, policy: str) -> None:
    store.config_set("maxmemory", "100mb")
    store.config_set("maxmemory-policy", policy)
    with pytest.raises(SinkError, match=f"maxmemory-policy {policy}") as caught:
        opened(own_redis.url)
    assert "noeviction" in caught.value.hint


def test_a_policy_without_a_limit_never_evicts(own_redis: OwnRedis, store: client.Redis) -> None:
    store.config_set("maxmemory-policy", "allkeys-lru")
    opened(own_redis.url).close()


def test_a_limit_without_eviction_is_taken_and_a_full_server_said(own_redis: OwnRedis, store: client.Redis) -> None:
    sink = opened(own_redis.url)
    sink.begin_generation(1)
    sink.prepare(SCHEMA)
    store.config_set("maxmemory", "100kb")
    opened(own_redis.url).close()
    with pytest.raises(FullError, match="is full"):
        sink.apply([upsert("a", V)])
    store.config_set("maxmemory", "0")
    assert sink.apply([upsert("a", V)])[0].outcome is Outcome.WRITTEN
    sink.close()


@pytest.mark.promise(2)
def test_after_a_restart_of_the_server_the_store_holds_no_generation(sink: CacheSink, own_redis: OwnRedis) -> None:
    """Its file may lack the last writes: a kill of the server, a fail-over to a replica that is behind."""
    sink.apply([upsert("a", V)])
    own_redis.stack.kill("redis")
    own_redis.stack.restart("redis")
    assert sink.generation() is None
    with pytest.raises(SinkError, match=r"was restarted[^\0]*the sink restarts"):
        sink.apply([upsert("b", V + 1)])
    restarted = opened(own_redis.url)
    restarted.begin_generation(2)
    restarted.prepare(SCHEMA)
    assert restarted.generation() == 2
    results = restarted.apply([upsert("a", V), upsert("b", V + 1)])
    assert {row.key["name"] for row in restarted.rows(TABLE)} == {"a", "b"}
    assert results[0].outcome is Outcome.STALE, "readers went on with what was there"
    restarted.close()


@pytest.mark.parametrize("call", ["apply", "sweep", "rows"])
def test_an_emptied_server_is_noticed_by_every_call(sink: CacheSink, store: client.Redis, call: str) -> None:
    sink.apply([upsert("a", V)])
    store.flushall()
    with pytest.raises(SinkError, match=r"keys of public\.labels were deleted"):
        match call:
            case "apply":
                sink.apply([upsert("b", V + 1)])
            case "sweep":
                sink.sweep(TABLE, pack_version(2, 0))
            case _:
                list(sink.rows(TABLE))
    assert sink.generation() is None


def test_a_script_cache_that_was_flushed_does_not_matter(sink: CacheSink, store: client.Redis) -> None:
    store.script_flush()
    assert sink.apply([upsert("a", V)])[0].outcome is Outcome.WRITTEN
    store.script_flush()
    assert sink.sweep(TABLE, pack_version(2, 0)) == 1


def test_batches_are_cut_by_keys_and_by_bytes(sink: CacheSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SCRIPT_KEYS_MAX", 3)
    monkeypatch.setattr(calls, "SCRIPT_BYTES_MAX", 1000)
    monkeypatch.setattr(cache_sink, "PIPELINE_SCRIPTS_MAX", 2)
    changes = [upsert(f"{number}", V + number, "x" * (number % 5) * 400) for number in range(50)]
    sink.apply(changes[:10])
    results = sink.apply(changes)
    assert [result.outcome for result in results] == [Outcome.STALE] * 10 + [Outcome.WRITTEN] * 40
    assert {row.key["name"] for row in sink.rows(TABLE)} == {str(number) for number in range(50)}


class Shrinking(RedisServer):
    """HSCAN while Redis shrinks a hash: some fields of the last page come again."""

    last: tuple[tuple[bytes, bytes], ...] = ()

    def run(self, *command: Any) -> Any:
        answer = super().run(*command)
        if command[0] == "HSCAN":
            cursor, held = answer
            answer = cursor, held | dict(self.last)
            self.last = tuple(held.items())[:50]
        return answer


def test_a_sweep_of_one_table_does_not_read_the_keys_of_the_others(sink: CacheSink, store: client.Redis) -> None:
    other = replace(SCHEMA, table=TableId("public", "others"), topic="shop.public.others")
    sink.prepare(other)
    sink.apply([structs.replace(upsert(f"{number}", V), table=other.table) for number in range(2_000)])
    sink.apply([upsert("a", V)])
    store.config_resetstat()
    assert sink.sweep(TABLE, pack_version(2, 0)) == 1
    calls = store.info("commandstats")
    assert calls["cmdstat_hscan"]["calls"] == 1 and "cmdstat_scan" not in calls
    assert len(list(sink.rows(other.table))) == 2_000


def test_rows_come_once_while_redis_shrinks_its_table(own_redis: OwnRedis) -> None:
    sink = CacheSink(Shrinking(own_redis.url, QUICK), "shop", 60)
    sink.begin_generation(1)
    sink.prepare(SCHEMA)
    sink.apply([upsert(f"{number}", V + number) for number in range(4_000)])
    names = [row.key["name"] for row in sink.rows(TABLE)]
    assert len(names) == len(set(names)) == 4_000
    sink.close()


def test_versions_stay_when_a_row_is_replaced(sink: CacheSink) -> None:
    sink.apply([upsert("a", V)])
    sink.apply([upsert("a", V + 7)])
    assert [row.version for row in sink.rows(TABLE)] == [V + 7]
