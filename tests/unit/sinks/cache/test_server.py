"""Redis's failures become sentences, some after a repetition; addresses lose their secrets."""

import socket

import pytest
import redis as client

from cdc.model.errors import SinkError
from sinks.cache.scripts import APPLY
from sinks.cache.server import RedisServer
from sinks.retries import Retries
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


def test_a_full_server_is_said_without_the_value(own_redis: OwnRedis) -> None:
    with client.Redis.from_url(own_redis.url) as admin:
        admin.config_set("maxmemory", "100kb")
    server = RedisServer(own_redis.url, ONCE)
    with pytest.raises(SinkError, match="is full and refuses writes") as caught:
        server.run_all([("EVALSHA", APPLY.sha, 2, "k", "key", 1000, "1", "private value")], [APPLY])
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
        server.run_all([("EVALSHA", APPLY.sha, 2, "k", unique, 1000, "1", "private value")], [APPLY])
    assert "private" not in str(caught.value)
    server.run("DEL", unique)


def test_a_script_that_the_server_does_not_know_is_loaded(own_redis: OwnRedis) -> None:
    server = RedisServer(own_redis.url, ONCE)
    call = ("EVALSHA", APPLY.sha, 2, "k", "key", 1000, "1", "{}")
    assert server.run_all([call, call], [APPLY]) == [[1], [0]]
    server.run("SCRIPT FLUSH")
    assert server.run_all([("PING",), call], [APPLY]) == [True, [0]]


def test_a_restart_in_between_is_survived(own_redis: OwnRedis) -> None:
    """The pause is where the server comes back: all commands are sent again, scripts too."""

    def pause(_: float) -> None:
        own_redis.stack.restart("redis")

    server = RedisServer(own_redis.url, Retries(sleep=pause))
    call = ("EVALSHA", APPLY.sha, 2, "k", "key", 1000, "1", "{}")
    assert server.run_all([call], [APPLY]) == [[1]]
    own_redis.stack.kill("redis")
    assert server.run_all([call, ("HGET", "key", "doc")], [APPLY]) == [[0], b"{}"]
