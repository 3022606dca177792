"""Keeps one generation of one sink up to date: in batches, and beside them. Does not use Spark.

| thread | does | when |
|---|---|---|
| the query's (Spark's callback for foreachBatch) | `BatchRunner` | a batch, whose tasks write records to the store |
| that of reports (spark_jobs/batches.py) | `RunningBatch` | while tasks run: what they have written |
| the watching one (SinkThread.run) | `Housekeeper` | before the first batch, then all the time |
| the first and the last, in turns | `ControlFollower`, `Publisher` | they need the store or the brokers |
| any | `SyncState` | |

Locks, taken in this order: `writing` and `turn` (JobEnvironment), and that of the state, which is held for no call of a
store or of brokers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from cdc.model.errors import BrokerError, UnreachableError
from sinks.errors import RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import AppliedPosition, Invalidations, Offsets
from spark_jobs.batches import BatchReport
from spark_jobs.control_reader import ControlUpdate
from spark_jobs.publishing import JobEnvironment, Publisher
from spark_jobs.sync_state import SyncState

log = structlog.get_logger(__name__)

GENERATION_CHECK_S: Final = 3.0  # how soon it is noticed that the store's data was deleted
# A record's schema was committed with it or before it; its partition's marker follows within milliseconds.
SCHEMA_WAIT_S_MAX: Final = 30.0
SCHEMA_WAIT_S: Final = 0.05
_NOTHING: Final = ControlUpdate((), (), ())


class QueryStopped(Exception):  # noqa: N818
    """Raised when the query was requested to end; records that the batch did not read yet are left to the next one."""


@dataclass
class ControlFollower:
    """Follows what capture has published, and the tables' topics. Methods wait for their turn."""

    environment: JobEnvironment
    state: SyncState
    publisher: Publisher
    _update: ControlUpdate = _NOTHING  # that was read, and is not in the state yet

    def read(self) -> None:
        """Takes what was published since. What a failed call has read is taken by the next one."""
        state, environment = self.state, self.environment
        with environment.turn:
            self._update = update = self._update.followed_by(environment.control.read())
            environment.dead_letters.follow()
            self.publisher.check_job()
            self.publisher.dead_letters.close_removed(update.progress)
            if environment.may_hold_more:
                self._reset_new_tables(update.schema_histories)
            self._check_history(update)
            with state.lock:
                state.unprepared += update.schema_histories
                state.position.add_published(update.progress, update.sweeps)
                if environment.at_cuts:
                    state.position.choose_cut(state.topics)
            self._update = _NOTHING

    def _reset_new_tables(self, schema_histories: Iterable[SchemaHistory]) -> None:
        """Lets former rows lose against all later writes, and a sweep remove the others: before anything that was
        published with the tables is taken."""
        for schema in [schema_history.newest for schema_history in schema_histories]:
            with self.state.lock:
                is_known = self.state.position.has_read(schema.topic, schema.table)
            if not is_known:
                self.environment.sink.reset_versions(schema.table)
                with self.state.lock:
                    self.state.position.add_reset_table(schema.table)

    def _check_history(self, update: ControlUpdate) -> None:
        """Raises SinkError if the topics were created again, all of them: what the store holds is of other ones."""
        history = update.progress[-1].history if update.progress else ""
        with self.state.lock:
            known = self.state.position.history
        if history and known and history != known:
            raise SinkError(
                f"{self.environment.sink.name}: capture has begun again with new topics; the store was filled from "
                "former ones",
                "nothing to do: the sink fills it again from the new topics",
            )

    def find_topics(self) -> Offsets:
        """Looks for the tables' topics. Returns the ends of those that can be read: a topic that is missing, or is
        another one than capture has published, concerns its own table only."""
        state, unreadable = self.state, dict[str, str]()
        with self.environment.turn:
            written = state.draft().written
            found = self.environment.batches.find_topics()
            with state.lock:
                for topic in state.schema_histories:
                    reason: str | None = f"topic {topic} does not exist"
                    if topic in found:
                        reason = state.position.check_topic(topic, found[topic], written.get(topic, ()))
                    if reason is not None:
                        unreadable[topic] = reason
                unreadable = {**state.left_out(found), **unreadable}
                ends = {topic: there.end_offsets for topic, there in found.items() if topic not in unreadable}
                new = unreadable.keys() - state.unreadable.keys() - state.position.refused.keys()
                state.unreadable, state.found_ends = unreadable, ends
        for topic in new:
            log.warning("table is not read", sink=self.environment.sink.name, topic=topic, because=unreadable[topic])
        return ends

    def prepare_tables(self) -> None:
        """Prepares the store for tables that are new or altered. To be called while no task writes."""
        state, environment = self.state, self.environment
        with environment.turn:
            new, known = state.unprepared, state.schema_histories
            if not new:
                return
            for history in new:
                environment.sink.prepare(history.newest, history.earlier)
            histories = {**known, **{history.newest.topic: history for history in new}}
            environment.batches.set_tables(histories)
            with state.lock:
                state.schema_histories, state.unprepared, state.prepared_us = histories, (), environment.now_us()
        for schema in [history.newest for history in new if history.newest.topic in known]:
            log.info("schema changed", sink=environment.sink.name, table=str(schema.table), version=schema.version)


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A batch whose tasks run, for the thread of reports."""

    state: SyncState
    query_number: int
    is_live: bool
    invalidations: Invalidations  # when the batch began

    def add_report(self, report: BatchReport) -> bool:
        """Takes the work done by tasks of the running batch; says whether they may continue."""
        state, is_contiguous = self.state, self.state.add_report(report, self.invalidations)
        with state.lock:
            topics, planned = state.topics, state.planned
            counts = state.position.partition_counts.items()
            return (
                is_contiguous
                and self.query_number == state.active_query
                and not state.unprepared
                and state.position.invalidations == self.invalidations
                and not (self.is_live and state.readable_dead_letters)
                and planned.keys().isdisjoint(state.unreadable)
                # There are no partitions that the batch does not read.
                and all(count <= len(planned.get(topic, ())) for topic, count in counts if topic in topics)
            )


@dataclass
class _ThreadWork:
    environment: JobEnvironment
    state: SyncState
    control: ControlFollower
    publisher: Publisher


@dataclass
class BatchRunner(_ThreadWork):
    """The batches, for the query's thread."""

    failure: Exception | None = None  # why the last batch failed
    # topic → since when every batch has met an unknown schema
    _unknown_since_us: dict[str, int] = field(default_factory=dict)

    def apply_batch(self, query_number: int, micro_batch: Any = None) -> None:
        """Writes the rows of a batch. Raises QueryStopped for a query that may not begin one (any more)."""
        try:
            report = self._run(query_number, micro_batch)
            self._publish()
            self._wait_for_schema(report)
        except QueryStopped:
            raise
        except Exception as error:
            self.failure = error
            raise

    def _run(self, query_number: int, micro_batch: Any) -> BatchReport:
        environment, state, dead_letters = self.environment, self.state, self.publisher.dead_letters
        batches, transactional = environment.batches, environment.transactional
        with environment.writing:
            if query_number != state.active_query:
                raise QueryStopped
            # Spark has planned the batch with what was published until now: this job must not know less.
            self.control.read()
            self.control.prepare_tables()
            with environment.turn:
                dead_letters.publish()
                batches.set_open_dead_letters(dead_letters.open())
            end_offsets = self.control.find_topics()
            with state.lock:
                state.planned, state.planned_incarnations = end_offsets, dict(state.position.incarnations)
                running = RunningBatch(state, query_number, batches.is_live, dict(state.position.invalidations))
            try:
                report = batches.run(micro_batch, end_offsets, running.add_report)
                if transactional is None:
                    state.add_report(report, running.invalidations)
                elif report.staged:  # Spark begins a query with a batch, also of nothing
                    report = self.publisher.commit(transactional, report, running.invalidations)
            except RefusedError as error:
                raise RefusedError(f"{environment.sink.name}: {error.message}", error.hint) from error
        return report

    def _publish(self) -> None:
        """Before Spark notes that the batch is done: the next one is planned with the position that is published
        here."""
        self.publisher.make_readable()
        if self.publisher.mark_is_due:
            self.publisher.sweep()
            self.publisher.publish()
            self.publisher.mark_cut()
        self.control.read()  # this process may have been stopped for a while, and another job may have taken over
        self.publisher.publish()

    def _wait_for_schema(self, report: BatchReport) -> None:
        """Waits for schemas. A topic is refused if its records lack one for SCHEMA_WAIT_S_MAX, in which every batch has
        met an unknown one. It was another one before a table was prepared. Raises SinkError for a topic of no table."""
        environment, state, now_us = self.environment, self.state, self.environment.now_us()
        waiting = {place.topic: blocked for place, blocked in report.blocked.items() if blocked.may_follow}
        waiting = {topic: blocked for topic, blocked in waiting.items() if topic not in state.unreadable}
        self._unknown_since_us = {topic: self._unknown_since_us.get(topic, now_us) for topic in waiting}
        overdue = {
            topic
            for topic, since_us in self._unknown_since_us.items()
            if now_us - max(since_us, state.prepared_us) > SCHEMA_WAIT_S_MAX * 1_000_000
        }
        for topic in sorted(overdue - state.schema_histories.keys()):
            raise SinkError(
                f"{environment.sink.name}: {waiting[topic].reason}, for {SCHEMA_WAIT_S_MAX:.0f} s", waiting[topic].next
            )
        if overdue:
            state.refuse_for_schemas(report, overdue)
            self.publisher.publish()
        elif waiting and not state.unprepared:
            environment.wait(SCHEMA_WAIT_S)


@dataclass
class Housekeeper(_ThreadWork):
    """What is done beside batches, by the watching thread."""

    def __post_init__(self) -> None:
        self._checked_us = self.environment.now_us()

    def begin(self, schema_histories: Sequence[SchemaHistory]) -> None:
        """Prepares the tables, and publishes this generation's position, so that a waiter waits for it and not for an
        earlier one. To be called before the first query."""
        environment, state = self.environment, self.state
        with environment.turn:
            with state.lock:
                state.unprepared = tuple(schema_histories)
            self.control.prepare_tables()
            # An earlier job may have been killed between a write and making it readable.
            environment.sink.make_readable({history.newest.table for history in schema_histories})
            end_offsets = self.control.find_topics()
            self.publisher.dead_letters.close_swept()
            if environment.at_cuts:
                with state.lock:
                    # A job that did not read up to cuts may have written more than it has noted, up to these ends.
                    if state.position.written and not state.position.cut_least:
                        state.position.cut_least = end_offsets
                    state.position.choose_cut(state.topics)
            self.publisher.dead_letters.publish()
            self.publisher.publish()

    def work(self) -> None:
        """Makes readable what was written, reads what was published, applies due sweeps, publishes the applied
        position, and prepares tables that are new or altered."""
        environment, state, publisher = self.environment, self.state, self.publisher
        state.has_new_writes.clear()
        if environment.now_us() - self._checked_us > GENERATION_CHECK_S * 1_000_000:
            self._checked_us = environment.now_us()
            publisher.check_store()
            if state.unreadable or environment.batches.is_live:
                self._check_topics()
        publisher.make_readable()
        self.control.read()
        if environment.transactional is None:
            publisher.sweep()
        elif state.due_sweeps():
            publisher.commit(environment.transactional, None, {})
        publisher.publish()
        is_pending = bool(state.unprepared or state.readable_dead_letters)
        if (is_pending or publisher.mark_is_due) and environment.writing.acquire(blocking=False):
            try:  # otherwise the query's thread does it, before its next batch or behind this one
                self.control.prepare_tables()
                with environment.turn:
                    publisher.dead_letters.publish()
                if publisher.mark_is_due:
                    publisher.mark_cut()
            finally:
                environment.writing.release()

    def _check_topics(self) -> None:
        """Notices within seconds that a topic has gone, or lost records, while a batch reads it: the batch ends."""
        try:
            self.control.find_topics()
        except (BrokerError, UnreachableError) as error:  # the batches have it too, if it lasts
            log.debug("topics can't be looked at", sink=self.environment.sink.name, because=error.message)


class SinkSync:
    """One generation of one sink: what its threads share, and the work of two of them."""

    def __init__(self, environment: JobEnvironment, position: AppliedPosition) -> None:
        self.state = SyncState(environment.sink.name, position, environment.now_us, environment.unread_s_max)
        publisher = Publisher(environment, self.state)
        control = ControlFollower(environment, self.state, publisher)
        self.batch_runner = BatchRunner(environment, self.state, control, publisher)
        self.housekeeper = Housekeeper(environment, self.state, control, publisher)
