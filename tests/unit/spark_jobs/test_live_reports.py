"""Reports of a running task: in which order they are published, and what happens when they can't be."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.kafka.daemon_thread import start_thread
from cdc.model.errors import UnreachableError
from spark_jobs import live_reports
from spark_jobs.kept import KeptClients
from spark_jobs.live_reports import DEAD_LETTERS_PENDING_MAX, TRIES_MAX, LiveReports
from spark_jobs.rejections import DeadLetterUpdates
from spark_jobs.source.group import Reached, TaskCounts
from spark_jobs.source.reading import Partition
from spark_jobs.task_report import TaskReport
from tests.support.waiting import eventually
from tests.unit.spark_jobs.records import OTHER, PARTITION, job

AWAY = UnreachableError("the brokers are away", "wait")
WAIT_S = 30.0
MOMENT_S = 0.2  # in which something would happen that must not


class FakeBrokers:
    """A group and a topic of dead letters, which say in `calls` what was published, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.committed: list[dict[Partition, Reached]] = []
        self.errors: list[Exception] = []  # of the next calls
        self.commit_errors: list[Exception] = []
        self.are_open = threading.Event()  # otherwise calls wait
        self.are_open.set()
        self.is_asked = threading.Event()

    def publish(self, dead_letters: DeadLetterUpdates) -> None:
        self._begin()
        self.calls.append(f"letters {' '.join(sorted(dead_letters))}".strip())

    def commit(self, reached: Mapping[Partition, Reached]) -> None:
        self._begin()
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        self.calls.append(f"offsets {' '.join(f'{place.number}:{found.offset}' for place, found in reached.items())}")
        self.committed.append(dict(reached))

    def _begin(self) -> None:
        self.is_asked.set()
        assert self.are_open.wait(WAIT_S)
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBrokers]:
    brokers = FakeBrokers()
    kept: KeptClients[Any] = KeptClients()
    kept.keep("search", 1, SimpleNamespace(group=brokers, dead_letters=brokers))
    monkeypatch.setattr(live_reports, "_clients", kept)
    monkeypatch.setattr(live_reports, "PAUSE_S", 0.001)
    monkeypatch.setattr(live_reports, "COMMIT_S_MIN", 0.001)
    yield brokers
    brokers.are_open.set()


def opened() -> AbstractContextManager[LiveReports]:
    return LiveReports.opened(job(), "3-m-1", 5)


def letters(*numbers: int) -> DeadLetterUpdates:
    return {f"1/public.a/{number}": None for number in numbers}


def test_dead_letters_are_published_before_offsets_that_cover_their_records(brokers: FakeBrokers) -> None:
    report = TaskReport({PARTITION: 3, OTHER: 0}, {PARTITION: 9, OTHER: 4}, 6, 4, 1, 0.0126, is_behind=True)
    report.dead_letters = letters(1, 2)
    with opened() as reports:
        reports.finish(report)
    assert brokers.calls == ["letters 1/public.a/1 1/public.a/2", "offsets 0:9 1:4"]
    counts = TaskCounts(6, 4, 1, 13)
    assert brokers.committed == [
        {
            PARTITION: Reached("3-m-1", 5, 3, 9, is_behind=True, counts=counts, is_over=True),
            OTHER: Reached("3-m-1", 5, 0, 4, is_behind=True, counts=counts, is_over=True),
        }
    ]
    assert report.dead_letters == {}, "they are the reports' matter now, and not the driver's again"


def test_only_offsets_that_have_changed_are_committed(brokers: FakeBrokers) -> None:
    with opened() as reports:
        for end in (4, 5, 5):
            reports.send(TaskReport(end_offsets={PARTITION: 9, OTHER: end}))
            eventually(lambda: not reports._offsets and not reports._is_publishing, WAIT_S, "it is published")
    assert brokers.calls == ["letters", "offsets 0:9 1:4", "letters", "offsets 1:5"]


def test_the_end_of_a_task_is_committed_though_no_offset_has_changed(brokers: FakeBrokers) -> None:
    with opened() as reports:
        for _ in range(2):
            reports.finish(TaskReport(end_offsets={PARTITION: 9}))
    assert [found[PARTITION].is_over for found in brokers.committed] == [True, True]


def test_what_comes_while_a_report_is_published_is_published_together_after_it(brokers: FakeBrokers) -> None:
    brokers.are_open.clear()
    with opened() as reports:
        reports.send(TaskReport(end_offsets={PARTITION: 1}))
        assert brokers.is_asked.wait(WAIT_S)
        for end in (2, 3):
            reports.send(TaskReport(end_offsets={PARTITION: end, OTHER: 7}, dead_letters=letters(end)))
        brokers.are_open.set()
        reports.finish(TaskReport(end_offsets={PARTITION: 3, OTHER: 7}))
    assert brokers.calls == ["letters", "offsets 0:1", "letters 1/public.a/2 1/public.a/3", "offsets 0:3 1:7"]


def test_offsets_are_committed_with_a_pause_between_unless_the_task_ends(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is reported, 50 times a second: a commit for each would cost the brokers more than the records."""
    monkeypatch.setattr(live_reports, "COMMIT_S_MIN", 10 * WAIT_S)
    with opened() as reports:
        reports.send(TaskReport(end_offsets={PARTITION: 1}))
        eventually(lambda: brokers.calls[-1:] == ["offsets 0:1"], WAIT_S, "the first one is committed at once")
        for end in (2, 3):
            reports.send(TaskReport(end_offsets={PARTITION: end}))
        finishing = start_thread(lambda: reports.finish(TaskReport(end_offsets={PARTITION: 4})))
        finishing.result(WAIT_S)
    assert brokers.calls == ["letters", "offsets 0:1", "letters", "offsets 0:4"]


def test_finish_waits_until_all_is_published(brokers: FakeBrokers) -> None:
    brokers.are_open.clear()
    with opened() as reports:
        reports.send(TaskReport(end_offsets={PARTITION: 1}))
        assert brokers.is_asked.wait(WAIT_S)
        finishing = start_thread(lambda: reports.finish(TaskReport(end_offsets={PARTITION: 1})))
        assert wait([finishing], MOMENT_S).not_done and brokers.calls == []
        brokers.are_open.set()
        finishing.result(WAIT_S)
    assert brokers.calls == ["letters", "offsets 0:1", "letters", "offsets 0:1"], "the second says that it is over"


def test_a_failure_is_tried_again(brokers: FakeBrokers) -> None:
    brokers.errors = [AWAY] * (TRIES_MAX - 1)
    with opened() as reports:
        reports.finish(TaskReport(end_offsets={PARTITION: 1}, dead_letters=letters(1)))
    assert brokers.calls == ["letters 1/public.a/1", "offsets 0:1"]


def test_an_offset_that_can_t_be_committed_is_tried_again_with_its_dead_letters(brokers: FakeBrokers) -> None:
    """Repeated letters do no harm; an offset without them would."""
    brokers.commit_errors = [AWAY]
    with opened() as reports:
        reports.finish(TaskReport(end_offsets={PARTITION: 1}, dead_letters=letters(1)))
    assert brokers.calls == ["letters 1/public.a/1", "letters 1/public.a/1", "offsets 0:1"]


@pytest.mark.parametrize("error", [AWAY, ValueError("a defect")])
def test_a_failure_that_lasts_is_raised_and_nothing_more_is_published(brokers: FakeBrokers, error: Exception) -> None:
    """Whatever was raised: a task that waits for a thread which has ended would hang."""
    brokers.errors = [error] * TRIES_MAX
    with opened() as reports:
        finishing = start_thread(lambda: reports.finish(TaskReport(end_offsets={PARTITION: 1})))
        assert finishing.exception(WAIT_S) is error
        with pytest.raises(type(error)):
            reports.send(TaskReport(end_offsets={PARTITION: 2}))
    assert brokers.calls == []


def test_a_task_waits_while_too_many_dead_letters_are_pending(brokers: FakeBrokers) -> None:
    brokers.are_open.clear()
    with opened() as reports:
        reports.send(TaskReport(end_offsets={PARTITION: 1}))
        assert brokers.is_asked.wait(WAIT_S)
        many = letters(*range(DEAD_LETTERS_PENDING_MAX))
        reports.send(TaskReport(end_offsets={PARTITION: 2}, dead_letters=many))
        sending = start_thread(lambda: reports.send(TaskReport(end_offsets={PARTITION: 3}, dead_letters=letters(-1))))
        assert wait([sending], MOMENT_S).not_done
        brokers.are_open.set()
        sending.result(WAIT_S)


def test_a_task_that_waits_goes_on_when_the_report_fails(brokers: FakeBrokers) -> None:
    brokers.are_open.clear()
    brokers.errors = [AWAY] * TRIES_MAX
    with opened() as reports:
        reports.send(TaskReport(end_offsets={PARTITION: 1}))
        assert brokers.is_asked.wait(WAIT_S)
        many = letters(*range(DEAD_LETTERS_PENDING_MAX + 1))
        sending = start_thread(lambda: reports.send(TaskReport(end_offsets={PARTITION: 2}, dead_letters=many)))
        brokers.are_open.set()
        wait([sending], WAIT_S)
        with pytest.raises(UnreachableError):
            reports.finish(TaskReport())


def test_a_task_that_fails_does_not_wait_for_brokers_that_are_away(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_reports, "PAUSE_S", WAIT_S)
    brokers.errors = [AWAY] * TRIES_MAX

    def fail() -> None:
        with opened() as reports:
            reports.send(TaskReport(end_offsets={PARTITION: 1}))
            assert brokers.is_asked.wait(WAIT_S)
            raise KeyError("the store's error")

    assert isinstance(start_thread(fail).exception(WAIT_S / 2), KeyError)
