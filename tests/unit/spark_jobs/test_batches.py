"""The driver's side of a batch: what it takes while tasks run, and what of their reports at the end."""

import pickle
import threading
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cdc.model.control import Record
from cdc.model.errors import ConfigError, UnreachableError
from cdc.model.job_records import BatchEndRecord
from sinks.errors import RefusedError
from sinks.schema_history import SchemaHistory
from spark_jobs import batches
from spark_jobs.applied import FoundTopic
from spark_jobs.batches import END_REQUEST_S, BatchReport, MicroBatch, SparkBatches, TotalCounts, report_of
from spark_jobs.rejections import DeadLetterUpdates
from spark_jobs.source.group import Reached, TaskCounts
from spark_jobs.source.reading import Partition
from spark_jobs.task_errors import TaskError
from spark_jobs.task_report import Blocked, SinkTaskConfig, TaskReport
from spark_jobs.writer import REPORT_DDL, StoreWriter
from tests.support.waiting import eventually
from tests.unit.cdc.model.test_rejected_rows import ROW
from tests.unit.spark_jobs.records import OTHER, PARTITION, TOPIC, FakeTarget, job, schema

WAIT_S = 30.0
ENDS = {TOPIC: (9, 9)}
B = Partition("shop.public.b", 0)


def reached(
    offset: int, counts: TaskCounts, *, task: int = 0, begin: int = 0, batch: str = "3-m-1", is_behind: bool = False
) -> Reached:
    return Reached(batch, task, begin, offset, is_behind, counts)


# ---- counts


def test_each_thing_is_counted_once() -> None:
    total = TotalCounts()
    assert total.unreported(0, TaskCounts(5, 4, 1, 20)) == TaskCounts(5, 4, 1, 20)
    assert total.unreported(1, TaskCounts(5, 4, 1, 20)) == TaskCounts(5, 4, 1, 20), "another task's"
    assert total.unreported(0, TaskCounts(5, 4, 1, 20)) == TaskCounts()
    assert total.unreported(0, TaskCounts(7, 5, 2, 30)) == TaskCounts(2, 1, 1, 10)


def test_a_task_that_is_repeated_is_counted_from_where_it_was() -> None:
    total = TotalCounts()
    total.unreported(0, TaskCounts(9, 9, 0, 20))
    assert total.unreported(0, TaskCounts(3, 0, 3, 5)) == TaskCounts()
    assert total.unreported(0, TaskCounts(12, 3, 9, 25)).records == 3


def test_what_tasks_have_committed_is_one_report() -> None:
    counts = TotalCounts()
    first, second, other = TaskCounts(5, 4, 1, 20), TaskCounts(8, 6, 1, 30), TaskCounts(2, 2, 0, 1500)
    found = {
        PARTITION: reached(8, second, begin=3),
        OTHER: reached(6, first, begin=1),  # of the same task, earlier
        B: reached(2, other, task=1, is_behind=True),
    }
    report = report_of(found, counts)
    assert report.end_offsets == {TOPIC: {0: 8, 1: 6}, B.topic: {0: 2}}
    assert report.start_offsets == {TOPIC: {0: 3, 1: 1}, B.topic: {0: 0}}
    assert (report.records, report.written, report.stale) == (10, 8, 1)
    assert report.write_s == pytest.approx(1.53)
    assert report.is_behind and report.topics == {TOPIC, B.topic}
    again = report_of({PARTITION: reached(9, TaskCounts(9, 7, 1, 31))}, counts)
    assert (again.records, again.written, again.stale, again.is_behind) == (1, 1, 0, False)
    assert report_of({}, counts) == BatchReport()


def test_reports_of_tasks_add_up() -> None:
    letter: DeadLetterUpdates = {"1/public.a/1": ROW}
    one = TaskReport({OTHER: 2}, {OTHER: 7}, records=5, written=3, stale=2, is_behind=True, dead_letters=letter)
    two = TaskReport({PARTITION: 0}, {PARTITION: 9, B: 1}, records=1, written=1, staged=("file",))
    two.lost, two.blocked = {B: "gone"}, {PARTITION: Blocked(9, "it", "mend it")}
    merged = BatchReport.of([one, two, TaskReport(dead_letters={"1/public.a/2": None}, staged=("another",))])
    assert merged.end_offsets == {TOPIC: {1: 7, 0: 9}, B.topic: {0: 1}}
    assert merged.start_offsets == {TOPIC: {1: 2, 0: 0}, B.topic: {0: 0}}
    assert (merged.records, merged.written, merged.stale, merged.is_behind) == (6, 4, 2, True)
    assert (merged.staged, merged.blocked, merged.lost) == (["file", "another"], two.blocked, {B.topic: "gone"})
    assert merged.dead_letters == letter | {"1/public.a/2": None}


# ---- batches of Spark


class FakeFrame:
    """The rows of a batch, over which the writer runs; here it does not."""

    def __init__(self, *reports: TaskReport, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.reports = reports
        self.meanwhile = meanwhile
        self.error: Exception | None = None
        self.writers: list[StoreWriter] = []

    def mapInArrow(self, writer: StoreWriter, ddl: str) -> "FakeFrame":  # noqa: N802
        assert ddl == REPORT_DDL
        self.writers.append(writer)
        return self

    def collect(self) -> list[Any]:
        self.meanwhile()
        if self.error is not None:
            raise self.error
        return [SimpleNamespace(report=pickle.dumps(report)) for report in self.reports]


class World:
    """A group, a clock, and what was published in the progress topic."""

    def __init__(self) -> None:
        self.now = 0.0
        self.took_s = 0.0  # each look at the group
        self.reached: dict[Partition, Reached] = {}
        self.error: Exception | None = None
        self.looks = 0
        self.group = ""
        self.is_closed = False
        self.sent: list[Record] = []
        self.topics: list[str] = []

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Reached]:
        assert set(partitions) == {PARTITION, OTHER}
        self.looks += 1
        self.now += self.took_s
        if self.error is not None:
            raise self.error
        return dict(self.reached)

    def close(self) -> None:
        self.is_closed = True

    def open_group(self, _: object, name: str) -> "World":
        self.group = name
        return self

    # ---- TopicEnds

    def set_topics(self, topics: list[str]) -> None:
        self.topics = topics

    def ask(self) -> Mapping[str, FoundTopic]:
        return {TOPIC: FoundTopic("id", (9, 9))}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(batches, "GroupOffsets", world.open_group)
    monkeypatch.setattr(batches, "TopicEnds", lambda _: world)
    monkeypatch.setattr(batches, "POLL_S", 0.001)
    clock = SimpleNamespace(monotonic=lambda: world.now, time_ns=lambda: int(world.now * 1e9))
    monkeypatch.setattr(batches, "time", clock)
    return world


def open_target(*_: object) -> FakeTarget:
    return FakeTarget()


def made(world: World, *, is_live: bool = True, config: SinkTaskConfig | None = None) -> SparkBatches:
    return SparkBatches(config or job(), (3, "m"), open_target, world.sent.append, is_live=is_live)


class Taker:
    """Takes reports that say something."""

    def __init__(self, *, goes_on: bool = True) -> None:
        self.goes_on = goes_on
        self.taken: list[BatchReport] = []
        self.calls = 0

    def __call__(self, report: BatchReport) -> bool:
        self.calls += 1
        if report.end_offsets:
            self.taken.append(report)
        return self.goes_on

    def wait_for(self, count: int) -> None:
        """Waits until so many reports were taken."""
        eventually(lambda: len(self.taken) >= count, WAIT_S, "reports are taken")


def looked(condition: Callable[[], bool]) -> None:
    """Waits until the driver has looked at the group so often."""
    eventually(condition, WAIT_S, "the driver looks at the group")


def test_a_writer_gets_the_job_the_tables_and_the_open_dead_letters(world: World) -> None:
    driver = made(world)
    history = SchemaHistory((schema(),))
    driver.set_tables({TOPIC: history})
    driver.set_open_dead_letters({"1/public.a/1": 5})
    first, second = FakeFrame(), FakeFrame()
    for frame in (first, second):
        driver.run(MicroBatch(frame, 0), ENDS, Taker())  # type: ignore[arg-type]
    driver.set_tables({TOPIC: history})
    driver.run(MicroBatch(second, 0), ENDS, Taker())  # type: ignore[arg-type]
    writers = [*first.writers, *second.writers]
    assert [writer.execution for writer in writers] == ["3-m-1", "3-m-2", "3-m-3"], "each batch has its own name"
    assert all(writer.task_config == job() and writer.is_live for writer in writers)
    assert all(writer.catalog.schema_histories == {TOPIC: history} for writer in writers)
    names = [writer.catalog.name for writer in writers]
    assert names[0] == names[1] != names[2], "tasks open the store again for other tables"
    assert writers[0].open_dead_letters == {"1/public.a/1": 5}
    assert world.topics == [TOPIC] and driver.find_topics() == {TOPIC: FoundTopic("id", (9, 9))}


def test_what_tasks_have_written_is_taken_while_they_run(world: World) -> None:
    taker = Taker()

    def meanwhile() -> None:
        world.reached = {PARTITION: reached(4, TaskCounts(4, 3, 1, 10))}
        taker.wait_for(1)
        world.reached = {PARTITION: reached(4, TaskCounts(4, 3, 1, 10)), OTHER: reached(2, TaskCounts(6, 5, 1, 20))}
        taker.wait_for(2)

    last = TaskReport({PARTITION: 0, OTHER: 0}, {PARTITION: 5, OTHER: 2}, 7, 6, 1, 0.021)
    report = made(world).run(MicroBatch(FakeFrame(last, meanwhile=meanwhile), 0), ENDS, taker)  # type: ignore[arg-type]
    assert [(taken.end_offsets, taken.records, taken.written, taken.stale) for taken in taker.taken] == [
        ({TOPIC: {0: 4}}, 4, 3, 1),
        ({TOPIC: {1: 2}}, 2, 2, 0),
    ]
    assert (report.end_offsets, report.records, report.written, report.stale) == ({TOPIC: {0: 5, 1: 2}}, 1, 1, 0)
    assert report.write_s == pytest.approx(0.001)
    assert world.group == "watershed-shop-search-1" and world.is_closed


def test_offsets_of_other_batches_say_nothing(world: World) -> None:
    """The group has those of former batches and jobs, some of a store that was restored since."""
    taker = Taker()
    world.reached = {
        PARTITION: reached(8, TaskCounts(8, 8, 0, 1), batch="3-m-11"),
        OTHER: reached(8, TaskCounts(8, 8, 0, 1), batch="2-x-1"),
    }
    frame = FakeFrame(meanwhile=lambda: looked(lambda: taker.calls > 2))
    assert made(world).run(MicroBatch(frame, 0), ENDS, taker) == BatchReport()  # type: ignore[arg-type]
    assert taker.taken == []


def test_tasks_are_asked_to_end_once_a_second_at_most(world: World) -> None:
    """Once is not enough: they may not have begun to read."""
    taker = Taker(goes_on=False)

    def look(count: int) -> None:
        calls = taker.calls
        looked(lambda: taker.calls >= calls + count)

    def meanwhile() -> None:
        look(3)
        assert len(world.sent) == 1
        world.now += END_REQUEST_S / 2
        look(3)
        assert len(world.sent) == 1
        world.now += END_REQUEST_S / 2
        look(3)
        assert len(world.sent) == 2
        taker.goes_on = True
        world.now += 2 * END_REQUEST_S
        look(3)
        assert len(world.sent) == 2

    made(world).run(MicroBatch(FakeFrame(meanwhile=meanwhile), 0), ENDS, taker)  # type: ignore[arg-type]
    assert world.sent[0] == BatchEndRecord(sink="search", generation=1, at_us=0)


def test_when_a_task_has_ended_the_others_are_asked_to_end_until_they_do(world: World) -> None:
    """Seen by reading: its partitions were not read for as long as an idle task waited, up to two minutes."""
    taker = Taker()

    def look(count: int) -> None:
        calls = taker.calls
        looked(lambda: taker.calls >= calls + count)

    def meanwhile() -> None:
        look(3)
        assert world.sent == []
        world.reached = {
            PARTITION: reached(4, TaskCounts(4, 3, 1, 10))._replace(is_over=True),
            OTHER: reached(0, TaskCounts(), task=1),
        }
        look(3)
        assert len(world.sent) == 1
        world.now += END_REQUEST_S
        look(3)
        assert len(world.sent) == 2

    batches = made(world)
    batches.run(MicroBatch(FakeFrame(meanwhile=meanwhile), 0), ENDS, taker)  # type: ignore[arg-type]
    world.sent.clear()
    batches.run(MicroBatch(FakeFrame(meanwhile=lambda: look(3)), 0), ENDS, taker)  # type: ignore[arg-type]
    assert world.sent == [], "the next batch has another name"


def test_a_group_that_can_t_be_read_is_tried_again(world: World) -> None:
    taker = Taker()
    world.error = UnreachableError("no answer", "wait")

    def meanwhile() -> None:
        looked(lambda: world.looks > 2)
        world.error, world.reached = None, {PARTITION: reached(4, TaskCounts(4, 3, 1, 10))}
        taker.wait_for(1)

    made(world).run(MicroBatch(FakeFrame(meanwhile=meanwhile), 0), ENDS, taker)  # type: ignore[arg-type]
    assert len(taker.taken) == 1


def test_a_look_that_took_long_does_not_put_off_the_next_one_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that answered after 10 s kept the driver from what tasks had written for 200 s."""
    monkeypatch.setattr(batches, "POLL_S_MAX", 0.01)
    world.took_s = 10.0
    frame = FakeFrame(meanwhile=lambda: looked(lambda: world.looks > 2))
    made(world).run(MicroBatch(frame, 0), ENDS, Taker())  # type: ignore[arg-type]


def test_a_bounded_batch_reports_at_its_end_only(world: World) -> None:
    taker = Taker()
    last = TaskReport({PARTITION: 0}, {PARTITION: 5}, 7, 6, 1, 0.5, staged=("file",))
    report = made(world, is_live=False).run(MicroBatch(FakeFrame(last, last), 0), ENDS, taker)  # type: ignore[arg-type]
    assert (report.records, report.written, report.stale, report.write_s) == (14, 12, 2, 1.0)
    assert report.staged == ["file", "file"]
    assert (world.looks, taker.calls) == (0, 0)


@pytest.mark.parametrize("own", [RefusedError("a row", "correct it"), ConfigError("a", "b")])
@pytest.mark.parametrize("kind", [PySparkException, Py4JError])
def test_a_task_s_error_is_raised_again_as_what_it_was(
    world: World, own: RefusedError | ConfigError, kind: type[Exception]
) -> None:
    frame = FakeFrame()
    frame.error = kind(f"Job aborted\nTaskError: {TaskError(own)}\n\tat org.apache.spark")
    threads = threading.active_count()
    with pytest.raises(type(own)) as caught:
        made(world).run(MicroBatch(frame, 0), ENDS, Taker())  # type: ignore[arg-type]
    assert (caught.value.message, caught.value.hint) == (own.message, own.hint)
    assert world.is_closed
    eventually(lambda: threading.active_count() <= threads, WAIT_S, "nothing follows the batch any more")


def test_an_error_of_spark_is_raised_as_it_is(world: World) -> None:
    frame = FakeFrame()
    frame.error = PySparkException("the cluster is gone")
    with pytest.raises(PySparkException, match="the cluster is gone"):
        made(world).run(MicroBatch(frame, 0), ENDS, Taker())  # type: ignore[arg-type]
