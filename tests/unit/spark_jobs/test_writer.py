"""One task's writer on a fake store: what it writes, what it reports, and what ends it."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from types import SimpleNamespace
from typing import Self

import pyarrow as pa
import pytest

from cdc.model.errors import UnreachableError, WatershedError
from cdc.model.events import TableId, pack_version
from cdc.model.rejected_rows import RejectedRow
from sinks.contract import Change, Result, SourceOperation
from sinks.errors import RefusedError, SinkError
from spark_jobs import writer
from spark_jobs.live_reports import LiveReports
from spark_jobs.rejections import Accepted
from spark_jobs.source.piece import EMPTY, Piece, piece_of, to_row
from spark_jobs.source.reading import Fetched
from spark_jobs.task_errors import TaskError, error_of_task
from spark_jobs.task_report import SchemaCatalog, SinkTaskConfig, TaskReport
from spark_jobs.writer import StoreWriter, write_pieces
from tests.unit.spark_jobs.records import (
    AT_MS,
    OTHER,
    PARTITION,
    FakeTarget,
    Record,
    catalog,
    fetched,
    job,
    piece,
    tombstone,
    upsert,
)


@pytest.fixture(autouse=True)
def new_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process that keeps nothing yet."""
    monkeypatch.setattr(writer, "_kept", writer._Kept())


def store_writer(
    target: FakeTarget | Callable[[SinkTaskConfig, SchemaCatalog], FakeTarget] | None = None,
    *,
    on_rejected: str = "dead_letter",
    is_live: bool = False,
    open_dead_letters: dict[str, int] | None = None,
    generation: int = 1,
    name: str = "first",
) -> StoreWriter:
    store = target or FakeTarget()
    opener = (lambda _, __: store) if isinstance(store, FakeTarget) else store
    made = job(generation, on_rejected=on_rejected)
    return StoreWriter(made, catalog(name=name), opener, "3-m-1", is_live, open_dead_letters or {})


def write(
    *pieces: Piece, target: FakeTarget | None = None, open_dead_letters: dict[str, int] | None = None
) -> TaskReport:
    return write_pieces(store_writer(target, open_dead_letters=open_dead_letters), pieces, 0)


def error_of(*pieces: Piece, target: FakeTarget | None = None, on_rejected: str = "dead_letter") -> WatershedError:
    """The error with which the task ends, as the driver gets it."""
    with pytest.raises(TaskError) as caught:
        write_pieces(store_writer(target, on_rejected=on_rejected), pieces, 0)
    error = error_of_task(RuntimeError(str(caught.value)))
    assert error is not None
    return error


def test_changes_are_reduced_written_and_counted() -> None:
    target = FakeTarget()
    report = write(piece(upsert(0, 1, 1), upsert(1, 1, 2), upsert(2, 2, 3)), piece(tombstone(5, 2, 4)), target=target)
    assert target.held == {1: pack_version(1, 2), 2: pack_version(1, 4)}
    assert (report.records, report.written, report.stale) == (4, 3, 1)
    assert (report.start_offsets, report.end_offsets) == ({PARTITION: 0}, {PARTITION: 6})
    assert report.write_s > 0
    assert not report.is_behind


def test_the_end_of_a_partition_counts_with_the_markers_behind_its_last_record() -> None:
    assert write(piece(upsert(7, 1, 1), end=9, begin=5)).end_offsets == {PARTITION: 9}
    report = write(piece(end=4, begin=3))
    assert (report.start_offsets, report.end_offsets, report.records) == ({PARTITION: 3}, {PARTITION: 4}, 0)


def test_each_partition_has_its_own_begin_and_end() -> None:
    read = piece_of(fetched(upsert(10, 1, 1), upsert(20, 2, 2, partition=1)), {PARTITION: 10, OTHER: 15})
    report = write(read)
    assert report.start_offsets == {PARTITION: 10, OTHER: 15}
    assert report.end_offsets == {PARTITION: 11, OTHER: 21}


def test_a_task_is_behind_while_its_last_piece_was_full() -> None:
    full, other = piece(upsert(0, 1, 1), is_full=True), piece(upsert(1, 1, 2))
    assert write(other, full).is_behind and not write(full, other).is_behind


def test_partitions_that_are_not_read_on_are_reported_with_the_reason() -> None:
    gone = piece_of(Fetched([], {}, is_full=False, lost={PARTITION: "the topic was deleted"}), {PARTITION: 0})
    report = write(piece(upsert(0, 1, 1)), gone)
    assert report.lost == {PARTITION: "the topic was deleted"} and report.end_offsets == {PARTITION: 1}


def test_a_tombstone_has_the_version_of_its_header_and_the_time_of_its_record() -> None:
    """Compaction may have removed the delete before it."""
    changes: list[Change] = []

    class Keeping(FakeTarget):
        def apply(self, given: Sequence[Change]) -> list[Result]:
            changes.extend(given)
            return super().apply(given)

    write(piece(tombstone(0, 1, 7)), target=Keeping())
    (change,) = changes
    assert (change.version, change.row) == (pack_version(1, 7), None)
    assert change.origin == SourceOperation("d", AT_MS * 1000)


def test_a_record_whose_schema_is_not_known_yet_ends_its_partition_before_it() -> None:
    """Seen: partitions become readable independently, so a record was there before its schema, and the sink stopped for
    good."""
    target = FakeTarget()
    report = write(
        piece(upsert(0, 1, 1), upsert(1, 2, 2, schema_version=2), upsert(2, 3, 3), upsert(7, 4, 4, partition=1), end=9),
        piece(upsert(9, 5, 5), upsert(8, 6, 6, partition=1)),
        target=target,
    )
    assert target.held == {1: pack_version(1, 1), 4: pack_version(1, 4), 6: pack_version(1, 6)}
    assert report.end_offsets == {PARTITION: 1, OTHER: 9}
    assert report.records == 3
    (blocked,) = report.blocked.values()
    assert "schema version 2 of public.a" in blocked.reason and blocked.may_follow


def test_a_row_that_the_store_can_never_take_is_named_without_its_key() -> None:
    target = FakeTarget(refused=777777)
    error = error_of(
        piece(upsert(0, 1, 1)), piece(upsert(100, 5, 2), upsert(101, 777777, 3)), target=target, on_rejected="stop"
    )
    assert isinstance(error, RefusedError)
    for part in ("public.a", "column id: too odd", "shop.public.a, partition 0, offset 101", "digest"):
        assert part in str(error)
    assert "777777" not in str(error)


def test_a_row_that_the_store_can_never_take_is_a_dead_letter_and_the_others_go_on() -> None:
    target = FakeTarget(refused=7)
    report = write(piece(upsert(0, 1, 1), upsert(100, 7, 2), upsert(101, 3, 3)), target=target)
    assert target.held == {1: pack_version(1, 1), 3: pack_version(1, 3)}
    assert (report.records, report.written, report.stale, report.end_offsets) == (3, 2, 0, {PARTITION: 102})
    dead_letter = report.dead_letters["1/public.a/7"]
    assert isinstance(dead_letter, RejectedRow)
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


def test_a_later_version_that_the_store_takes_closes_the_dead_letter() -> None:
    target = FakeTarget(refused=7)
    open_dead_letters = {f"1/public.a/{key}": pack_version(1, 5) for key in (1, 2, 7)}
    report = write(
        piece(upsert(0, 1, 4), upsert(1, 2, 6), upsert(2, 7, 6), upsert(3, 9, 9)),
        piece(tombstone(4, 7, 8)),
        target=target,
        open_dead_letters=open_dead_letters,
    )
    assert report.dead_letters.keys() == {"1/public.a/2", "1/public.a/7"}, "an older version closes nothing"
    assert report.dead_letters["1/public.a/2"] == Accepted(pack_version(1, 6))
    assert isinstance(report.dead_letters["1/public.a/7"], RejectedRow), "the store still rejects it"
    target.refused = None
    again = store_writer(target, open_dead_letters=open_dead_letters, name="second")
    assert write_pieces(again, [piece(tombstone(4, 7, 8))], 0).dead_letters == {
        "1/public.a/7": Accepted(pack_version(1, 8))
    }


@pytest.mark.parametrize("value", [b"not json", b'{"op":"c"}', b'{"op":"x","source":{}}'])
def test_a_record_that_capture_did_not_write_ends_its_partition_before_it(value: bytes) -> None:
    """Seen: it stopped the sink for good, with all its tables."""
    target = FakeTarget()
    report = write(piece(upsert(99, 1, 1), Record(100, 2, 1, value), upsert(101, 3, 3), begin=99), target=target)
    assert target.held == {1: pack_version(1, 1)} and report.end_offsets[PARTITION] == 100
    blocked = report.blocked[PARTITION]
    assert (blocked.offset, blocked.may_follow) == (100, False)
    assert "record at shop.public.a, partition 0, offset 100" in blocked.reason


def test_a_store_that_fails_is_opened_again_and_its_error_reaches_the_driver() -> None:
    targets = [FakeTarget(), FakeTarget()]
    targets[0].error = SinkError("the store is away", "wait")
    waiting = list(targets)
    made = store_writer(lambda _, __: waiting.pop(0))
    with pytest.raises(TaskError) as caught:
        write_pieces(made, [piece(upsert(0, 1, 1)), piece(upsert(1, 2, 2))], 0)
    error = error_of_task(caught.value)
    assert (type(error), error and error.message, error and error.hint) == (SinkError, "the store is away", "wait")
    assert targets[0].is_closed and targets[0].held == {}
    assert write_pieces(made, [piece(upsert(0, 1, 1))], 0).written == 1
    assert targets[1].held == {1: pack_version(1, 1)} and not targets[1].is_closed


def test_a_store_that_can_t_be_opened_is_an_error_of_the_task() -> None:
    def refuse(*_: object) -> FakeTarget:
        raise UnreachableError("no answer", "start it")

    with pytest.raises(TaskError, match="no answer"):
        write_pieces(store_writer(refuse), [], 0)


def test_a_store_is_opened_once_for_each_catalog_and_generation() -> None:
    opened: list[FakeTarget] = []

    def open_target(*_: object) -> FakeTarget:
        opened.append(FakeTarget())
        return opened[-1]

    for generation, name, count in ((1, "first", 1), (1, "first", 1), (1, "second", 2), (2, "second", 3)):
        write_pieces(store_writer(open_target, generation=generation, name=name), [], 0)
        assert len(opened) == count
    assert [target.is_closed for target in opened] == [True, True, False]


def test_what_a_target_has_staged_is_part_of_the_report() -> None:
    class Staging(FakeTarget):
        def finish(self) -> tuple[str, ...]:
            return ("a file",) if self.held else ()

    assert write(piece(upsert(0, 1, 1)), target=Staging()).staged == ("a file",)


def test_the_report_is_the_only_row_that_spark_gets() -> None:
    rows = store_writer()(iter([to_row(piece(upsert(0, 1, 1))), to_row(EMPTY), to_row(piece(upsert(1, 1, 2)))]))
    (row,) = rows
    assert row.schema == pa.schema([("report", pa.binary())])
    (report,) = row.column("report").to_pylist()
    assert pickle.loads(report).end_offsets == {PARTITION: 2}  # noqa: S301 - made above


class KeptReports:
    """Implements spark_jobs.live_reports.LiveReports."""

    def __init__(self) -> None:
        self.sent: list[TaskReport] = []
        self.last: TaskReport | None = None
        self.error: WatershedError | None = None
        self.opened_for: tuple[str, int] | None = None
        self.is_closed = False

    def send(self, report: TaskReport) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(deepcopy(report))

    def finish(self, report: TaskReport) -> None:
        self.last = deepcopy(report)

    @contextmanager
    def opened(self, _: SinkTaskConfig, batch: str, task: int) -> Iterator[Self]:
        self.opened_for = batch, task
        try:
            yield self
        finally:
            self.is_closed = True


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> KeptReports:
    kept = KeptReports()
    monkeypatch.setattr(LiveReports, "opened", kept.opened)
    return kept


def test_a_live_task_reports_what_is_in_the_store_when_no_records_follow(reports: KeptReports) -> None:
    target = FakeTarget()

    def pieces() -> Iterator[Piece]:
        yield piece(upsert(0, 1, 1))
        yield EMPTY
        assert target.held == {1: pack_version(1, 1)}
        assert reports.sent[-1].end_offsets == {PARTITION: 1} and reports.sent[-1].written == 1
        yield piece(upsert(1, 2, 2))

    report = write_pieces(store_writer(target, is_live=True), pieces(), 5)
    assert reports.opened_for == ("3-m-1", 5) and reports.is_closed
    assert reports.last == report and report.end_offsets == {PARTITION: 2}


def test_a_live_task_that_is_behind_reports_now_and_then(reports: KeptReports, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: now))

    def pieces() -> Iterator[Piece]:
        nonlocal now
        for number in range(30):
            now += writer.REPORT_S / 10
            yield piece(upsert(number, number, number + 1), is_full=True)

    write_pieces(store_writer(is_live=True), pieces(), 0)
    assert 2 <= len(reports.sent) <= 4
    assert all(report.is_behind for report in reports.sent)


def test_a_report_that_can_t_be_published_ends_the_task(reports: KeptReports) -> None:
    reports.error = UnreachableError("the brokers are away", "wait")
    target = FakeTarget()
    with pytest.raises(TaskError, match="the brokers are away"):
        write_pieces(store_writer(target, is_live=True), [piece(upsert(0, 1, 1))], 0)
    assert reports.is_closed and target.is_closed
