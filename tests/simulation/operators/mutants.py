"""Defects that were seen, put back one by one, to see that the oracles notice."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final
from unittest import mock

from cdc.model.control import ProgressRecord, SweepRecord, table_key
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.tables import continuity
from spark_jobs import serving
from spark_jobs.applied import AppliedPosition
from spark_jobs.dead_letters import OpenDeadLetters
from spark_jobs.live_reports import LiveReports
from spark_jobs.publishing import DeadLetterUpkeep, Publisher
from spark_jobs.serving import ServingThread
from spark_jobs.source.topic_ends import TopicEnds
from spark_jobs.sync import ControlFollower
from spark_jobs.sync_state import SyncState
from tests.simulation.operators import capture as model
from tests.simulation.operators import judge
from tests.simulation.operators.capture import Capture
from tests.simulation.operators.state import Snapshot
from tests.simulation.operators.store import FakeSink
from tests.support.published_start import begins_where_it_published
from watershed.client import applied

Mutant = Callable[[], AbstractContextManager[Any]]


def replaced(owner: Any, name: str, by: Any) -> Mutant:
    return lambda: mock.patch.object(owner, name, by)


@contextmanager
def _offsets_without_incarnations() -> Iterator[None]:
    def identify(position: AppliedPosition, newest: ProgressRecord) -> None:
        position.history = newest.history or position.history
        position.incarnations |= newest.incarnations

    with (
        mock.patch.object(AppliedPosition, "_identify", identify),
        mock.patch.object(AppliedPosition, "_is_of_these_topics", lambda *_: True),
        mock.patch.object(AppliedPosition, "check_topic", lambda *_: None),
    ):
        yield


def _disowns_nothing(_: FakeSink, __: TableId) -> None:
    """The rows keep the versions that they had in the former topics."""


@contextmanager
def _partitions_counted_once() -> Iterator[None]:
    described = TopicEnds._described

    def known(ends: TopicEnds) -> Mapping[str, Any]:
        counts: dict[str, int] = ends.__dict__.setdefault("counts", {})
        return {
            topic: (identity, counts.setdefault(topic, count)) for topic, (identity, count) in described(ends).items()
        }

    with mock.patch.object(TopicEnds, "_described", known):
        yield


@contextmanager
def _former_rows_of_later_tables() -> Iterator[None]:
    with (
        mock.patch.object(serving, "never_held", lambda *_: []),
        mock.patch.object(ControlFollower, "_reset_new_tables", lambda *_: None),
    ):
        yield


def _forgets_letters(reports: LiveReports, letters: Any, offsets: Any) -> None:
    """Offsets are committed although the brokers did not take the letters."""
    with suppress(WatershedError):
        reports._dead_letters.publish(letters)
    reports._group.commit(offsets)


@contextmanager
def _begins_at_former_offsets() -> Iterator[None]:
    """Also where the topic that exists now has no records at them yet."""
    with _offsets_without_incarnations(), mock.patch.object(SyncState, "give_up_lost", lambda *_: None):
        yield


@contextmanager
def _continues_where_it_published() -> Iterator[None]:
    """At a start, the position that was published last counts, not the one that the store holds."""
    save = FakeSink.save_position
    with (
        mock.patch.object(Publisher, "check_store", lambda _: None),
        mock.patch.object(FakeSink, "save_position", lambda sink, text, _: save(sink, text, None)),
        mock.patch.object(ServingThread, "_begin", begins_where_it_published(BEGIN)),
    ):
        yield


def _publishes_before_it_shows(publisher: Publisher) -> None:
    with publisher.state.lock:
        publisher.state.position.mark_readable(dict(publisher.state.position.written))


def _misses_sweeps(position: AppliedPosition, sweep: SweepRecord) -> None:
    if position.sweeps.get(table_key(sweep.table), 0) < sweep.floor:
        position._unfinished[table_key(sweep.table), sweep.floor] = sweep


def _asks_only_for_the_lsn(target: Any, sink: str, positions: Any) -> str | None:
    return None if applied.is_reached(target, sink, positions) else "not there"


def _trusts_an_older_copy(capture: Capture, epoch: int, *, continues: bool) -> None:
    del continues
    BEGIN_EPOCH(capture, epoch, continues=True)


def _takes_the_last_record(letters: OpenDeadLetters, message: Any) -> None:
    letters._own.clear()
    letters.versions.pop((message.key() or b"").decode(), None)
    ADD(letters, message)


ADD: Final = OpenDeadLetters.add
BEGIN: Final = ServingThread._begin
BEGIN_EPOCH: Final = Capture._begin_epoch

MUTANTS: dict[str, Mutant] = {
    "1: capture keeps a topic's incarnation": replaced(model, "incarnation_of", lambda *_, **__: ""),
    "1: capture overlooks that a topic has lost records": replaced(continuity, "loss_of", lambda *_: ""),
    "1: compares a table with a topic that may have lost records": replaced(
        model, "intact_topics", lambda states, *_: frozenset(states)
    ),
    "1: notes offsets without the topic's incarnation": _offsets_without_incarnations,
    "1: begins at former offsets": _begins_at_former_offsets,
    "2: capture goes on with a state that is an older copy": replaced(Capture, "_begin_epoch", _trusts_an_older_copy),
    "2: continues a store of another history": replaced(
        serving, "continued", lambda marker, noted, _: noted if noted and noted.generation == marker else None
    ),
    "2: lets rows of a former history win": replaced(FakeSink, "reset_versions", _disowns_nothing),
    "2: lets former rows of a table win that joins later": _former_rows_of_later_tables,
    "3: takes a part of a table for all of it": replaced(Snapshot, "is_whole", property(lambda _: True)),
    "4: capture says only later what a stop owes": replaced(Capture, "_newly_owed", lambda *_: []),
    "4: answers whatever is owed": replaced(judge, "obstacle", _asks_only_for_the_lsn),
    "4: does not pass on what is owed": replaced(AppliedPosition, "owed", property(lambda _: {})),
    "4: misses a sweep that compaction removed": replaced(AppliedPosition, "_learn_sweep", _misses_sweeps),
    "5: publishes before the refresh": replaced(Publisher, "make_readable", _publishes_before_it_shows),
    "5: forgets letters that were not published": replaced(LiveReports, "_publish", _forgets_letters),
    "5: publishes before it has read the letters": replaced(DeadLetterUpkeep, "read_written", lambda _: None),
    "5: takes what a late task says of a letter": replaced(OpenDeadLetters, "add", _takes_the_last_record),
    "5: leaves letters below a finished sweep": replaced(DeadLetterUpkeep, "close_late", lambda *_: None),
    "6: counts partitions once": _partitions_counted_once,
    "7: answers although a lost write had closed a dead letter": replaced(
        serving, "with_writes_owed", lambda last, _: last
    ),
    "7: does not look at the store again": replaced(Publisher, "check_store", lambda _: None),
    "7: continues where it has published": _continues_where_it_published,
    "8: writes serving rows with the new mapping": replaced(
        ServingThread, "_opener", lambda worker, _: worker._open_sink
    ),
}

FOUND_AT: Final = {
    "1: capture keeps a topic's incarnation": 80,
    "1: capture overlooks that a topic has lost records": 38,
    "1: compares a table with a topic that may have lost records": 302,
    "2: capture goes on with a state that is an older copy": 578,
    "2: continues a store of another history": 48,
    "2: lets rows of a former history win": 48,
    "2: lets former rows of a table win that joins later": 25008,
    "3: takes a part of a table for all of it": 493,
    "4: capture says only later what a stop owes": 926,
    "4: does not pass on what is owed": 58,
    "4: misses a sweep that compaction removed": 56,
    "5: forgets letters that were not published": 218,
    "5: takes what a late task says of a letter": 490,
    "5: leaves letters below a finished sweep": 384,
    "6: counts partitions once": 85,
    "7: answers although a lost write had closed a dead letter": 22769,
    "7: does not look at the store again": 100,
    "7: continues where it has published": 26,
    "8: writes serving rows with the new mapping": 47,
}
"""The first seed that finds the mutant, which is tried first."""
