"""What the threads of one generation of a sink share: how far it is, and what is still to be done. Does no I/O."""

import math
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import structlog

from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.events import TableId
from cdc.model.sink_records import RefusedTopic
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import Applied, AppliedPosition, FoundTopic, Invalidations, Offsets, covers
from spark_jobs.batches import BatchReport
from spark_jobs.rejections import DeadLetterUpdates
from spark_jobs.task_report import Blocked

log = structlog.get_logger(__name__)

BEHIND_S: Final = 0.25
# Before a topic with a record that can't be read is tried again: a live batch ends for it.
TRY_S_FIRST: Final = 30.0
TRY_S_MAX: Final = 600.0


@dataclass(slots=True)
class Written:
    """Rows in the store that may not be readable yet."""

    tables: set[TableId] = field(default_factory=set)
    dead_letters: DeadLetterUpdates = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Trial:
    """When a refused topic is read again, to see whether it was mended."""

    places: Mapping[int, int]  # see RefusedTopic
    pause_s: float
    at_us: int


class SyncState:
    """The state of one generation. Methods take the lock, and may be called by any thread. Whoever holds it calls
    neither a store nor the brokers. A value that is handed out is replaced as a whole, never changed."""

    def __init__(
        self, sink_name: str, position: AppliedPosition, now_us: Callable[[], int], unread_s_max: float = math.inf
    ) -> None:
        """`unread_s_max`: a topic that was not read for so long may lack deletes."""
        self.has_new_writes = threading.Event()  # something was written since the watching thread worked last
        self.lock = threading.Lock()  # of everything below
        self.position = position  # replaced as a whole by a transactional sink
        self.schema_histories: Mapping[str, SchemaHistory] = {}  # by topic; prepared
        self.unprepared: tuple[SchemaHistory, ...] = ()  # in the order of their schemas
        self.prepared_us = 0  # when a table was prepared last
        self.unreadable: Mapping[str, str] = {}  # topic → why it is not read
        self.found_ends: Offsets = {}  # of the topics that can be read, when they were looked for last
        self.active_query = 0  # the number of the query whose batches may begin; 0: none
        self.planned: Offsets = {}  # the ends of topics, as known when the running batch began
        self.planned_incarnations: Mapping[str, str] = {}  # by topic, as known then
        self.written, self.showing = Written(), Written()  # not readable, and being made readable
        self.readable_dead_letters: DeadLetterUpdates = {}  # that are to be published
        self.closings: Mapping[str, int] = {}  # of these: the versions of those that are closed as their rows are gone
        self.written_count = 0
        self.stale_count = 0
        self.report_count = 0
        self._sink_name = sink_name
        self._now_us = now_us
        self._query_numbers = count(1)
        self._unread_s_max = unread_s_max
        self._trials: dict[str, _Trial] = {}  # by topic
        self._behind_us: int | None = None  # when a task reported last that there are more records than it can take

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the prepared tables that exist and are those that capture has published. Takes no lock."""
        return frozenset(self.schema_histories.keys() - self.unreadable.keys())

    @property
    def applied(self) -> Applied:
        """The position that readers of this generation see."""
        with self.lock:
            return self.position.applied

    @property
    def published(self) -> Applied:
        """The furthest position that capture is known to have published."""
        with self.lock:
            return self.position.published

    @property
    def refused(self) -> Mapping[str, RefusedTopic]:
        """The topics without which the position goes on."""
        with self.lock:
            return dict(self.position.refused)

    @property
    def has_read_out(self) -> bool:
        """Says whether the topics of tables that capture publishes no more were read to their ends: no position that
        it publishes says that they were."""
        with self.lock:
            published = self.position.partition_counts
            left = {topic: ends for topic, ends in self.found_ends.items() if topic not in published}
            return covers(self.position.offsets, left)

    @property
    def is_behind(self) -> bool:
        """True while a backlog is being worked off."""
        with self.lock:
            return self._behind_us is not None and self._now_us() - self._behind_us < BEHIND_S * 1_000_000

    def start_query(self) -> int:
        """Returns a number for a new query: its batches may begin, those of earlier queries may not any more."""
        with self.lock:
            self.active_query = next(self._query_numbers)
            return self.active_query

    def stop_query(self) -> None:
        """Has the running batch asked to end, with its next report, and allows no other."""
        with self.lock:
            self.active_query = 0

    def draft(self) -> AppliedPosition:
        """Returns a copy of the position, to be changed without effect on others."""
        with self.lock:
            return self.position.copy()

    def add_report(self, report: BatchReport, invalidations: Invalidations) -> bool:
        """Takes the work of tasks. `invalidations`: of the topics when the batch began. Returns whether every task
        began at or before what was written."""
        end_offsets = as_offsets(report.end_offsets)
        with self.lock:
            histories = self.schema_histories
            is_contiguous = self.position.mark_written(end_offsets, invalidations, as_offsets(report.start_offsets))
            self.written.tables |= {histories[topic].newest.table for topic in report.topics if topic in histories}
            self.written.dead_letters |= report.dead_letters
            self.written_count += report.written
            self.stale_count += report.stale
            self.report_count += bool(end_offsets)
            self._refuse(self._refusals(report, invalidations))
            if report.is_behind:
                self._behind_us = self._now_us()
        self.give_up_lost(report, invalidations)
        if end_offsets:
            self.has_new_writes.set()
        if report.records:
            write_ms = round(report.write_s * 1000)
            log.debug(
                "written", sink=self._sink_name, records=report.records, behind=report.is_behind, write_ms=write_ms
            )
        return is_contiguous

    def give_up_lost(self, report: BatchReport, invalidations: Invalidations) -> None:
        """Voids the offsets of topics that tasks could not read on, unless they were voided since the batch began."""
        with self.lock:
            lost = [
                topic for topic in report.lost if self.position.invalidations.get(topic) == invalidations.get(topic)
            ]
            for topic in lost:
                self.position.invalidate(topic)
        for topic in lost:
            log.warning("topic is read from its beginning", sink=self._sink_name, because=report.lost[topic])

    # ---- topics with a record that can't be read

    def refusals(self, report: BatchReport, invalidations: Invalidations) -> dict[str, RefusedTopic]:
        """Returns the topics that are not read on behind this report."""
        with self.lock:
            return self._refusals(report, invalidations)

    def refuse(self, refusals: Mapping[str, RefusedTopic]) -> None:
        """Has batches leave these topics out for a while; the position goes on without them."""
        with self.lock:
            self._refuse(refusals)

    def refuse_for_schemas(self, report: BatchReport, topics: Collection[str]) -> None:
        """Refuses topics whose records' schemas did not follow in time."""
        with self.lock:
            self._refuse(self._refusals(report, self.position.invalidations, topics))

    def _refusals(
        self, report: BatchReport, invalidations: Invalidations, overdue: Collection[str] = ()
    ) -> dict[str, RefusedTopic]:
        """`overdue`: topics that are refused for records whose schemas are not known, too."""
        found: dict[str, RefusedTopic] = {}
        for partition, blocked in sorted(report.blocked.items()):
            topic, position = partition.topic, self.position
            is_waited_for = blocked.may_follow and topic not in position.refused and topic not in overdue
            is_void = position.invalidations.get(topic) != invalidations.get(topic)
            if topic not in self.schema_histories or is_waited_for or is_void:
                continue
            first = found.get(topic)
            found[topic] = RefusedTopic(
                table=str(self.schema_histories[topic].newest.table),
                reason=first.reason if first is not None else blocked.reason,
                next=first.next if first is not None else self._next_after(topic, blocked),
                places={**(first.places if first is not None else {}), partition.number: blocked.offset},
                is_left_out=True,
                since_us=self._now_us(),
            )
        return found

    def _next_after(self, topic: str, blocked: Blocked) -> str:
        if blocked.may_follow:
            return blocked.next
        table = self.schema_histories[topic].newest.table
        return (
            f"{blocked.next}; then delete the record (kafka-delete-records), or topic {topic} if nobody else needs it: "
            f"capture stops the table, and cdc table start {table} publishes all its rows again"
        )

    def _refuse(self, refusals: Mapping[str, RefusedTopic]) -> None:
        for topic, refusal in refusals.items():
            last = self._trials.get(topic)
            is_same = last is not None and last.places == refusal.places
            pause_s = min(2 * last.pause_s, TRY_S_MAX) if last is not None and is_same else TRY_S_FIRST
            self._trials[topic] = _Trial(refusal.places, pause_s, self._now_us() + round(pause_s * 1_000_000))
            self.position.refuse(topic, refusal)
            self.unreadable = {**self.unreadable, topic: refusal.reason}
            if not is_same:
                what = {"because": refusal.reason, "next": refusal.next}
                log.warning("table is not read on", sink=self._sink_name, table=refusal.table, **what)

    def left_out(self, found: Mapping[str, FoundTopic]) -> dict[str, str]:
        """Returns the refused topics that batches leave out, each with the reason. Those whose time has come, and those
        whose record was deleted, are read again. To be called with the lock."""
        refused = self.position.refused
        self._trials = {topic: trial for topic, trial in self._trials.items() if topic in refused}
        for topic in [topic for topic, refusal in refused.items() if refusal.is_left_out]:
            trial = self._trials.get(topic)
            starts = found[topic].start_offsets if topic in found else ()
            is_gone = any(number < len(starts) and starts[number] > at for number, at in refused[topic].places.items())
            if is_gone or trial is None or self._now_us() >= trial.at_us:
                unread_s = (self._now_us() - refused[topic].since_us) / 1_000_000
                self.position.read_again(topic, is_old=unread_s > self._unread_s_max)
        return {topic: refusal.reason for topic, refusal in refused.items() if refusal.is_left_out}

    def incarnation_of(self, topic: str) -> str:
        """Returns the incarnation of a topic when the running batch began."""
        return self.planned_incarnations.get(topic, "")

    def cut_of(self, report: BatchReport) -> tuple[ProgressRecord, bool] | None:
        """Returns the cut up to which batches go now, and whether the store is at it when it has a batch with this
        report."""
        draft = self.draft()
        if draft.cut is None:
            return None
        draft.mark_written(as_offsets(report.end_offsets), draft.invalidations, as_offsets(report.start_offsets))
        return draft.cut, draft.is_at_cut(self.topics)

    def due_sweeps(self, draft: AppliedPosition | None = None) -> list[SweepRecord]:
        """Returns the sweeps that are due at the position, or at a draft of it. That of an empty table may be due as
        soon as the table is known: not before the store is prepared for it."""
        with self.lock:
            prepared = {schema_history.newest.table for schema_history in self.schema_histories.values()}
            new = {schema_history.newest.table for schema_history in self.unprepared} - prepared
            return [sweep for sweep in (draft or self.position).due_sweeps() if sweep.table not in new]


def as_offsets(found: Mapping[str, Mapping[int, int]]) -> dict[str, tuple[int, ...]]:
    """Returns the offsets of some partitions as those of topics; 0: not known."""
    return {
        topic: tuple(partitions.get(number, 0) for number in range(max(partitions) + 1))
        for topic, partitions in found.items()
    }
