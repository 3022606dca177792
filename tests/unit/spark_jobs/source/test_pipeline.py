"""What the driver finds out about a table, and what it refuses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.events import TableId
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import FoundTopic
from spark_jobs.control_reader import ControlUpdate
from spark_jobs.source import pipeline
from spark_jobs.source.errors import IncompleteTableError, TopicChangedError, UnknownTableError
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.pipeline import TableWatch
from tests.unit.spark_jobs.source.records import TOPIC, part, schema

THINGS = TableId("public", "things")


class World:
    """What control, progress and the brokers say."""

    def __init__(self) -> None:
        self.tables = {THINGS: True}  # whether it has a key
        self.update = [ControlUpdate((progress(500),), (), ())]
        self.topics: Mapping[str, FoundTopic] = {TOPIC: FoundTopic("id", (11, 21), (0, 0))}
        self.pauses = 0

    def control(self, _kafka: Any, _topics: Any, holds: Callable[[TableId], bool]) -> "Control":
        return Control(self, holds)


class Control:
    def __init__(self, world: World, holds: Callable[[TableId], bool]) -> None:
        self._environment, self._holds = world, holds
        self.schema_histories: dict[TableId, SchemaHistory] = {}

    def read(self) -> ControlUpdate:
        for table, has_key in self._environment.tables.items():
            if self._holds(table) and has_key:
                self.schema_histories[table] = SchemaHistory((schema(),))
        return self._environment.update.pop(0) if self._environment.update else ControlUpdate((), (), ())

    def close(self) -> None:
        pass


class Ends:
    def __init__(self, world: World) -> None:
        self._environment = world
        self._topics: Sequence[str] = ()

    def set_topics(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def ask(self) -> Mapping[str, FoundTopic]:
        return {name: found for name, found in self._environment.topics.items() if name in self._topics}


def progress(lsn: int, epoch: int = 1) -> ProgressRecord:
    ends = {TOPIC: (10, 20)}
    times = {"commit_ts_us": 0, "published_ts_us": 0}
    return ProgressRecord(epoch=epoch, seq=9, lsn=lsn, end_offsets=ends, incarnations={TOPIC: "id"}, **times)


def sweep(floor: int, as_of_lsn: int, table: TableId = THINGS) -> SweepRecord:
    return SweepRecord.of(table, floor, as_of_lsn, 1, 0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()

    def pause(_: float) -> None:
        made.pauses += 1
        assert made.pauses < 100

    monkeypatch.setattr(pipeline, "ControlReader", made.control)
    monkeypatch.setattr(pipeline, "TopicEnds", lambda _: Ends(made))
    monkeypatch.setattr(pipeline, "read_prefixes", lambda _: ("books", "shop"))
    monkeypatch.setattr("spark_jobs.source.pipeline.time.sleep", pause)
    return made


def watch() -> TableWatch:
    return TableWatch(SourceOptions(part().kafka, "shop", THINGS))


def test_facts_of_a_table(world: World) -> None:
    world.update = [
        ControlUpdate((progress(400), progress(500)), (sweep(7, 300), sweep(9, 450, TableId("public", "a"))), ())
    ]
    found = watch().state()
    assert (found.topic, found.topic_id, found.incarnation, found.position) == (TOPIC, "id", "id", (1, 500))
    assert (found.start_offsets, found.end_offsets, found.owed) == ((0, 0), (11, 21), "")
    assert found.sweep is not None
    assert found.sweep.floor == 7


def test_an_unknown_table_or_prefix_is_named_with_those_that_there_are(world: World) -> None:
    world.tables = {TableId("public", "b"): True, TableId("public", "a"): False}
    with pytest.raises(UnknownTableError, match=r"there is no table public\.things at prefix shop") as error:
        watch().state()
    assert "its tables are public.a, public.b;" in error.value.hint
    world.tables = {THINGS: False}
    with pytest.raises(UnknownTableError, match=r"table public\.things has no key"):
        watch().state()
    world.tables = {}
    with pytest.raises(UnknownTableError, match="there is no pipeline at prefix shop") as error:
        watch().state()
    assert "these brokers have: books, shop" in error.value.hint


def test_a_topic_that_is_missing_or_another_one_is_not_read(world: World) -> None:
    world.topics = {}
    with pytest.raises(TopicChangedError, match=rf"topic {TOPIC} of table public\.things does not exist"):
        watch().state()
    world.update = [ControlUpdate((progress(500),), (), ())]
    world.topics = {TOPIC: FoundTopic("other", (0, 0), (0, 0))}
    with pytest.raises(TopicChangedError, match="another one than capture has published"):
        watch().state()
    world.update = []
    with pytest.raises(IncompleteTableError, match="has not published any progress"):
        watch().state()


def test_present_rows_wait_until_a_sweep_is_reached(world: World) -> None:
    empty = ControlUpdate((), (), ())
    first = ControlUpdate((progress(500),), (sweep(7, 600),), ())
    world.update = [first, empty, empty, empty, ControlUpdate((progress(600),), (), ())]
    found = watch().settled_state()
    assert (found.position, found.sweep, world.pauses) == ((1, 600), sweep(7, 600), 3)


def test_a_sweep_that_is_not_reached_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "SWEEP_S_MAX", -1.0)
    world.update = [ControlUpdate((progress(500),), (sweep(7, 600),), ())]
    with pytest.raises(IncompleteTableError, match="was truncated or read again"):
        watch().settled_state()
