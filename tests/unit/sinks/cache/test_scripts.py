"""The scripts, in Redis: what a key holds after each kind of call."""

from collections.abc import Iterator

import pytest
import redis as client

from sinks.cache.keys import version_text
from sinks.cache.scripts import APPLY, SWEEP

TTL_MS = 60_000
LIVE = "t"  # what `unique` begins with


@pytest.fixture
def server(redis: str) -> Iterator[client.Redis]:
    with client.Redis.from_url(redis, decode_responses=True) as connected:
        yield connected


def apply(server: client.Redis, *changes: tuple[str, int, str]) -> object:
    """(key, version, document) each; an empty document deletes. The names of the keys begin with LIVE."""
    arguments = [text for _, version, document in changes for text in (version_text(version), document)]
    return server.eval(APPLY.source, 1 + len(changes), LIVE, *(key for key, _, _ in changes), TTL_MS, *arguments)


def sweep(server: client.Redis, floor: int, *keys: str) -> object:
    return server.eval(SWEEP.source, 1 + len(keys), LIVE, *keys, TTL_MS, version_text(floor))


def live(server: client.Redis, *keys: str) -> list[str]:
    """Those of the keys whose ids are in the set of live rows."""
    members = server.smembers(LIVE)
    assert isinstance(members, set)
    return [key for key in keys if key.removeprefix(LIVE) in members]


def test_the_name_for_evalsha_is_the_servers(server: client.Redis) -> None:
    for script in (APPLY, SWEEP):
        assert server.script_load(script.source) == script.sha


def test_an_upsert_holds_version_and_document_and_does_not_expire(server: client.Redis, unique: str) -> None:
    assert apply(server, (unique, 5, '{"a":1}')) == [1]
    assert server.hgetall(unique) == {"v": version_text(5), "doc": '{"a":1}'}
    assert server.pttl(unique) == -1


def test_a_delete_leaves_the_version_alone_and_expires(server: client.Redis, unique: str) -> None:
    apply(server, (unique, 5, '{"a":1}'))
    assert apply(server, (unique, 6, "")) == [1]
    assert server.hgetall(unique) == {"v": version_text(6), "d": "1"}
    assert 0 < int(str(server.pttl(unique))) <= TTL_MS


def test_an_upsert_after_a_delete_does_not_expire(server: client.Redis, unique: str) -> None:
    apply(server, (unique, 5, ""))
    assert apply(server, (unique, 6, "{}")) == [1]
    assert server.hgetall(unique) == {"v": version_text(6), "doc": "{}"}
    assert server.pttl(unique) == -1


@pytest.mark.parametrize("held", ["", '{"held":1}'])
@pytest.mark.parametrize("document", ["", '{"late":1}'])
@pytest.mark.parametrize("version", [1, 9, 10])
def test_what_is_not_newer_changes_nothing(
    server: client.Redis, unique: str, held: str, document: str, version: int
) -> None:
    apply(server, (unique, 10, held))
    before = server.hgetall(unique)
    assert apply(server, (unique, version, document)) == [0]
    assert server.hgetall(unique) == before


def test_neighbours_above_two_to_the_53_differ(server: client.Redis, unique: str) -> None:
    version = (1 << 53) + 1
    apply(server, (unique, version, "{}"))
    assert apply(server, (unique, version - 1, '{"old":1}')) == [0]
    assert apply(server, (unique, version + 1, '{"new":1}')) == [1]


def test_answers_are_in_the_order_of_the_keys(server: client.Redis, unique: str) -> None:
    apply(server, (f"{unique}b", 10, "{}"))
    assert apply(server, (f"{unique}a", 1, "{}"), (f"{unique}b", 9, "{}"), (f"{unique}c", 1, "")) == [1, 0, 1]


def test_a_sweep_deletes_live_rows_below_the_floor_with_the_floor_as_version(server: client.Redis, unique: str) -> None:
    below, at, above, dead, none = (f"{unique}{number}" for number in range(5))
    apply(server, (below, 9, "{}"), (at, 10, "{}"), (above, 11, "{}"), (dead, 5, ""))
    assert sweep(server, 10, below, at, above, dead, none) == 1
    assert server.hgetall(below) == {"v": version_text(10), "d": "1"}
    assert 0 < int(str(server.pttl(below))) <= TTL_MS
    assert server.hget(at, "doc") == server.hget(above, "doc") == "{}"
    assert server.hget(dead, "v") == version_text(5)
    assert server.exists(none) == 0
    assert sweep(server, 10, below, at, above, dead, none) == 0
    assert live(server, below, at, above, dead, none) == [at, above]


def test_the_set_holds_the_live_rows(server: client.Redis, unique: str) -> None:
    apply(server, (unique, 5, "{}"))
    assert live(server, unique) == [unique]
    apply(server, (unique, 4, ""))
    assert live(server, unique) == [unique], "a stale delete changes nothing"
    apply(server, (unique, 6, ""))
    assert live(server, unique) == []
    apply(server, (unique, 5, "{}"))
    assert live(server, unique) == [], "nor does a stale row"
    apply(server, (unique, 7, "{}"))
    assert live(server, unique) == [unique]


def test_a_sweep_forgets_a_row_whose_key_somebody_deleted(server: client.Redis, unique: str) -> None:
    apply(server, (unique, 5, "{}"))
    server.delete(unique)
    assert sweep(server, 10, unique) == 0
    assert live(server, unique) == []
