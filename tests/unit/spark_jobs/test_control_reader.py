"""Control and progress as they are read from a real broker."""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka import topic_reader
from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.errors import UnreachableError, WatershedError
from cdc.model.events import TableId, TableSchema
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import Topics
from sinks.schema_history import SchemaHistory
from spark_jobs import control_reader
from spark_jobs.control_reader import ControlReader, ControlUpdate
from spark_jobs.progress_writer import ProgressWriter
from tests.conftest import KafkaBroker
from tests.support.feed import Feed
from tests.support.waiting import eventually

COLUMNS = {"id": (20, "bigint")}


@pytest.fixture
def config(kafka: KafkaBroker) -> KafkaConfig:
    return KafkaConfig(bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture
def reader(config: KafkaConfig, unique: str) -> Iterator[ControlReader]:
    with closing(ControlReader(config, Topics(unique))) as made:
        yield made


def found(reader: ControlReader) -> ControlUpdate:
    """The first news that hold a table: a client may take a moment to hear of a topic that was just created."""
    update = eventually(
        lambda: update if (update := reader.read()).schema_histories else None, 15, "the table's schema was read"
    )
    assert update is not None
    return update


def test_news_follow_each_other_with_the_newest_of_each_table() -> None:
    progress = [
        ProgressRecord(epoch=1, seq=lsn, lsn=lsn, commit_ts_us=1, published_ts_us=1, end_offsets={}) for lsn in (1, 2)
    ]
    sweeps = [SweepRecord(table_schema="public", table_name="a", floor=floor, as_of_lsn=1, epoch=1) for floor in (5, 6)]
    first, second, other = (
        SchemaHistory((TableSchema(TableId("public", name), version, 0, (), ("id",), f"shop.public.{name}"),))
        for name, version in (("a", 1), ("a", 2), ("b", 1))
    )
    before = ControlUpdate((progress[0],), (sweeps[0],), (first, other))
    both = before.followed_by(ControlUpdate((progress[1],), (sweeps[1],), (second,)))
    assert (both.progress, both.sweeps) == (tuple(progress), tuple(sweeps))
    assert both.schema_histories == (second, other)


def test_topics_that_do_not_exist_yet_are_empty(reader: ControlReader, kafka: KafkaBroker, unique: str) -> None:
    assert reader.read().schema_histories == ()
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("customers", COLUMNS, ["id"])
    (schema_history,) = found(reader).schema_histories
    assert schema_history.newest == feed.schemas["customers"]
    assert reader.read().schema_histories == ()


def test_news_come_once_and_in_order(reader: ControlReader, kafka: KafkaBroker, unique: str) -> None:
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("customers", COLUMNS, ["id"])
    feed.sweep("customers", floor=7, as_of_lsn=50)
    feed.progress(100)
    feed.progress(200)
    update = found(reader)
    assert [record.lsn for record in update.progress] == [100, 200]
    assert [(sweep.floor, sweep.as_of_lsn) for sweep in update.sweeps] == [(7, 50)]
    feed.progress(300)
    update = reader.read()
    assert ([record.lsn for record in update.progress], update.sweeps, update.schema_histories) == ([300], (), ())
    assert reader.read().progress == ()


def test_a_new_version_of_a_schema_comes_with_those_before(
    reader: ControlReader, kafka: KafkaBroker, unique: str
) -> None:
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("customers", COLUMNS, ["id"])
    first = feed.schemas["customers"]
    feed.begin()
    feed.alter_table("customers", COLUMNS | {"name": (25, "text")})
    feed.commit()
    second = feed.schemas["customers"]
    assert found(reader).schema_histories == (SchemaHistory((first, second)),)
    feed.begin()
    feed.alter_table("customers", COLUMNS)
    feed.commit()
    assert found(reader).schema_histories == (SchemaHistory((first, second, feed.schemas["customers"])),)
    assert reader.read().schema_histories == ()


def test_a_table_without_a_key_is_left_out(reader: ControlReader, kafka: KafkaBroker, unique: str) -> None:
    """No store can hold its rows; nor is its topic waited for."""
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("audit", COLUMNS, [])
    feed.add_table("customers", COLUMNS, ["id"])
    feed.sweep("audit", floor=7, as_of_lsn=50)
    feed.progress(100)
    update = found(reader)
    assert update.schema_histories == (SchemaHistory((feed.schemas["customers"],)),)
    assert reader.schema_histories.keys() == {feed.schemas["customers"].table}
    assert update.sweeps == ()
    assert [record.end_offsets.keys() for record in update.progress] == [{feed.topic("customers")}]


def test_a_table_that_is_excluded_is_left_out(config: KafkaConfig, kafka: KafkaBroker, unique: str) -> None:
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("audit", COLUMNS, ["id"])
    feed.add_table("customers", COLUMNS, ["id"])
    feed.sweep("audit", floor=7, as_of_lsn=50)
    feed.progress(100)
    with closing(ControlReader(config, Topics(unique), lambda table: table != TableId("public", "audit"))) as reader:
        update = found(reader)
        assert reader.excluded == {TableId("public", "audit")}
    assert [schema_history.newest.table.name for schema_history in update.schema_histories] == ["customers"]
    assert update.sweeps == ()
    assert [record.end_offsets.keys() for record in update.progress] == [{feed.topic("customers")}]


def test_a_progress_record_that_came_after_control_was_read_waits(
    kafka: KafkaBroker, unique: str, config: KafkaConfig
) -> None:
    """The sweep that it relies on may not have been read yet."""
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("customers", COLUMNS, ["id"])
    feed.progress(100)
    late: list[Callable[[], object]] = []

    class Interrupted(ControlReader):
        """Something is published at the moment between the two ends."""

        def _end(self, topic: str) -> int:
            end = super()._end(topic)
            if topic.endswith(".progress") and late:
                late.pop(0)()
            return end

    with closing(Interrupted(config, Topics(unique))) as reader:
        found(reader)
        late += [lambda: feed.progress(200), lambda: feed.sweep("customers", 7, 150)]
        first = reader.read()
        assert first.progress == ()
        second = reader.read()
        assert [record.lsn for record in second.progress] == [200]
        assert len(second.sweeps) == 1


class ProgressFirst:
    """A consumer that has fetched a progress record before the rest of the control topic."""

    def __init__(self, consumer: Any, progress: str) -> None:
        self._consumer, self._progress = consumer, progress
        self._fetched: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, count: int, timeout: float) -> list[Any]:
        if self._fetched:
            return list(self._consumer.consume(count, timeout))

        def has_progress() -> bool:
            self._fetched += self._consumer.consume(100, 0.1)
            return any(one.topic() == self._progress and one.error() is None for one in self._fetched)

        eventually(has_progress, 15, "the progress record was fetched")
        return sorted(self._fetched, key=lambda one: one.topic() != self._progress)


@pytest.mark.invariant(11)
def test_a_progress_record_that_is_fetched_while_control_is_read_waits_for_its_sweep(
    kafka: KafkaBroker, unique: str, config: KafkaConfig
) -> None:
    """The sweep that it relies on is behind the end up to which control is read: without it the position would be
    published while the store still shows deleted rows."""
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("customers", COLUMNS, ["id"])
    feed.progress(100)
    late: list[Callable[[], object]] = []

    class Interrupted(ControlReader):
        """Something is published after the end of control was requested."""

        def _end(self, topic: str) -> int:
            end = super()._end(topic)
            while topic.endswith(".control") and late:
                late.pop(0)()
            return end

    with closing(Interrupted(config, Topics(unique))) as reader:
        found(reader)
        feed.sweep("customers", 5, 90)  # there is something to read in control
        late += [lambda: feed.sweep("customers", 7, 150), lambda: feed.progress(200)]
        topics = reader._reader
        topics._consumer = cast("Any", ProgressFirst(topics._consumer, f"{unique}.progress"))
        first = reader.read()
        assert first.progress == ()
        second = reader.read()
        assert [record.lsn for record in second.progress] == [200]
        assert 7 in [sweep.floor for sweep in (*first.sweeps, *second.sweeps)]
        assert reader.read().progress == (), "once"


def test_what_sinks_published_is_known(
    reader: ControlReader, config: KafkaConfig, kafka: KafkaBroker, unique: str
) -> None:
    Feed(kafka.bootstrap_servers, unique)
    record = SinkRecord(
        sink="search",
        generation=3,
        end_offsets={"t": (1, 2)},
        applied_lsn=1 << 63,
        epoch=2,
        commit_ts_us=4,
        applied_ts_us=5,
        sweeps={"public.customers": 2 << 48},
        written=6,
        stale=7,
    )
    with closing(ProgressWriter(config, Topics(unique))) as writer:
        writer.publish(record.model_copy(update={"written": 1}))
        writer.publish(record)
    eventually(lambda: reader.read() and reader.sinks, 15, "the sink's record was read")
    assert reader.sinks == {"sink/search/3": record}


def test_an_open_transaction_is_not_read_past(reader: ControlReader, kafka: KafkaBroker, unique: str) -> None:
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("customers", COLUMNS, ["id"])
    feed.progress(100)
    feed.begin()
    feed.send_in_transaction(f"{unique}.progress", "progress", {"not": "committed"})
    assert [record.lsn for record in found(reader).progress] == [100]
    feed.abort()
    assert reader.read().progress == ()
    feed.progress(200)
    assert [record.lsn for record in reader.read().progress] == [200]


def test_what_is_no_record_of_ours_is_named(reader: ControlReader, kafka: KafkaBroker, unique: str) -> None:
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.begin()
    feed.send_in_transaction(f"{unique}.control", "schema/public.x/1", {"nonsense": True})
    feed.commit()
    feed.sweep("customers", floor=7, as_of_lsn=50)
    for _ in range(2):  # what follows is not read past it
        with pytest.raises(WatershedError, match=rf"{unique}\.control, key schema/public\.x/1"):
            found(reader)


class Restarting:
    """The consumer of a broker that has just started: it knows its topics, and not yet who leads their partitions."""

    def __init__(self, consumer: Any, failures: int) -> None:
        self._consumer, self._failures = consumer, failures

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        if self._failures:
            self._failures -= 1
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        low, high = self._consumer.get_watermark_offsets(partition, timeout=timeout)
        return low, high

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


def test_a_topic_whose_leader_is_not_known_yet_is_not_empty(
    reader: ControlReader, kafka: KafkaBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the records of its former job, a sink would fill its store again."""
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("customers", COLUMNS, ["id"])
    feed.progress(100)
    monkeypatch.setattr(reader._reader, "_consumer", Restarting(reader._reader._consumer, failures=2))
    assert [record.lsn for record in reader.read().progress] == [100]


def test_a_topic_whose_leader_stays_unknown_is_an_error(
    reader: ControlReader, kafka: KafkaBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Feed(kafka.bootstrap_servers, unique).progress(100)
    monkeypatch.setattr(topic_reader, "ANSWER_S_MAX", 0.5)
    monkeypatch.setattr(reader._reader, "_consumer", Restarting(reader._reader._consumer, failures=100))
    with pytest.raises(UnreachableError, match=f"can't read topics of prefix {unique}"):
        reader.read()


def test_a_broker_that_is_not_there_is_said(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "ANSWER_S_MAX", 0.5)
    with (
        closing(ControlReader(KafkaConfig(bootstrap_servers="127.0.0.1:1"), Topics(unique))) as reader,
        pytest.raises(UnreachableError, match=f"can't read topics of prefix {unique}"),
    ):
        reader.read()


def test_of_a_backlog_of_progress_some_of_every_part_is_kept(
    reader: ControlReader, kafka: KafkaBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the applied position moves steadily while a sink catches up, instead of standing still until the end."""
    monkeypatch.setattr(control_reader, "PENDING_MAX", 8)
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("customers", COLUMNS, ["id"])
    for lsn in range(1, 101):
        feed.progress(lsn)
    kept = [record.lsn for record in found(reader).progress]
    assert 8 <= len(kept) <= 17
    assert kept[-1] == 100 and kept == sorted(kept)
    assert max(later - earlier for earlier, later in pairwise([0, *kept])) <= 25
