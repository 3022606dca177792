"""The cache follows the primary that Redis Sentinel names, through a fail-over of real servers."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from cdc.config.stores import CacheConfig
from cdc.model.events import pack_version
from sinks.cache.sentinel import SentinelPlace, sentinel_place
from sinks.cache.server import RedisServer
from sinks.cache.sink import CacheSink
from sinks.contract import Outcome
from sinks.errors import SinkError
from sinks.retries import Retries
from tests.conformance.tables import LABELS
from tests.support.http_server import free_port
from tests.support.waiting import eventually
from watershed.devstack.instance import package_folder
from watershed.devstack.redis import PACKAGE

V = pack_version(1, 100)
SERVICE = "shop"


def test_an_address_in_its_parts() -> None:
    assert sentinel_place("redis://host:6379/0") is None
    assert sentinel_place("redis+sentinel://me:p%40ss@one:1,two/shop/3") == SentinelPlace(
        (("one", 1), ("two", 26_379)), "shop", 3, "me", "p@ss"
    )
    assert sentinel_place("redis+sentinel://:secret@one/shop") == SentinelPlace(
        (("one", 26_379),), "shop", 0, None, "secret"
    )


@pytest.mark.parametrize("url", ["redis+sentinel://one", "redis+sentinel:///shop", "redis+sentinel://one:x/shop/0"])
def test_an_address_that_lacks_a_part_is_refused(url: str) -> None:
    with pytest.raises(SinkError, match=r"not a Redis address\n  next: .*redis\+sentinel://"):
        RedisServer(url, Retries(attempt_count_max=1))


@dataclass
class Servers:
    ports: dict[str, int]
    processes: dict[str, subprocess.Popen[bytes]]

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.ports['sentinel']}/{SERVICE}/0"

    def client(self, name: str) -> redis.Redis:
        return redis.Redis(port=self.ports[name])


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """A primary, its replica, and a Sentinel that may decide alone."""
    made = Servers({name: free_port() for name in ("primary", "replica", "sentinel")}, {})
    monitored = f"sentinel monitor {SERVICE} 127.0.0.1 {made.ports['primary']} 1"
    configured = {
        "primary": "",
        "replica": f"replicaof 127.0.0.1 {made.ports['primary']}",
        "sentinel": f"{monitored}\nsentinel down-after-milliseconds {SERVICE} 300\n",
    }
    program = package_folder(PACKAGE) / "bin" / "redis-server"
    for name, settings in configured.items():
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "redis.conf"
        file.write_text(f'port {made.ports[name]}\nbind 127.0.0.1\ndir {folder}\nsave ""\n{settings}\n')
        mode = ["--sentinel"] if name == "sentinel" else []
        with (folder / "log").open("wb") as log:
            made.processes[name] = subprocess.Popen([str(program), str(file), *mode], stdout=log, stderr=log)
    try:
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()


def has_replica(servers: Servers) -> bool:
    """Sentinel knows it, and it follows."""
    try:
        with servers.client("sentinel") as sentinel, servers.client("replica") as replica:
            known = sentinel.execute_command("SENTINEL", "REPLICAS", SERVICE)
            return bool(known) and replica.info("replication")["master_link_status"] == "up"
    except redis.ConnectionError:
        return False


def test_the_sink_goes_on_with_the_new_primary(servers: Servers) -> None:
    """What the old one may have lost is not known: the store holds no generation, and is filled again."""
    eventually(lambda: has_replica(servers), 30, "the replica follows, and Sentinel knows it")
    with closing(CacheSink.open(CacheConfig(url=SecretStr(servers.url)), "shop")) as sink:
        sink.begin_generation(1)
        sink.prepare(LABELS.schema)
        assert sink.apply([LABELS.upsert(V, name="a", uses=1)])[0].outcome is Outcome.WRITTEN
        servers.processes["primary"].kill()
        eventually(lambda: generation(sink) is None, 60, "the new primary holds no generation")
        sink.begin_generation(2)
        sink.prepare(LABELS.schema)
        sink.apply([LABELS.upsert(V, name="a", uses=1), LABELS.upsert(V + 1, name="b", uses=2)])
        assert {row.key["name"]: row.row["uses"] for row in sink.rows(LABELS.id)} == {"a": 1, "b": 2}
        assert sink.generation() == 2
    with servers.client("replica") as now_primary:
        assert now_primary.info("replication")["role"] == "master"
        assert now_primary.hget("shop:public.labels:b", "doc") == b'{"name":"b","uses":2}'


def generation(sink: CacheSink) -> int | None:
    """0 while nobody is the primary."""
    try:
        return sink.generation()
    except SinkError:
        return 0
