"""How a task's pieces are written: one after the other, each decoded while the store takes the one before."""

import threading
from collections.abc import Sequence

import pytest

from cdc.model.events import pack_version
from sinks.contract import Change, Result
from sinks.errors import SinkError
from spark_jobs.reading import Piece
from spark_jobs.task_report import TaskReport
from spark_jobs.tasks import Limits, Share, TaskRunner
from tests.unit.spark_jobs.records import PARTITION, FakeReader, FakeTarget, Record, catalog, job, piece, upsert

SHORT = Limits(duration_s=0.02, idle_s=0.02, piece_bytes=1000)
FROM_START = Share({PARTITION: 0}, None)


def run(reader: FakeReader, target: FakeTarget) -> TaskReport:
    return TaskRunner(lambda _, __: target, lambda _, __: reader).run(FROM_START, job(), catalog(), SHORT)


class WaitingTarget(FakeTarget):
    """Takes its first piece until the second one was read."""

    def __init__(self) -> None:
        super().__init__()
        self.was_read = threading.Event()
        self.orders: list[list[int]] = []

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        assert self.was_read.wait(30), "the next piece is read while the store takes this one"
        self.orders.append([change.version for change in changes])
        return super().apply(changes)


class AnnouncingReader(FakeReader):
    def __init__(self, target: WaitingTarget, *pieces: Piece) -> None:
        super().__init__(*pieces)
        self.target = target

    def read(self, timeout_s: float, bytes_max: int) -> Piece:
        if len(self.pieces) == 1:
            self.target.was_read.set()
        return super().read(timeout_s, bytes_max)


def test_a_piece_is_read_while_the_store_takes_the_one_before_and_written_after_it() -> None:
    target = WaitingTarget()
    reader = AnnouncingReader(target, piece(upsert(0, 1, 1), is_full=True), piece(upsert(1, 1, 2)))
    report = run(reader, target)
    assert report.failure is None
    assert target.orders == [[pack_version(1, 1)], [pack_version(1, 2)]]
    assert (report.records, report.written, report.offsets) == (2, 2, {PARTITION: 2})


def test_a_piece_that_the_store_fails_to_take_is_not_counted_and_nothing_after_it_is_written() -> None:
    target = FakeTarget()
    target.error = SinkError("the store is away", "start it")
    report = run(FakeReader(piece(upsert(0, 1, 1), is_full=True), piece(upsert(1, 2, 2))), target)
    assert report.failure is not None and report.failure.message == "the store is away"
    assert (report.offsets, report.records, target.held) == ({}, 0, {})


def test_a_record_that_is_refused_does_not_hide_what_the_store_took_before() -> None:
    broken = Record(1, 2, 2, b"[]")
    report = run(FakeReader(piece(upsert(0, 1, 1), is_full=True), piece(broken)), FakeTarget())
    assert report.failure is not None and report.failure.kind == "RefusedError"
    assert (report.offsets, report.written) == ({PARTITION: 1}, 1)


class ParticularTarget(FakeTarget):
    """Can't convert the rows of some keys."""

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        for change in changes:
            if change.key["id"] in (2, 3, 7):
                raise TypeError(f"secret {change.row}")
        return super().apply(changes)


@pytest.mark.parametrize("count", [9, 2])
def test_a_value_that_the_store_s_client_can_t_convert_is_its_row_s_matter(count: int) -> None:
    target = ParticularTarget()
    report = run(FakeReader(piece(*(upsert(number, number + 1, number + 1) for number in range(count)))), target)
    assert report.failure is None and report.offsets == {PARTITION: count}
    bad = {2, 3, 7} & set(range(1, count + 1))
    assert target.held.keys() == set(range(1, count + 1)) - bad
    dead_letters = {
        dead_letter.key["id"]: dead_letter.reason for dead_letter in report.dead_letters.values() if dead_letter
    }
    assert dead_letters.keys() == bad
    assert all("TypeError in test_pieces.py, line" in reason for reason in dead_letters.values()), dead_letters
    assert "secret" not in str(dead_letters)
