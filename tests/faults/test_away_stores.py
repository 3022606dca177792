"""Stores that are away for long, and a row that is larger than they take. On servers of its own: they are stopped."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from cdc.kafka.compacted import read_latest
from cdc.model.job_records import SinkErrorRecord
from cdc.model.topics import Topics
from spark_jobs.sink_thread import RETRY_S_MAX
from tests.faults.episodes import servers
from tests.support.feed import Feed
from tests.support.sink_job import SinkJob, write_config
from tests.support.stores import sinks_section, stored_rows
from tests.support.waiting import eventually
from watershed.devstack.endpoints import Endpoints
from watershed.devstack.stack import Stack

STORES = ("search", "cache")
SERVERS = ("opensearch", "redis")
COLUMNS = {"id": (20, "bigint"), "text": (25, "text")}
AWAY_S_MAX = 400.0
LARGE_BYTES = 50_000_000
THREADS_MORE_MAX = 20  # of the driver, after many attempts: it leaves none behind
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


class Setting:
    """A table's topics, and the job that keeps two stores in step with it."""

    def __init__(self, endpoints: Endpoints, folder: Path, prefix: str) -> None:
        brokers = endpoints.bootstrap_servers
        self.feed = Feed(brokers, prefix, record_bytes_max=2 * LARGE_BYTES)
        self.feed.add_table("texts", COLUMNS, ["id"])
        section = sinks_section(folder, endpoints.opensearch_url, endpoints.redis_url)
        config = write_config(folder, brokers, prefix, {store: section[store] for store in STORES})
        self.job = SinkJob(config, *STORES)
        self.expected: dict[int, str] = {}

    def publish(self, *numbers: int, text: str) -> None:
        self.feed.begin()
        for number in numbers:
            self.expected[number] = f"{number} {text}"
            self.feed.upsert("texts", id=number, text=self.expected[number])
        self.feed.commit()

    def applied(self, *stores: str, deadline_s: float = 240.0) -> dict[str, int]:
        """The dead letters of each store that has applied everything."""
        records = self.job.wait_applied(self.feed.progress(), *stores, deadline_s=deadline_s)
        return {store: record.dead_letters for store, record in records.items()}

    def shown(self, store: str) -> dict[int, str]:
        rows = stored_rows(self.job.config, store, self.feed.schemas["texts"])
        return {row.key["id"]: row.row["text"] for row in rows}

    def errors(self) -> dict[str, SinkErrorRecord]:
        """The published error of each sink that has one."""
        found = read_latest(self.job.config.kafka, Topics(self.feed.prefix).progress)
        held = {store: (SinkErrorRecord.key_of(store), found.get(SinkErrorRecord.key_of(store))) for store in STORES}
        return {store: SinkErrorRecord.decode(value, key) for store, (key, value) in held.items() if value is not None}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with servers(tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.fixture
def setting(stack: Stack, tmp_path: Path, unique: str) -> Iterator[Setting]:
    made = Setting(stack.start("kafka", *SERVERS), tmp_path, unique)
    with made.job:
        yield made


@pytest.mark.promise(2)
def test_stores_that_are_away_for_long_are_named_and_caught_up_with(setting: Setting, stack: Stack) -> None:
    """The pauses between attempts grow up to a limit. From then on an hour is only more of the same."""
    setting.publish(*range(100), text="before")
    setting.applied(*STORES)
    driver = psutil.Process(setting.job.process.pid)
    for server in SERVERS:
        stack.kill(server)
    before = driver.num_threads()
    setting.publish(*range(50, 150), text="meanwhile")
    setting.feed.progress()
    longest = re.compile(rf"sink restarts .*after_s={RETRY_S_MAX}.* sink=(\w+)")
    eventually(
        lambda: set(longest.findall(setting.job.said())) == set(STORES),
        AWAY_S_MAX,
        lambda: f"both sinks have come to the longest pause\n{setting.job.said()[-3000:]}",
    )
    for store, error in setting.errors().items():
        assert re.search(r"(OpenSearch|Redis) at 127\.0\.0\.1:\d+ does not answer", error.message), store
        assert "check that it is running" in error.next and not error.is_final
    assert set(setting.errors()) == set(STORES)
    assert driver.num_threads() < before + THREADS_MORE_MAX
    for server in SERVERS:
        stack.restart(server)
    assert setting.applied(*STORES) == dict.fromkeys(STORES, 0)
    for store in STORES:
        assert setting.shown(store) == setting.expected, store
    assert "Traceback" not in setting.job.said()


@pytest.mark.promise(2)
def test_a_row_of_fifty_megabytes_is_stored_or_a_dead_letter_with_a_reason(setting: Setting) -> None:
    setting.publish(1, 2, text="before")
    setting.publish(2, text="x" * LARGE_BYTES)
    setting.publish(3, text="after")
    letters = setting.applied(*STORES)
    assert letters["cache"] == 0
    assert setting.shown("cache") == setting.expected
    found = setting.shown("search")
    if letters["search"]:
        reported = read_latest(setting.job.config.kafka, Topics(setting.feed.prefix).sink_dead_letter("search"))
        (letter,) = [json.loads(value) for value in reported.values() if value]
        assert (letter["key"], letter["row"]) == ({"id": 2}, None)
        # By what the server refuses it depends on its settings: the request, or the value of the column.
        assert letter["reason"].startswith(("column text: ", "the row is larger than the search index takes"))
        assert found == setting.expected | {2: "2 before"}
    else:
        assert found == setting.expected
    assert "Traceback" not in setting.job.said()
