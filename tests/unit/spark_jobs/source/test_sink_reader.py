"""What Spark is told of a sink's stream: offsets, partitions and rows."""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import pytest
from pyspark.sql.types import StructType

from cdc.config.settings import KafkaConfig
from cdc.model.errors import BrokerError, ConfigError, UnreachableError
from cdc.model.events import TableId
from cdc.model.job_records import BatchEndRecord
from spark_jobs.applied import Offsets
from spark_jobs.kept import KeptClients
from spark_jobs.source import piece, sink_stream
from spark_jobs.source.datasource import WatershedSource, configured
from spark_jobs.source.names import PIECE_DDL
from spark_jobs.source.names import SINK_OPTION as OPTION
from spark_jobs.source.piece import to_pieces
from spark_jobs.source.reading import Fetched, Partition
from spark_jobs.source.shares import TASK_RECORDS_MIN
from spark_jobs.source.sink_options import SinkStreamOptions
from spark_jobs.source.sink_plan import BatchPlan
from spark_jobs.source.sink_stream import SinkStreamReader, TaskInput
from spark_jobs.task_errors import TaskError, error_of_task
from tests.unit.spark_jobs.records import PARTITION, TOPIC, FakeReader, Signal, fetched, upsert

KAFKA = KafkaConfig(bootstrap_servers="127.0.0.1:1")
SIGNALS = {Partition("shop.progress", 0): 70}
BOUNDED = SinkStreamOptions("search", 1, (3, "m"), ("*.*",), ("public.c",), 4, 1000, task_bytes_max=5000)
LIVE = SinkStreamOptions("search", 1, (3, "m"), ("*.*",), ("public.c",), 4, 1000, live_s=30.0)


def plan(starts: Offsets, ends: Offsets) -> BatchPlan:
    return BatchPlan(starts, ends, {TOPIC: "id"}, SIGNALS)


class FakePlanner:
    """Returns these plans, one after the other; the last one again and again."""

    def __init__(self, *plans: BatchPlan) -> None:
        self.plans = list(plans)
        self.planned = 0
        self.closed = 0

    def plan(self) -> BatchPlan:
        self.planned += 1
        return self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]

    def close(self) -> None:
        self.closed += 1


def reader_of(monkeypatch: pytest.MonkeyPatch, options: SinkStreamOptions, planner: FakePlanner) -> SinkStreamReader:
    monkeypatch.setattr(sink_stream, "Planner", lambda *_: planner)
    return SinkStreamReader(KAFKA, "shop", options)


def starts_of(parts: list[Any]) -> list[Mapping[Partition, int]]:
    assert all(isinstance(part, TaskInput) for part in parts)
    return [part.share.start_offsets for part in parts]


def test_every_live_batch_follows_at_once_also_without_records(monkeypatch: pytest.MonkeyPatch) -> None:
    made = reader_of(monkeypatch, LIVE, FakePlanner(plan({TOPIC: (4,)}, {TOPIC: (4,)})))
    first, second = made.latestOffset(), made.latestOffset()
    assert (first["batch"], second["batch"]) == (1, 2)
    (part,) = made.partitions(first, second)
    assert isinstance(part, TaskInput)
    assert (part.share.start_offsets, part.share.end_offsets, part.control_offsets) == ({PARTITION: 4}, None, SIGNALS)


def test_a_bounded_batch_begins_when_there_are_records(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = plan({TOPIC: (4,)}, {TOPIC: (4,)})
    made = reader_of(monkeypatch, BOUNDED, FakePlanner(idle, idle, idle, plan({TOPIC: (4,)}, {TOPIC: (9,)})))
    first = made.latestOffset()
    assert made.latestOffset() == first and made.latestOffset() == first
    last = made.latestOffset()
    assert last != first and last["batch"] == 2
    (part,) = made.partitions(first, last)
    assert isinstance(part, TaskInput)
    assert (part.share.start_offsets, part.share.end_offsets) == ({PARTITION: 4}, {PARTITION: 9})


def test_tasks_read_what_was_planned_for_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = FakePlanner(plan({TOPIC: (4,)}, {TOPIC: (9,)}), plan({TOPIC: (5,)}, {TOPIC: (99,)}))
    made = reader_of(monkeypatch, BOUNDED, planner)
    end = made.latestOffset()
    assert starts_of(made.partitions(made.initialOffset(), end)) == [{PARTITION: 4}]
    assert starts_of(made.partitions(made.initialOffset(), end)) == [{PARTITION: 4}]
    assert planner.planned == 1


@pytest.mark.parametrize("options", [LIVE, BOUNDED])
def test_the_batch_that_a_former_job_was_running_is_planned_from_the_position_of_this_one(
    monkeypatch: pytest.MonkeyPatch, options: SinkStreamOptions
) -> None:
    """Its tasks had written a part of it; what the store holds decides, not the checkpoint."""
    own = {"sink": "search", "generation": 1, "job": 2}
    start, end = own | {"batch": 17, "topics": {}}, own | {"batch": 18, "topics": {TOPIC: {"from": [4], "to": [9]}}}
    planner = FakePlanner(plan({TOPIC: (6,)}, {TOPIC: (12,)}))
    made = reader_of(monkeypatch, options, planner)
    assert starts_of(made.partitions(start, end)) == [{PARTITION: 6}]
    assert starts_of(made.partitions(start, end)) == [{PARTITION: 6}] and planner.planned == 1
    assert made.latestOffset()["batch"] == 19


def test_an_empty_range_has_no_partitions_and_its_number_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = FakePlanner(plan({TOPIC: (4,)}, {TOPIC: (9,)}))
    made = reader_of(monkeypatch, LIVE, planner)
    offset = {"sink": "search", "generation": 1, "job": 2, "batch": 17, "topics": {}}
    assert made.partitions(offset, dict(offset)) == []
    assert planner.planned == 0
    assert made.latestOffset()["batch"] == 18


@pytest.mark.parametrize("is_start", [True, False])
def test_a_checkpoint_of_another_generation_is_refused(monkeypatch: pytest.MonkeyPatch, is_start: bool) -> None:
    planner = FakePlanner(plan({}, {}))
    made = reader_of(monkeypatch, LIVE, planner)
    own, other = made.initialOffset(), made.initialOffset() | {"generation": 2}
    with pytest.raises(TaskError, match=r"ConfigError.*generation 2") as caught:
        made.partitions(*((other, own) if is_start else (own, other)))
    assert planner.planned == 0
    assert isinstance(error_of_task(caught.value), ConfigError), "the sink stops"


def test_errors_of_the_planner_reach_the_driver_as_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark passes on no more than their text."""
    planner = FakePlanner(plan({}, {}))
    made = reader_of(monkeypatch, LIVE, planner)
    offset = made.latestOffset()

    def fail() -> NoReturn:
        raise UnreachableError("the brokers are away", "wait")

    monkeypatch.setattr(planner, "plan", fail)
    for call in (made.latestOffset, lambda: made.partitions(made.initialOffset(), offset | {"batch": 9})):
        with pytest.raises(TaskError) as caught:
            call()
        found = error_of_task(caught.value)
        assert isinstance(found, UnreachableError) and (found.message, found.hint) == ("the brokers are away", "wait")


def test_a_live_sink_without_topics_has_one_task_that_follows_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = reader_of(monkeypatch, LIVE, FakePlanner(plan({}, {})))
    (part,) = made.partitions(made.initialOffset(), made.latestOffset())
    assert isinstance(part, TaskInput)
    assert (part.share.start_offsets, part.share.end_offsets, part.control_offsets) == ({}, None, SIGNALS)
    bounded = reader_of(monkeypatch, BOUNDED, FakePlanner(plan({}, {})))
    assert bounded.partitions(bounded.initialOffset(), bounded.latestOffset()) == []


@pytest.mark.parametrize(
    ("partitions", "waiting", "may_split"),
    [
        (4, 0, True),
        (4, 2 * TASK_RECORDS_MIN, True),  # one task has all of them
        (4, 4 * TASK_RECORDS_MIN, False),  # as many tasks as there may be
        (1, 4 * TASK_RECORDS_MIN, False),  # nothing to divide
        (2, 8 * TASK_RECORDS_MIN, False),
    ],
)
def test_a_task_may_be_split_while_more_could_share_its_partitions(
    monkeypatch: pytest.MonkeyPatch, partitions: int, waiting: int, may_split: bool
) -> None:
    ends = (waiting // partitions,) * partitions
    made = reader_of(monkeypatch, LIVE, FakePlanner(plan({TOPIC: (0,) * partitions}, {TOPIC: ends})))
    parts: list[Any] = made.partitions(made.initialOffset(), made.latestOffset())
    assert {part.may_split for part in parts} == {may_split}


def test_a_planner_is_made_when_it_is_needed_and_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark makes a reader for each batch, only to send it to the tasks."""
    planner = FakePlanner(plan({}, {}))
    made = reader_of(monkeypatch, LIVE, planner)
    made.stop()
    assert (planner.planned, planner.closed) == (0, 0)
    made.latestOffset()
    made.stop()
    made.stop()
    assert planner.closed == 1


# ---- in a task


class Consumer(FakeReader):
    def __init__(self, name: str, *script: Fetched) -> None:
        super().__init__(*script)
        self.name = name
        self.is_closed = False

    def read(self, timeout_s: float, bytes_max: int) -> Fetched:
        if not self.script:
            raise BrokerError("can't read", "wait")
        return super().read(timeout_s, bytes_max)

    def close(self) -> None:
        self.is_closed = True


class Consumers:
    """The consumers that a worker process has made."""

    def __init__(self) -> None:
        self.made: list[Consumer] = []
        self.script: list[Fetched] = []

    def make(self, _: KafkaConfig, name: str) -> Consumer:
        self.made.append(Consumer(name, *self.script))
        return self.made[-1]


@pytest.fixture
def consumers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumers]:
    consumers = Consumers()
    monkeypatch.setattr(sink_stream, "_readers", KeptClients())
    monkeypatch.setattr(sink_stream, "PartitionReader", consumers.make)
    yield consumers


def part_of(monkeypatch: pytest.MonkeyPatch, options: SinkStreamOptions) -> tuple[SinkStreamReader, Any]:
    made = reader_of(monkeypatch, options, FakePlanner(plan({TOPIC: (4,)}, {TOPIC: (6,)})))
    (part,) = made.partitions(made.initialOffset(), made.latestOffset() | {"generation": options.generation})
    return made, part


def test_the_rows_of_a_task_are_its_pieces(monkeypatch: pytest.MonkeyPatch, consumers: Consumers) -> None:
    consumers.script = [fetched(upsert(4, 1, 1)), fetched(upsert(5, 2, 2), upsert(6, 3, 3))]
    made, part = part_of(monkeypatch, BOUNDED)
    rows = list(made.read(part))
    assert [row.schema for row in rows] == [piece.SCHEMA] * 2
    assert [found.positions for found in to_pieces(iter(rows))] == [{PARTITION: 5}, {PARTITION: 6}]
    (consumer,) = consumers.made
    assert (consumer.name, consumer.is_resting, consumer.is_closed) == ("watershed-shop-search-reader", True, False)


def test_a_live_task_reads_for_its_time(monkeypatch: pytest.MonkeyPatch, consumers: Consumers) -> None:
    key = BatchEndRecord.key_of("search", 1)
    consumers.script = [fetched(upsert(4, 1, 1)), fetched(upsert(5, 2, 2), Signal("shop.progress", key))]
    made, part = part_of(monkeypatch, LIVE)
    assert len(list(made.read(part))) == 2
    assert consumers.made[0].sought == [{PARTITION: 4, **SIGNALS}]


def test_a_worker_process_keeps_its_consumer_until_an_error(
    monkeypatch: pytest.MonkeyPatch, consumers: Consumers
) -> None:
    consumers.script = [fetched(upsert(5, 1, 1)), fetched(upsert(5, 1, 1))]
    made, part = part_of(monkeypatch, BOUNDED)
    for count, is_closed in ((1, False), (1, False)):
        assert len(list(made.read(part))) == 1
        assert (len(consumers.made), consumers.made[0].is_closed) == (count, is_closed)
    with pytest.raises(TaskError):
        list(made.read(part))
    assert consumers.made[0].is_closed
    list(made.read(part))
    assert len(consumers.made) == 2


def test_of_a_sink_two_generations_are_read_at_once(monkeypatch: pytest.MonkeyPatch, consumers: Consumers) -> None:
    consumers.script = [fetched(upsert(5, 1, 1))] * 9
    for name, generation in (("search", 1), ("cache", 1), ("search", 2), ("search", 1), ("search", 3)):
        options = SinkStreamOptions(name, generation, (3, "m"), ("*.*",), (), 4, 1000)
        made, part = part_of(monkeypatch, options)
        list(made.read(part))
    assert [consumer.is_closed for consumer in consumers.made] == [False, False, True, False], "the one not used last"


# ---- options


def source(text: str) -> WatershedSource:
    return WatershedSource({"bootstrap.servers": "b:9092", "prefix": "shop", OPTION: text})


def test_the_data_source_has_the_stream_of_a_sink() -> None:
    assert source(LIVE.encoded()).schema() == PIECE_DDL
    made = configured(KAFKA)({OPTION: LIVE.encoded(), "prefix": "shop"})
    reader = made.streamReader(StructType())
    assert isinstance(reader, SinkStreamReader)
    assert reader.initialOffset() == {"sink": "search", "generation": 1, "job": 0, "batch": 0, "topics": {}}


def test_the_stream_of_a_sink_is_for_sinks() -> None:
    with pytest.raises(ConfigError, match="option sink is for Watershed's own sinks"):
        source(LIVE.encoded()).streamReader(StructType())


@pytest.mark.parametrize("options", [LIVE, BOUNDED])
def test_options_are_read_back(options: SinkStreamOptions) -> None:
    assert SinkStreamOptions.of({OPTION: options.encoded()}) == options


@pytest.mark.parametrize("text", ["", "search", "{}", LIVE.encoded().replace('"generation":1', '"generation":"x"')])
def test_options_that_can_t_be_read_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="option sink can't be read") as caught:
        source(text).streamReader(StructType())
    assert "choose a table" in caught.value.hint


def test_a_sink_holds_the_tables_that_are_named_and_not_excluded() -> None:
    tables = [TableId("public", "a"), TableId("public", "c"), TableId("private", "c")]
    assert [LIVE.holds(table) for table in tables] == [True, False, True]
