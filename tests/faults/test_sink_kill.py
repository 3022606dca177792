"""kill -9 of sink jobs while batches are being written: started again, every store ends equal to the topics."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import redis as redis_client

from tests.conftest import KafkaBroker
from tests.support.feed import Feed
from tests.support.sink_job import SinkJob, write_config
from tests.support.stores import ALL, sinks_section, stored_rows
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

COLUMNS = {"id": (20, "bigint"), "name": (25, "text"), "round": (23, "integer")}
KEYS = 1000  # about 300 kB in each round: several batches of the size below


@pytest.fixture
def config(kafka: KafkaBroker, opensearch: str, redis: str, unique: str, tmp_path: Path) -> Iterator[Path]:
    yield write_config(
        tmp_path,
        kafka.bootstrap_servers,
        unique,
        sinks_section(tmp_path, opensearch, redis),
        # Several batches of the warehouse for each round of changes.
        bytes_per_write_max=100_000,
        live_batch_s=1,
        warehouse_trigger_ms=0,
    )


@pytest.mark.promise(2)
def test_killed_in_the_middle_of_batches_every_store_ends_equal(
    config: Path, kafka: KafkaBroker, redis: str, unique: str
) -> None:
    """Python alone (its JVM may still commit), then the JVM alone; and a store's data lost while nothing ran. Both at
    once is what the demo's test does."""
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("items", COLUMNS, ["id"])
    rows = Rows(feed)

    rows.publish()
    with SinkJob(config, "search", "warehouse") as job:
        _wait_for_batches(job, ["search", "warehouse"])
        job.process.kill()
        job.process.wait()
        _wait_until_session_is_gone(job.process.pid)

    rows.publish()
    with SinkJob(config, "cache", "warehouse") as job:
        _wait_for_batches(job, ["cache"])  # the warehouse's first one takes longer
        _jvm(job).send_signal(signal.SIGKILL)
        assert job.process.wait(30) == 1
        assert "Spark's Java process ended by itself" in job.said()
        assert "Traceback" not in job.said()

    server = redis_client.Redis.from_url(redis)
    server.delete(*server.keys(f"{unique}*"))
    server.close()

    with SinkJob(config, *ALL) as job:
        records = job.wait_applied(feed.progress(), *ALL, deadline_s=300)
        assert {sink: record.generation for sink, record in records.items()} == {
            "search": 1,
            "cache": 2,
            "warehouse": 1,
        }
        for store in ALL:
            found = stored_rows(job.config, store, feed.schemas["items"])
            assert len(found) == len(rows.expected), store
            assert {row.key["id"]: (row.row, row.version) for row in found} == rows.expected, store
        code, took_s = job.terminate()
        assert code == 0 and took_s < 10


class Rows:
    """Publishes rounds of changes to the same keys; knows what the stores must end with."""

    def __init__(self, feed: Feed) -> None:
        self.expected: dict[int, tuple[dict[str, Any], int]] = {}
        self._feed = feed
        self._round = 0

    def publish(self) -> None:
        """One transaction: each key is written, or deleted in its turn."""
        self._round += 1
        self._feed.begin()
        for key in range(KEYS):
            if key % 5 == self._round:
                self._feed.delete("items", id=key)
                self.expected.pop(key, None)
            else:
                row: dict[str, Any] = {"id": key, "name": f"name {key}", "round": self._round}
                self._feed.upsert("items", **row)
                self.expected[key] = (row, self._feed.version)
        self._feed.commit()


def _wait_for_batches(job: SinkJob, sinks: Sequence[str]) -> None:
    """Each of them has applied its first batch; with no pause between triggers, the next is being applied."""

    def seen() -> bool:
        assert job.process.poll() is None, "the job ended"
        lines = [line for line in job.said().splitlines() if "] written " in line]
        return all(any(f"sink={sink}" in line for line in lines) for sink in sinks)

    eventually(seen, 200, f"a batch of {', '.join(sinks)}")


def _jvm(job: SinkJob) -> psutil.Process:
    (jvm,) = [child for child in psutil.Process(job.process.pid).children(recursive=True) if "java" in child.name()]
    return jvm


def _wait_until_session_is_gone(session: int) -> None:
    """It ends by itself when Python is gone; until then it is a zombie that may still write."""

    def gone() -> bool:
        return not any(_is_in(pid, session) for pid in psutil.pids())

    eventually(gone, 60, "the JVM ended after its Python was killed")


def _is_in(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False
