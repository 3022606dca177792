"""The script, in Redis: what keys hold after each kind of call."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis as client

from sinks.cache.keys import SHAPE, version_text
from sinks.cache.scripts import APPLY, COUNT, KEEP, LOOKUPS, REMOVE
from tests.unit.sinks.cache.conftest import OwnRedis

TTL_MS = 60_000
Row = tuple[str, int, str]  # primary key, version, document; an empty document deletes


class Server:
    """A table in Redis, whose keys begin with a name of its own."""

    def __init__(self, redis: Any, name: str) -> None:
        self.redis = redis
        self.name = name
        self.versions = f"{name}:"
        redis.hset(self.versions, SHAPE, "shape")

    def call(
        self,
        *rows: list[Any],
        shape: str = "shape",
        kind: str = "string",
        ttl: object = "",
        live: str = "",
        met: str = "",
    ) -> object:
        events = (f"{self.name}.channel", f"{self.name}.stream") if kind == "none" else ("", "")
        ids, keys, versions, lookups, values = zip(*rows, strict=True)
        options = [shape, f"{self.name}.deleted:", TTL_MS, ttl, kind, *events, 100, "public.t", live, met]
        options += ["keys", max(map(len, lookups)), "".join(versions)]
        for names in lookups:
            names += [""] * (max(map(len, lookups)) - len(names))
        columns = [
            *ids,
            *(self.value(kind, parts) for parts in values),
            *keys,
            *(n for names in lookups for n in names),
        ]
        columns += [part for parts in values for part in parts] if kind == "hash" else []
        stale = self.redis.eval(APPLY.source, 1, self.versions, *options, *columns)
        return None if stale is None else [0 if number in stale else 1 for number in range(1, len(rows) + 1)]

    @staticmethod
    def value(kind: str, parts: tuple[str, ...]) -> object:
        if not parts:
            return ""
        return len(parts) if kind == "hash" else "1" if kind == "none" else parts[0]

    def row(self, row_id: str, version: int, *values: str, lookups: tuple[str, ...] = ()) -> list[Any]:
        names = [name if name in ("", KEEP) else f"{self.name}/by/{name}" for name in lookups]
        return [row_id, self.key(row_id), version_text(version), names, values]

    def apply(self, *rows: Row, live: str = "") -> object:
        return self.call(
            *(self.row(row_id, version, *filter(None, [text])) for row_id, version, text in rows), live=live
        )

    def remove(self, *rows: tuple[str, int]) -> None:
        """Removes rows that are held at exactly this version."""
        parts = [part for row_id, version in rows for part in (row_id, self.key(row_id), version_text(version))]
        self.redis.eval(REMOVE.source, 1, self.versions, f"{self.name}.deleted:", *parts)

    def key(self, row_id: str) -> str:
        return f"{self.name}/{row_id}"

    def get(self, row_id: str) -> object:
        return self.redis.get(self.key(row_id))

    def lookup(self, name: str) -> object:
        return self.redis.get(f"{self.name}/by/{name}")

    def version(self, row_id: str) -> object:
        return self.redis.hget(self.versions, row_id)

    def deleted(self, row_id: str) -> object:
        return self.redis.get(f"{self.name}.deleted:{row_id}")


@pytest.fixture
def server(redis: str, unique: str) -> Iterator[Server]:
    with client.Redis.from_url(redis, decode_responses=True) as connected:
        yield Server(connected, unique)


def test_the_name_for_evalsha_is_the_servers(server: Server) -> None:
    assert server.redis.script_load(APPLY.source) == APPLY.sha


def test_an_upsert_holds_the_document_and_does_not_expire(server: Server) -> None:
    assert server.apply(("1", 5, '{"a":1}')) == [1]
    assert server.get("1") == '{"a":1}'
    assert server.version("1") == version_text(5)
    assert server.redis.pttl(server.key("1")) == -1


def test_a_hash_is_replaced_whole(server: Server) -> None:
    server.call(server.row("1", 5, "a", "1", "b", "2"), kind="hash")
    assert server.call(server.row("1", 6, "b", "3"), kind="hash") == [1]
    assert server.redis.hgetall(server.key("1")) == {"b": "3"}


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_a_row_and_its_lookup_keys_expire_with_ttl_and_its_version_stays(server: Server, kind: str) -> None:
    server.call(server.row("1", 5, "a", "1", lookups=("x",)), kind=kind, ttl=50_000)
    for key in (server.key("1"), f"{server.name}/by/x"):
        assert 40_000 < int(str(server.redis.pttl(key))) <= 50_000
    server.redis.delete(server.key("1"))
    assert server.call(server.row("1", 4, "a", "0"), kind=kind) == [0]


def test_a_delete_leaves_the_version_alone_and_expires(server: Server) -> None:
    server.apply(("1", 5, '{"a":1}'))
    assert server.apply(("1", 6, "")) == [1]
    assert server.get("1") is None and server.version("1") is None
    assert server.deleted("1") == version_text(6)
    assert 0 < int(str(server.redis.pttl(f"{server.name}.deleted:1"))) <= TTL_MS


def test_deleted_rows_are_looked_for_as_long_as_any_of_their_versions_may_be_there(server: Server) -> None:
    marker = f"{server.name}.deleted:"
    server.apply(("1", 5, "{}"))
    assert not server.redis.exists(marker)
    server.apply(("1", 6, ""), ("1", 4, "{}"))
    server.redis.pexpire(marker, 10)
    server.apply(("2", 7, ""))
    assert server.redis.pttl(marker) >= server.redis.pttl(f"{marker}2")
    assert server.apply(("1", 5, "{}"), ("2", 6, "{}")) == [0, 0]


def test_an_upsert_after_a_delete_is_a_live_row_again(server: Server) -> None:
    server.apply(("1", 5, ""))
    assert server.apply(("1", 6, "{}")) == [1]
    assert (server.get("1"), server.version("1"), server.deleted("1")) == ("{}", version_text(6), None)


@pytest.mark.parametrize("held", ["", '{"held":1}'])
@pytest.mark.parametrize("document", ["", '{"late":1}'])
@pytest.mark.parametrize("version", [1, 9, 10])
def test_what_is_not_newer_changes_nothing(server: Server, held: str, document: str, version: int) -> None:
    server.apply(("1", 10, held))
    before = server.get("1"), server.version("1"), server.deleted("1")
    assert server.apply(("1", version, document)) == [0]
    assert (server.get("1"), server.version("1"), server.deleted("1")) == before


def test_neighbours_above_two_to_the_53_differ(server: Server) -> None:
    version = (1 << 53) + 1
    server.apply(("1", version, "{}"))
    assert server.apply(("1", version - 1, '{"old":1}')) == [0]
    assert server.apply(("1", version + 1, '{"new":1}')) == [1]


def test_answers_are_in_the_order_of_the_rows(server: Server) -> None:
    server.apply(("b", 10, "{}"))
    assert server.apply(("a", 1, "{}"), ("b", 9, "{}"), ("c", 1, "")) == [1, 0, 1]


def test_a_sweep_deletes_live_rows_below_the_floor_with_the_floor_as_version(server: Server) -> None:
    server.apply(("below", 9, "{}"), ("at", 10, "{}"), ("above", 11, "{}"), ("dead", 5, ""))
    rows: list[Row] = [(row_id, 10, "") for row_id in ("below", "at", "above", "dead", "none")]
    assert server.apply(*rows, live="live") == [1, 0, 0, 0, 0]
    assert server.deleted("below") == version_text(10) and server.get("below") is None
    assert server.get("at") == server.get("above") == "{}"
    assert server.deleted("dead") == version_text(5)
    assert server.deleted("none") is None
    assert server.apply(*rows, live="live") == [0] * 5


@pytest.mark.parametrize("held", [None, "another shape"])
def test_keys_of_another_shape_are_left_alone(server: Server, held: str | None) -> None:
    server.redis.delete(server.versions)
    if held is not None:
        server.redis.hset(server.versions, SHAPE, held)
    assert server.apply(("1", 5, "{}")) is None
    assert server.get("1") is None


def test_a_lookup_key_follows_its_row(server: Server) -> None:
    server.call(server.row("1", 5, "{}", lookups=("a", "n")))
    assert server.lookup("a") == server.lookup("n") == "1"
    server.call(server.row("1", 6, "{}", lookups=("b", "")))
    assert (server.lookup("a"), server.lookup("b"), server.lookup("n")) == (None, "1", None)
    server.call(server.row("1", 7, "{}", lookups=(KEEP, "m")))
    assert (server.lookup("b"), server.lookup("m")) == ("1", "1")
    server.call(server.row("1", 8))
    assert server.lookup("b") is server.lookup("m") is None


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_a_lookup_key_that_moves_between_rows_ends_at_the_newest_in_any_order(
    server: Server, order: tuple[int, ...]
) -> None:
    """Row 1 has `a`, gives it up, and row 2 takes it."""
    rows = [
        server.row("1", 5, "{}", lookups=("a",)),
        server.row("1", 6, "{}", lookups=("b",)),
        server.row("2", 7, "{}", lookups=("a",)),
    ]
    for number in order:
        server.call(rows[number])
    assert (server.lookup("a"), server.lookup("b")) == ("2", "1")


def test_a_lookup_key_of_a_deleted_row_is_not_taken_from_its_new_owner(server: Server) -> None:
    server.call(server.row("1", 5, "{}", lookups=("a",)))
    server.call(server.row("2", 7, "{}", lookups=("a",)))
    server.call(server.row("1", 6))
    assert server.lookup("a") == "2"


def test_invalidation_deletes_all_keys_and_tells_it_once(server: Server) -> None:
    """Of a version that was there before nothing is told again."""
    names = [server.key("1"), f"{server.name}/by/a", f"{server.name}/by/b"]
    with server.redis.pubsub() as heard:
        heard.subscribe(f"{server.name}.channel")
        heard.get_message(timeout=5)
        for version, values, lookups in ((5, ("",), ("a",)), (6, ("",), ("b",)), (6, ("",), ("b",)), (7, (), ())):
            server.redis.mset(dict.fromkeys(names, "what an application wrote"))
            server.call(server.row("1", version, *values, lookups=lookups), kind="none")
        reported = [heard.get_message(timeout=5) for _ in range(3)]
        assert heard.get_message(timeout=0.01) is None
    assert server.redis.exists(*names) == 1, "the last call did not know the key of a, which was given up before"
    assert [message["data"] for message in reported if message] == [server.key("1")] * 3
    entries = server.redis.xrange(f"{server.name}.stream")
    reported_fields = [(entry["key"], entry["operation"], int(entry["version"])) for _, entry in entries]
    assert reported_fields == [(server.key("1"), kind, n) for kind, n in (("upsert", 5), ("upsert", 6), ("delete", 7))]


def test_lookup_keys_stand_behind_the_version_as_json(server: Server) -> None:
    server.call(server.row("1", 5, "{}", lookups=('q"ü/', "")))
    held = str(server.version("1"))
    assert held.startswith(version_text(5)) and json.loads(held[19:]) == [f'{server.name}/by/q"ü/', ""]


def test_a_rebuild_writes_rows_at_their_version_again_and_notes_what_it_meets(server: Server) -> None:
    met = f"{server.name}.met"
    server.apply(("1", 5, "former"), ("2", 5, "former"))
    server.redis.delete("")
    rows = [server.row("1", 5, "again"), server.row("2", 4, "older"), server.row("3", 6)]
    assert server.call(*rows, met=met) == [1, 0, 1]
    assert (server.get("1"), server.get("2"), server.get("3")) == ("again", "former", None)
    assert server.redis.hgetall(met) == {"1": "", "2": ""}, "a deleted row is not there to be met"
    assert server.call(server.row("4", 5, ""), kind="none", met=met) == [1]
    assert server.call(server.row("4", 5, ""), kind="none", met=met) == [0], "its key would be deleted once more"
    assert server.apply(("5", 5, "x")) == [1]
    assert not server.redis.exists(""), "without a rebuild nothing is noted"


def test_a_row_is_removed_at_exactly_its_version_with_the_lookup_keys_that_are_its_own(server: Server) -> None:
    server.call(server.row("1", 5, "one", lookups=("a", "b", "")))
    server.call(server.row("2", 6, "two", lookups=("b", "c")))
    server.apply(("3", 5, "three"), ("4", 5, "four"), ("5", 5, ""), ("6", 5, ""))
    server.remove(("1", 5), ("2", 5), ("3", 5), ("4", 4), ("5", 5), ("6", 4), ("7", 5))
    assert [server.get(str(number)) for number in (1, 2, 3, 4)] == [None, "two", None, "four"]
    assert [server.version(str(number)) for number in (1, 3)] == [None, None]
    assert (server.version("4"), server.deleted("5"), server.deleted("6")) == (version_text(5), None, version_text(5))
    assert (server.lookup("a"), server.lookup("b"), server.lookup("c")) == (None, "2", "2")
    assert server.apply(("1", 1, "again")) == [1], "its version is gone too"


def test_a_lookup_key_of_a_row_without_lookup_keys_is_stray(server: Server) -> None:
    server.apply(("1", 5, "{}"))
    name = f"{server.name}/by/s"
    server.redis.set(name, "1")
    for action, left in (("", "1"), ("remove", None)):
        assert server.redis.eval(LOOKUPS.source, 1, server.versions, action, name) == [["1", version_text(5)]]
        assert server.lookup("s") == left


def test_notes_of_a_table_are_counted_and_none_creates_it(server: Server) -> None:
    counts = [server.redis.eval(COUNT.source, 1, server.versions, "n") for _ in range(2)]
    assert counts == [1, 2]
    absent = f"{server.name}:absent"
    assert server.redis.eval(COUNT.source, 1, absent, "n") == 0
    assert not server.redis.exists(absent)


def test_a_full_server_refuses_a_row_before_its_former_lookup_keys_go(own_redis: OwnRedis, unique: str) -> None:
    """After a first write that frees memory it would take all others."""
    with client.Redis.from_url(own_redis.url, decode_responses=True) as connected:
        full = Server(connected, unique)
        full.call(full.row("1", 5, "{}", lookups=("a",)))
        connected.config_set("maxmemory", "100kb")
        with pytest.raises(client.exceptions.ResponseError, match="maxmemory"):
            full.call(full.row("1", 6, "{}", lookups=("b",)))
        assert (full.lookup("a"), full.lookup("b")) == ("1", None)
        assert str(full.version("1")).startswith(version_text(5))
