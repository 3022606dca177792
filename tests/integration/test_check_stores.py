"""`cdc check` finds each of these broken set-ups of stores and mappings in one run, and each printed fix works."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pytest
import redis as redis_client
from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.conftest import PostgresServer, new_database, superuser_dsn_of
from tests.support.captured import Captured
from tests.support.checked import ask_redis, configured, execute, findings, send, sql_of, the_one, troubles

pytestmark = pytest.mark.whole

PAIRS: Final = "public.pairs"
DISK: Final = "cluster.routing.allocation.disk"


@dataclass
class Servers:
    """The servers of one test, and names that no other test has."""

    items: Captured
    opensearch: str
    redis: str
    sql: str  # DSN of an empty database
    sql_superuser: str
    name: str

    def put(self, path: str, body: dict[str, Any]) -> None:
        with OpenSearch([self.opensearch]) as client:
            client.transport.perform_request("PUT", path, body=body)

    def redis_as(self, user: str, password: str) -> str:
        return self.redis.replace("redis://", f"redis://{user}:{password}@")

    def sql_as(self, user: str, database: str | None = None) -> str:
        parts = conninfo_to_dict(self.sql)
        return f"postgresql://{user}@{parts['host']}:{parts['port']}/{database or parts['dbname']}"


@pytest.fixture
def servers(items: Captured, postgres: PostgresServer, opensearch: str, redis: str, unique: str) -> Iterator[Servers]:
    items.query(
        "CREATE TABLE pairs (a int, b text, at timestamptz, price numeric(8,2), tags text[], PRIMARY KEY (a, b))"
    )
    items.query("ALTER TABLE pairs OWNER TO watershed")
    items.tables = [*items.tables, PAIRS]
    with new_database(postgres) as dsn:
        found = Servers(items, opensearch, redis, dsn, superuser_dsn_of(postgres, dsn), unique)
        role = sql.Identifier(f"{unique}_role")
        with psycopg.connect(found.sql_superuser, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
            try:
                yield found
            finally:
                connection.execute(sql.SQL("DROP OWNED BY {}; DROP ROLE {}").format(role, role))
                _clear(found)


def _clear(servers: Servers) -> None:
    with OpenSearch([servers.opensearch]) as search:
        search.indices.delete(index=f"{servers.name}_first*,{servers.name}_second*", ignore_unavailable=True)
    with redis_client.Redis.from_url(servers.redis) as client:
        for user in ("wrong", "few"):
            client.execute_command("ACL", "DELUSER", f"{servers.name}_{user}")
        client.delete(f"{servers.name}_foreign:watershed")


@dataclass(frozen=True)
class Broken:
    """A set-up: a sink, how it is broken, what is said of it, and how the printed fix is carried out."""

    sink: str
    section: Callable[[Servers], dict[str, Any]]
    breaks: Callable[[Servers], None]
    says: str
    fix: Callable[[Servers, str], None]


def _nothing(_: Servers) -> None:
    """The section itself is what is broken."""


def _acl(user: str, *rules: str) -> Callable[[Servers], None]:
    def make(servers: Servers) -> None:
        with redis_client.Redis.from_url(servers.redis) as client:
            client.execute_command("ACL", "SETUSER", f"{servers.name}_{user}", "on", ">right", *rules)

    return make


def _foreign_key(servers: Servers) -> None:
    with redis_client.Redis.from_url(servers.redis) as client:
        client.rpush(f"{servers.name}_foreign:watershed", "a list")


def _read_only_index(servers: Servers) -> None:
    index = f"{servers.name}_second.public.items.documents"
    owner = {"prefix": f"{servers.name}_second", "table_schema": "public", "table_name": "items"}
    servers.put(f"/{index}", {"mappings": {"_meta": {"watershed": owner}}})
    servers.put(f"/{index}/_settings", {"index.blocks.read_only_allow_delete": True})


def _in_sql(statements: str) -> Callable[[Servers], None]:
    def run(servers: Servers) -> None:
        database = conninfo_to_dict(servers.sql)["dbname"]
        execute(servers.sql_superuser, statements.format(role=f"{servers.name}_role", database=database))

    return run


def _sql_fix(servers: Servers, step: str) -> None:
    execute(servers.sql_superuser, sql_of(step))


def _url(sink: str, right: Callable[[Servers], str]) -> Callable[[Servers, str], None]:
    """The fix is another address."""

    def fix(servers: Servers, step: str) -> None:
        assert "url" in step
        servers.items.settings["sinks"][sink]["url"] = right(servers)

    return fix


def _section(sink: str, key: str, value: Callable[[Servers], Any], says: str) -> Callable[[Servers, str], None]:
    """The fix is another value of the section: the thing in the way is left to its owner."""

    def fix(servers: Servers, step: str) -> None:
        assert says in step and "topics.prefix" in step
        servers.items.settings["sinks"][sink][key] = value(servers)

    return fix


def _shape(sink: str, **shape: Any) -> Callable[[Servers, str], None]:
    def fix(servers: Servers, step: str) -> None:
        assert step
        servers.items.settings["sinks"][sink]["shapes"] = {PAIRS: shape}

    return fix


BROKEN: Final = {
    "a cache that refuses the password": Broken(
        "password",
        lambda s: {"type": "cache", "url": s.redis_as(f"{s.name}_wrong", "wrong"), "key_prefix": f"{s.name}_password"},
        _acl("wrong", "~*", "&*", "+@all"),
        "refuses this user",
        _url("password", lambda s: s.redis_as(f"{s.name}_wrong", "right")),
    ),
    "a cache whose user may not write": Broken(
        "rights",
        lambda s: {"type": "cache", "url": s.redis_as(f"{s.name}_few", "right"), "key_prefix": f"{s.name}_rights"},
        _acl("few", "~*", "+@read", "+@connection", "+info"),
        "does not permit this user the command HDEL",
        lambda s, step: ask_redis(s.redis, step, user=f"{s.name}_few"),
    ),
    "a cache with a key of somebody else's": Broken(
        "foreign",
        lambda s: {"type": "cache", "url": s.redis, "key_prefix": f"{s.name}_foreign"},
        _foreign_key,
        "holds a list, which the sink did not write",
        lambda s, step: ask_redis(s.redis, step),
    ),
    "a key template that is not unique": Broken(
        "template",
        lambda s: {
            "type": "cache",
            "url": s.redis,
            "key_prefix": f"{s.name}_template",
            "shapes": {PAIRS: {"key": "pair:{a}"}},
        },
        _nothing,
        "'pair:{a}' is not unique: it lacks b of the key",
        _shape("template", key="pair:{a}:{b}"),
    ),
    "a search server that is away": Broken(
        "away",
        lambda _: {"type": "search", "url": "http://127.0.0.1:1"},
        _nothing,
        "does not answer",
        _url("away", lambda s: s.opensearch),
    ),
    "an index of somebody else's": Broken(
        "first",
        lambda s: {"type": "search", "url": s.opensearch, "index_prefix": f"{s.name}_first"},
        lambda s: s.put(f"/{s.name}_first.public.items.documents", {}),
        "it belongs to another program",
        _section("first", "index_prefix", lambda s: f"{s.name}_first_b", "set another index_prefix"),
    ),
    "an index that is read-only": Broken(
        "second",
        lambda s: {"type": "search", "url": s.opensearch, "index_prefix": f"{s.name}_second"},
        _read_only_index,
        "is read-only (index.blocks.read_only_allow_delete)",
        lambda s, step: send(s.opensearch, step),
    ),
    "an analyzer's field of a column that is not there": Broken(
        "fields",
        lambda s: {
            "type": "search",
            "url": s.opensearch,
            "index_prefix": f"{s.name}_fields",
            "shapes": {PAIRS: {"mapping": {"title": {"type": "text"}}}},
        },
        _nothing,
        "mapping of public.pairs names column title",
        _shape("fields", mapping={"b": {"type": "text"}}),
    ),
    "an SQL database that is not there": Broken(
        "nowhere",
        lambda s: {"type": "sql", "url": s.sql_as("watershed", "nowhere"), "own_schema": f"{s.name}_nowhere"},
        _nothing,
        'database "nowhere" does not exist',
        _url("nowhere", lambda s: s.sql_as("watershed")),
    ),
    "an SQL role that may not create schemas": Broken(
        "granted",
        lambda s: {"type": "sql", "url": s.sql_as(f"{s.name}_role"), "shapes": {"*": {"table": "granted.{table}"}}},
        _nothing,
        "may not create the sink's schemas",
        _sql_fix,
    ),
    "an SQL role that may not create tables": Broken(
        "tables",
        lambda s: {
            "type": "sql",
            "url": s.sql_as(f"{s.name}_role"),
            "own_schema": f"{s.name}_tables",
            "shapes": {"*": {"table": "theirs.{table}"}},
        },
        _in_sql("CREATE SCHEMA theirs"),
        "may not create tables in schema theirs",
        _sql_fix,
    ),
    "an SQL table of somebody else's": Broken(
        "taken",
        lambda s: {
            "type": "sql",
            "url": s.sql_as("watershed"),
            "own_schema": f"{s.name}_taken",
            "shapes": {"*": {"table": "taken.{table}"}},
        },
        _in_sql("CREATE SCHEMA taken; CREATE TABLE taken.items (x int); ALTER SCHEMA taken OWNER TO watershed"),
        "taken.items already exists, and the sink did not create it",
        _section("taken", "shapes", lambda _: {"*": {"table": "taken.{table}_b"}}, "set another table"),
    ),
}


def test_what_is_broken_in_stores_is_found_at_once_and_mended(servers: Servers) -> None:
    items = servers.items
    items.settings = {"sinks": {broken.sink: broken.section(servers) for broken in BROKEN.values()}}
    for broken in BROKEN.values():
        broken.breaks(servers)
    found = troubles(items)
    assert {one.about for one in found} == {f"store {broken.sink}" for broken in BROKEN.values()}, found
    for name, broken in BROKEN.items():
        one = the_one(found, f"store {broken.sink}", broken.says)
        assert one.level == "fail", name
        broken.fix(servers, one.next)
    assert troubles(items) == []


def test_a_full_disk_a_read_only_database_and_a_cache_that_evicts_are_found_and_mended(servers: Servers) -> None:
    sinks = {"search": servers.opensearch, "sql": servers.sql_as("watershed"), "cache": servers.redis}
    servers.items.settings = {"sinks": {sink: {"url": url} for sink, url in sinks.items()}}
    limits = {f"{DISK}.watermark.{name}": "100pb" for name in ("low", "high", "flood_stage")}
    _in_sql("ALTER DATABASE {database} SET default_transaction_read_only = on")(servers)
    servers.put("/_cluster/settings", {"persistent": {f"{DISK}.threshold_enabled": True, **limits}})
    with redis_client.Redis.from_url(servers.redis) as cache:
        cache.config_set("maxmemory", "100mb")
        cache.config_set("maxmemory-policy", "allkeys-lru")
        try:
            found = troubles(servers.items)
            full = the_one(found, "store search", "which is beyond the watermark flood_stage (100pb)")
            send(servers.opensearch, full.next)
            with psycopg.connect(servers.sql_superuser, autocommit=True) as connection:
                connection.execute("SET default_transaction_read_only = off")
                connection.execute(sql_of(the_one(found, "store sql", "are read-only").next).encode())
            ask_redis(servers.redis, the_one(found, "store cache", "evicts keys when it is full").next)
            assert troubles(servers.items) == []
        finally:
            cache.config_set("maxmemory", "0")
            # The server may have found its disk full, and would keep the block for new indexes of all later tests.
            settings = dict.fromkeys([*limits, f"{DISK}.threshold_enabled", "cluster.blocks.create_index"])
            servers.put("/_cluster/settings", {"persistent": settings})
            with suppress(NotFoundError):  # there is no index
                servers.put("/_all/_settings", {"index.blocks.read_only_allow_delete": None})


def test_mappings_of_columns_that_are_not_there_are_found_and_mended(servers: Servers) -> None:
    mapping = {"public.items": {"exclude": ["nmae"]}, PAIRS: {"where": "at > 1"}}
    servers.items.settings = {"sinks": {"cache": {"url": servers.redis, "mapping": mapping}}}
    (one,) = troubles(servers.items)
    assert (one.about, one.next) == ("mappings", "correct section sinks of the configuration")
    assert "exclude names column nmae, which the table does not have" in one.message
    assert "mapping of public.pairs: column at" in one.message
    mapping["public.items"], mapping[PAIRS] = {"exclude": ["name"]}, {"where": "a > 1"}
    assert troubles(servers.items) == []


def test_columns_that_a_warehouse_cannot_hold_in_every_value_are_found_and_mended(servers: Servers) -> None:
    folder = servers.items.folder
    warehouse = {"catalog_uri": f"jdbc:sqlite:{folder}/catalog.db", "location": str(folder / "tables")}
    servers.items.query('ALTER TABLE items ADD born date, ADD "when" timestamp, ADD total numeric')
    sinks = {"lake": {"type": "warehouse", **warehouse}, "cache": {"url": servers.redis}}
    servers.items.settings = {"sinks": sinks}
    assert troubles(servers.items) == [], "a dead letter loses nothing, and each timestamp would be a warning"
    sinks["lake"]["on_rejected"] = "stop"
    (one,) = troubles(servers.items)
    assert (one.about, one.level) == ("sink lake", "warn")
    assert one.message.endswith(
        "such a value stops the sink: "
        "public.items: born (infinity, years outside 1 to 9999), when (infinity, years outside 1 to 9999); "
        "public.pairs: at (infinity, years outside 1 to 9999), price (NaN), "
        "tags (arrays of several dimensions or with explicit bounds)"
    )
    configured(servers.items, one.next.partition("of these: ")[2])
    assert [level for level, _, _ in findings(servers.items)["sink lake"]] == ["ok", "ok"]
