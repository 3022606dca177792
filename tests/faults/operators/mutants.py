"""Defects that were seen, put back one by one into the processes of an episode, to see that the campaign finds them.

See process.py. The same is put into the processes of capture, of the job's driver, and of Spark's planners and
workers (workers/sitecustomize.py).
"""

import random
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from cdc.model.control import ProgressRecord, SignalRecord, SnapshotRecord, SweepRecord, table_key
from cdc.model.errors import BrokerError
from cdc.model.events import TableId
from cdc.model.topic_record import TopicRecord
from cdc.snapshots.chunk_engine import SnapshotEngine
from cdc.snapshots.coordination import Snapshots
from cdc.snapshots.jobs import SnapshotJob
from sinks.cache.saved_position import SavedPosition
from sinks.cache.sink import CacheSink
from sinks.errors import SinkError
from sinks.search.sink import SearchSink
from sinks.sql.preparation import Preparation
from sinks.sql.sink import SqlSink
from spark_jobs import serving
from spark_jobs.applied import AppliedPosition, Invalidations
from spark_jobs.batches import BatchReport
from spark_jobs.dead_letters import DeadLetterProducer
from spark_jobs.live_reports import LiveReports
from spark_jobs.publishing import DeadLetterUpkeep, Publisher
from spark_jobs.rejections import DeadLetterUpdates
from spark_jobs.source.topic_ends import TopicEnds
from spark_jobs.sync import ControlFollower
from spark_jobs.sync_state import SyncState, Written
from tests.support.published_start import begins_where_it_published
from watershed.client import applied, waiting

MUTANT: Final = "OPERATORS_MUTANT"  # the environment variable that names one
FAILURES: Final = 0.2  # share of the calls that fail
NOTHING: Final = property(lambda _: {})


def _offsets_without_incarnations() -> None:
    def identify(position: AppliedPosition, newest: ProgressRecord) -> None:
        position.history = newest.history or position.history
        position.incarnations |= newest.incarnations

    _put(AppliedPosition, "_identify", identify)
    _put(AppliedPosition, "_is_of_these_topics", lambda *_: True)
    _put(AppliedPosition, "check_topic", lambda *_: None)


def _begins_at_former_offsets() -> None:
    """Also where the topic that exists now has no records at them yet."""
    take = SyncState.add_report

    def took(state: SyncState, report: BatchReport, invalidations: Invalidations) -> bool:
        report.lost.clear()
        return take(state, report, invalidations)

    _offsets_without_incarnations()
    _put(SyncState, "add_report", took)


def _continues_a_foreign_store() -> None:
    _put(serving, "continued", lambda marker, noted, _: noted if noted and noted.generation == marker else None)
    _put(ControlFollower, "_check_history", lambda *_: None)


def _lets_former_rows_win() -> None:
    """The rows keep the versions that they had in the former topics."""
    for store in (CacheSink, SqlSink):
        _put(store, "reset_versions", lambda *_: None)


def _replaces_a_snapshot_that_owes() -> None:
    execute, add = Snapshots._execute, SnapshotEngine.add
    owed = SnapshotJob.owed

    def executed(snapshots: Snapshots, identity: str, signal: SignalRecord) -> Any:
        _put(SnapshotJob, "owed", property(lambda _: ""))
        try:
            return execute(snapshots, identity, signal)
        finally:
            _put(SnapshotJob, "owed", owed)

    def added(engine: SnapshotEngine, record: SnapshotRecord) -> list[TopicRecord]:
        before = engine.jobs.pop(record.table, None)
        engine._give_up([] if before is None else [before])
        return add(engine, record)

    _put(Snapshots, "_execute", executed)
    _put(SnapshotEngine, "add", added)


def _answers_whatever_is_owed() -> None:
    def asked(target: Any, sink: str, positions: Any) -> str | None:
        return None if applied.is_reached(target, sink, positions) else "it is not there"

    _put(waiting, "obstacle", asked)


def _misses_sweeps() -> None:
    def learn(position: AppliedPosition, sweep: SweepRecord) -> None:
        if position.sweeps.get(table_key(sweep.table), 0) < sweep.floor:
            position._unfinished[table_key(sweep.table), sweep.floor] = sweep

    _put(AppliedPosition, "_learn_sweep", learn)


def _brokers_refuse_letters() -> None:
    """No defect: dead letters can't be published at times, and nothing may be lost."""
    publish, chance = DeadLetterProducer.publish, random.SystemRandom()  # workers are forked

    def stumbling(producer: DeadLetterProducer, dead_letters: DeadLetterUpdates) -> dict[str, int]:
        if dead_letters and chance.random() < FAILURES:
            raise BrokerError("no dead letters now", "nothing to do")
        return publish(producer, dead_letters)

    _put(DeadLetterProducer, "publish", stumbling)


def _forgets_letters() -> None:
    """The sets of the driver and of tasks are emptied before the call that fails at times."""
    publish_reports = LiveReports._publish

    def publish(dead_letters: DeadLetterUpkeep) -> None:
        state = dead_letters.state
        with state.lock:
            updates, state.readable_dead_letters = state.readable_dead_letters, {}
        dead_letters.environment.dead_letters.publish(updates)

    def published(reports: LiveReports, dead_letters: DeadLetterUpdates, offsets: Any) -> None:
        with suppress(BrokerError):
            reports._dead_letters.publish(dead_letters)
        publish_reports(reports, {}, offsets)

    _brokers_refuse_letters()
    _put(DeadLetterUpkeep, "publish", publish)
    _put(LiveReports, "_publish", published)


def _stores_refuse_refreshes() -> None:
    """No defect: what was written can't be made readable at times."""
    make_readable, chance = SearchSink.make_readable, random.SystemRandom()

    def stumbling(sink: SearchSink, tables: Collection[TableId]) -> None:
        if chance.random() < FAILURES / 4:
            raise SinkError("no refresh now", "nothing to do")
        make_readable(sink, tables)

    _put(SearchSink, "make_readable", stumbling)


def _forgets_refreshes() -> None:
    """The set of tables is emptied before the call that fails at times."""

    def show(publisher: Publisher) -> None:
        state = publisher.state
        with publisher.environment.turn:
            with state.lock:
                offsets, invalidations = dict(state.position.written), dict(state.position.invalidations)
                written, state.written = state.written, Written()
            if written.tables:
                publisher._sink.make_readable(written.tables)
            with state.lock:
                state.readable_dead_letters |= written.dead_letters
                state.position.mark_readable(offsets, invalidations)

    _stores_refuse_refreshes()
    _put(Publisher, "make_readable", show)


def _counts_partitions_once() -> None:
    described = TopicEnds._described

    def known(ends: TopicEnds) -> Mapping[str, Any]:
        counts: dict[str, int] = ends.__dict__.setdefault("counts", {})
        return {
            topic: (identity, counts.setdefault(topic, count)) for topic, (identity, count) in described(ends).items()
        }

    _put(TopicEnds, "_described", known)


def _trusts_the_store() -> None:
    """The position that this job has noted counts, whatever the store holds."""
    _put(Publisher, "check_store", lambda _: None)
    for owner, name in ((SavedPosition, "write"), (Preparation, "save_position")):
        _write_whatever_was_noted(owner, name)


def _continues_where_it_published() -> None:
    """At a start, the position that was published last counts, not the one that the store holds."""
    _trusts_the_store()
    _put(serving.ServingThread, "_begin", begins_where_it_published(serving.ServingThread._begin))


def _write_whatever_was_noted(owner: type, name: str) -> None:
    write = getattr(owner, name)
    _put(owner, name, lambda notes, text, _: write(notes, text, None))


def _put(owner: Any, name: str, by: Any) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, by)


MUTANTS: Final[Mapping[str, Callable[[], None]]] = {
    "1-offsets-without-incarnation": _offsets_without_incarnations,
    "1-begins-at-former-offsets": _begins_at_former_offsets,
    "2-continues-a-foreign-store": _continues_a_foreign_store,
    "2-former-rows-win": _lets_former_rows_win,
    "3-replaces-a-snapshot-that-owes": _replaces_a_snapshot_that_owes,
    "4-answers-whatever-is-owed": _answers_whatever_is_owed,
    "4-capture-owes-nothing": lambda: _put(Snapshots, "_owed_now", lambda _: {}),
    "4-sinks-owe-nothing": lambda: _put(AppliedPosition, "owed", NOTHING),
    "4-misses-sweeps": _misses_sweeps,
    "5-forgets-letters": _forgets_letters,
    "5-forgets-refreshes": _forgets_refreshes,
    "6-counts-partitions-once": _counts_partitions_once,
    "7-trusts-the-store": _trusts_the_store,
    "7-continues-where-it-published": _continues_where_it_published,
    "none-but-brokers-refuse-letters": _brokers_refuse_letters,
    "none-but-stores-refuse-refreshes": _stores_refuse_refreshes,
}
