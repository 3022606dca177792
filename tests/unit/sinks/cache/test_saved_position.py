"""The note of a job's position in caches that lose their last writes."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import redis as client

from cdc.model.events import pack_version
from sinks.cache.removal import cache_contents
from sinks.cache.sink import CacheSink
from sinks.errors import SinkError
from sinks.retries import Retries
from tests.support.http_server import free_port
from tests.support.redis_cluster import Cluster, cluster_client
from tests.support.redis_cluster import redis_cluster as started_cluster
from tests.support.waiting import eventually
from tests.unit.sinks.cache.cluster_rows import QUICK, USERS, config, opened, rows, upsert
from watershed.devstack.instance import HOST, package_folder
from watershed.devstack.redis import PACKAGE

V = pack_version(1, 100)
USERS_BEGINNING = "{public.users}"


@contextmanager
def server(folder: Path) -> Iterator[client.Redis]:
    port = free_port()
    folder.mkdir(exist_ok=True)
    words = ["--port", str(port), "--bind", HOST, "--dir", str(folder), "--save", ""]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(package_folder(PACKAGE) / "bin" / "redis-server"), *words], stdout=log)
    try:
        with closing(client.Redis(HOST, port)) as connected:
            eventually(lambda: is_up(connected), 20, "the server answers")
            yield connected
    finally:
        process.kill()
        process.wait()


def is_up(connected: client.Redis) -> bool:
    try:
        return bool(connected.ping())
    except client.ConnectionError:
        return False


def port_of(connected: client.Redis) -> int:
    return int(connected.connection_pool.connection_kwargs["port"])


def follow(replica: client.Redis, primary: client.Redis) -> None:
    replica.replicaof(HOST, port_of(primary))
    eventually(lambda: replica.info("replication")["master_link_status"] == "up", 30, "the replica follows")


def test_a_primary_that_comes_back_without_its_last_writes_has_an_older_note(tmp_path: Path) -> None:
    """It is the process that the generation is bound to: only the note tells what has happened."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(server(tmp_path / name)) for name in ("first", "second"))
        address = f"redis://{HOST}:{port_of(first)}"
        sink = stack.enter_context(closing(opened(address, "shop")))
        sink.apply([upsert(1, V, "kept")])
        sink.save_position("older", None)
        follow(second, first)
        second.replicaof("NO", "ONE")
        sink.apply([upsert(2, V + 1, "lost")])
        sink.save_position("newer", "older")
        follow(first, second)
        first.replicaof("NO", "ONE")
        with pytest.raises(SinkError, match="may have lost its last writes"):
            sink.save_position("newest", "newer")
        restarted = stack.enter_context(closing(CacheSink.open(config(address), "shop", QUICK)))
        assert (restarted.generation(), restarted.saved_position()) == (1, "older")
        restarted.prepare(USERS)
        assert rows(restarted) == {1: "kept"}
        restarted.save_position("continued", "older")
        assert restarted.saved_position() == "continued"


def test_a_server_that_loads_an_older_file_is_filled_again(tmp_path: Path) -> None:
    """Keys of before may have expired there, and an append-only file may lack a second."""
    with server(tmp_path / "one") as first, closing(opened(f"redis://{HOST}:{port_of(first)}", "shop")) as sink:
        sink.apply([upsert(1, V, "kept")])
        sink.save_position("older", None)
        first.save()
        sink.apply([upsert(2, V + 1, "lost")])
        sink.save_position("newer", "older")
    with server(tmp_path / "one") as again:
        restarted = CacheSink.open(config(f"redis://{HOST}:{port_of(again)}"), "shop", QUICK)
        with closing(restarted):
            assert (restarted.generation(), restarted.saved_position()) == (None, "older")
            with pytest.raises(SinkError, match="may have lost its last writes"):
                restarted.save_position("newest", "older")


def test_a_note_that_reaches_a_promoted_replica_is_refused(tmp_path: Path) -> None:
    """The position must not be published: the replica may lack the rows, though it has the note before."""
    with started_cluster(tmp_path, 1, 1) as cluster:
        primary, replica = cluster.ports
        pauses: list[float] = []

        def take_over(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 1:
                cluster.ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")

        with closing(opened(cluster.url, "shop", Retries(sleep=take_over))) as sink:
            sink.apply([upsert(1, V, "a")])
            sink.save_position("older", None)
            eventually(lambda: followed(cluster, replica), 30, "the replica has the note")
            cluster.kill(primary)
            with pytest.raises(SinkError, match="may have lost its last writes"):
                sink.save_position("newer", "older")
            assert pauses, "the note was sent again, to the replica"
            assert sink.generation() is None


def followed(cluster: Cluster, replica: int) -> bool:
    with cluster.client(replica) as connected:
        connected.execute_command("READONLY")
        return bool(connected.hexists("shop:watershed", "note"))


def copies(reader: client.RedisCluster, prefix: str, part: str) -> dict[bytes, bytes]:
    """What a primary holds of the keys whose names contain `part`."""
    held = [key for key in reader.scan_iter(match=f"{prefix}:*", count=1000) if part.encode() in key]
    return {key: value for key in held if (value := reader.dump(key)) is not None}


def restore(reader: client.RedisCluster, older: dict[bytes, bytes], prefix: str, part: str) -> None:
    for key in copies(reader, prefix, part):
        reader.delete(key)
    for key, value in older.items():
        reader.restore(key, 0, value)


def test_a_table_whose_primary_in_a_cluster_lost_writes_contradicts_the_note(
    redis_cluster: Cluster, unique: str
) -> None:
    """The note is on another primary, which lost nothing."""
    with closing(opened(redis_cluster.url, unique)) as sink, closing(cluster_client(redis_cluster.url)) as reader:
        sink.apply([upsert(1, V, "kept")])
        sink.make_readable({USERS.table})
        sink.save_position("older", None)
        older = copies(reader, unique, USERS_BEGINNING)
        sink.apply([upsert(2, V + 1, "lost")])
        sink.make_readable({USERS.table})
        sink.save_position("newer", "older")
        sink.save_position("newest", "newer")  # nothing was written in between
        restarted = CacheSink.open(config(redis_cluster.url), unique, QUICK)
        with closing(restarted):
            assert (restarted.generation(), restarted.saved_position()) == (1, "newest")
            restore(reader, older, unique, USERS_BEGINNING)
            assert (restarted.generation(), restarted.saved_position()) == (1, None)
        sink.apply([upsert(3, V + 2, "later")])
        sink.make_readable({USERS.table})
        with pytest.raises(SinkError, match="may have lost its last writes"):
            sink.save_position("next", "newest")
        sink.begin_generation(2)
        sink.discard(USERS.table)
        sink.prepare(USERS)
        assert sink.saved_position() is None
        sink.save_position("first", None)
        assert sink.saved_position() == "first"


def test_a_note_that_was_lost_in_a_cluster_is_older_than_the_rows(redis_cluster: Cluster, unique: str) -> None:
    part = ":watershed"
    with closing(opened(redis_cluster.url, unique)) as sink, closing(cluster_client(redis_cluster.url)) as reader:
        for number, text in enumerate(("older", "newer")):
            sink.apply([upsert(number, V + number, "kept")])
            sink.make_readable({USERS.table})
            sink.save_position(text, None)
            if text == "older":
                older = copies(reader, unique, part)
        restore(reader, older, unique, part)
        assert (sink.generation(), sink.saved_position()) == (1, "older")
        sink.apply([upsert(7, V + 7, "later")])
        sink.make_readable({USERS.table})
        sink.save_position("continued", "older")
        assert sink.saved_position() == "continued"
        assert set(rows(sink)) == {0, 1, 7}
        found = cache_contents(config(redis_cluster.url), unique, [], removes=False)
        assert found == [f"{unique}:watershed", "3 rows of public.users"], "the count of notes is no row"
        sink.discard(USERS.table)
