"""`cdc sink run` beside capture: its readiness and metrics, and reading what was written once it is waited for."""

import asyncio
import json
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import redis as redis_client
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from watershed_client import AsyncClient, Client, written, written_async

from cdc.model.errors import GapError
from tests.checker.records import read_topics
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import frozen
from tests.support.forked import run
from tests.support.pipeline import END, Pipeline, pipeline_of
from tests.support.waiting import eventually
from tests.test_monitoring import METRIC, expressions
from watershed import Waiter
from watershed.client.applied import WaitError
from watershed.devstack.endpoints import ServerStack
from watershed.devstack.stack import Stack

WRITES = 12  # a thousand, into every store, in tests/faults/wait_campaign.py
ASKED = 3


@pytest.fixture(scope="module")
def pipeline(
    postgres: PostgresServer, kafka: KafkaBroker, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    with pipeline_of(postgres, kafka, redis, tmp_path_factory.mktemp("wait"), {"cache": {"url": redis}}) as found:
        yield found


def test_both_processes_are_ready_and_their_scrapes_have_every_metric(pipeline: Pipeline) -> None:
    pipeline.capture_http.await_ready()
    pipeline.items.query("INSERT INTO items VALUES (1000, 'x')")
    named = {name.removesuffix("_total") for expression in expressions() for name in METRIC.findall(expression)}
    for server in (pipeline.capture_http, pipeline.sink_http):
        server.await_sample("watershed_ready 1.0")
        text = server.await_sample('watershed_sink_lag_records{sink="cache"} 0.0')
        assert named <= {family.name for family in text_string_to_metric_families(text)}


def test_the_commands_show_the_sink(pipeline: Pipeline) -> None:
    assert "cache" in pipeline.items.cdc("status")
    (reported,) = json.loads(pipeline.items.cdc("sink", "status", "--json"))["sinks"]
    assert (reported["sink"], reported["generation"], reported["written"] >= 50) == ("cache", 1, True)
    done = run(["sink", "status", "none", "--config", str(pipeline.config)], deadline_s=60.0)
    assert (done.returncode, "no sink 'none' has published a position" in done.stderr) == (1, True)


def test_what_was_waited_for_is_read_each_time_under_load(pipeline: Pipeline) -> None:
    stop = threading.Event()

    def load() -> None:
        with psycopg.connect(pipeline.items.dsn, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute("INSERT INTO items SELECT n, 'load' FROM generate_series(5001, 5020) n"
                                   " ON CONFLICT (id) DO UPDATE SET name = items.name || '.'")  # fmt: skip
                connection.execute("UPDATE items SET name = 'load' WHERE length(name) > 50")
                stop.wait(0.05)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    dice, stale = random.Random(18), []
    client = redis_client.Redis.from_url(pipeline.redis, decode_responses=True)
    try:
        with psycopg.connect(pipeline.items.dsn, autocommit=True) as connection, Waiter(pipeline.config) as waiter:
            for number in range(WRITES):
                key, name = dice.randrange(1, 40), f"write {number}"
                lsn = pipeline.write(connection, key, name)
                waiter.wait_for("cache", lsn, 30.0)
                if pipeline.read(client, key) != name:
                    stale.append(number)
            for number in range(ASKED):
                key, name = dice.randrange(1, 40), f"asked {number}"
                lsn = pipeline.write(connection, key, name)
                code, body = pipeline.capture_http.get(f"/v1/sinks/cache?wait_for={lsn}&timeout=30", 40.0)
                assert code == 200, body
                if pipeline.read(client, key) != name:
                    stale.append(WRITES + number)
    finally:
        stop.set()
        thread.join(10.0)
        client.close()
    assert stale == []


@pytest.mark.long
def test_an_application_waits_over_http_with_the_client_alone(pipeline: Pipeline) -> None:
    """With each kind of connection. A commit that does not wait for the disk is above the flushed position."""
    url, dsn = f"http://127.0.0.1:{pipeline.capture_http.port}", pipeline.items.dsn
    waiting, cache = Client(url), redis_client.Redis.from_url(pipeline.redis, decode_responses=True)
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    update = "UPDATE items SET name = '{}' WHERE id = 3"
    with psycopg.connect(dsn) as connection, engine.connect() as alchemy, Session(engine) as session:
        connection.execute("SET synchronous_commit = off")
        connection.commit()
        for number in range(ASKED):
            kinds: list[tuple[str, Any]] = [("psycopg", connection), ("connection", alchemy), ("session", session)]
            for kind, one in kinds:
                statement = update.format(name := f"{kind} {number}")
                one.execute(statement if one is connection else text(statement))
                with pytest.raises(ValueError, match="commit first"):
                    written(one)
                one.commit()
                waiting.wait_for("cache", written(engine if number == 1 else one), 30.0)
                assert pipeline.read(cache, 3) == name
                written(one)  # no transaction is left open

    async def tasks() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute(update.format("task"))
            await connection.commit()
            lsn = await written_async(connection)
        client = AsyncClient(url)
        await asyncio.gather(*(client.wait_for(sink, lsn, 30.0) for sink in ("cache", None, ["cache"])))

    asyncio.run(tasks())
    assert pipeline.read(cache, 3) == "task"
    engine.dispose()
    cache.close()


def test_a_truncate_is_waited_for_with_its_sweep(pipeline: Pipeline) -> None:
    client = redis_client.Redis.from_url(pipeline.redis, decode_responses=True)
    with psycopg.connect(pipeline.items.dsn, autocommit=True) as connection, Waiter(pipeline.config) as waiter:
        for number in range(5):
            waiter.wait_for(None, pipeline.write(connection, 1, "there"))
            assert pipeline.read(client, 1) == "there"
            connection.execute("TRUNCATE items")
            (lsn,) = connection.execute(END).fetchone() or ("",)
            waiter.wait_for(None, lsn, 120.0)
            assert pipeline.read(client, 1) is None, number
    client.close()


def test_questions_that_cannot_be_answered(pipeline: Pipeline) -> None:
    (lsn,) = pipeline.items.query(END)[0]
    assert pipeline.items.cdc("wait", "--sink", "cache", "--lsn", lsn) == ""
    assert json.loads(pipeline.items.cdc("wait", "--lsn", lsn, "--json"))["is_applied"]
    for words, code, expected in (
        (("--sink", "none", "--lsn", lsn), 1, "no sink 'none' has published a position; there are: cache"),
        (("--lsn", "FFFFFF/0"), 1, "is beyond the end of the source's WAL"),
        (("--lsn", lsn, "--timeline", "9"), 1, "belongs to timeline 9, but the source is on timeline 1"),
        (("--lsn", "soon"), 2, "not an LSN"),
    ):
        done = run(["wait", *words, "--config", str(pipeline.config)], deadline_s=60.0)
        assert (done.returncode, expected in done.stderr) == (code, True), done.stderr
        assert "next: " in done.stderr


def test_a_sink_that_stands_still_is_seen_and_its_waiters_are_told(pipeline: Pipeline) -> None:
    """Its process is frozen: nobody who asks it gets an answer, and capture's server shows why."""
    pipeline.job.process.send_signal(signal.SIGSTOP)
    try:
        pipeline.sink_http.await_reason("timed out")
        with psycopg.connect(pipeline.items.dsn, autocommit=True) as connection:
            lsn = pipeline.write(connection, 2, "late")
        # The JVM and its workers go on for a moment without their driver.
        done = run(["wait", "--lsn", lsn, "--timeout", "1", "--config", str(pipeline.config)], deadline_s=60.0)
        assert (done.returncode, "was not shown in 1 s: cache: it is at" in done.stderr) == (7, True)

        def problems() -> list[str]:
            return [one["name"] for one in pipeline.capture_http.json("/v1/status")["problems"]]

        eventually(lambda: problems() == ["cache"], 10.0, lambda: f"capture's server names the sink: {problems()}")
        assert pipeline.capture_http.reasons() == [], "capture itself does its work"
    finally:
        pipeline.job.process.send_signal(signal.SIGCONT)
    eventually(lambda: not pipeline.sink_http.reasons(), 30.0, "ready again")


def test_a_store_that_is_away(pipeline: Pipeline, stack: ServerStack) -> None:
    if not isinstance(stack, Stack):
        pytest.skip("only a native server can be frozen")
    with frozen(stack, "redis"):
        pipeline.items.query("INSERT INTO items VALUES (77, 'while it is away')")
        reason = pipeline.sink_http.await_reason("cache")
        assert reason.startswith("sink cache: ")
    pipeline.sink_http.await_ready(90.0)


def test_a_sinks_last_error_is_published_with_its_remedy(pipeline: Pipeline) -> None:
    """The store's data was deleted: the sink fails, and fills it again."""
    # A sink that is writing, or begins again because its server was away, would notice the deletion in another way.
    (lsn,) = pipeline.items.query(END)[0]
    with Waiter(pipeline.config) as waiter:
        waiter.wait_for("cache", lsn, 60.0)
    with redis_client.Redis.from_url(pipeline.redis) as client:
        client.delete(f"{pipeline.items.name}:watershed")

    topic = f"{pipeline.items.name}.progress"
    servers = pipeline.job.config.kafka.bootstrap_servers

    def errors() -> list[dict[str, Any]]:
        """All that were published: the sink takes its error back as soon as the store is filled again."""
        records, _ = read_topics(servers, [topic])
        return [json.loads(one.value) for one in records if one.key == b"sink-error/cache" and one.value is not None]

    def published() -> dict[str, Any]:
        return next((one for one in errors() if "no longer holds generation 1" in one["message"]), {})

    error = eventually(published, 60.0, lambda: f"the error is published; there were {errors()}")
    assert error["next"].startswith("nothing to do: the sink fills it again")
    eventually(lambda: pipeline.sink_http.json("/v1/sinks/cache")["generation"] == 2, 60.0, "it is filled again")
    pipeline.sink_http.await_ready()
    assert pipeline.sink_http.json("/v1/sinks/cache")["error"] == ""


def test_a_healed_gap_ends_a_wait(pipeline: Pipeline) -> None:
    """The last test: from here on it is another epoch."""
    with Waiter(pipeline.config) as waiter:
        (lsn,) = pipeline.items.query(END)[0]
        waiter.wait_for("cache", lsn, 120.0)
        position = waiter._watch.position()
        assert position is not None
        pipeline.items.running().kill()
        pipeline.items.drop_slot()
        pipeline.items.start()
        pipeline.items.ask("heal")
        eventually(lambda: pipeline.items.epoch() == position.epoch + 1, 60.0, "healed")
        # Who asks while the new epoch begins is told so, and asks again.
        eventually(lambda: _is_shown(pipeline, waiter), 60.0, "the store shows the new epoch")
        record = pipeline.job.record("cache")
        assert record is not None
        assert record.epoch == position.epoch + 1


def _is_shown(pipeline: Pipeline, waiter: Waiter) -> bool:
    (lsn,) = pipeline.items.query(END)[0]
    try:
        waiter.wait_for("cache", lsn, 60.0)
    except (GapError, WaitError):
        return False
    return True
