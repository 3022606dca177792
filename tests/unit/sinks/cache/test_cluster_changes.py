"""The cache in a Redis Cluster of real servers, while slots move and replicas become primaries."""

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cdc.config.store_shapes import CacheShape
from sinks.cache.contents import CacheContents
from sinks.cache.sink import CacheSink
from sinks.contract import Change, Outcome
from sinks.errors import SinkError
from sinks.reduction import reduce_changes
from sinks.retries import Retries
from tests.support.redis_cluster import Cluster, cluster_client
from tests.support.redis_cluster import redis_cluster as started_cluster
from tests.support.waiting import eventually
from tests.unit.sinks.cache.cluster_rows import USERS, V, opened, rows, upsert


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """A primary with all slots, whose replica may take over."""
    with started_cluster(tmp_path, 1, 1) as cluster:
        yield cluster


def test_writes_wait_while_their_slot_moves_and_nothing_is_half_written(redis_cluster: Cluster) -> None:
    """At each key on the way: a change of a row, of its lookup key, and a row more are refused as a whole."""
    prefix = f"t{secrets.token_hex(5)}"
    tag = f"{{{prefix}}}"
    shape = CacheShape(key=f"{{{tag}}}/{{id}}", value="json", lookups=(f"{{{tag}}}/by/{{email}}",))
    section: dict[str, Any] = {"key_prefix": tag, "shapes": {"public.users": shape}}
    with (
        closing(opened(redis_cluster.url, "shop", **section)) as sink,
        closing(cluster_client(redis_cluster.url)) as reader,
    ):
        sink.apply([upsert(1, V, "a"), upsert(2, V + 1, "b")])
        steps, moved = 0, redis_cluster.move(tag)
        for _ in moved:
            steps += 1
            with pytest.raises(SinkError, match="is moving keys to another node\n  next: nothing"):
                sink.apply([upsert(1, V + 9, "z"), upsert(3, V + 9, "c")])
            with pytest.raises(SinkError, match="is moving keys"):
                list(sink.rows(USERS.table))
            with pytest.raises(SinkError, match="is moving keys"):
                list(CacheContents(sink).orphaned_lookups(USERS.table))
            assert [json.loads(reader.get(f"{tag}/{number}"))["email"] for number in (1, 2)] == ["a", "b"]
            assert [reader.get(f"{tag}/by/{name}") for name in "abcz"] == [b"1", b"2", None, None]
            assert sink.generation() == 1
        assert steps == 7, "the hashes of the generation and of the versions, two rows, two lookup keys, and the begin"
        assert sink.apply([upsert(1, V + 9, "z"), upsert(3, V + 9, "c")])[0].outcome is Outcome.WRITTEN
        assert rows(sink) == {1: "z", 2: "b", 3: "c"}
        assert sink.generation() == 1, "the same servers, so nothing is lost"
        sink.discard(USERS.table)


def test_a_scan_whose_slot_has_moved_meanwhile_is_refused(redis_cluster: Cluster, unique: str) -> None:
    key = f"{unique}:{{public.users}}:"
    with closing(opened(redis_cluster.url, unique)) as sink:
        sink.apply([upsert(number, V) for number in range(3_000)])
        pages = sink.versions(USERS.table)
        assert next(pages)
        for _ in redis_cluster.move(key, 1_000):
            pass
        with pytest.raises(SinkError, match="is moving keys"):
            list(pages)
        assert sum(map(len, sink.versions(USERS.table))) == 3_000
        sink.discard(USERS.table)


def test_a_promoted_replica_holds_no_generation_and_is_filled_again(own: Cluster) -> None:
    primary, replica = own.ports
    pauses: list[float] = []

    def take_over(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            own.ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")

    with closing(opened(own.url, "shop", Retries(sleep=take_over))) as sink:
        sink.apply([upsert(1, V, "a")])
        own.kill(primary)
        with pytest.raises(SinkError, match="was restarted, or its keys were deleted"):
            sink.apply([upsert(1, V + 1, "b")])
        assert pauses, "the node that died was asked again, until the other one had its slots"
        assert sink.generation() is None
        sink.begin_generation(2)
        sink.prepare(USERS)
        sink.apply([upsert(1, V + 1, "b"), upsert(2, V, "c")])
        assert (rows(sink), sink.generation()) == ({1: "b", 2: "c"}, 2)


def test_a_primary_that_becomes_a_replica_is_noticed_without_a_write_to_it(own: Cluster) -> None:
    primary, replica = own.ports
    with closing(opened(own.url, "shop")) as sink:
        own.ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
        eventually(lambda: own.ask(primary, "ROLE")[0] == "slave", 30, "the primary is a replica")
        with pytest.raises(SinkError, match="was restarted, or its keys were deleted"):
            sink.require(USERS.table)
        assert sink.generation() is None
        own.ask(replica, "CLUSTER", "DELSLOTS", *range(16_384))
        own.kill(primary)
        with pytest.raises(SinkError, match=r"does not serve all hash slots\n  next: CLUSTER INFO"):
            sink.generation()


@pytest.mark.long
def test_the_cluster_promotes_a_replica_and_the_sink_goes_on(tmp_path: Path) -> None:
    """Nobody tells it to: the other primaries vote."""
    with started_cluster(tmp_path, 3, 3) as cluster, closing(opened(cluster.url, "shop", Retries())) as sink:
        changes = [upsert(number, V, "a") for number in range(1_000)]
        sink.apply(changes)
        cluster.kill(cluster.owner("shop:{public.users}:"))
        eventually(lambda: _generation(sink) is None, 60, "the new primary holds no generation")
        sink.begin_generation(2)
        sink.prepare(USERS)
        sink.apply(changes)
        assert (len(rows(sink)), sink.generation()) == (1_000, 2)


@pytest.mark.long
def test_a_history_that_is_written_while_its_slot_moves_to_and_fro_ends_equal(tmp_path: Path) -> None:
    """Batches that are refused are sent again, as the sink's job does it, together with older changes."""
    random, tag = Random(5), "{shop}"
    shape = CacheShape(key="{{shop}}/{id}", value="json", lookups=("{{shop}}/by/{email}",))
    newest: dict[int, Change] = {}
    sent: list[Change] = []
    ended = threading.Event()
    moves, refusals = 0, 0

    def move_on() -> None:
        nonlocal moves
        while not ended.is_set():
            for _ in cluster.move(tag, 40):
                ended.wait(0.002)
            moves += 1

    with started_cluster(tmp_path) as cluster, closing(cluster_client(cluster.url)) as reader:
        section: dict[str, Any] = {"key_prefix": tag, "shapes": {"public.users": shape}}
        with closing(opened(cluster.url, "shop", Retries(3, 0.01), **section)) as sink:
            moving = threading.Thread(target=move_on)
            moving.start()
            for number in range(1, 1_501):
                key = random.randrange(200)
                name = f"{key} {random.randrange(3)}"
                gone = Change(USERS.table, {"id": key}, V + number, None, 1)
                newest[key] = gone if random.random() < 0.2 else upsert(key, V + number, name)
                sent.append(newest[key])
                batch = reduce_changes([*sent[-20:], *random.sample(sent, min(20, len(sent)))])
                while number % 10 == 0:
                    try:
                        sink.apply(batch)
                        break
                    except SinkError as error:
                        assert "is moving keys" in error.message
                        refusals += 1
            ended.set()
            moving.join()
            expected = {key: change.row["email"] for key, change in newest.items() if change.row is not None}
            assert (rows(sink), sink.generation()) == (expected, 1)
            held = {key.removeprefix(b"{shop}/by/").decode() for key in reader.scan_iter("{shop}/by/*", count=1000)}
            assert held == set(expected.values())
            assert list(CacheContents(sink).orphaned_lookups(USERS.table)) == []
    assert moves > 3 and refusals > 3


def _generation(sink: CacheSink) -> int | None:
    """0 while the slots have no primary."""
    try:
        return sink.generation()
    except SinkError:
        return 0
