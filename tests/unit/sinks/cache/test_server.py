"""Redis's failures become sentences, some after a repetition; addresses lose their secrets."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as client

from cdc.config.store_shapes import StoreTls
from sinks.cache.keys import SHAPE, version_text
from sinks.cache.scripts import APPLY
from sinks.cache.server import Command, RedisServer
from sinks.errors import SinkError
from sinks.retries import Retries
from tests.support.tls import TlsProxy
from tests.unit.sinks.cache.conftest import OwnRedis

ONCE = Retries(attempt_count_max=1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    port = free_port()
    server = RedisServer(f"redis://user:s3cret@127.0.0.1:{port}/0", ONCE)
    with pytest.raises(SinkError) as caught:
        server.run("PING")
    assert caught.value.message == f"Redis at 127.0.0.1:{port} does not answer (ConnectionError)"
    assert "the sink's url" in caught.value.hint
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost", "redis://localhost:port"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SinkError, match=r"the sink's url is not a Redis address"):
        RedisServer(url, ONCE)


def test_a_wrong_password_is_said_at_once(own_redis: OwnRedis) -> None:
    with client.Redis.from_url(own_redis.url) as admin:
        admin.config_set("requirepass", "right")
    pauses: list[float] = []
    address = own_redis.url.replace("redis://", "redis://:wrong-one@")
    with pytest.raises(SinkError, match="refuses this user") as caught:
        RedisServer(address, Retries(sleep=pauses.append)).run("PING")
    assert pauses == []
    assert "wrong-one" not in str(caught.value)


def _write(versions: str) -> Command:
    """Of one row, into the table with this hash."""
    options = ("shape", "deleted:", 1000, "", "string", "", "", 100, "public.t", "", "")
    return ("EVALSHA", APPLY.sha, 1, versions, *options, "keys", 0, version_text(1), "id", "private value", "key")


def test_a_full_server_is_said_without_the_value(own_redis: OwnRedis) -> None:
    with client.Redis.from_url(own_redis.url) as admin:
        admin.hset("versions", SHAPE, "shape")
        admin.config_set("maxmemory", "100kb")
    server = RedisServer(own_redis.url, ONCE)
    with pytest.raises(SinkError, match="is full and refuses writes") as caught:
        server.run_all([_write("versions")], [APPLY])
    assert "private" not in str(caught.value)


def test_a_replica_is_said_after_repetitions(own_redis: OwnRedis) -> None:
    with client.Redis.from_url(own_redis.url) as admin:
        admin.replicaof("127.0.0.1", str(free_port()))
    pauses: list[float] = []
    server = RedisServer(own_redis.url, Retries(attempt_count_max=3, sleep=pauses.append))
    with pytest.raises(SinkError, match="is a read-only replica"):
        server.run("SET", "key", "value")
    assert len(pauses) == 2


def test_an_unexpected_error_is_said_by_its_code_only(redis: str, unique: str) -> None:
    server = RedisServer(redis, ONCE)
    server.run("SET", unique, "private")
    with pytest.raises(SinkError, match=r"refuses a command \(WRONGTYPE\)") as caught:
        server.run_all([_write(unique)], [APPLY])
    assert "private" not in str(caught.value)
    server.run("DEL", unique)


def test_a_script_that_the_server_does_not_know_is_loaded(own_redis: OwnRedis) -> None:
    server = RedisServer(own_redis.url, ONCE)
    server.run("HSET", "versions", SHAPE, "shape")
    call = _write("versions")
    assert server.run_all([call, call], [APPLY]) == [[], [1]]
    server.run("SCRIPT FLUSH")
    assert server.run_all([("PING",), call], [APPLY]) == [True, [1]]


def test_a_restart_in_between_is_survived(own_redis: OwnRedis) -> None:
    """The pause is where the server comes back: all commands are sent again, scripts too."""

    def pause(_: float) -> None:
        own_redis.stack.restart("redis")

    server = RedisServer(own_redis.url, Retries(sleep=pause))
    server.run("HSET", "versions", SHAPE, "shape")
    call = _write("versions")
    assert server.run_all([call], [APPLY]) == [[]]
    own_redis.stack.kill("redis")
    assert server.run_all([call, ("GET", "key")], [APPLY]) == [[1], b"private value"]


@pytest.fixture
def tls_proxy(own_redis: OwnRedis, certificates: Path) -> Iterator[TlsProxy]:
    proxy = TlsProxy(certificates, int(own_redis.url.rpartition(":")[2].partition("/")[0]))
    yield proxy
    proxy.close()


def test_a_server_with_tls_takes_our_certificate_and_acl_user(
    own_redis: OwnRedis, certificates: Path, tls_proxy: TlsProxy
) -> None:
    with client.Redis.from_url(own_redis.url) as admin:
        admin.execute_command("ACL", "SETUSER", "cache", "on", ">s3cret", "~*", "&*", "+@all")
    url = f"rediss://cache:s3cret@127.0.0.1:{tls_proxy.port}/0"
    authority, *own = (str(certificates / name) for name in ("ca.pem", "client.pem", "client.key"))
    server = RedisServer(url, ONCE, StoreTls(ca_file=authority, certificate_file=own[0], key_file=own[1]))
    assert server.run("ACL", "WHOAMI") == b"cache"
    server.close()
    for tls in (None, StoreTls(ca_file=authority)):
        with pytest.raises(SinkError, match="does not answer"):
            RedisServer(url, ONCE, tls).run("PING")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://127.0.0.1:1", "requires an address with TLS"),
        ("rediss://127.0.0.1:1", "file /no/such.pem can't be read"),
    ],
)
def test_files_for_tls_that_can_not_be_used_are_said(url: str, message: str) -> None:
    with pytest.raises(SinkError, match=message) as caught:
        RedisServer(url, ONCE, StoreTls(ca_file="/no/such.pem"))
    assert caught.value.hint
