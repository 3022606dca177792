"""`cdc rebuild`: stores are built again while they are written and read, swapped, and put back."""

import json
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
import pytest
import redis as redis_client
from opensearchpy import OpenSearch

from cdc.config.config_file import load_config
from cdc.kafka.compacted import read_latest
from cdc.model.job_records import RebuildRecord
from cdc.model.topics import Topics
from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.forked import run
from tests.support.read_meanwhile import (
    FILL,
    SCHEMA,
    TABLE,
    ReadMeanwhile,
    ReadRow,
    Writes,
    cache_reader,
    search_finder,
    search_reader,
    sql_reader,
)
from tests.support.sink_job import SinkJob, sink_record
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

ROWS: Final = 500
PER_S: Final = 50.0
COMMAND_S_MAX: Final = 240.0
SINKS: Final = ("search", "cache", "sql")
STRANGER: Final = 99_999  # a row that nobody published


@dataclass
class Pipeline:
    """A table under capture, its stores, and the job that writes them."""

    counters: Captured
    search: str
    cache: str
    sql: str
    job: SinkJob
    writes: Writes = field(default_factory=Writes)

    @property
    def alias(self) -> str:
        return f"{self.counters.name}.{TABLE}"

    def readers(self, *sinks: str) -> dict[str, list[ReadRow]]:
        name = self.counters.name
        every = {
            "search": [search_reader(self.search, name), search_finder(self.search, name)],
            "cache": [cache_reader(self.cache, name)],
            "sql": [sql_reader(self.sql)],
        }
        return {sink: every[sink] for sink in sinks}

    def meanwhile(self, *sinks: str) -> ReadMeanwhile:
        path = self.counters.folder / "watershed.yml"
        # The last row is injured, so nobody reads it.
        return ReadMeanwhile(self.counters.dsn, path, ROWS - 1, self.readers(*sinks), PER_S, self.writes)

    def rebuild(self, sink: str, *words: str) -> "subprocess.CompletedProcess[str]":
        path = self.counters.folder / "watershed.yml"
        return run(["rebuild", "--sink", sink, *words, "--config", str(path)], deadline_s=COMMAND_S_MAX)

    def done(self, *commands: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the output of commands that end by themselves and succeed."""
        with ThreadPoolExecutor(len(commands)) as threads:
            ended = list(threads.map(lambda words: self.rebuild(*words, "--json"), commands))
        for one in ended:
            assert one.returncode == 0, one.stdout + one.stderr
        return [dict(json.loads(one.stdout.splitlines()[-1])) for one in ended]

    def refused(self, sink: str, *words: str) -> str:
        """Returns the output of a command that fails, as one line."""
        ended = self.rebuild(sink, *words)
        assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), ended.stdout + ended.stderr
        return " ".join(ended.stderr.split())

    def generation(self, sink: str) -> int:
        record = sink_record(load_config(self.counters.folder / "watershed.yml"), sink)
        return 0 if record is None else record.generation

    def request(self, sink: str) -> RebuildRecord | None:
        kafka = load_config(self.counters.folder / "watershed.yml").kafka
        value = read_latest(kafka, Topics(self.counters.name).progress).get(RebuildRecord.key_of(sink))
        return None if value is None else RebuildRecord.decode(value, sink)

    def rows(self, sink: str) -> dict[int, int]:
        """Returns what readers see; nothing while the store has no table."""
        match sink:
            case "search":
                with OpenSearch(self.search) as client:
                    if not client.indices.exists(index=self.alias):
                        return {}
                    client.indices.refresh(index=self.alias)
                    hits = client.search(index=self.alias, body={"size": 10_000})["hits"]["hits"]
                assert len({hit["_index"] for hit in hits}) <= 1
                return {hit["_source"]["id"]: hit["_source"]["n"] for hit in hits}
            case "cache":
                beginning = f"{self.counters.name}:{TABLE}:"
                with redis_client.Redis.from_url(self.cache, decode_responses=True) as client:
                    keys = [key for key in client.scan_iter(f"{beginning}*", count=1000) if key != beginning]
                    rows = [json.loads(str(client.hget(key, "doc"))) for key in keys]
                return {row["id"]: row["n"] for row in rows}
            case _:
                try:
                    with psycopg.connect(self.sql) as connection:
                        return dict(connection.execute("SELECT id, n FROM public.counters").fetchall())
                except psycopg.errors.UndefinedTable:
                    return {}

    def await_equal(self, *sinks: str) -> None:
        """Nothing is written any more."""
        wanted = dict(self.counters.query("SELECT id, n FROM counters"))
        for sink in sinks:
            eventually(lambda sink=sink: self.rows(sink) == wanted, 240.0, f"{sink} equals the source")  # type: ignore[misc]

    def injure(self) -> None:
        """Rows that nobody published, and one that somebody has edited."""
        with OpenSearch(self.search) as client:
            extra = {"id": STRANGER, "n": 1, "note": None, "ws_version": 1, "ws_deleted": False}
            client.index(index=f"{self.alias}.documents", id=str(STRANGER), body=extra, refresh=True)
        beginning = f"{self.counters.name}:{TABLE}:"
        with redis_client.Redis.from_url(self.cache) as cache:
            cache.hset(beginning, str(STRANGER), "1".zfill(19))
            cache.hset(f"{beginning}{STRANGER}", mapping={"v": "1", "doc": json.dumps({"id": STRANGER, "n": 1})})
            cache.hset(f"{beginning}{ROWS}", "doc", json.dumps({"id": ROWS, "n": -1}))
        with psycopg.connect(self.sql, autocommit=True) as connection:
            connection.execute("INSERT INTO public.counters VALUES (%s, 1)", (STRANGER,))
            connection.execute("UPDATE public.counters SET n = -1 WHERE id = %s", (ROWS,))

    def indexes(self) -> list[str]:
        with OpenSearch(self.search) as client:
            return sorted(client.indices.get(index=f"{self.alias}.documents*"))

    def generations(self) -> set[str]:
        """The sink's own tables of each generation."""
        with psycopg.connect(self.sql) as connection:
            found = connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE '%%sink'").fetchall()
        return {name for (name,) in found}


@pytest.fixture(scope="module")
def pipeline(
    postgres: PostgresServer, kafka: KafkaBroker, redis: str, opensearch: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("rebuild")
    with (
        new_database(postgres) as target,
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, SCHEMA, [TABLE]) as counters,
    ):
        counters.settings = {
            "sinks": {
                "search": {"url": opensearch},
                "cache": {"url": redis},
                "sql": {"type": "sql", "url": url_of(target)},
            },
            "spark": {"checkpoint_location": str(folder / "checkpoints"), "options": INTERPRETED},
        }
        counters.query(FILL, ROWS)
        counters.start()
        with SinkJob(counters.config(), *SINKS) as job:
            made = Pipeline(counters, opensearch, redis, target, job)
            made.await_equal(*SINKS)
            yield made
    with OpenSearch(opensearch) as client:
        client.indices.delete(index=f"{name}.*")


@contextmanager
def disk_above_its_watermark(pipeline: Pipeline) -> Iterator[None]:
    """New indexes have the block that OpenSearch sets then: nothing is written to them."""
    body = {
        "index_patterns": [f"{pipeline.alias}.documents.g*"],
        "template": {"settings": {"index.blocks.read_only_allow_delete": True}},
    }
    with OpenSearch(pipeline.search) as client:
        client.indices.put_index_template(name=pipeline.counters.name, body=body)
        try:
            yield
        finally:
            client.indices.delete_index_template(name=pipeline.counters.name)


def test_stores_are_rebuilt_swapped_and_put_back_while_they_are_read(pipeline: Pipeline) -> None:
    """Two at once, while the third one's disk is full; then that one, by two commands."""
    job, counters = pipeline.job, pipeline.counters
    pipeline.injure()
    first = {sink: pipeline.generation(sink) for sink in SINKS}
    both = ("search", "sql")
    with pipeline.meanwhile(*SINKS) as meanwhile:
        with ThreadPoolExecutor(1) as thread:
            with disk_above_its_watermark(pipeline):
                full = thread.submit(pipeline.refused, "search")
                done = pipeline.done(("cache",), ("sql",))
                message = full.result()
            assert "cluster_block_exception" in message and "next: free space, then start" in message
            assert [reported["generation"] - first[reported["sink"]] for reported in done] == [1, 1]
            eventually(lambda: len(pipeline.indexes()) == 1, 30.0, "the index that could not be written is deleted")
            same = [reported["generation"] for reported in pipeline.done(("search",), ("search",))]
            assert same[0] == same[1] > first["search"], "one rebuild, which both commands follow"
        serving = {sink: ((reported := pipeline.request(sink)) and reported.generation) or 0 for sink in both}
        for sink in both:
            assert "still kept for a rollback" in pipeline.refused(sink)
        assert "rebuilt in place" in pipeline.refused("cache", "--rollback")
        for generations in (first, serving):
            pipeline.done(*((sink, "--rollback") for sink in both))
            eventually(
                lambda wanted=generations: all(pipeline.generation(sink) == wanted[sink] for sink in both),  # type: ignore[misc]
                30.0,
                f"these serve: {generations}",
            )
        pipeline.done(*((sink, "--drop-old") for sink in both))
        assert "no former generation is kept" in pipeline.refused("search", "--rollback")
    assert meanwhile.complaints == []
    assert min(*meanwhile.reads.values(), *meanwhile.waits.values()) > 5
    counters.await_caught_up()
    job.wait_applied(counters.log_end() and counters.progress(), *SINKS)
    pipeline.await_equal(*SINKS)
    assert (len(pipeline.indexes()), pipeline.generations()) == (1, {"sink"})
    assert "Traceback" not in job.said(), job.said()


def test_a_killed_rebuild_goes_on_with_the_mapping_of_today_and_readers_miss_nothing(pipeline: Pipeline) -> None:
    """The job that comes next has another mapping: it serves nothing of its own until the new generation has caught up,
    and what was built with the former mapping is built again. SQL tables are rebuilt for their mapping too."""
    counters, both = pipeline.counters, ("search", "sql")
    before = {sink: pipeline.generation(sink) for sink in both}
    pipeline.rebuild("search", "--no-wait")
    eventually(
        lambda: (reported := pipeline.request("search")) is not None and reported.status == "running", 30.0, "it begins"
    )
    assert "a rebuild is under way" in pipeline.refused("search", "--rollback")
    pipeline.job.kill()
    for sink in both:
        counters.settings["sinks"][sink]["mapping"] = {TABLE: {"exclude": ["note"]}}
    with SinkJob(counters.config(), *both) as job:
        with pipeline.meanwhile(*both) as meanwhile:
            (reported,) = pipeline.done(("search",))
            assert reported["generation"] > before["search"]
            eventually(lambda: pipeline.generation("sql") > before["sql"], 60.0, "SQL tables are rebuilt by themselves")
        assert meanwhile.complaints == []
        counters.await_caught_up()
        job.wait_applied(counters.progress(), *both)
        assert "mapping or shapes have changed" in pipeline.refused("search", "--rollback")
        pipeline.done(("search", "--drop-old"))
        pipeline.await_equal(*both)
        code, _ = job.terminate()
        assert (code, "Traceback" in job.said()) == (0, False), job.said()
    with OpenSearch(pipeline.search) as client:
        hits = client.search(index=pipeline.alias, body={"size": 10_000})["hits"]["hits"]
    assert not any("note" in hit["_source"] for hit in hits)
    with psycopg.connect(pipeline.sql) as connection:
        cursor = connection.execute("SELECT * FROM public.counters LIMIT 1")
        assert [column.name for column in cursor.description or ()] == ["id", "n"]
    assert (len(pipeline.indexes()), pipeline.generations()) == (1, {"sink"})
