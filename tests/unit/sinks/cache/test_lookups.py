"""Lookup keys that somebody changed are seen, and repaired by what capture publishes again."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from cdc.model.events import pack_version
from sinks.cache.contents import CacheContents
from sinks.cache.sink import CacheSink
from sinks.contract import Change
from tests.unit.sinks.cache.test_shapes import SCHEMA, TABLE, Users

V = pack_version(1, 100)


@pytest.fixture
def users(redis: str) -> Iterator[Users]:
    made = Users(redis, f"t{secrets.token_hex(5)}")
    yield made
    names = [*made.redis.scan_iter(f"{made.prefix}*", count=1000)]
    made.redis.delete(*names)
    made.redis.close()


def opened(users: Users) -> tuple[CacheSink, CacheContents]:
    sink = users.open(key=users.name("user:{id}"), value="json", lookups=[users.name("mail:{email}")])
    contents = CacheContents(sink)
    contents.attach(SCHEMA)
    return sink, contents


def write(sink: CacheSink, version: int, *rows: tuple[int, str | None]) -> None:
    changes = [
        Change(TABLE, {"id": key}, version + at, {"id": key, "email": email, "name": "n", "tags": None}, 1)
        for at, (key, email) in enumerate(rows)
    ]
    sink.apply(changes)


def wrong(users: Users, contents: CacheContents) -> dict[Any, list[tuple[str, str]]]:
    """Returns the wrong lookup keys of each row. A scan and reads by key must agree."""
    found = {key["id"]: held for key, held in contents.rows(TABLE)}
    assert contents.held(TABLE, [{"id": key} for key in found]) == list(found.values())
    beginning = users.name("mail:")
    return {
        key: [(name.removeprefix(beginning), what) for name, what in held.lookups]
        for key, held in sorted(found.items())
        if held.lookups
    }


def orphans(users: Users, contents: CacheContents) -> list[str]:
    return sorted({name.removeprefix(users.name("mail:")) for name in contents.orphaned_lookups(TABLE)})


def test_lookup_keys_that_differ_are_seen_and_repaired(users: Users) -> None:
    sink, contents = opened(users)
    rows = [(key, f"{key}@x") for key in range(1, 7)]
    write(sink, V, *rows, (7, None))
    assert (wrong(users, contents), orphans(users, contents)) == ({}, [])
    put, mail = users.redis, users.name("mail:")
    put.delete(f"{mail}1@x")
    put.set(f"{mail}2@x", "3")  # a row that has another value
    put.set(f"{mail}3@x", "99")  # no row
    put.set(f"{mail}old@x", "4")  # a value that the row has not
    put.set(f"{mail}gone@x", "98")
    held = sink.form(TABLE).versions
    put.hset(held, "5", put.hget(held, "5")[:19])  # the entry lists nothing: the key would stay for ever
    assert wrong(users, contents) == {
        1: [("1@x", "absent")],
        2: [("2@x", "the key of row 3")],
        3: [("3@x", "the key of row 99")],
        5: [("5@x", "not listed with the row's version")],
    }
    assert orphans(users, contents) == ["2@x", "3@x", "gone@x", "old@x"]

    # the last one is right, and stays
    contents.remove_lookups(TABLE, [*contents.orphaned_lookups(TABLE), f"{mail}6@x"])
    assert users.keys("mail:") == {"4@x": "4", "5@x": "5", "6@x": "6"}
    write(sink, V + 100, *rows)
    assert (wrong(users, contents), orphans(users, contents)) == ({}, [])
    assert users.keys("mail:") == {f"{key}@x": str(key) for key in range(1, 7)}


def test_a_key_that_another_row_took_over_is_right(users: Users) -> None:
    sink, contents = opened(users)
    write(sink, V, (1, "a@x"), (2, "b@x"))
    write(sink, V + 10, (2, "a@x"))  # its change came before that of row 1, which is in another partition
    assert (wrong(users, contents), orphans(users, contents)) == ({}, [])
    write(sink, V + 5, (1, "c@x"))
    assert (wrong(users, contents), orphans(users, contents)) == ({}, [])
    assert users.keys("mail:") == {"a@x": "2", "c@x": "1"}
