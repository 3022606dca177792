"""One task on a scripted reader and a fake store: what it writes, how far it says it came, and what ends it."""

import sys
from copy import deepcopy

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.model.errors import UnreachableError
from cdc.model.events import TableId, pack_version
from sinks.errors import RefusedError, SinkError
from spark_jobs import tasks
from spark_jobs.reading import Piece
from spark_jobs.task_report import TaskFailure, TaskReport
from spark_jobs.tasks import Limits, Share, TaskRunner, import_modules
from tests.unit.spark_jobs.records import (
    PARTITION,
    TOPIC,
    FakeReader,
    FakeTarget,
    Record,
    catalog,
    job,
    piece,
    tombstone,
    upsert,
)

SHORT = Limits(duration_s=0.02, idle_s=0.02, piece_bytes=1000)
FROM_START = Share({PARTITION: 0}, None)


def run(
    *pieces: Piece,
    target: FakeTarget | None = None,
    share: Share = FROM_START,
    limits: Limits = SHORT,
    on_rejected: str = "dead_letter",
) -> TaskReport:
    store = target or FakeTarget()
    made = job(on_rejected=on_rejected)
    return TaskRunner(lambda _, __: store, lambda _, __: FakeReader(*pieces)).run(share, made, catalog(), limits)


def test_changes_are_reduced_written_and_counted() -> None:
    target = FakeTarget()
    report = run(piece(upsert(0, 1, 1), upsert(1, 1, 2), upsert(2, 2, 3)), piece(tombstone(5, 2, 4)), target=target)
    assert target.held == {1: pack_version(1, 2), 2: pack_version(1, 4)}
    assert (report.records, report.written, report.stale) == (4, 3, 1)
    assert report.offsets == {PARTITION: 6}
    assert report.tables == {TableId("public", "a")}
    assert report.failure is None and not report.is_behind


def test_the_end_of_a_partition_counts_with_the_markers_behind_its_last_record() -> None:
    assert run(piece(upsert(7, 1, 1), end=9)).offsets == {PARTITION: 9}
    assert run(piece(end=4)).offsets == {PARTITION: 4}


def test_a_task_with_ends_stops_there_and_not_at_its_time() -> None:
    patient = Limits(duration_s=60, idle_s=60, piece_bytes=1000)
    share = Share({PARTITION: 3}, {PARTITION: 5})
    report = run(piece(upsert(3, 1, 1)), piece(upsert(4, 1, 2)), piece(upsert(5, 1, 3)), share=share, limits=patient)
    assert report.offsets == {PARTITION: 5}


def test_a_task_stops_at_its_bytes() -> None:
    patient = Limits(duration_s=60, idle_s=60, piece_bytes=1000, task_bytes=1)
    report = run(piece(upsert(0, 1, 1)), piece(upsert(1, 1, 2)), limits=patient)
    assert report.offsets == {PARTITION: 1} and report.is_behind


class Driver:
    """Takes reports; tells the task to end after so many of them that have news."""

    def __init__(self, count: int) -> None:
        self.reports: list[TaskReport] = []
        self.count = count

    def take(self, report: TaskReport) -> bool:
        if report.has_progress:
            self.reports.append(deepcopy(report))
        return len(self.reports) < self.count


def test_a_task_reports_while_it_runs_and_each_thing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "REPORT_S", 0.0)
    patient = Limits(duration_s=0, idle_s=0, piece_bytes=1000, reporting_duration_s=60)
    reader, driver = FakeReader(piece(upsert(0, 1, 1)), piece(), piece(upsert(1, 2, 2), upsert(2, 2, 1))), Driver(2)
    runner = TaskRunner(lambda _, __: FakeTarget(), lambda _, __: reader)
    last = runner.run(FROM_START, job(), catalog(), patient, driver.take)
    assert [(r.offsets, r.records, r.written, r.stale) for r in driver.reports] == [
        ({PARTITION: 1}, 1, 1, 0),
        ({PARTITION: 3}, 2, 1, 1),
    ]
    assert (last.offsets, last.records) == ({}, 0)
    assert reader.is_resting


def test_what_a_driver_may_not_have_taken_is_reported_at_the_end_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "REPORT_S", 0.0)
    patient = Limits(duration_s=0, idle_s=0, piece_bytes=1000, reporting_duration_s=60)
    reader = FakeReader(piece(upsert(0, 1, 1)))
    runner = TaskRunner(lambda _, __: FakeTarget(), lambda _, __: reader)
    report = runner.run(FROM_START, job(), catalog(), patient, lambda _: None)
    assert (report.offsets, report.written) == ({PARTITION: 1}, 1)


def test_a_task_that_reports_ends_after_its_time_without_being_told() -> None:
    short = Limits(duration_s=60, idle_s=60, piece_bytes=1000, reporting_duration_s=0.02)
    reader = FakeReader(piece(upsert(0, 1, 1)))
    report = TaskRunner(lambda _, __: FakeTarget(), lambda _, __: reader).run(
        FROM_START, job(), catalog(), short, lambda _: True
    )
    assert report.offsets == {PARTITION: 1} and report.failure is None


def test_a_record_whose_schema_is_not_known_yet_ends_the_task_before_it() -> None:
    """Seen: partitions become readable independently, so a record was there before its schema, and the sink stopped for
    good."""
    target = FakeTarget()
    report = run(piece(upsert(0, 1, 1), upsert(1, 2, 2, schema_version=2), upsert(2, 3, 3), end=9), target=target)
    assert target.held == {1: pack_version(1, 1)}
    assert report.offsets == {PARTITION: 1}
    assert report.failure is None
    assert "schema version 2 of public.a" in report.unknown_schema


def test_a_row_that_the_store_can_never_take_is_named_without_its_key() -> None:
    report = run(
        piece(upsert(0, 1, 1)),
        piece(upsert(100, 5, 2), upsert(101, 777777, 3)),
        target=FakeTarget(refused=777777),
        on_rejected="stop",
    )
    assert report.failure is not None
    error = report.failure.error()
    assert isinstance(error, RefusedError)
    for part in ("public.a", "column id: too odd", "shop.public.a, partition 0, offset 101", "digest"):
        assert part in str(error)
    assert "777777" not in str(error)
    assert report.offsets == {PARTITION: 1}, "what was written before it"


def test_a_row_that_the_store_can_never_take_is_a_dead_letter_and_the_others_go_on() -> None:
    target = FakeTarget(refused=7)
    report = run(piece(upsert(0, 1, 1), upsert(100, 7, 2), upsert(101, 3, 3)), target=target)
    assert report.failure is None
    assert target.held == {1: pack_version(1, 1), 3: pack_version(1, 3)}
    assert (report.records, report.written, report.stale, report.offsets) == (3, 2, 0, {PARTITION: 102})
    dead_letter = report.dead_letters["1/public.a/7"]
    assert dead_letter is not None
    assert (dead_letter.table, dead_letter.key, dead_letter.version) == (
        TableId("public", "a"),
        {"id": 7},
        pack_version(1, 2),
    )
    assert (dead_letter.reason, dead_letter.topic, dead_letter.partition, dead_letter.offset) == (
        "column id: too odd",
        "shop.public.a",
        0,
        100,
    )
    assert dead_letter.row is None


def test_a_later_version_that_the_store_takes_closes_the_letter() -> None:
    target = FakeTarget(refused=7)
    open_dead_letters = {
        "1/public.a/1": pack_version(1, 5),
        "1/public.a/2": pack_version(1, 5),
        "1/public.a/7": pack_version(1, 5),
    }
    share = Share({PARTITION: 0}, None, open_dead_letters)
    report = run(
        piece(upsert(0, 1, 4), upsert(1, 2, 6), upsert(2, 7, 6), upsert(3, 9, 9)),
        piece(tombstone(4, 7, 8)),
        target=target,
        share=share,
    )
    assert report.dead_letters.keys() == {"1/public.a/2", "1/public.a/7"}, "an older version closes nothing"
    assert report.dead_letters["1/public.a/2"] is None
    assert report.dead_letters["1/public.a/7"] is not None, "the store still rejects it"
    target.refused = None
    assert run(piece(tombstone(4, 7, 8)), target=target, share=share).dead_letters == {"1/public.a/7": None}


@pytest.mark.parametrize("value", [b"not json", b'{"op":"c"}', b'{"op":"x","source":{}}'])
def test_a_record_that_capture_did_not_write_is_refused(value: bytes) -> None:
    report = run(piece(Record(100, 1, 1, value)))
    assert report.failure is not None
    assert report.failure.kind == "RefusedError"
    assert "record at shop.public.a, partition 0, offset 100" in report.failure.message


def test_after_a_failure_connections_are_made_again() -> None:
    readers, targets = [FakeReader(piece(upsert(0, 1, 1))), FakeReader()], [FakeTarget(), FakeTarget()]
    targets[0].error = SinkError("the store is away", "wait")
    waiting = list(zip(readers, targets, strict=True))
    runner = TaskRunner(lambda _, __: waiting[0][1], lambda _, __: waiting[0][0])
    report = runner.run(FROM_START, job(), catalog(), SHORT)
    assert report.failure == TaskFailure("SinkError", "the store is away", "wait")
    assert report.offsets == {} and readers[0].is_closed and targets[0].is_closed
    waiting.pop(0)
    assert runner.run(FROM_START, job(), catalog(), SHORT).failure is None
    assert readers[1].sought == [{PARTITION: 0}]


def test_a_topic_that_was_created_again_is_read_by_another_consumer() -> None:
    """Seen on real servers: brokers had restarted, a topic was created again, and its consumer, which was kept from
    before, repeated a request with the former topic's leader epoch for ever: the table was not read any more."""
    opened: list[FakeReader] = []

    def open_reader(*_: object) -> FakeReader:
        opened.append(FakeReader())
        return opened[-1]

    runner = TaskRunner(lambda _, __: FakeTarget(), open_reader)
    for topic_ids, count in (({TOPIC: "x"}, 1), ({TOPIC: "x", "b": "y"}, 1), ({"b": "y"}, 1), ({"b": "z"}, 2)):
        runner.run(Share({PARTITION: 0}, None, topic_ids=topic_ids), job(), catalog(), SHORT)
        assert len(opened) == count, topic_ids
    assert [reader.is_closed for reader in opened] == [True, False]


def test_the_brokers_errors_are_part_of_the_report() -> None:
    class Broken(FakeReader):
        def read(self, timeout_s: float, bytes_max: int) -> Piece:
            del timeout_s, bytes_max
            raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))

    report = TaskRunner(lambda _, __: FakeTarget(), lambda _, __: Broken()).run(FROM_START, job(), catalog(), SHORT)
    assert report.failure is not None
    assert isinstance(report.failure.error(), UnreachableError)


def test_a_store_is_opened_once_for_each_catalog_and_generation() -> None:
    opened: list[FakeTarget] = []

    def open_target(*_: object) -> FakeTarget:
        opened.append(FakeTarget())
        return opened[-1]

    runner = TaskRunner(open_target, lambda _, __: FakeReader())
    for generation, name, count in ((1, "first", 1), (1, "first", 1), (1, "second", 2), (2, "second", 3)):
        runner.run(FROM_START, job(generation), catalog(name=name), SHORT)
        assert len(opened) == count
    assert [target.is_closed for target in opened] == [True, True, False]


def test_a_worker_imports_what_is_there_and_does_not_mind_what_is_missing() -> None:
    sys.modules.pop("colorsys", None)
    import_modules(["no_such_module", "colorsys"], 0)
    assert "colorsys" in sys.modules
