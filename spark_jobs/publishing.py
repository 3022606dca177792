"""How far one generation of a sink is: readable, noted in the store, published; and its dead letters, before that.

A job may be killed at any moment: unpublished work is repeated, and the store's guard by version makes that harmless.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock, RLock

import structlog

from cdc.model.control import ProgressRecord, table_key
from cdc.model.events import TableId, pack_version
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.rejected_rows import RejectedRow, dead_letter_table
from cdc.model.sink_records import JobId, RefusedTopic, SinkRecord
from sinks.contract import Sink, lost_writes
from sinks.errors import RefusedError, SinkError
from spark_jobs.applied import ALTERED, AppliedPosition, Invalidations
from spark_jobs.batches import Batches, BatchReport
from spark_jobs.control_reader import ControlReader
from spark_jobs.cuts import TransactionalBatches
from spark_jobs.dead_letters import DeadLetterTopic
from spark_jobs.sync_state import SyncState, Written, as_offsets

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CutMarks:
    """How a store marks cuts that it is at."""

    interval_s: float  # between two, at least
    set: Callable[[ProgressRecord, Mapping[TableId, str]], bool]  # marks tables, each with its topic; see Tags.set


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """The clients with which a sink's job keeps one generation up to date, and how it uses them."""

    sink: Sink
    generation: int
    batches: Batches
    control: ControlReader
    dead_letters: DeadLetterTopic
    complete: Callable[[SinkRecord], SinkRecord]  # adds what the job knows of the sink, besides its position
    publish: Callable[[SinkRecord], None]
    now_us: Callable[[], int]  # µs since 1970
    wait: Callable[[float], bool]  # seconds; says whether there was a request to stop meanwhile
    job_id: JobId
    dead_letters_max: int  # open dead letters, with more of which the sink stops
    may_hold_more: bool = False  # the store may have rows of tables that were never read, from former topics
    at_cuts: bool = False  # batches go from one cut to the next (ProgressRecord.is_cut)
    transactional: TransactionalBatches | None = None  # `batches`, if merged in one transaction; then `at_cuts`
    marks: CutMarks | None = None
    unread_s_max: float = math.inf  # for which a topic that is not read keeps its deletes
    # Held while a batch runs and while tables are prepared: no task writes to a table that is being altered.
    writing: Lock = field(default_factory=Lock)
    turn: RLock = field(default_factory=RLock)  # sink, control and dead letters serve one thread at a time


class _NotAtCut(Exception):  # noqa: N818
    """Raised to roll back what was read up to another position."""


@dataclass
class DeadLetterUpkeep:
    """Opens and closes the dead letters of one generation, in the caller's turn."""

    environment: JobEnvironment
    state: SyncState

    def __post_init__(self) -> None:
        self.count = len(self.environment.dead_letters.open)
        self._checked: Mapping[str, int] = {}  # open ones, of which none is below a sweep
        self._followed = dict(self.state.position.written)  # whose dead letters were read, see `read_written`

    def settle(self, draft: AppliedPosition | None) -> None:
        """Does what must be done before a position is noted. Raises RefusedError if too many are open, and more than
        before."""
        if not self.environment.batches.is_live:
            self.publish()
        self.read_written()
        self.close_late(draft)
        before, self.count = self.count, len(self.environment.dead_letters.open)
        if self.count > max(before, self.environment.dead_letters_max):
            name = self.environment.sink.name
            raise RefusedError(
                f"{name}: the store rejected {self.count} rows, more than dead_letters_max",
                f"cdc dlq list {name} shows why; correct the rows, the mapping or the store, or raise the sink's "
                "dead_letters_max, and start the sink again",
            )

    def open(self) -> dict[str, int]:
        """Returns dead_letter_key → version of the open ones, those included that are not published yet."""
        versions, state = dict(self.environment.dead_letters.open), self.state
        with state.lock:
            updates = state.readable_dead_letters | state.showing.dead_letters | state.written.dead_letters
        for key, dead_letter in updates.items():
            if isinstance(dead_letter, RejectedRow):
                versions[key] = dead_letter.version
            else:
                versions.pop(key, None)
        return versions

    def publish(self) -> None:
        """Publishes them, before the position that covers their records. No task may run that publishes its own: a row
        may be rejected again just when its dead letter is closed."""
        state = self.state
        with state.lock:
            dead_letters, closings = dict(state.readable_dead_letters), state.closings
        if closings and self.environment.batches.is_live:
            self.environment.dead_letters.read_to_end()
        newest = self.environment.dead_letters.open
        rejected_again = {key for key, version in closings.items() if newest.get(key, 0) > version}
        self.environment.dead_letters.publish(
            {
                key: dead_letter
                for key, dead_letter in dead_letters.items()
                if isinstance(dead_letter, RejectedRow) or key not in rejected_again
            }
        )
        with state.lock:  # only in a turn are others added
            state.readable_dead_letters, state.closings = {}, {}

    def read_written(self) -> None:
        """Reads those of everything that was written, where tasks publish them: they do so before their offsets, but
        the topic may be slower than the group. A position without them would tell a waiter that no row is missing, and
        a sweep would leave them open."""
        with self.state.lock:
            written = dict(self.state.position.written)
        if self.environment.batches.is_live and written != self._followed:
            self.environment.dead_letters.read_to_end()
            self._followed = written

    def close_swept(self, draft: AppliedPosition | None = None) -> None:
        """Closes those whose rows a sweep has removed, by the state's position, or by a draft of it."""
        found = self.open()
        with self.state.lock:
            floors = dict((draft or self.state.position).sweeps)
        self._close({key: v for key, v in found.items() if v < floors.get(table_key(dead_letter_table(key)), 0)})

    def close_late(self, draft: AppliedPosition | None) -> None:
        """Closes those that were published after the sweep: records of a topic are read again, or a task that Spark has
        given up went on."""
        found = dict(self.environment.dead_letters.open)
        if found != self._checked:
            self.close_swept(draft)
            self._checked = found

    def close_removed(self, progress: Sequence[ProgressRecord]) -> None:
        """Closes those of tables that were captured when the row was rejected, and are not any more: nothing else
        would. A table that was only stopped is owed."""
        found = self.open() if progress else {}
        if not found:
            return
        newest = progress[-1]
        known = pack_version(newest.epoch, newest.seq)
        histories = self.state.schema_histories.items()
        captured = {history.newest.table for topic, history in histories if topic in newest.end_offsets}
        self._close(
            {
                key: version
                for key, version in found.items()
                for table in (dead_letter_table(key),)
                if version <= known and table not in captured and str(table) not in newest.owed
            }
        )

    def _close(self, versions: Mapping[str, int]) -> None:
        """Closes them with the next that are published."""
        state = self.state
        with state.lock:
            for key in versions:
                state.written.dead_letters.pop(key, None)
                state.showing.dead_letters.pop(key, None)
                state.readable_dead_letters[key] = None
            state.closings = {**state.closings, **versions}


@dataclass
class Publisher:
    """Shows, notes and publishes. Methods wait for their turn."""

    environment: JobEnvironment
    state: SyncState

    def __post_init__(self) -> None:
        self.dead_letters = DeadLetterUpkeep(self.environment, self.state)
        self._sink = self.environment.sink
        self._record_key = SinkRecord.key_of(self._sink.name, self.environment.generation)
        self._former_job = self.environment.control.sinks.get(self._record_key)
        self._published: SinkRecord | None = None
        self._saved_text: str | None = None  # the text that the store must hold since this job wrote it
        self._marked_us: int | None = None  # when the last mark was set
        self._marked: tuple[int, int] = (0, 0)  # epoch and LSN of it
        # Dead letters were closed for rows that a transaction has written, of which it is not known whether it was
        # committed: the position before would tell that no row is missing.
        self._is_uncertain = False

    def make_readable(self) -> None:
        """Makes readable what was written. What could not be made readable is tried again before anything that was
        written with it counts as shown."""
        state = self.state
        with self.environment.turn:
            with state.lock:
                offsets, invalidations = dict(state.position.written), dict(state.position.invalidations)
                state.showing.tables |= state.written.tables
                state.showing.dead_letters |= state.written.dead_letters
                state.written = Written()
                tables = frozenset(state.showing.tables)
            if tables:
                self._sink.make_readable(tables)
            with state.lock:
                state.readable_dead_letters |= state.showing.dead_letters
                state.showing = Written()
                state.position.mark_readable(offsets, invalidations)

    def sweep(self, draft: AppliedPosition | None = None) -> None:
        """Removes the rows that due sweeps name, and notes that in the state's position, or in a draft of it."""
        for sweep in self.state.due_sweeps(draft):
            with self.environment.turn:
                swept = self._sink.sweep(sweep.table, sweep.floor)
                self._sink.make_readable({sweep.table})
                self.dead_letters.read_written()
                with self.state.lock:
                    (draft or self.state.position).finish(sweep)
                self.dead_letters.close_swept(draft)
            log.info("swept", sink=self._sink.name, table=str(sweep.table), rows=swept)

    def publish(self) -> None:
        """Notes the position in the store, then publishes it: a store that loses its last writes loses the note."""
        with self.environment.turn:
            if not self._is_uncertain:  # else the sink begins again, where the store is
                self._publish(self._note())

    def commit(
        self, batches: TransactionalBatches, staged: BatchReport | None, invalidations: Invalidations
    ) -> BatchReport:
        """In one transaction of the store, writes a batch (None: there is none), sweeps, and notes the position; then
        publishes it. The state has the former position until the transaction is committed. Returns what was read. A
        batch that does not end at the cut is not written: what it lacks is read with the next one."""
        state, merged, refusals = self.state, BatchReport(), dict[str, RefusedTopic]()
        with self.environment.turn:
            if self._is_uncertain and staged is None:
                return merged
            draft = state.draft()
            try:
                with batches.transaction():
                    if staged is not None:
                        merged = batches.merge(staged)
                        refusals = state.refusals(merged, invalidations)
                        self._add_to(draft, merged, invalidations, refusals)
                    self._is_uncertain = True
                    with state.lock:
                        state.readable_dead_letters |= merged.dead_letters
                        state.written_count += merged.written
                        state.stale_count += merged.stale
                    self.sweep(draft)
                    record = self._note(draft)
            except _NotAtCut:
                state.give_up_lost(merged, invalidations)
                state.refuse(refusals)
                log.info("a batch does not end at its cut, and is read again", sink=self._sink.name)
                return merged
            with state.lock:
                state.position = draft
                state.report_count += staged is not None
            self._is_uncertain = False
            state.refuse(refusals)
            self._publish(record)
        if staged is not None:
            state.has_new_writes.set()
        return merged

    def _add_to(
        self,
        draft: AppliedPosition,
        merged: BatchReport,
        invalidations: Invalidations,
        refusals: Mapping[str, RefusedTopic],
    ) -> None:
        """Raises _NotAtCut."""
        draft.mark_written(as_offsets(merged.end_offsets), invalidations, as_offsets(merged.start_offsets))
        for topic, refusal in refusals.items():
            draft.refuse(topic, refusal)
        if merged.lost or not draft.is_at_cut(self.state.topics - refusals.keys()):
            raise _NotAtCut
        draft.mark_readable(draft.written, invalidations)

    def _note(self, draft: AppliedPosition | None = None) -> SinkRecord | None:
        """Notes the position in the store. Returns the record to publish, None if it says nothing new."""
        self.dead_letters.settle(draft)
        record = self.environment.complete(self._record(draft))
        last = self._published
        if last is not None and record.model_copy(update={"applied_ts_us": last.applied_ts_us}) == last:
            return None
        text, before = record.encode().decode(), self._saved_text
        self._saved_text = None  # while it is not known which text the store holds
        self._sink.save_position(text, before)
        self._saved_text = text
        return record

    def _publish(self, record: SinkRecord | None) -> None:
        if record is not None:
            self.environment.publish(record)
            self._published = record

    def _record(self, draft: AppliedPosition | None) -> SinkRecord:
        now_us, last, state = self.environment.now_us(), self._published or self._former_job, self.state
        open_dead_letters = self.environment.dead_letters.open
        with state.lock:
            position = draft or state.position
            applied, cut = position.applied, position.cut if self.environment.at_cuts else None
            unread = {str(state.schema_histories[topic].newest.table): why for topic, why in state.unreadable.items()}
            new = (history.newest for history in state.unprepared)
            altered = {str(schema.table): ALTERED for schema in new if schema.topic in state.schema_histories}
            is_same = last is not None and (last.epoch, last.applied_lsn) == applied[:2]
            return SinkRecord(
                sink=self._sink.name,
                generation=self.environment.generation,
                end_offsets=dict(position.offsets),
                applied_lsn=applied.lsn,
                epoch=applied.epoch,
                commit_ts_us=applied.commit_ts_us,
                applied_ts_us=now_us,
                applied_since_us=last.applied_since_us if last is not None and is_same else now_us,
                sweeps=dict(position.sweeps),
                written=state.written_count,
                stale=state.stale_count,
                dead_letters=len(open_dead_letters),
                rejected=dict(Counter(str(dead_letter_table(dead_letter)) for dead_letter in open_dead_letters)),
                history=position.history,
                incarnations={
                    topic: position.incarnations.get(topic, "")
                    for topic in (position.offsets.keys() | position.refused.keys())
                },
                owed=position.owed | unread | altered,
                shown=position.shown,
                refused=dict(position.refused),
                cut_offsets={} if cut is None else cut.end_offsets,
                job=self.environment.job_id,
            )

    def check_job(self) -> None:
        """Raises RefusedError if another job has taken over: two would publish two positions in turn. If an earlier job
        has published after this one began, its position is adopted and published again: it may be ahead, and the
        applied position must not go back."""
        with self.environment.turn:
            last = self.environment.control.sinks.get(self._record_key)
            if last is None or last == self._former_job:
                return
            if last.job < self.environment.job_id:
                self._published, self._former_job = None, last
                with self.state.lock:
                    self.state.position.adopt(last)
            if last.job > self.environment.job_id:
                raise RefusedError(
                    f"{self._sink.name}: another job writes to this store now (job {last.job[0]}; this one is job "
                    f"{self.environment.job_id[0]})",
                    "stop one of them; two jobs of one sink do not damage the store, but only one may publish its "
                    "position",
                )

    def check_store(self) -> None:
        """Raises SinkError if the store does not hold what this job has noted."""
        with self.environment.turn:
            found, saved, expected = self._sink.generation(), self._sink.saved_position(), self._saved_text
        generation = self.environment.generation
        if found != generation:
            raise SinkError(
                f"{self._sink.name}: the store no longer holds generation {generation}: its data was deleted",
                "nothing to do: the sink fills it again from the topics",
            )
        if expected is not None and saved != expected:
            raise lost_writes(f"{self._sink.name}: the store")

    @property
    def mark_is_due(self) -> bool:
        """Whether the cut that the store is at is to be marked. Does not wait."""
        marks, since, now_us = self.environment.marks, self._marked_us, self.environment.now_us()
        return marks is not None and (since is None or now_us - since >= marks.interval_s * 1_000_000)

    def mark_cut(self) -> None:
        """Marks the cut that the store is at. To be called while no batch writes."""
        state = self.state
        with self.environment.turn:
            with state.lock:
                position, topics = state.position, state.topics
                cut = position.cut_here(topics)
                if cut is None or (cut.epoch, cut.lsn) <= self._marked or position.offsets != position.written:
                    return
                tables = {
                    history.newest.table: topic
                    for topic, history in state.schema_histories.items()
                    if topic in topics
                    and topic in cut.end_offsets
                    and str(history.newest.table) not in position.owed
                    and position.is_swept(history.newest.table, cut)
                }
            if self.environment.marks is not None and tables and self.environment.marks.set(cut, tables):
                self._marked_us, self._marked = self.environment.now_us(), (cut.epoch, cut.lsn)
                log.info("marked", sink=self._sink.name, lsn=format_lsn(Lsn(cut.lsn)), tables=len(tables))
