"""`cdc rebuild`: a store is built again while it is written and read, swapped, and put back."""

import json
import secrets
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import pytest
import redis as redis_client
from opensearchpy import OpenSearch

from cdc.config.settings import load_config
from cdc.kafka.compacted import read_latest
from cdc.model.topics import Topics
from cdc.records.control import RebuildRecord, SinkRecord, rebuild_key
from cdc.snapshots.status import newest
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.forked import run
from tests.support.read_meanwhile import (
    SCHEMA,
    TABLE,
    ReadMeanwhile,
    ReadRow,
    cache_reader,
    search_finder,
    search_reader,
)
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually

ROWS: Final = 2_000
PER_S: Final = 150.0
COMMAND_S_MAX: Final = 60.0


@pytest.fixture(scope="module")
def counters(
    postgres: PostgresServer, kafka: KafkaBroker, redis: str, opensearch: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Captured]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("rebuild")
    with new_database(postgres) as dsn, under_capture(postgres, kafka, dsn, name, folder, SCHEMA, [TABLE]) as made:
        made.settings = {
            "sinks": {"search": {"url": opensearch}, "cache": {"url": redis}},
            "spark": {"checkpoint_location": str(folder / "checkpoints"), "options": INTERPRETED},
        }
        made.query("INSERT INTO counters SELECT n, 0, 'note ' || n FROM generate_series(1, %s) AS n", ROWS)
        made.start()
        yield made
    with OpenSearch(opensearch) as client:
        client.indices.delete(index=f"{name}.*")


@pytest.fixture
def readers(counters: Captured, redis: str, opensearch: str) -> dict[str, list[ReadRow]]:
    name = counters.name
    return {
        "search": [search_reader(opensearch, name), search_finder(opensearch, name)],
        "cache": [cache_reader(redis, name)],
    }


def rebuild(counters: Captured, sink: str, *words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    path = counters.folder / "watershed.yml"
    done = run(["rebuild", "--sink", sink, *words, "--config", str(path)], deadline_s=COMMAND_S_MAX)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def outcome(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    return dict(json.loads(done.stdout.splitlines()[-1]))


def serving(counters: Captured, sink: str) -> SinkRecord | None:
    progress = read_latest(load_config(counters.folder / "watershed.yml").kafka, Topics(counters.name).progress)
    records = [SinkRecord.decode(value, key) for key, value in progress.items() if key.startswith(f"sink/{sink}/")]
    return newest(records, sink)


def generation(record: SinkRecord | None) -> int:
    return 0 if record is None else record.generation


def request(counters: Captured, sink: str) -> RebuildRecord | None:
    progress = read_latest(load_config(counters.folder / "watershed.yml").kafka, Topics(counters.name).progress)
    value = progress.get(rebuild_key(sink))
    return None if value is None else RebuildRecord.decode(value, sink)


def source(counters: Captured) -> dict[int, int]:
    return dict(counters.query("SELECT id, n FROM counters"))


def searched(counters: Captured, url: str) -> dict[int, int]:
    """Through the alias, after a refresh."""
    with OpenSearch(url) as client:
        alias = f"{counters.name}.{TABLE}"
        client.indices.refresh(index=alias)
        hits = client.search(index=alias, body={"size": 10_000})["hits"]["hits"]
    assert len({hit["_index"] for hit in hits}) <= 1
    return {hit["_source"]["id"]: hit["_source"]["n"] for hit in hits}


def cached(counters: Captured, url: str) -> dict[int, int]:
    beginning = f"{counters.name}:{TABLE}:"
    with redis_client.Redis.from_url(url, decode_responses=True) as client:
        keys = [key for key in client.scan_iter(f"{beginning}*", count=1000) if key != beginning]
        rows = [json.loads(str(client.hget(key, "doc"))) for key in keys]
    return {row["id"]: row["n"] for row in rows}


def injure(counters: Captured, opensearch: str, redis: str) -> None:
    """Rows that nobody published, and one that somebody has edited."""
    with OpenSearch(opensearch) as client:
        extra = {"id": 99_999, "n": 1, "note": None, "ws_version": 1, "ws_deleted": False}
        client.index(index=f"{counters.name}.{TABLE}.documents", id="99999", body=extra, refresh=True)
    beginning = f"{counters.name}:{TABLE}:"
    with redis_client.Redis.from_url(redis) as client:
        client.hset(beginning, "99999", "1".zfill(19))
        client.hset(f"{beginning}99999", mapping={"v": "1", "doc": json.dumps({"id": 99_999, "n": 1})})
        client.hset(f"{beginning}{ROWS}", "doc", json.dumps({"id": ROWS, "n": -1}))


def test_stores_are_rebuilt_swapped_and_put_back_while_they_are_read(
    counters: Captured, readers: dict[str, list[ReadRow]], opensearch: str, redis: str
) -> None:
    with SinkJob(counters.config(), "search", "cache") as job:
        eventually(lambda: len(searched_or_none(counters, opensearch)) == ROWS, 120.0, "the index is filled")
        eventually(lambda: len(cached(counters, redis)) == ROWS, 120.0, "the cache is filled")
        injure(counters, opensearch, redis)
        first = {sink: serving(counters, sink) for sink in readers}
        with ReadMeanwhile(counters.dsn, job.config_path, ROWS, readers, PER_S) as meanwhile:
            for sink in readers:
                told = outcome(rebuild(counters, sink, "--json"))
                assert (told["status"], told["generation"]) == ("done", generation(first[sink]) + 1)
            refused = rebuild(counters, "search", code=1)
            assert "still kept for a rollback" in refused.stderr
            assert "rebuilt in place" in rebuild(counters, "cache", "--rollback", code=1).stderr
            assert outcome(rebuild(counters, "search", "--rollback", "--json"))["status"] == "done"
            eventually(
                lambda: generation(serving(counters, "search")) == generation(first["search"]),
                30.0,
                "the former serves",
            )
            assert outcome(rebuild(counters, "search", "--rollback", "--json"))["status"] == "done"
            rebuild(counters, "search", "--drop-old")
            assert "no generation is kept" in rebuild(counters, "search", "--rollback", code=1).stderr
        assert meanwhile.complaints == []
        assert min(meanwhile.written, meanwhile.read, meanwhile.waited) > 20
        counters.await_caught_up()
        job.wait_applied(counters.log_end() and counters.progress(), "search", "cache")
        wanted = source(counters)
        eventually(lambda: searched(counters, opensearch) == wanted, 30.0, "the index equals the source")
        eventually(lambda: cached(counters, redis) == wanted, 30.0, "the cache equals the source")
        code, _ = job.terminate()
        assert (code, "Traceback" in job.said()) == (0, False), job.said()
    with OpenSearch(opensearch) as client:
        assert len(client.indices.get(index=f"{counters.name}.{TABLE}.documents*")) == 1, "the old one was dropped"


def searched_or_none(counters: Captured, opensearch: str) -> dict[int, int]:
    with OpenSearch(opensearch) as client:
        if not client.indices.exists(index=f"{counters.name}.{TABLE}"):
            return {}
    return searched(counters, opensearch)


def test_a_killed_rebuild_goes_on_with_the_mapping_of_today_and_readers_miss_nothing(
    counters: Captured, readers: dict[str, list[ReadRow]], opensearch: str
) -> None:
    """The job that comes next has another mapping: it serves nothing of its own until the new generation has caught up,
    and what was built with the former mapping is built again."""
    before = serving(counters, "search")
    assert before is not None
    with SinkJob(counters.config(), "search") as job:
        job.wait_said("sink starts")
        rebuild(counters, "search", "--no-wait")
        eventually(lambda: (told := request(counters, "search")) is not None and told.generation > 0, 30.0, "it begins")
        assert "a rebuild is under way" in rebuild(counters, "search", "--rollback", code=1).stderr
        job.kill()
    counters.settings["sinks"]["search"]["mapping"] = {TABLE: {"exclude": ["note"]}}
    only_search = {"search": readers["search"]}
    with SinkJob(counters.config(), "search") as job:
        with ReadMeanwhile(counters.dsn, job.config_path, ROWS, only_search, PER_S) as meanwhile:
            told = outcome(rebuild(counters, "search", "--json"))
            assert (told["status"], told["generation"] > before.generation) == ("done", True)
        assert meanwhile.complaints == []
        job.wait_applied(counters.progress(), "search")
        assert "mapping or shapes have changed" in " ".join(
            rebuild(counters, "search", "--rollback", code=1).stderr.split()
        )
        rebuild(counters, "search", "--drop-old")
        wanted = source(counters)
        eventually(lambda: searched(counters, opensearch) == wanted, 30.0, "the index equals the source")
        job.terminate()
    with OpenSearch(opensearch) as client:
        hits = client.search(index=f"{counters.name}.{TABLE}", body={"size": 10_000})["hits"]["hits"]
        assert not any("note" in hit["_source"] for hit in hits)
        assert len(client.indices.get(index=f"{counters.name}.{TABLE}.documents*")) == 1
