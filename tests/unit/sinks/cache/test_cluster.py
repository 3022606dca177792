"""The cache in a Redis Cluster of real servers: where its keys are, and what happens while nodes and slots change."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc.config.store_shapes import CacheShape, StoreTls
from cdc.config.stores import shared_names
from cdc.model.events import TableId
from sinks.cache.check import cache_findings
from sinks.cache.cluster import ClusterPlace, ClusterServer, cluster_place
from sinks.cache.contents import CacheContents
from sinks.cache.keys import hash_tag
from sinks.cache.removal import cache_contents
from sinks.cache.server import RedisServer
from sinks.cache.sink import CacheSink
from sinks.cache.slots import CacheSlots
from sinks.contract import Outcome
from sinks.errors import RefusedError, SinkError
from tests.support.http_server import free_port
from tests.support.redis_cluster import Cluster, cluster_client, free_ports
from tests.support.tls import TlsProxy
from tests.unit.sinks.cache.cluster_rows import QUICK, USERS, V, config, opened, rows, schema_of, upsert

NAMES = ("users", "orders", "items", "rights")
TAGGED = CacheShape(key="user:{{public.users}}:{id}", value="json", lookups=("{{public.users}}:by_email:{email}",))


def test_an_address_in_its_parts() -> None:
    assert cluster_place("rediss+cluster://me:p%40ss@one:1,two") == ClusterPlace(
        (("one", 1), ("two", 6379)), "me", "p@ss", True
    )
    place = cluster_place("redis+cluster://:secret@one/0")
    assert (place.user, place.password, place.has_tls, place.name) == (None, "secret", False, "cluster one:6379")


@pytest.mark.parametrize("address", ["", "one:x", "one/1", "one,", "user@"])
def test_an_address_that_lacks_a_part_is_refused(address: str) -> None:
    with pytest.raises(SinkError, match=r"not a Redis address\n  next: .*redis\+cluster://"):
        ClusterServer(f"redis+cluster://{address}", QUICK)


@pytest.mark.parametrize(
    ("key", "tag"),
    [("a:{b}:{c}", "b"), ("a", None), ("a{}b{c}", None), ("a{b", None), ("{{b}}", "{b"), ("}{b}", "b")],
)
def test_a_hash_tag_decides_the_slot_as_in_redis(redis_cluster: Cluster, key: str, tag: str | None) -> None:
    assert hash_tag(key) == tag
    slots = [redis_cluster.ask(redis_cluster.ports[0], "CLUSTER", "KEYSLOT", text) for text in (key, tag or key)]
    assert slots[0] == slots[1]


def test_two_sinks_in_one_cluster_are_found_by_any_node_that_both_name() -> None:
    sinks = {"one": config("redis+cluster://me:s@a:1,b:2"), "two": config("redis+cluster://b:2/0")}
    assert "would share one store" in (shared_names(sinks, "shop") or "")
    assert shared_names(sinks | {"two": config("redis+cluster://b:2", key_prefix="other")}, "shop") is None


@pytest.mark.parametrize("prefix", ["shop{}", "{}{shop}", "a{b", "a{{b}}"])
def test_a_prefix_without_a_hash_tag_in_its_braces_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match=r"cluster \{ begins a hash tag"):
        config("redis+cluster://one", key_prefix=prefix)
    assert config("redis://one", key_prefix=prefix).key_prefix == prefix
    assert config("redis+cluster://one", key_prefix="a}{shop}{").key_prefix == "a}{shop}{"


def test_a_node_is_no_server_and_a_server_no_cluster(redis_cluster: Cluster, redis: str) -> None:
    with pytest.raises(SinkError, match=r"is a node of a cluster\n  next: write redis\+cluster://"):
        CacheSink.open(config(f"redis://127.0.0.1:{redis_cluster.ports[0]}"), "shop", QUICK)
    address = redis.replace("redis://", "redis+cluster://")
    with pytest.raises(SinkError, match=r"is not a cluster\n  next: write redis://host:port/0"):
        CacheSink.open(config(address), "shop", QUICK)
    with pytest.raises(SinkError, match=r"Redis at cluster 127.0.0.1:\d+ does not answer \(ConnectionError\)"):
        CacheSink.open(config(f"redis+cluster://127.0.0.1:{free_port()}"), "shop", QUICK)


def test_tables_are_on_several_nodes_and_one_batch_writes_them_all(redis_cluster: Cluster, unique: str) -> None:
    owners = {redis_cluster.owner(f"{unique}:{{public.{name}}}:") for name in NAMES}
    assert len(owners) > 1
    with closing(opened(redis_cluster.url, unique)) as sink, closing(cluster_client(redis_cluster.url)) as reader:
        for name in NAMES:
            sink.prepare(schema_of(name))
        for port in redis_cluster.ports:
            redis_cluster.ask(port, "SCRIPT FLUSH")
        changes = [upsert(number, V + number, table=name) for number in range(300) for name in NAMES]
        assert {result.outcome for result in sink.apply(changes)} == {Outcome.WRITTEN}
        assert {result.outcome for result in sink.apply(changes)} == {Outcome.STALE}
        for name in NAMES:
            assert sorted(row.version for row in sink.rows(TableId("public", name))) == list(range(V, V + 300))
            assert json.loads(reader.hget(f"{unique}:{{public.{name}}}:7", "doc")) == {"id": 7, "email": ""}
        assert sink.sweep(USERS.table, V + 290) == 290
    report = cache_contents(config(redis_cluster.url), unique, [USERS.table], removes=True)
    assert "10 rows of public.users" in report and "300 rows of public.items" in report
    with closing(cluster_client(redis_cluster.url)) as reader:
        assert list(reader.scan_iter(f"{unique}*", count=1000)) == []


def test_own_keys_lookups_and_a_stream_are_in_the_slot_of_their_table(redis_cluster: Cluster, unique: str) -> None:
    invalidate = CacheShape(
        mode="invalidate", key="{{public.rights}}:{id}", stream="gone:{public.rights}", publish="gone"
    )
    shapes = {"public.users": TAGGED, "public.rights": invalidate}
    with (
        closing(opened(redis_cluster.url, unique, shapes=shapes)) as sink,
        closing(cluster_client(redis_cluster.url)) as reader,
    ):
        sink.prepare(schema_of("rights"))
        reader.set("{public.rights}:1", "an application's")
        sink.apply([upsert(1, V, "a@x"), upsert(2, V + 1, "b@x"), upsert(1, V + 2, table="rights")])
        sink.apply([upsert(1, V + 3, "c@x")])
        assert json.loads(reader.get("user:{public.users}:1")) == {"id": 1, "email": "c@x"}
        held = [reader.get(f"{{public.users}}:by_email:{name}@x") for name in "abc"]
        assert held == [None, b"2", b"1"]
        assert not reader.exists("{public.rights}:1")
        ((_, fields),) = reader.xrange("gone:{public.rights}")
        assert (fields[b"key"], fields[b"operation"]) == (b"{public.rights}:1", b"upsert")
        contents = CacheContents(sink)
        reader.set("{public.users}:by_email:stray", "1")
        assert list(contents.orphaned_lookups(USERS.table)) == ["{public.users}:by_email:stray"]
        for table in (USERS.table, TableId("public", "rights")):
            sink.discard(table)
        assert not reader.exists("user:{public.users}:1") and not reader.exists("{public.users}:by_email:c@x")
        reader.delete("gone:{public.rights}", "{public.users}:by_email:stray")


@pytest.mark.parametrize(
    ("shape", "named", "next_step"),
    [
        ({"key": "user:{id}"}, "template 'user:{id}'", "write '{{public.users}}:user:{id}'"),
        ({"lookups": ("{email}:{{public.users}}",)}, "template", "write '{{public.users}}:{email}:{{public.users}}'"),
        ({"key": "{{users}}:{id}"}, "template", "write '{{public.users}}:{{users}}:{id}'"),
        (
            {"key": "{{public.users}}:{id}", "mode": "invalidate", "stream": "gone"},
            "stream 'gone'",
            "write '{public.users}:gone'",
        ),
    ],
)
def test_keys_of_other_slots_are_refused_with_what_to_write(
    redis_cluster: Cluster, unique: str, shape: dict[str, Any], named: str, next_step: str
) -> None:
    section = config(redis_cluster.url, shapes={"public.users": CacheShape(**shape)})
    refused, ready = cache_findings("cache", section, unique, [USERS])
    assert refused.message.startswith(f"cache: public.users: {named}")
    assert "{public.users}: in a cluster all keys of a table have one hash tag" in refused.message
    assert refused.next == next_step
    assert ready.level == "ok"
    with pytest.raises(RefusedError), closing(CacheSink.open(section, unique, QUICK)) as sink:
        sink.prepare(USERS)


def test_a_tag_in_the_prefix_counts_for_all_tables(redis_cluster: Cluster, unique: str) -> None:
    shape = CacheShape(key=f"{{{{{unique}}}}}/{{id}}", value="json")
    section: dict[str, Any] = {"key_prefix": f"{{{unique}}}", "shapes": {"public.users": shape}}
    with (
        closing(opened(redis_cluster.url, "shop", **section)) as sink,
        closing(cluster_client(redis_cluster.url)) as reader,
    ):
        sink.prepare(schema_of("items"))
        sink.apply([upsert(1, V, "a"), upsert(2, V, "b", table="items")])
        assert json.loads(reader.get(f"{{{unique}}}/1"))["email"] == "a"
        slots = {reader.keyslot(key) for key in reader.scan_iter(f"{{{unique}}}*", count=1000)}
        assert slots == {reader.keyslot(unique)}
        for name in ("users", "items"):
            sink.discard(TableId("public", name))


def test_a_user_with_the_rights_that_are_documented_may_do_everything(redis_cluster: Cluster, unique: str) -> None:
    for port in redis_cluster.ports:
        redis_cluster.ask(port, "ACL", "SETUSER", unique, "on", ">s3cret", "+@connection")
    url = redis_cluster.url.replace("://", f"://{unique}:s3cret@")
    with pytest.raises(SinkError, match="does not permit this user the command CLUSTER") as caught:
        opened(url, unique)
    for port in redis_cluster.ports:
        redis_cluster.ask(port, *caught.value.hint.replace("<user>", unique).split())
    with closing(opened(url, unique, shapes={"public.users": TAGGED})) as sink:
        sink.apply([upsert(1, V, "a")])
        assert [row.version for row in sink.rows(USERS.table)] == [V]
        assert list(CacheContents(sink).orphaned_lookups(USERS.table)) == []
        sink.discard(USERS.table)
    with pytest.raises(SinkError, match="refuses this user"):
        opened(url.replace("s3cret", "wrong"), unique)


def test_room_and_eviction_are_looked_at_on_each_node(redis_cluster: Cluster, unique: str) -> None:
    section = config(redis_cluster.url)
    with (
        closing(opened(redis_cluster.url, unique)) as sink,
        closing(CacheSlots(section, unique, QUICK)) as slots,
    ):
        sink.apply([upsert(1, V)])
        slots.check_room()
        port = redis_cluster.owner(f"{unique}:{{public.users}}:")
        redis_cluster.ask(port, "CONFIG", "SET", "maxmemory", 1)
        try:
            with pytest.raises(SinkError, match=rf"127.0.0.1:{port}: a rebuild needs about 300 bytes, and 0 are left"):
                slots.check_room()
            redis_cluster.ask(port, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            with pytest.raises(SinkError, match="evicts keys when it is full"):
                CacheSink.open(section, unique, QUICK)
        finally:
            redis_cluster.ask(port, "CONFIG", "SET", "maxmemory", 0)
            redis_cluster.ask(port, "CONFIG", "SET", "maxmemory-policy", "noeviction")
        sink.discard(USERS.table)


def test_single_servers_have_the_same_names_as_ever(redis: str, unique: str) -> None:
    with closing(CacheSink.open(config(redis), unique, QUICK)) as sink:
        sink.begin_generation(1)
        sink.prepare(USERS)
        sink.apply([upsert(1, V)])
        assert isinstance(sink.server, RedisServer) and not sink.server.in_cluster
        assert sink.server.run("EXISTS", f"{unique}:public.users:1") == 1
        sink.discard(USERS.table)


def test_nodes_with_tls_take_our_certificate(tmp_path: Path, certificates: Path) -> None:
    """The node announces the port of the proxy, as the nodes of a cluster with TLS announce their ports for it."""
    (port,) = free_ports(1)
    proxy, cluster = TlsProxy(certificates, port), Cluster(tmp_path / "nodes")
    try:
        cluster.start(port, 2_000, cluster_announce_port=proxy.port)
        cluster.join([port], [])
        url = f"rediss+cluster://127.0.0.1:{proxy.port}"
        authority, *own = (str(certificates / name) for name in ("ca.pem", "client.pem", "client.key"))
        tls = StoreTls(ca_file=authority, certificate_file=own[0], key_file=own[1])
        with closing(opened(url, "shop", tls=tls)) as sink:
            sink.apply([upsert(1, V, "a")])
            assert rows(sink) == {1: "a"}
        with pytest.raises(SinkError, match="does not answer"):
            opened(url, "shop")
    finally:
        cluster.stop()
        proxy.close()
