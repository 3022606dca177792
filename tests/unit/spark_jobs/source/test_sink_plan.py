"""Where the batches of a sink's stream begin, on scripted topics."""

import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.settings import KafkaConfig
from cdc.model.control import ProgressRecord
from cdc.model.errors import ConfigError, WatershedError
from cdc.model.events import TableId
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import Topics
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import FoundTopic, Offsets
from spark_jobs.control_reader import ControlUpdate
from spark_jobs.source import sink_plan
from spark_jobs.source.reading import Partition
from spark_jobs.source.shares import shares
from spark_jobs.source.sink_options import SinkStreamOptions
from spark_jobs.source.sink_plan import POSITION_S_MAX, BatchPlan, Planner, check_offset, initial_offset
from tests.unit.spark_jobs.records import TOPIC, schema

KAFKA = KafkaConfig(bootstrap_servers="127.0.0.1:1")
JOB = (3, "m")
OTHER_TOPIC = "shop.public.b"
OPTIONS = SinkStreamOptions("search", 1, JOB, ("public.*",), ("public.c",), 4, 1000)
LIVE = SinkStreamOptions("search", 1, JOB, ("public.*",), (), 4, 1000, live_s=30.0)


def position(
    ends: Offsets, job: tuple[int, str] = JOB, incarnations: Mapping[str, str] | None = None, generation: int = 1
) -> SinkRecord:
    return SinkRecord(
        sink="search",
        generation=generation,
        end_offsets=dict(ends),
        applied_lsn=1,
        epoch=1,
        commit_ts_us=1,
        applied_ts_us=1,
        sweeps={},
        written=0,
        stale=0,
        incarnations=dict(incarnations or {TOPIC: "id"}),
        job=job,
    )


def progress(incarnation: str, end: int = 9) -> ProgressRecord:
    ends, ids = {TOPIC: (end,)}, {TOPIC: incarnation}
    return ProgressRecord(epoch=1, seq=0, lsn=1, commit_ts_us=5, published_ts_us=0, end_offsets=ends, incarnations=ids)


class World:
    """The topics of a pipeline. Each read of control and progress takes the next step of the script."""

    def __init__(self) -> None:
        self.now = 0.0
        self.script: list[SinkRecord | ProgressRecord] = []
        self.found = {TOPIC: FoundTopic("id", (9,)), OTHER_TOPIC: FoundTopic("b", (0, 0))}
        self.asked: list[str] = []
        self.holds: Callable[[TableId], bool] = lambda _: False
        self.is_closed = False
        # ControlReader
        histories = (SchemaHistory((schema(name),)) for name in ("a", "b"))
        self.schema_histories = {history.newest.table: history for history in histories}
        self.sinks: dict[str, SinkRecord] = {}

    def control(self, kafka: KafkaConfig, topics: Topics, holds: Callable[[TableId], bool]) -> "World":
        assert kafka is KAFKA and topics.prefix == "shop"
        self.holds = holds
        return self

    def read(self) -> ControlUpdate:
        step = self.script.pop(0) if self.script else None
        if isinstance(step, SinkRecord):
            self.sinks[step.record_key] = step
        return ControlUpdate((step,) if isinstance(step, ProgressRecord) else (), (), ())

    def reached(self) -> dict[str, int]:
        return {"shop.control": 40, "shop.progress": 70}

    def close(self) -> None:
        self.is_closed = True

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    # ---- TopicEnds

    def set_topics(self, topics: list[str]) -> None:
        self.asked = topics

    def ask(self) -> Mapping[str, FoundTopic]:
        return {topic: there for topic, there in self.found.items() if topic in self.asked}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(sink_plan, "ControlReader", world.control)
    monkeypatch.setattr(sink_plan, "TopicEnds", lambda _: world)
    monkeypatch.setattr(sink_plan, "time", SimpleNamespace(monotonic=lambda: world.now, sleep=world.sleep))
    return world


def plan(world: World, *script: SinkRecord | ProgressRecord) -> BatchPlan:
    world.script, world.sinks = list(script), {}
    return Planner(KAFKA, "shop", OPTIONS).plan()


def test_a_batch_begins_at_the_sinks_position_and_goes_to_the_topics_ends(world: World) -> None:
    found = plan(world, position({TOPIC: (4,)}))
    assert found.start_offsets == {TOPIC: (4,), OTHER_TOPIC: (0, 0)}
    assert found.end_offsets == {TOPIC: (9,), OTHER_TOPIC: (0, 0)}
    assert found.incarnations == {TOPIC: "id", OTHER_TOPIC: "b"}
    assert found.control_offsets == {Partition("shop.control", 0): 40, Partition("shop.progress", 0): 70}


def test_tasks_seek_the_first_records_that_topics_have(world: World) -> None:
    """A task that began "at the beginning" would pass over what is deleted between the plan and its start."""
    world.found[OTHER_TOPIC] = FoundTopic("b", (9, 9, 9), (5, 3, 0))
    found = plan(world, position({TOPIC: (4,), OTHER_TOPIC: (4, 4)}, incarnations={TOPIC: "id", OTHER_TOPIC: "b"}))
    assert found.start_offsets == {TOPIC: (4,)}, "the other one has lost a record"
    world.script, world.sinks = [], {}
    record = progress("id").model_copy(update={"starts": {OTHER_TOPIC: (5, 0, 0)}})
    found = plan(world, record, position({TOPIC: (4,), OTHER_TOPIC: (4, 4)}))
    assert found.start_offsets == {TOPIC: (4,), OTHER_TOPIC: (4, 4, 0)}
    (share,) = shares(found.start_offsets, found.end_offsets, 1, is_bounded=False)
    assert found.first_offsets_of(share) == {Partition(OTHER_TOPIC, 0): 5}
    assert world.asked == [TOPIC, OTHER_TOPIC]


def test_only_the_tables_of_the_store_are_read(world: World) -> None:
    plan(world, position({}))
    tables = [TableId("public", "a"), TableId("public", "c"), TableId("private", "a")]
    assert [world.holds(table) for table in tables] == [True, False, False]


def test_each_batch_begins_at_the_newest_position(world: World) -> None:
    world.script = [position({TOPIC: (4,)}), position({TOPIC: (6,)})]
    planner = Planner(KAFKA, "shop", OPTIONS)
    assert [planner.plan().start_offsets[TOPIC], planner.plan().start_offsets[TOPIC]] == [(4,), (6,)]
    planner.close()
    assert world.is_closed


@pytest.mark.parametrize("other", [(2, "m"), (3, "n"), (4, "m")])
def test_the_position_of_another_job_is_not_taken(world: World, other: tuple[int, str]) -> None:
    """A former job's record may be ahead of what the store holds: this job has read the store."""
    former, elsewhere = position({TOPIC: (8,)}, job=other), position({TOPIC: (7,)}, generation=2)
    assert plan(world, former, elsewhere, former, position({TOPIC: (4,)})).start_offsets[TOPIC] == (4,)
    assert world.script == []


def test_a_position_that_does_not_come_is_named(world: World) -> None:
    with pytest.raises(WatershedError, match=r"position of job 3 is not in topic shop\.progress"):
        plan(world, position({TOPIC: (8,)}, job=(4, "x")))
    assert world.now == pytest.approx(POSITION_S_MAX, abs=0.2)


def test_a_topic_that_is_another_one_than_capture_has_published_is_left_out(world: World) -> None:
    world.found[TOPIC] = FoundTopic("made again", (9,))
    found = plan(world, position({TOPIC: (4,)}))
    assert found.start_offsets.keys() == found.end_offsets.keys() == {OTHER_TOPIC}


def test_a_topic_that_is_not_there_is_left_out(world: World) -> None:
    del world.found[TOPIC]
    assert plan(world, position({TOPIC: (4,)})).start_offsets.keys() == {OTHER_TOPIC}


def test_a_topic_whose_unread_records_were_deleted_is_left_out(world: World) -> None:
    world.found[TOPIC] = FoundTopic("id", (9,), (5,))
    assert plan(world, position({TOPIC: (4,)})).start_offsets.keys() == {OTHER_TOPIC}
    assert plan(world, position({TOPIC: (5,)})).start_offsets[TOPIC] == (5,)


def test_a_topic_that_capture_has_made_again_is_read_from_its_beginning(world: World) -> None:
    world.found[TOPIC] = FoundTopic("new", (9,))
    found = plan(world, progress("new"), position({TOPIC: (4,)}))
    assert found.start_offsets[TOPIC] == (0,) and found.incarnations[TOPIC] == "new"


def test_a_topic_that_may_have_lost_records_is_read_from_its_beginning(world: World) -> None:
    assert plan(world, progress("id#2"), position({TOPIC: (4,)})).start_offsets[TOPIC] == (0,)
    assert plan(world, progress("id"), position({TOPIC: (10,)})).start_offsets[TOPIC] == (0,), (
        "it ends before the position"
    )


def test_the_newest_progress_record_counts_in_later_batches_too(world: World) -> None:
    world.script = [progress("id"), progress("id#2"), position({TOPIC: (4,)}), position({TOPIC: (4,)})]
    planner = Planner(KAFKA, "shop", OPTIONS)
    assert [planner.plan().start_offsets[TOPIC], planner.plan().start_offsets[TOPIC]] == [(0,), (0,)]


def test_partitions_that_are_new_are_read_from_their_beginning(world: World) -> None:
    world.found[TOPIC] = FoundTopic("id", (9, 3))
    found = plan(world, position({TOPIC: (4,)}))
    assert (found.start_offsets[TOPIC], found.end_offsets[TOPIC]) == ((4, 0), (9, 3))


def batch_plan(starts: Offsets, ends: Offsets) -> BatchPlan:
    return BatchPlan(starts, ends, {TOPIC: "id"}, {})


def test_a_plan_says_whether_there_is_something_to_read() -> None:
    assert batch_plan({TOPIC: (4, 0)}, {TOPIC: (4, 1)}).has_records
    assert not batch_plan({TOPIC: (4, 1)}, {TOPIC: (4, 1)}).has_records
    assert not batch_plan({}, {}).has_records


def test_the_offset_in_the_checkpoint_names_the_topics_and_where_the_batch_begins_and_ends() -> None:
    made = batch_plan({TOPIC: (4,), OTHER_TOPIC: (0,)}, {TOPIC: (9,), OTHER_TOPIC: (2,)})
    own = {"sink": "search", "generation": 1, "job": 3, "batch": 7}
    bounded = made.encoded(OPTIONS, 7)
    assert bounded == own | {
        "topics": {
            TOPIC: {"incarnation": "id", "from": [4], "to": [9]},
            OTHER_TOPIC: {"incarnation": "", "from": [0], "to": [2]},
        }
    }
    assert json.loads(json.dumps(bounded)) == bounded, "Spark keeps it as JSON"
    assert made.encoded(LIVE, 7)["topics"][TOPIC] == {"incarnation": "id", "from": [4]}, "its end is not known yet"
    assert initial_offset(OPTIONS) == own | {"job": 0, "batch": 0, "topics": {}}


@pytest.mark.parametrize("changed", [{"sink": "cache"}, {"generation": 2}, {"sink": None}])
def test_the_checkpoint_of_another_sink_or_generation_is_refused(changed: dict[str, Any]) -> None:
    check_offset(initial_offset(OPTIONS), OPTIONS)
    with pytest.raises(ConfigError, match="the query is of sink search, generation 1") as caught:
        check_offset(initial_offset(OPTIONS) | changed, OPTIONS)
    assert "checkpoint" in caught.value.hint
    with pytest.raises(ConfigError, match="sink None"):
        check_offset({}, OPTIONS)


@pytest.mark.parametrize(
    ("held", "cut", "ends"),
    [
        (4, {TOPIC: (7,)}, {TOPIC: (7,), OTHER_TOPIC: (0, 0)}),
        (4, {TOPIC: (9,), OTHER_TOPIC: (0, 0)}, {TOPIC: (9,), OTHER_TOPIC: (0, 0)}),
        (4, {TOPIC: (7,), OTHER_TOPIC: (1, 0)}, {TOPIC: (4,), OTHER_TOPIC: (0, 0)}),  # a part is not readable yet
        (7, {TOPIC: (7,)}, {}),  # it is there: the brokers are not asked
        (4, {}, {}),  # none was published yet
    ],
)
def test_a_batch_to_a_cut_ends_exactly_there_or_reads_nothing(
    world: World, held: int, cut: Offsets, ends: Offsets
) -> None:
    record = position({TOPIC: (held,)}).model_copy(update={"cut_offsets": dict(cut)})
    world.script = [record]
    options = SinkStreamOptions("search", 1, JOB, ("public.*",), (), 4, 1000, at_cuts=True)
    found = Planner(KAFKA, "shop", options).plan()
    assert found.end_offsets == ends
    assert found.has_records == (ends.get(TOPIC, (held,)) != (held,))
    assert world.asked == ([TOPIC, OTHER_TOPIC] if ends else [])
