"""Keeps one generation of one sink up to date: in batches, and beside them. Does not use Spark.

Two threads work on a sink. The query's thread (of Spark's callback for foreachBatch) runs a batch, whose tasks write
records to the store. The watching thread (SinkThread.run) makes readable what was written, applies sweeps and publishes
the applied position, also while a batch runs; a third thread passes on what running tasks report
(spark_jobs/batches.py). In the order written, readable, noted in the store, published, the job may be killed at any
moment: unpublished work is repeated, and the store's guard by version makes that harmless.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import structlog

from cdc.model.control import ProgressRecord, table_key
from cdc.model.errors import BrokerError, UnreachableError
from cdc.model.events import TableId, pack_version
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.rejected_rows import RejectedRow, dead_letter_table
from cdc.model.sink_records import JobId, SinkRecord
from sinks.contract import Sink, lost_writes
from sinks.errors import RefusedError, SinkError
from sinks.records import NEXT_AFTER_LOST_SCHEMA
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import Applied, AppliedPosition, FoundTopic, Invalidations, Offsets, covers
from spark_jobs.batches import Batches, BatchReport
from spark_jobs.control_reader import ControlUpdate
from spark_jobs.cuts import CutBatches
from spark_jobs.dead_letters import DeadLetterQueue
from spark_jobs.rejections import DeadLetterUpdates

log = structlog.get_logger(__name__)

GENERATION_CHECK_S: Final = 3.0  # how soon it is noticed that the store's data was deleted
# A record's schema was committed with it or before it; its partition's marker follows within milliseconds.
SCHEMA_WAIT_S_MAX: Final = 30.0
SCHEMA_WAIT_S: Final = 0.05
BEHIND_S: Final = 0.25


class ControlSource(Protocol):
    """Reads the control and progress topics."""

    @property
    def sinks(self) -> Mapping[str, SinkRecord]:
        """The newest record of each sink and generation, by record key, as far as was read."""

    def read(self) -> ControlUpdate: ...


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """The environment of a sink's job, besides its store."""

    control: ControlSource
    complete: Callable[[SinkRecord], SinkRecord]  # adds what the job knows of the sink, besides its position
    publish: Callable[[SinkRecord], None]
    now_us: Callable[[], int]  # µs since 1970
    wait: Callable[[float], bool]  # seconds; says whether there was a request to stop meanwhile
    job_id: JobId
    dead_letters: DeadLetterQueue
    dead_letters_max: int  # open dead letters, with more of which the sink stops


@dataclass(frozen=True, slots=True)
class CutMarks:
    """How a store marks cuts that it is at."""

    interval_s: float  # between two, at least
    set: Callable[[ProgressRecord, Mapping[TableId, str]], bool]  # marks tables, each with its topic; see Tags.set


class QueryStopped(Exception):  # noqa: N818
    """Raised when the query was requested to end; records that the batch did not read yet are left to the next one."""


class _NotAtCut(Exception):  # noqa: N818
    """Raised to roll back what was read up to another position."""


class SinkSync:
    """One generation of one sink. Each method says which thread calls it."""

    def __init__(
        self,
        sink: Sink,
        generation: int,
        position: AppliedPosition,
        environment: JobEnvironment,
        batches: Batches,
        *,
        may_hold_more: bool = False,
        at_cuts: bool = False,
        transactional: CutBatches | None = None,
        marks: CutMarks | None = None,
    ) -> None:
        """`may_hold_more`: the store may have rows of tables that this generation has never read, from former
        topics. `at_cuts`: batches go from one cut to the next (ProgressRecord.is_cut). `transactional`: `batches`, if
        they are also merged in one transaction of the store; then `at_cuts`."""
        self.failure: Exception | None = None  # why the last batch failed
        self.report_count = 0
        self.has_new_writes = threading.Event()  # something was written since the watching thread worked last
        self._sink = sink
        self._generation = generation
        self._position = position
        self._environment = environment
        self._batches = batches
        self._may_hold_more = may_hold_more
        self._at_cuts = at_cuts
        self._transactional = transactional
        self._marks = marks
        # Dead letters were closed for rows that a transaction has written, of which it is not known whether it was
        # committed: the position before would tell that no row is missing.
        self._is_uncertain = False
        self._marked_us: int | None = None  # when the last mark was set
        self._marked: tuple[int, int] = (0, 0)  # epoch and LSN of it
        self._active_query = 0  # the number of the query whose batches may begin; 0: none
        self._queries_started = 0
        self._schema_histories: dict[str, SchemaHistory] = {}  # by topic; prepared
        self._unreadable: dict[str, str] = {}  # topic → why it is not read
        self._found_ends: Offsets = {}  # of the topics that can be read, when they were looked for last
        self._former_job = environment.control.sinks.get(SinkRecord.key_of(sink.name, generation))
        self._saved_text: str | None = None  # the text that the store must hold since this job wrote it
        self._prepared_us = 0  # when a table was prepared last
        # Held while a batch runs and while tables are prepared: no task writes to a table that is being altered.
        self._writing = threading.Lock()
        self._store = threading.RLock()  # the sink object and the control reader serve one thread at a time
        self._state = threading.Lock()  # everything below
        self._written_tables: set[TableId] = set()  # since they were made readable last
        self._unprepared: list[SchemaHistory] = []
        # Dead letters, first of rows that may not be readable yet, then those that are to be published.
        self._dead_letters: DeadLetterUpdates = {}
        self._readable_dead_letters: DeadLetterUpdates = {}
        self._closings: dict[str, int] = {}  # the versions of those that are closed because their rows are gone
        self._written = 0
        self._stale = 0
        self._published: SinkRecord | None = None
        self._dead_letter_count = len(environment.dead_letters.open)
        self._checked_dead_letters: Mapping[str, int] = {}  # open dead letters, of which none is below a sweep
        self._followed: Offsets = dict(position.written)  # whose dead letters were read, see _follow_dead_letters
        self._checked_us = environment.now_us()
        self._unknown_since_us: int | None = None  # since when every batch has met an unknown schema
        self._planned: Mapping[str, int] = {}  # topic → partitions, as known when the running batch began
        self._planned_incarnations: Mapping[str, str] = {}  # by topic, as known then
        self._behind_us: int | None = None  # when a task reported last that there are more records than it can take

    @property
    def is_behind(self) -> bool:
        """True while a backlog is being worked off."""
        return self._behind_us is not None and self._environment.now_us() - self._behind_us < BEHIND_S * 1_000_000

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the prepared tables that exist and are those that capture has published."""
        return frozenset(self._schema_histories.keys() - self._unreadable.keys())

    @property
    def applied(self) -> Applied:
        """The position that readers of this generation see."""
        with self._state:
            return self._position.applied

    @property
    def has_read_out(self) -> bool:
        """Says whether the topics of tables that capture publishes no more were read to their ends: no position that
        it publishes says that they were."""
        with self._state:
            published = self._position.partition_counts
            left = {topic: ends for topic, ends in self._found_ends.items() if topic not in published}
            return covers(self._position.offsets, left)

    @property
    def published(self) -> Applied:
        """The furthest position that capture is known to have published."""
        with self._state:
            return self._position.published

    def begin(self, schema_histories: Sequence[SchemaHistory]) -> None:
        """Prepares the tables, and publishes this generation's position, so that a waiter waits for it and not for an
        earlier one. To be called before the first query."""
        self._prepare(schema_histories)
        # An earlier job may have been killed between a write and making it readable.
        self._sink.make_readable({schema_history.newest.table for schema_history in schema_histories})
        end_offsets = self._find_topics()
        with self._store:
            with self._state:
                self._close_swept_dead_letters(self._position)
                if self._at_cuts:
                    # A job that did not read up to cuts may have written more than it has noted, up to these ends.
                    if self._position.written and not self._position.cut_least:
                        self._position.cut_least = end_offsets
                    self._position.choose_cut(self.topics)
            self._publish_dead_letters()
        self._publish()

    def start_query(self) -> int:
        """Returns a number for a new query: its batches may begin, those of earlier queries may not any more."""
        self._queries_started += 1
        self._active_query = self._queries_started
        return self._active_query

    def stop_query(self) -> None:
        """Has the running batch asked to end, with its next report, and allows no other."""
        self._active_query = 0

    # ---- the query's thread

    def apply_batch(self, query_number: int, micro_batch: Any = None) -> None:
        """Writes the rows of a batch. Raises QueryStopped for a query that may not begin one (any more)."""
        try:
            self._apply_batch(query_number, micro_batch)
        except QueryStopped:
            raise
        except Exception as error:
            self.failure = error
            raise

    def _apply_batch(self, query_number: int, micro_batch: Any) -> None:
        with self._writing:
            if query_number != self._active_query:
                raise QueryStopped
            # Spark has planned the batch with what was published until now: this job must not know less.
            self._read_control()
            self._prepare_pending()
            with self._store:
                self._publish_dead_letters()
                with self._state:
                    open_dead_letters = self._open_dead_letters()
                self._batches.set_open_dead_letters(open_dead_letters)
            end_offsets = self._find_topics()
            with self._state:
                invalidations = dict(self._position.invalidations)
                self._planned = {topic: len(offsets) for topic, offsets in end_offsets.items()}
                self._planned_incarnations = dict(self._position.incarnations)
            on_report = partial(self._add_interim_report, query_number, invalidations)
            try:
                report = self._batches.run(micro_batch, end_offsets, on_report)
                if self._transactional is None:
                    self._add_report(report, invalidations)
                else:
                    report = self._merge_cut(self._transactional, report, invalidations)
            except RefusedError as error:
                raise RefusedError(f"{self._sink.name}: {error.message}", error.hint) from error
        # Before Spark notes that the batch is done: the next one is planned with the position that is published here.
        self._make_readable()
        if self._mark_is_due:
            self._sweep(self._position)
            self._publish()
            self._mark_cut()
        self._read_control()  # this process may have been stopped for a while, and another job may have taken over
        self._publish()
        self._wait_for_schema(report)

    def _find_topics(self) -> Offsets:
        """Looks for the tables' topics. Returns the ends of those that can be read: a topic that is missing, or is
        another one than capture has published, concerns its own table only."""
        with self._state:
            written = dict(self._position.written)
        found = self._batches.find_topics()
        with self._state:
            unreadable = {
                topic: reason
                for topic in self._schema_histories
                if (reason := self._why_unreadable(topic, found.get(topic), written.get(topic, ()))) is not None
            }
            before, self._unreadable = self._unreadable, unreadable
        for topic, reason in unreadable.items():
            if topic not in before:
                log.warning("table is not read", sink=self._sink.name, topic=topic, because=reason)
        self._found_ends = {topic: there.end_offsets for topic, there in found.items() if topic not in unreadable}
        return self._found_ends

    def _why_unreadable(self, topic: str, found: FoundTopic | None, written: tuple[int, ...]) -> str | None:
        """`written`: the offsets before it was looked for."""
        if found is None:
            return f"topic {topic} does not exist"
        return self._position.check_topic(topic, found, written)

    def _add_interim_report(self, query_number: int, invalidations: Invalidations, report: BatchReport) -> bool:
        """Takes the work done by tasks of the running batch; says whether they may continue. Called by another
        thread."""
        is_contiguous = self._add_report(report, invalidations)
        with self._state:
            return (
                is_contiguous
                and query_number == self._active_query
                and not self._unprepared
                and self._position.invalidations == invalidations
                and not (self._batches.is_live and self._readable_dead_letters)
                and not self._has_new_partitions
                and self._planned.keys().isdisjoint(self._unreadable)
            )

    @property
    def _has_new_partitions(self) -> bool:
        """Whether there are partitions that the running batch does not read. To be called with the lock of the
        state."""
        counts = self._position.partition_counts
        return any(
            count > self._planned.get(topic, 0)
            for topic, count in counts.items()
            if topic in self._schema_histories and topic not in self._unreadable
        )

    def _add_report(self, report: BatchReport, invalidations: Invalidations) -> bool:
        """`invalidations`: of the topics when the batch began. Returns whether every task began at or before what was
        written."""
        offsets, start_offsets = _as_offsets(report.end_offsets), _as_offsets(report.start_offsets)
        with self._state:
            is_contiguous = self._position.mark_written(offsets, invalidations, start_offsets)
            self._give_up_lost(report, invalidations)
            self._written_tables |= {
                self._schema_histories[topic].newest.table for topic in report.topics if topic in self._schema_histories
            }
            self._dead_letters |= report.dead_letters
            self._written += report.written
            self._stale += report.stale
        self.report_count += bool(offsets)
        if report.is_behind:
            self._behind_us = self._environment.now_us()
        if offsets:
            self.has_new_writes.set()
        if report.records:
            log.debug(
                "written",
                sink=self._sink.name,
                records=report.records,
                behind=report.is_behind,
                write_ms=round(report.write_s * 1000),
            )
        return is_contiguous

    def _give_up_lost(self, report: BatchReport, invalidations: Invalidations) -> None:
        """To be called with the lock of the state."""
        for topic, reason in report.lost.items():
            if self._position.invalidations.get(topic, 0) == invalidations.get(topic, 0):
                self._position.invalidate(topic)
                log.warning("topic is read from its beginning", sink=self._sink.name, because=reason)

    def _merge_cut(self, batches: CutBatches, staged: BatchReport, invalidations: Invalidations) -> BatchReport:
        """Writes a batch that goes up to the cut, with what belongs to that position, in one transaction of the store.
        Returns what was read. A batch that ends elsewhere is not written: what it lacks is read with the next one."""
        merged = BatchReport()
        if not staged.staged:  # Spark begins a query with a batch, also of nothing
            return merged

        def merge(position: AppliedPosition) -> None:
            nonlocal merged
            merged = batches.merge(staged)
            offsets = _as_offsets(merged.end_offsets)
            position.mark_written(offsets, invalidations, _as_offsets(merged.start_offsets))
            if merged.lost or not position.is_at_cut(self.topics):
                raise _NotAtCut
            position.mark_readable(position.written, invalidations)
            with self._state:
                self._readable_dead_letters |= merged.dead_letters
                self._written += merged.written
                self._stale += merged.stale

        try:
            self._commit(batches, merge)
        except _NotAtCut:
            with self._state:
                self._give_up_lost(merged, invalidations)
            log.info("a batch does not end at its cut, and is read again", sink=self._sink.name)
        else:
            self.report_count += 1
            self.has_new_writes.set()
        return merged

    def _commit(self, batches: CutBatches, write: Callable[[AppliedPosition], None] | None = None) -> None:
        """Writes, sweeps and notes the position in one transaction of the store, then publishes the position. This
        object has the former position until the transaction is committed."""
        with self._store:
            if self._is_uncertain and write is None:
                return
            with self._state:
                position = self._position.copy()
            with batches.transaction():
                if write is not None:
                    write(position)
                self._sweep(position)
                self._is_uncertain = True
                record = self._note(position)
            with self._state:
                self._position = position
            self._is_uncertain = False
            if record is not None:
                self._environment.publish(record)
                self._published = record

    def _wait_for_schema(self, report: BatchReport) -> None:
        """Waits for a schema. Raises SinkError if the control topic still lacks it after SCHEMA_WAIT_S_MAX, in which
        every batch has met an unknown one. It was another one before a table was prepared."""
        if not report.unknown_schema:
            self._unknown_since_us = None
            return
        self._unknown_since_us = self._unknown_since_us or self._environment.now_us()
        since_us = max(self._unknown_since_us, self._prepared_us)
        if self._environment.now_us() - since_us > SCHEMA_WAIT_S_MAX * 1_000_000:
            raise SinkError(
                f"{self._sink.name}: {report.unknown_schema}, for {SCHEMA_WAIT_S_MAX:.0f} s",
                report.next_after_unknown or NEXT_AFTER_LOST_SCHEMA,
            )
        with self._state:
            is_there = bool(self._unprepared)
        if not is_there:
            self._environment.wait(SCHEMA_WAIT_S)

    # ---- the watching thread

    def run_housekeeping(self) -> None:
        """Makes readable what was written, reads what was published, applies due sweeps, publishes the applied
        position, and prepares tables that are new or altered."""
        self.has_new_writes.clear()
        if self._environment.now_us() - self._checked_us > GENERATION_CHECK_S * 1_000_000:
            self._check_generation()
            if self._unreadable or self._batches.is_live:
                self._check_topics()
        self._make_readable()
        self._read_control()
        if self._transactional is None:
            self._sweep(self._position)
        elif self._position.due_sweeps():
            self._commit(self._transactional)
        self._publish()
        if (self._unprepared or self._readable_dead_letters) and self._writing.acquire(blocking=False):
            try:  # otherwise the query's thread does it before its next batch
                self._prepare_pending()
                with self._store:
                    self._publish_dead_letters()
            finally:
                self._writing.release()
        if self._mark_is_due and self._writing.acquire(blocking=False):
            try:  # otherwise the query's thread does it after its batch
                self._mark_cut()
            finally:
                self._writing.release()

    @property
    def _mark_is_due(self) -> bool:
        if self._marks is None:
            return False
        since = self._marked_us
        return since is None or self._environment.now_us() - since >= self._marks.interval_s * 1_000_000

    def _mark_cut(self) -> None:
        """Marks the cut that the store is at. To be called while no batch writes."""
        with self._store:
            with self._state:
                position, topics = self._position, self.topics
                cut = position.cut_here(topics)
                if cut is None or (cut.epoch, cut.lsn) <= self._marked or position.offsets != position.written:
                    return
                tables = {
                    history.newest.table: topic
                    for topic, history in self._schema_histories.items()
                    if topic in topics
                    and topic in cut.end_offsets
                    and str(history.newest.table) not in position.owed
                    and position.is_swept(history.newest.table, cut)
                }
            if self._marks is not None and tables and self._marks.set(cut, tables):
                self._marked_us, self._marked = self._environment.now_us(), (cut.epoch, cut.lsn)
                log.info("marked", sink=self._sink.name, lsn=format_lsn(Lsn(cut.lsn)), tables=len(tables))

    def cut_of(self, report: BatchReport) -> tuple[ProgressRecord, bool] | None:
        """Returns the cut up to which batches go now, and whether the store is at it when it has a batch with this
        report. Called by the query's thread."""
        with self._state:
            position = self._position.copy()
        if position.cut is None:
            return None
        position.mark_written(
            _as_offsets(report.end_offsets), position.invalidations, _as_offsets(report.start_offsets)
        )
        return position.cut, position.is_at_cut(self.topics)

    def incarnation_of(self, topic: str) -> str:
        """Returns the incarnation of a topic when the running batch began. Called by the query's thread."""
        return self._planned_incarnations.get(topic, "")

    def _check_topics(self) -> None:
        """Notices within seconds that a topic has gone, or lost records, while a batch reads it: the batch ends."""
        # A transactional batch replaces the position when it is committed: what was found meanwhile would be forgotten.
        waits: AbstractContextManager[object] = nullcontext() if self._transactional is None else self._store
        try:
            with waits:
                self._find_topics()
        except (BrokerError, UnreachableError) as error:  # the batches have it too, if it lasts
            log.debug("topics can't be looked at", sink=self._sink.name, because=error.message)

    def _sweep(self, position: AppliedPosition) -> None:
        with self._state:
            prepared = {schema_history.newest.table for schema_history in self._schema_histories.values()}
            new = {schema_history.newest.table for schema_history in self._unprepared} - prepared
        for sweep in position.due_sweeps():
            if sweep.table in new:  # an empty table's sweep may be due as soon as the table is known
                continue
            with self._store:
                swept = self._sink.sweep(sweep.table, sweep.floor)
                self._sink.make_readable({sweep.table})
                self._follow_dead_letters()
                with self._state:
                    position.finish(sweep)
                    self._close_swept_dead_letters(position)
            log.info("swept", sink=self._sink.name, table=str(sweep.table), rows=swept)

    def _close_swept_dead_letters(self, position: AppliedPosition) -> None:
        """Closes the dead letters whose rows a sweep has removed. To be called with both locks."""
        floors = position.sweeps
        self._close_dead_letters(
            {
                dead_letter: version
                for dead_letter, version in self._open_dead_letters().items()
                if version < floors.get(table_key(dead_letter_table(dead_letter)), 0)
            }
        )

    def _check_generation(self) -> None:
        self._checked_us = self._environment.now_us()
        with self._store:
            found = self._sink.generation()
            saved = self._sink.saved_position()
            expected = self._saved_text
        if found != self._generation:
            raise SinkError(
                f"{self._sink.name}: the store no longer holds generation {self._generation}: its data was deleted",
                "nothing to do: the sink fills it again from the topics",
            )
        if expected is not None and saved != expected:
            raise lost_writes(f"{self._sink.name}: the store")

    # ---- both

    def _make_readable(self) -> None:
        """Makes readable what was written. What could not be made readable is tried again before anything that was
        written with it counts as shown."""
        with self._store:
            with self._state:
                offsets, invalidations = dict(self._position.written), dict(self._position.invalidations)
                tables, dead_letters = self._written_tables, self._dead_letters
                self._written_tables, self._dead_letters = set(), {}
            try:
                if tables:
                    self._sink.make_readable(tables)
            except BaseException:
                # The other thread may show what was written, too: it must not reach a position without these tables.
                with self._state:
                    self._written_tables |= tables
                    self._dead_letters = dead_letters | self._dead_letters
                raise
            with self._state:
                self._readable_dead_letters |= dead_letters
                self._position.mark_readable(offsets, invalidations)

    def _open_dead_letters(self) -> dict[str, int]:
        """Returns dead_letter_key → version of the open dead letters, those included that are not published yet. To be
        called with both locks."""
        versions = dict(self._environment.dead_letters.open)
        for key, dead_letter in (self._readable_dead_letters | self._dead_letters).items():
            if isinstance(dead_letter, RejectedRow):
                versions[key] = dead_letter.version
            else:
                versions.pop(key, None)
        return versions

    def _close_dead_letters(self, versions: Mapping[str, int]) -> None:
        """Closes dead letters of these versions with the next that are published. To be called with the lock of the
        state."""
        for key in versions:
            self._dead_letters.pop(key, None)
            self._readable_dead_letters[key] = None
        self._closings |= versions

    def _close_dead_letters_of_removed(self, progress: Sequence[ProgressRecord]) -> None:
        """Closes the dead letters of tables that were captured when the row was rejected, and are not any more: nothing
        else would. A table that was only stopped is owed. To be called with the lock of the store."""
        with self._state:
            open_dead_letters = self._open_dead_letters() if progress else {}
            if not open_dead_letters:
                return
            newest = progress[-1]
            known = pack_version(newest.epoch, newest.seq)
            captured = {
                schema_history.newest.table
                for topic, schema_history in self._schema_histories.items()
                if topic in newest.end_offsets
            }
            self._close_dead_letters(
                {
                    dead_letter: version
                    for dead_letter, version in open_dead_letters.items()
                    for table in (dead_letter_table(dead_letter),)
                    if version <= known and table not in captured and str(table) not in newest.owed
                }
            )

    def _publish_dead_letters(self) -> None:
        """Publishes dead letters, before the position that covers their records. No task may run that publishes its
        own: a row may be rejected again just when its dead letter is closed."""
        with self._state:
            dead_letters, self._readable_dead_letters = self._readable_dead_letters, {}
            closings, self._closings = self._closings, {}
        try:
            if closings and self._batches.is_live:
                self._environment.dead_letters.read_to_end()
            newest = self._environment.dead_letters.open
            rejected_again = {key for key, version in closings.items() if newest.get(key, 0) > version}
            self._environment.dead_letters.publish(
                {
                    key: dead_letter
                    for key, dead_letter in dead_letters.items()
                    if isinstance(dead_letter, RejectedRow) or key not in rejected_again
                }
            )
        except BaseException:
            with self._state:
                self._readable_dead_letters = dead_letters | self._readable_dead_letters
                self._closings = closings | self._closings
            raise

    def _follow_dead_letters(self) -> None:
        """Reads the dead letters of everything that was written, where tasks publish them: they do so before their
        offsets, but the topic may be slower than the group. A position without them would tell a waiter that no row is
        missing, and a sweep would leave them open. To be called with the lock of the store."""
        with self._state:
            written = dict(self._position.written)
        if self._batches.is_live and written != self._followed:
            self._environment.dead_letters.read_to_end()
            self._followed = written

    def _check_swept_dead_letters(self, position: AppliedPosition) -> None:
        """Closes those that were published after the sweep: records of a topic are read again, or a task that Spark has
        given up went on. To be called with the lock of the store."""
        found = dict(self._environment.dead_letters.open)
        if found != self._checked_dead_letters:
            with self._state:
                self._close_swept_dead_letters(position)
            self._checked_dead_letters = found

    def _check_dead_letter_count(self) -> None:
        """Raises RefusedError if there are too many dead letters, and more than before."""
        count, before = len(self._environment.dead_letters.open), self._dead_letter_count
        self._dead_letter_count = count
        if count > max(before, self._environment.dead_letters_max):
            raise RefusedError(
                f"{self._sink.name}: the store rejected {count} rows, more than dead_letters_max",
                f"cdc dlq list {self._sink.name} shows why; correct the rows, the mapping or the store, or raise the "
                "sink's dead_letters_max, and start the sink again",
            )

    def _publish(self) -> None:
        """Notes the position in the store, then publishes it: a store that loses its last writes loses the note."""
        with self._store:
            if self._is_uncertain:  # the sink begins again, where the store is
                return
            record = self._note(self._position)
            if record is not None:
                self._environment.publish(record)
                self._published = record

    def _note(self, position: AppliedPosition) -> SinkRecord | None:
        """Publishes dead letters, then notes the position in the store. Returns the record to publish, None if it says
        nothing new. To be called with the lock of the store."""
        if not self._batches.is_live:
            self._publish_dead_letters()
        self._follow_dead_letters()
        self._check_swept_dead_letters(position)
        self._check_dead_letter_count()
        with self._state:
            record = self._environment.complete(self._record(position))
        last = self._published
        if last is not None and record.model_copy(update={"applied_ts_us": last.applied_ts_us}) == last:
            return None
        text, before = record.encode().decode(), self._saved_text
        self._saved_text = None  # while it is not known which text the store holds
        self._sink.save_position(text, before)
        self._saved_text = text
        return record

    def _record(self, position: AppliedPosition) -> SinkRecord:
        applied, cut = position.applied, position.cut if self._at_cuts else None
        now_us, last = self._environment.now_us(), self._published or self._former_job
        is_same = last is not None and (last.epoch, last.applied_lsn) == applied[:2]
        owed = position.owed | {
            str(self._schema_histories[topic].newest.table): reason for topic, reason in self._unreadable.items()
        }
        return SinkRecord(
            sink=self._sink.name,
            generation=self._generation,
            end_offsets=dict(position.offsets),
            applied_lsn=applied.lsn,
            epoch=applied.epoch,
            commit_ts_us=applied.commit_ts_us,
            applied_ts_us=now_us,
            applied_since_us=last.applied_since_us if last is not None and is_same else now_us,
            sweeps=dict(position.sweeps),
            written=self._written,
            stale=self._stale,
            dead_letters=len(self._environment.dead_letters.open),
            rejected=dict(
                Counter(str(dead_letter_table(dead_letter)) for dead_letter in self._environment.dead_letters.open)
            ),
            history=position.history,
            incarnations={topic: position.incarnations.get(topic, "") for topic in position.offsets},
            owed=owed,
            shown=position.shown,
            cut_offsets={} if cut is None else cut.end_offsets,
            job=self._environment.job_id,
        )

    def _read_control(self) -> None:
        with self._store:
            update = self._environment.control.read()
            self._environment.dead_letters.follow()
            self._check_job()
            self._close_dead_letters_of_removed(update.progress)
            if self._may_hold_more:
                self._reset_new_tables(update.schema_histories)
            with self._state:
                self._check_history(update)
                self._unprepared += update.schema_histories
                self._position.add_published(update.progress, update.sweeps)
                if self._at_cuts:
                    self._position.choose_cut(self.topics)

    def _reset_new_tables(self, schema_histories: Iterable[SchemaHistory]) -> None:
        """Lets former rows lose against all later writes, and a sweep remove the others. To be called with the lock of
        the store, before anything that was published with the tables is taken."""
        for schema in [schema_history.newest for schema_history in schema_histories]:
            with self._state:
                is_known = self._position.has_read(schema.topic, schema.table)
            if not is_known:
                self._sink.reset_versions(schema.table)
                with self._state:
                    self._position.add_reset_table(schema.table)

    def _check_history(self, update: ControlUpdate) -> None:
        """Raises SinkError if the topics were created again, all of them: what the store holds is of other ones."""
        history = update.progress[-1].history if update.progress else ""
        if history and self._position.history and history != self._position.history:
            raise SinkError(
                f"{self._sink.name}: capture has begun again with new topics; the store was filled from former ones",
                "nothing to do: the sink fills it again from the new topics",
            )

    def _check_job(self) -> None:
        """Raises RefusedError if another job has taken over: two would publish two positions in turn. If an earlier job
        has published after this one began, its position is adopted and published again: it may be ahead, and the
        applied position must not go back."""
        last = self._environment.control.sinks.get(SinkRecord.key_of(self._sink.name, self._generation))
        if last is None or last == self._former_job:
            return
        if last.job < self._environment.job_id:
            self._published, self._former_job = None, last
            with self._state:
                self._position.adopt(last)
        if last.job > self._environment.job_id:
            raise RefusedError(
                f"{self._sink.name}: another job writes to this store now (job {last.job[0]}; this one is job "
                f"{self._environment.job_id[0]})",
                "stop one of them; two jobs of one sink do not damage the store, but only one may publish its position",
            )

    def _prepare_pending(self) -> None:
        with self._state:
            schema_histories, self._unprepared = self._unprepared, []
        self._prepare(schema_histories)

    def _prepare(self, schema_histories: Sequence[SchemaHistory]) -> None:
        if not schema_histories:
            return
        with self._store:
            for schema_history in schema_histories:
                schema = schema_history.newest
                known = self._schema_histories.get(schema.topic)
                self._sink.prepare(schema, schema_history.earlier)
                self._schema_histories[schema.topic] = schema_history
                if known is not None:
                    log.info("schema changed", sink=self._sink.name, table=str(schema.table), version=schema.version)
        self._batches.set_tables(self._schema_histories)
        self._prepared_us = self._environment.now_us()


def _as_offsets(found: Mapping[str, Mapping[int, int]]) -> dict[str, tuple[int, ...]]:
    """Returns the offsets of some partitions as those of topics; 0: not known."""
    return {
        topic: tuple(partitions.get(number, 0) for number in range(max(partitions) + 1))
        for topic, partitions in found.items()
    }
