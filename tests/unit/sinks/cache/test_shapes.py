"""Keys of the users' choice, read by a plain client, stay the source's rows whatever comes in which order."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import redis as client
import structlog
from msgspec import structs
from pydantic import SecretStr

from cdc.config.store_shapes import CacheShape
from cdc.config.stores import CacheConfig
from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.cache.sink import CacheSink
from sinks.contract import Change, Outcome
from sinks.errors import RefusedError, SinkError
from sinks.reduction import reduce_changes
from sinks.retries import Retries
from tests.conformance.trial import delivered
from tests.unit.sinks.cache.conftest import OwnRedis

V = pack_version(1, 1)
TABLE = TableId("public", "users")
SCHEMA = TableSchema(
    TABLE,
    1,
    16_400,
    (
        Column("id", 20, -1, "bigint", False),
        Column("email", 25, -1, "text", True),
        Column("name", 25, -1, "text", True),
        Column("tags", 1009, -1, "text[]", True, element_oid=25),
    ),
    ("id",),
    "t",
)
QUICK = Retries(attempt_count_max=2, delay_s_first=0.01)
Rows = dict[int, dict[str, Any]]


class Users:
    """The table in one Redis, in a shape."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self.redis: Any = client.Redis.from_url(url, decode_responses=True)

    def open(self, **shape: Any) -> CacheSink:
        """A sink that is prepared as the job does it."""
        shapes = {"public.users": CacheShape(**shape)}
        sink = CacheSink.open(CacheConfig(url=SecretStr(self.url), shapes=shapes), self.prefix, QUICK)
        held = sink.generation()
        if held is None:
            sink.begin_generation(1)
        sink.prepare(SCHEMA)
        return sink

    def keys(self, beginning: str) -> dict[str, Any]:
        """What plain clients find below a beginning, by the key's rest."""
        found = [str(key) for key in self.redis.scan_iter(count=1000) if str(key).startswith(self.name(beginning))]
        return {key.removeprefix(self.name(beginning)): self.redis.get(key) for key in found}

    def name(self, beginning: str) -> str:
        return f"{self.prefix}/{beginning}"


@pytest.fixture
def users(redis: str, unique: str) -> Iterator[Users]:
    made = Users(redis, unique)
    yield made
    if keys := [key for key in made.redis.scan_iter(count=1000) if str(key).startswith(unique)]:
        made.redis.delete(*keys)
    made.redis.close()


def upsert(row_id: int, version: int, email: str | None = None, name: str | None = None) -> Change:
    row = {"id": row_id, "email": email, "name": name, "tags": None}
    return Change(TABLE, {"id": row_id}, version, row, 1)


def delete(row_id: int, version: int) -> Change:
    return Change(TABLE, {"id": row_id}, version, None, 1)


def test_a_plain_get_finds_the_row_as_json(users: Users) -> None:
    sink = users.open(key=users.name("user:{id}"), value="json")
    sink.apply([upsert(42, V, "é@x", "Ann"), upsert(43, V)])
    sink.apply([delete(43, V + 1)])
    found = users.keys("user:")
    assert {key: json.loads(text) for key, text in found.items()} == {"42": upsert(42, V, "é@x", "Ann").row}
    assert [(row.row, row.version) for row in sink.rows(TABLE)] == [(upsert(42, V, "é@x", "Ann").row, V)]


def test_a_hash_has_a_text_for_each_column_that_is_not_null(users: Users) -> None:
    sink = users.open(key=users.name("user:{id}"), value="columns")
    change = upsert(42, V, "a@x")
    sink.apply([structs.replace(change, row={**(change.row or {}), "tags": ["a", None]})])
    assert users.redis.hgetall(users.name("user:42")) == {"id": "42", "email": "a@x", "tags": '["a",null]'}
    sink.apply([upsert(42, V + 1, None, "Ann")])
    assert users.redis.hgetall(users.name("user:42")) == {"id": "42", "name": "Ann"}


def test_a_changed_shape_is_filled_again_and_leaves_no_old_keys(users: Users) -> None:
    first = users.open(key=users.name("user:{id}"), value="json", lookups=[users.name("mail:{email}")])
    first.apply([upsert(number, V, f"{number}@x") for number in range(3_000)])
    first.apply([delete(0, V + 1)])
    assert first.generation() == 1
    second = users.open(key=users.name("person:{id}"), value="json")
    assert users.keys("user:") == users.keys("mail:") == {}
    # The topics are read from their beginning; a delete that was applied before holds.
    assert second.apply([upsert(0, V), upsert(1, V)]) == [(Outcome.STALE, ""), (Outcome.WRITTEN, "")]
    assert users.keys("person:").keys() == {"1"}
    with pytest.raises(SinkError, match=r"keys of public\.users"):
        first.apply([upsert(5, V + 9)])
    assert users.keys("user:") == {}, "a job with the old configuration writes no more"


def test_a_change_of_shape_that_is_killed_is_gone_on_with(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    first = users.open(key=users.name("user:{id}"), value="json")
    first.apply([upsert(number, V) for number in range(3_000)])
    pages = CacheSink._pages

    def killed(sink: CacheSink, versions: str) -> Iterator[dict[str, tuple[int, Sequence[str]]]]:
        yield next(pages(sink, versions))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CacheSink, "_pages", killed)
        with pytest.raises(KeyboardInterrupt):
            users.open(key=users.name("person:{id}"), value="json")
    assert 0 < len(users.keys("user:")) < 3_000
    with pytest.raises(SinkError, match=r"keys of public\.users"):
        first.apply([upsert(5, V + 9)])
    users.open(key=users.name("person:{id}"), value="json")
    assert users.keys("user:") == {}


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"key": "user:{nr}"}, "names column nr, which public.users does not have"),
        ({"key": "user:{email}"}, "names column email, which is not part of the key"),
        ({"key": "user:{id}", "lookups": ["user:{email}"]}, "can produce the same text"),
        ({"key": "user:{id}", "lookups": ["user:{id}"]}, "listed twice"),
        ({"lookups": ["{email}"]}, "the sink's own"),
        ({"lookups": ["by:{e_mail}"]}, "names column e_mail"),
    ],
)
def test_templates_that_do_not_fit_are_refused_by_name(users: Users, shape: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message) as caught:
        users.open(**shape)
    assert caught.value.hint


def test_two_tables_never_share_a_key(users: Users) -> None:
    shapes = {"public.users": CacheShape(key="user:{id}"), "public.people": CacheShape(key="user:{id}")}
    sink = CacheSink.open(CacheConfig(url=SecretStr(users.url), shapes=shapes), users.prefix, QUICK)
    sink.begin_generation(1)
    sink.prepare(SCHEMA)
    sink.prepare(SCHEMA)
    with pytest.raises(RefusedError, match=r"'user:\{id\}' of public.people and 'user:\{id\}' of public.users"):
        sink.prepare(replace(SCHEMA, table=TableId("public", "people")))
    sink.close()


def test_a_server_that_evicts_is_allowed_and_said_once(own_redis: OwnRedis) -> None:
    with client.Redis.from_url(own_redis.url) as admin:
        admin.config_set("maxmemory", "100mb")
        admin.config_set("maxmemory-policy", "allkeys-lru")
    sink = CacheSink.open(CacheConfig(url=SecretStr(own_redis.url), allow_eviction=True), "shop", QUICK)
    with structlog.testing.capture_logs() as logs:
        sink.begin_generation(1)
        sink.prepare(SCHEMA)
        sink.prepare(replace(SCHEMA, table=TableId("public", "people")))
    assert [entry["policy"] for entry in logs] == ["allkeys-lru"]
    assert "rows may be missing" in logs[0]["event"]
    sink.close()


def test_rows_that_expired_are_missing_and_come_back_with_their_next_change(users: Users) -> None:
    sink = users.open(key=users.name("user:{id}"), value="json", ttl_s=100)
    sink.apply([upsert(1, V, "a@x"), upsert(2, V)])
    assert 0 < int(str(users.redis.ttl(users.name("user:1")))) <= 100
    users.redis.delete(users.name("user:1"))  # as expiry does
    assert [row.key["id"] for row in sink.rows(TABLE)] == [2]
    lacking = Change(TABLE, {"id": 1}, V + 1, {"id": 1, "email": "b@x", "tags": None}, 1, frozenset({"name"}))
    assert sink.apply([lacking])[0].outcome is Outcome.STALE, "a row that is not known whole is none"
    assert sink.apply([upsert(1, V, "old")])[0].outcome is Outcome.STALE
    assert sink.apply([upsert(1, V + 2, "new")])[0].outcome is Outcome.WRITTEN
    assert users.keys("user:").keys() == {"1", "2"}


def test_an_invalidated_table_deletes_what_applications_wrote_and_tells_them(users: Users) -> None:
    names = users.name("user:{id}"), users.name("mail:{email}")
    sink = users.open(
        key=names[0], lookups=[names[1]], mode="invalidate", publish=users.name("news"), stream=users.name("log")
    )
    with users.redis.pubsub() as heard:
        heard.subscribe(users.name("news"))
        heard.get_message(timeout=5)
        sink.apply([upsert(1, V, "a@x"), upsert(2, V, "b@x")])
        for key in ("user:1", "user:2", "mail:a@x", "mail:b@x", "mail:c@x"):
            users.redis.set(users.name(key), "written by an application")
        lacking = Change(TABLE, {"id": 1}, V + 2, {"id": 1, "email": "c@x", "tags": None}, 1, frozenset({"name"}))
        assert sink.apply([lacking])[0].outcome is Outcome.WRITTEN, "it needs no whole row"
        assert sink.apply([lacking])[0].outcome is Outcome.STALE
        assert users.keys("user:").keys() == {"2"} and users.keys("mail:").keys() == {"b@x"}
        assert sink.sweep(TABLE, V + 1) == 1
        assert users.keys("user:") == users.keys("mail:") == {}
        reported = [heard.get_message(timeout=5) for _ in range(4)]
    assert [message["data"] for message in reported if message] == [users.name(f"user:{n}") for n in (1, 2, 1, 2)]
    entries: Any = users.redis.xrange(users.name("log"))
    assert [(entry["table"], entry["operation"]) for _, entry in entries] == [
        ("public.users", operation) for operation in ("upsert", "upsert", "upsert", "delete")
    ]
    assert list(sink.rows(TABLE)) == []


def lives(random: Random, count: int, first_version: int) -> tuple[list[Change], Rows]:
    """Changes in order of version, of rows whose emails are unique at any moment, and the rows at the end."""
    rows: Rows = {}
    changes: list[Change] = []
    for version in range(first_version, first_version + count):
        row_id = random.randrange(8)
        if row_id in rows and random.random() < 0.25:
            del rows[row_id]
            changes.append(delete(row_id, version))
            continue
        taken = {row["email"] for key, row in rows.items() if key != row_id}
        email = random.choice([None, *(mail for mail in "abcdefghij" if mail not in taken)])
        change = upsert(row_id, version, email, random.choice("xyz"))
        assert change.row is not None
        rows[row_id] = change.row
        changes.append(change)
    return changes, rows


def check(users: Users, rows: Rows) -> None:
    found = {int(key): json.loads(text) for key, text in users.keys("user:").items()}
    assert found == rows
    assert users.keys("mail:") == {row["email"]: str(key) for key, row in rows.items() if row["email"]}


@pytest.mark.promise(2)
@pytest.mark.parametrize("seed", range(20))
def test_lookup_keys_end_right_however_changes_are_delivered(users: Users, seed: int) -> None:
    """Shuffled, duplicated, replayed and split; by two writers in turn; with sweeps in between."""
    random = Random(seed)
    shape = {"key": users.name("user:{id}"), "value": "json", "lookups": [users.name("mail:{email}")]}
    writers = [users.open(**shape) for _ in range(2)]
    changes, rows = lives(random, 60, V)
    for batch in delivered(random, changes):
        random.choice(writers).apply(reduce_changes(batch))
    check(users, rows)
    floor = V + 100
    again = [
        structs.replace(upsert(key, floor + 1 + key), row=row) for key, row in rows.items() if random.random() < 0.5
    ]
    writers[0].apply(again)
    for writer in writers:
        writer.sweep(TABLE, floor)
    for batch in delivered(random, changes + again):
        random.choice(writers).apply(reduce_changes(batch))
    check(users, {change.key["id"]: change.row for change in again if change.row})


@pytest.mark.promise(2)
def test_lookup_keys_end_right_with_writers_at_the_same_time(users: Users) -> None:
    shape = {"key": users.name("user:{id}"), "value": "json", "lookups": [users.name("mail:{email}")]}
    changes, rows = lives(Random(99), 300, V)
    writers = [(users.open(**shape), delivered(Random(seed), changes)) for seed in range(3)]

    def write(sink: CacheSink, batches: list[list[Change]]) -> None:
        for batch in batches:
            sink.apply(reduce_changes(batch))

    with ThreadPoolExecutor(len(writers)) as pool:
        for running in [pool.submit(write, *writer) for writer in writers]:
            running.result()
    check(users, rows)
