"""What Spark's events about the queries of sinks become."""

import threading
import uuid
from types import SimpleNamespace
from typing import Any

from pyspark.sql import Row

from cdc.model.errors import BrokerError
from cdc.model.job_records import QueryRecord
from spark_jobs.query_listener import NewestRecords, SinkQueryListener, query_name
from spark_jobs.task_slots import Shortage
from tests.support.waiting import eventually

ANSWER_S = 20.0


class World:
    def __init__(self) -> None:
        self.published: list[QueryRecord] = []
        self.listener = SinkQueryListener("shop", self.published.append)

    def start(self, name: str | None = "shop cache 2") -> uuid.UUID:
        run = uuid.uuid4()
        started: Any = SimpleNamespace(runId=run, name=name)
        self.listener.onQueryStarted(started)
        return run

    def progress(self, run: uuid.UUID, **fields: Any) -> None:
        wanted: dict[str, Any] = {
            "batchId": 7,
            "batchDuration": 2100,
            "durationMs": {"addBatch": 1900, "triggerExecution": 2100},
            "numInputRows": 12,
            "observedMetrics": {"read": Row(records=5000, bytes=700_000)},
        }
        found = Progress(wanted | fields)
        found.runId = run
        event: Any = SimpleNamespace(progress=found)
        self.listener.onQueryProgress(event)

    def end(self, run: uuid.UUID, exception: str | None = None) -> None:
        ended: Any = SimpleNamespace(runId=run, exception=exception)
        self.listener.onQueryTerminated(ended)


class Progress(dict[str, Any]):
    """PySpark's StreamingQueryProgress is a dict, too."""

    runId: uuid.UUID  # noqa: N815


def test_a_batch_is_published_with_its_records_and_not_only_spark_s_rows() -> None:
    world = World()
    world.progress(world.start(query_name("shop", "cache", 2)))
    found = world.published[-1]
    assert (found.sink, found.generation, found.failures) == ("cache", 2, 0)
    assert (found.batch, found.batch_ms, found.task_ms) == (7, 2100, 1900)
    assert (found.rows, found.records, found.bytes) == (12, 5000, 700_000)
    assert found.ended_us > 0


def test_a_batch_without_rows_has_zeros() -> None:
    """Spark's sum of nothing is null, and a batch that failed before its tasks has no metrics."""
    world = World()
    run = world.start()
    for metrics in ({"read": Row(records=None, bytes=None)}, {}, None):
        world.progress(run, observedMetrics=metrics, numInputRows=0, durationMs={})
        found = world.published[-1]
        assert (found.rows, found.records, found.bytes, found.task_ms) == (0, 0, 0, 0)


def test_only_queries_that_end_with_an_error_count_as_failures() -> None:
    world = World()
    world.end(world.start())
    world.end(world.start(), "py4j: spark_jobs.sync.QueryStopped")  # we ended it between two batches
    assert world.published[-1].failures == 0
    world.end(world.start(), "the store is away")
    world.end(world.start(), "the store is away")
    world.progress(world.start())
    assert (world.published[-1].failures, world.published[-1].batch) == (2, 7)


def test_a_new_process_begins_without_the_figures_of_the_former_one() -> None:
    world = World()
    world.start()
    assert world.published == [QueryRecord(sink="cache", generation=2)]


def test_queries_of_others_are_left_alone() -> None:
    """The application may run queries of a user's, too."""
    world = World()
    for name in (None, "revenue", "other cache 2", "shop cache x", "shop a b 1"):
        run = world.start(name)
        world.progress(run)
        world.end(run, "error")
    assert world.published == []


def test_brokers_that_are_away_delay_nobody_and_lose_only_older_figures() -> None:
    sent: list[QueryRecord] = []
    are_there, was_asked = threading.Event(), threading.Event()

    def send(record: QueryRecord) -> None:
        was_asked.set()
        if not are_there.is_set():
            raise BrokerError("away", "start them")
        sent.append(record)

    newest = NewestRecords(send, pause_s=0.001)
    first, second, other = (QueryRecord(sink="cache", generation=1, batch=1), QueryRecord(sink="cache", generation=1,
                            batch=2), QueryRecord(sink="search", generation=1))  # fmt: skip
    newest.put(first)
    assert was_asked.wait(ANSWER_S)
    newest.put(second)
    newest.put(other)
    are_there.set()
    eventually(lambda: second in sent and other in sent, ANSWER_S)
    assert [record for record in sent if record.sink == "cache"][-1] == second


def test_a_shortage_is_part_of_each_running_query_s_record_until_it_ends() -> None:
    world = World()
    run = world.start()
    world.listener.note_shortage(Shortage("too few", "more"))
    other = world.start("shop search 1")
    assert [(one.sink, one.shortage, one.shortage_next) for one in world.published[-2:]] == [
        ("cache", "too few", "more"),
        ("search", "too few", "more"),
    ]
    world.end(other)
    world.listener.note_shortage(None)
    assert (world.published[-1].sink, world.published[-1].shortage) == ("cache", "")
    assert world.listener.running == ("cache",)
    world.end(run)
    assert not world.listener.running
