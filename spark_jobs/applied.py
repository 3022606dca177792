"""Computes how far a sink has applied the source's history. Pure.

A progress record says that everything up to LSN L lies below its offsets, except what it lists as owed. A batch's end
offsets say what the store holds. L is applied when they cover its offsets, and when every sweep as of L or earlier is
done: before that, the store still shows deleted rows.

An offset belongs to one incarnation of a topic. When a topic is created again, or has lost records, the same offset
stands for another record: offsets of the former incarnation are void, and the topic is read from its beginning.

A topic with a record that can't be read is *refused*: the position goes on without it, its table is owed, and the
table's sweeps wait until the topic was read up to the position.

Positions of different epochs are ordered by epoch first: LSNs may start again lower after a failover or restore.
"""

import copy
import math
from collections.abc import Collection, Iterable, Mapping
from operator import gt
from typing import Final, NamedTuple, Self

from cdc.model.control import ProgressRecord, SweepRecord, table_key, table_of_key
from cdc.model.events import TableId
from cdc.model.sink_records import RefusedTopic, SinkRecord
from cdc.tables.continuity import topic_id_of

Offsets = Mapping[str, tuple[int, ...]]  # topic → the offset after the last one applied, for each partition


class FoundTopic(NamedTuple):
    """A topic as the brokers have it."""

    topic_id: str
    end_offsets: tuple[int, ...]  # the last stable offset of each partition
    start_offsets: tuple[int, ...] = ()  # the first offset of each partition; empty: not known, taken for 0


Invalidations = Mapping[str, int]  # topic → how often its offsets were found void

# A sink that lags keeps this many progress records, thinned evenly: that costs precision, not correctness.
PENDING_MAX: Final = 512
ALTERED: Final = "the table was altered, and the store does not have its columns yet"
BUILT_AGAIN: Final = "the store must be built again: "  # the beginning of a reason why rows are owed for ever
UNREAD_FOR_LONG: Final = "the table's topic was not read for half the time for which topics keep deletes"
RESET_FLOOR: Final = 1  # of the sweep that removes rows at version 0


class Applied(NamedTuple):
    """The source position that a store shows."""

    epoch: int
    lsn: int
    commit_ts_us: int  # commit time that belongs to it, µs since 1970
    seq: int = 0  # rows of the epoch up to this number are applied; 0: not known, after a start


NOTHING: Final = Applied(0, 0, 0)


def covers(offsets: Offsets, wanted: Offsets) -> bool:
    """Says whether everything below `wanted` is below `offsets`. A partition that `offsets` lacks counts as 0."""
    for topic, ends in wanted.items():
        have = offsets.get(topic, ())
        for partition, end in enumerate(ends):
            if end > 0 and (partition >= len(have) or have[partition] < end):
                return False
    return True


def max_offsets(left: Offsets, right: Offsets) -> dict[str, tuple[int, ...]]:
    """Returns the greater offset of each partition."""
    merged = dict(left)
    for topic, ends in right.items():
        have = merged.get(topic, ())
        count = max(len(have), len(ends))
        merged[topic] = tuple(
            max(have[n] if n < len(have) else 0, ends[n] if n < len(ends) else 0) for n in range(count)
        )
    return merged


class AppliedPosition:
    """Follows one generation of one sink, from records that were read and work that was done. Says which sweeps are
    due, and the position.

    A caller must have read the control topic to its end *after* it read a progress record, before it passes on either:
    the sweep that belongs to an LSN is committed before a progress record of that LSN.
    """

    def __init__(
        self,
        offsets: Offsets | None = None,
        sweeps: Mapping[str, int] | None = None,
        applied: Applied = NOTHING,
        incarnations: Mapping[str, str] | None = None,
        owed: Mapping[str, str] | None = None,
        history: str = "",
        shown: Mapping[str, str] | None = None,
        cut_offsets: Offsets | None = None,
        refused: Mapping[str, RefusedTopic] | None = None,
    ) -> None:
        """Takes the position that an earlier run is known to have reached. `sweeps`: table key → floor of the last
        sweep finished; 0 for a table whose former rows are at version 0 and not removed yet. The others: see
        SinkRecord."""
        self.offsets: dict[str, tuple[int, ...]] = dict(offsets or {})  # below which everything is readable
        self.written = dict(self.offsets)  # below which everything is in the store, readable or not
        self.incarnations: dict[str, str] = dict(incarnations or {})
        self.starts: dict[str, tuple[int, ...]] = {}  # see ProgressRecord.starts
        self.sweeps: dict[str, int] = dict(sweeps or {})
        self.applied = applied
        self.history = history
        self.refused: dict[str, RefusedTopic] = dict(refused or {})  # by topic
        self.shown: dict[str, str] = dict(shown or {})  # the incarnations of the progress record that is applied
        self.published = applied  # the furthest position that is known to be published
        self.invalidations: dict[str, int] = {}
        self._partition_counts: dict[str, int] = {}
        self._covered = applied  # as applied, without regard to sweeps
        self._covered_number = -1  # of the last progress record that was covered
        self._covered_topics = self.shown
        self._pending: list[tuple[int, ProgressRecord]] = []  # numbered in order of arrival, not yet covered
        self._arrived = 0
        self._stride = 1  # of the pending records, those are kept whose number it divides, the last, and cuts in use
        self.cut: ProgressRecord | None = None  # see `choose_cut`
        self.cut_least: Offsets = dict(cut_offsets or {})  # below which the store may have rows that are not noted
        self._newest_cut: ProgressRecord | None = None
        self._former_cut: ProgressRecord | None = None
        self._unfinished: dict[tuple[str, int], SweepRecord] = {}
        # Of these, those that replaced one which this reader never saw: the LSN that it belongs to is not known.
        self._missed: set[tuple[str, int]] = set()
        # schema.table → why rows are owed, and a number: they are there when a later progress record is covered.
        self._owed: dict[str, tuple[str, float]] = {table: (reason, math.inf) for table, reason in (owed or {}).items()}
        # Until it is known what was published since. A generation that must be replaced owes rows for ever.
        self._inherited = frozenset(
            table for table, (reason, _) in self._owed.items() if not reason.startswith(BUILT_AGAIN)
        )

    @classmethod
    def of(cls, record: SinkRecord) -> "AppliedPosition":
        """Returns the position that the job of this record had reached."""
        applied = Applied(record.epoch, record.applied_lsn, record.commit_ts_us)
        return cls(
            record.end_offsets,
            record.sweeps,
            applied,
            record.incarnations,
            record.owed,
            record.history,
            record.shown,
            record.cut_offsets,
            record.refused,
        )

    @property
    def owed(self) -> dict[str, str]:
        """Returns schema.table → why rows up to the applied position may be missing."""
        published = self._partition_counts
        refused = {one.table: one.reason for topic, one in self.refused.items() if topic in published or not published}
        return {table: reason for table, (reason, _) in sorted(self._owed.items())} | refused

    # ---- what capture published

    def add_published(self, progress: Iterable[ProgressRecord], sweeps: Iterable[SweepRecord]) -> None:
        """Takes progress records in the order of their topic, and sweeps in any order; repetitions have no effect."""
        for sweep in sweeps:
            self._learn_sweep(sweep)
        records = list(progress)
        if records:
            self._identify(records[-1])
        for record in records:
            self.published = max(self.published, _place(record))
            if self._is_of_these_topics(record):
                self._pending.append((self._arrived, record))
                self._newest_cut = record if record.is_cut else self._newest_cut
            for table, reason in record.owed.items():
                if self._owed.get(table, ("", -1))[1] < self._arrived:
                    self._owed[table] = reason, self._arrived
            self._arrived += 1
        # Of brokers that were restored from an older copy, the newest record may be older than what is applied.
        if records and _place(records[-1])[:2] >= self.applied[:2]:
            inherited, self._inherited = self._inherited, frozenset()
            self._owed |= {
                table: (self._owed[table][0], self._arrived - 1.5) for table in inherited - records[-1].owed.keys()
            }
            self._owed |= {table: (reason, self._arrived - 1) for table, reason in records[-1].owed.items()}
        self._thin()
        self._sweep_reset_tables()
        self._advance()

    def _learn_sweep(self, sweep: SweepRecord) -> None:
        table = table_key(sweep.table)
        done = self.sweeps.get(table, 0)
        if done >= sweep.floor:
            return
        known = {floor for other, floor in self._unfinished if other == table}
        if sweep.previous_floor > done and sweep.previous_floor not in known and sweep.floor not in known:
            self._missed.add((table, sweep.floor))
        self._unfinished[table, sweep.floor] = sweep

    def _identify(self, newest: ProgressRecord) -> None:
        """Gives up offsets of former incarnations, and progress records that rely on them."""
        self.history, self.starts = newest.history or self.history, newest.starts
        self._partition_counts = {topic: len(ends) for topic, ends in newest.end_offsets.items()}
        for topic, incarnation in newest.incarnations.items():
            known = self.incarnations.get(topic, "")
            if known != incarnation:
                if known or topic in self.written or topic in self.cut_least:
                    self.invalidate(topic)
                if topic in self.refused:
                    ends = newest.end_offsets.get(topic, ())
                    self._refuse(topic, reason=f"topic {topic} was created again, and is read from its beginning",
                                 places={}, owed_ends=ends, is_left_out=False, is_old=False)  # fmt: skip
                self.incarnations[topic] = incarnation
        self._pending = [(number, record) for number, record in self._pending if self._is_of_these_topics(record)]
        self.cut, self._newest_cut, self._former_cut = (
            None if cut is None or not self._is_of_these_topics(cut) else cut
            for cut in (self.cut, self._newest_cut, self._former_cut)
        )

    def _is_of_these_topics(self, record: ProgressRecord) -> bool:
        return all(
            record.incarnations.get(topic, incarnation) == incarnation
            for topic, incarnation in self.incarnations.items()
            if topic in record.end_offsets
        )

    def _sweep_reset_tables(self) -> None:
        """Lets a sweep remove the rows of tables that are filled again in place, when everything published by now is
        there."""
        if self.published.epoch:
            for table in [table for table, floor in self.sweeps.items() if floor == 0]:
                if (table, RESET_FLOOR) not in self._unfinished:
                    removal = SweepRecord.of(
                        table_of_key(table), RESET_FLOOR, self.published.lsn, self.published.epoch, 0
                    )
                    self._unfinished[table, RESET_FLOOR] = removal

    # ---- what the store holds

    def has_read(self, topic: str, table: TableId) -> bool:
        """Says whether records of the table were read, or its former rows are known to be at version 0, or removed."""
        return topic in self.written or topic in self.shown or table_key(table) in self.sweeps

    def add_reset_table(self, table: TableId) -> None:
        """Takes a table whose former rows are at version 0 now: nothing is applied until they are removed."""
        self.sweeps.setdefault(table_key(table), 0)

    def invalidate(self, topic: str) -> None:
        """Gives up the offsets of a topic: its records are read again from the beginning. A cut of it may lie below the
        offsets that its former log had."""
        self.offsets.pop(topic, None)
        self.written.pop(topic, None)
        self.cut_least = {name: ends for name, ends in self.cut_least.items() if name != topic}
        self.invalidations[topic] = self.invalidations.get(topic, 0) + 1

    def check_topic(self, topic: str, found: FoundTopic, written: tuple[int, ...] | None = None) -> str | None:
        """Compares the topic that the brokers had with the one whose offsets are noted. Returns the reason why it can't
        be read: capture has published another one, or records that were not read yet are gone. A topic that ends before
        the noted offsets has lost records: the offsets are void. `written`: the offsets that were noted before the
        brokers were asked, if work may have gone on since."""
        incarnation = self.incarnations.setdefault(topic, found.topic_id)
        if topic_id_of(incarnation) != found.topic_id:
            return f"topic {topic} is another one than capture has published (its id is {found.topic_id})"
        held = self.written.get(topic, ())
        before = held if written is None else tuple(map(min, held, written))
        if any(offset > end for offset, end in zip(before, found.end_offsets, strict=False)):
            self.invalidate(topic)
            held = ()
        known = self.starts.get(topic, ())
        unread = [
            max(
                self._wanted(topic, number, held[number] if number < len(held) else 0),
                known[number] if number < len(known) else 0,
            )
            for number in range(len(found.start_offsets))
        ]
        if any(map(gt, found.start_offsets, unread)):
            return f"records of topic {topic} were deleted before they were read: restart capture, which finds the gap"
        return None

    def _wanted(self, topic: str, number: int, held: int) -> int:
        """Returns the offset of the first record that is needed: one that can't be read may be deleted."""
        refused = self.refused.get(topic)
        return held + 1 if refused is not None and refused.places.get(number) == held else held

    # ---- topics with a record that can't be read

    def refuse(self, topic: str, refusal: RefusedTopic) -> None:
        """Takes a topic that is not read on, or not up to the position that is applied: it goes on without it."""
        before = self.refused.get(topic)
        kept: dict[str, object] = {"owed_ends": self.offsets.get(topic, ())}
        if before is not None:
            kept = {"owed_ends": before.owed_ends, "since_us": before.since_us, "is_old": before.is_old}
        self.refused[topic] = refusal.model_copy(update=kept)
        self._advance()

    def read_again(self, topic: str, *, is_old: bool = False) -> None:
        """Lets batches read a refused topic, from the record on. `is_old`: see RefusedTopic."""
        self._refuse(topic, is_left_out=False, is_old=is_old or self.refused[topic].is_old)

    def _refuse(self, topic: str, **changed: object) -> None:
        self.refused[topic] = self.refused[topic].model_copy(update=changed)

    @property
    def _tables_behind(self) -> frozenset[str]:
        """The tables, by key, whose topics were not read up to the applied position, so that no sweep is due."""
        return frozenset(
            table_key(TableId.parse(refused.table))
            for topic, refused in self.refused.items()
            if not self._is_read(topic, refused)
        )

    def _is_read(self, topic: str, refused: RefusedTopic) -> bool:
        """Says whether everything up to the applied position was read, and the records that could not be."""
        held = self.offsets.get(topic, ())
        is_past = all(number < len(held) and held[number] > place for number, place in refused.places.items())
        return is_past and not refused.is_left_out and covers(self.offsets, {topic: refused.owed_ends})

    def _readmit(self) -> None:
        """Ends the refusal of topics that are read up to the applied position, with the sweeps up to there."""
        for topic, refused in list(self.refused.items()):
            key = table_key(TableId.parse(refused.table))
            if self._is_read(topic, refused) and not self._owes_sweep({key}):
                del self.refused[topic]
                if refused.is_old:
                    self._owed[refused.table] = f"{BUILT_AGAIN}{UNREAD_FOR_LONG}", math.inf

    def _owes_sweep(self, tables: Collection[str]) -> bool:
        """Says whether rows of these tables (by key) may be there that are gone at the covered position."""
        return (
            any(self.sweeps.get(table) == 0 for table in tables)
            or any(table in tables for table, _ in self._missed)
            or any(
                table in tables and _as_of(sweep) <= self._covered[:2] for (table, _), sweep in self._unfinished.items()
            )
        )

    def mark_written(
        self, offsets: Offsets, invalidations: Invalidations, start_offsets: Offsets | None = None
    ) -> bool:
        """Takes offsets below which everything is in the store, from `start_offsets` on (None: from the first record).
        `invalidations`: when the work began; offsets of topics that were voided since are ignored. Returns False if
        work began behind what is known to be written, which is ignored too: the records between may be missing."""
        valid = self._valid(offsets, invalidations)
        joined = (
            valid
            if start_offsets is None
            else {topic: self._joined(topic, ends, start_offsets) for topic, ends in valid.items()}
        )
        self.written = max_offsets(self.written, joined)
        return joined == valid

    def _joined(self, topic: str, ends: tuple[int, ...], start_offsets: Offsets) -> tuple[int, ...]:
        """Returns 0 for partitions whose work did not begin where the earlier has ended, or before."""
        written, began = self.written.get(topic, ()), start_offsets.get(topic, ())
        return tuple(
            0 if number < len(began) and began[number] > (written[number] if number < len(written) else 0) else end
            for number, end in enumerate(ends)
        )

    @property
    def partition_counts(self) -> Mapping[str, int]:
        """Returns topic → number of partitions, as capture has published it last."""
        return self._partition_counts

    def mark_readable(self, offsets: Offsets, invalidations: Invalidations | None = None) -> None:
        """Takes offsets below which everything is applied and readable; `invalidations`: as for `mark_written`."""
        valid = offsets if invalidations is None else self._valid(offsets, invalidations)
        self.offsets = max_offsets(self.offsets, valid)
        self.written = max_offsets(self.written, valid)
        self._advance()

    def _valid(self, offsets: Offsets, invalidations: Invalidations) -> Offsets:
        return {
            topic: ends
            for topic, ends in offsets.items()
            if self.invalidations.get(topic, 0) == invalidations.get(topic, 0)
        }

    # ---- cuts

    def choose_cut(self, topics: Collection[str]) -> None:
        """Sets `cut` to the newest published cut if the one before is reached: the offsets up to which the store is
        written next. It stays until it is reached, so that a batch that was planned with it ends at it. `topics`: those
        that can be read."""
        newest = self._newest_cut
        if newest is None or (self.cut is not None and not covers(self.written, _only(self.cut.end_offsets, topics))):
            return
        if all(covers(newest.end_offsets, _only(held, newest.end_offsets)) for held in (self.written, self.cut_least)):
            self._former_cut, self.cut = self.cut, newest

    def is_at_cut(self, topics: Collection[str]) -> bool:
        """Says whether the store has exactly what lies below the cut, of the topics that can be read."""
        return self._is_at(self.cut, topics)

    def cut_here(self, topics: Collection[str]) -> ProgressRecord | None:
        """Returns the cut that the store is at: the present one, or the one before as long as nothing was written
        since. None: it is at none of them. Behind a later position it is at none, though its offsets are those of the
        cut: sweeps that belong to that position, which have no records, may be done."""
        cuts = (cut for cut in (self.cut, self._former_cut) if cut is not None and _place(cut)[:2] >= self._covered[:2])
        return next((cut for cut in cuts if self._is_at(cut, topics)), None)

    def _is_at(self, cut: ProgressRecord | None, topics: Collection[str]) -> bool:
        if cut is None:
            return False
        ends = _only(cut.end_offsets, topics)
        return covers(self.written, ends) and covers(ends, _only(self.written, ends))

    def is_swept(self, table: TableId, cut: ProgressRecord) -> bool:
        """Says whether every sweep of the table is done that belongs to the cut."""
        name = table_key(table)
        return self.sweeps.get(name) != 0 and not any(
            other == name and ((other, floor) in self._missed or _as_of(sweep) <= (cut.epoch, cut.lsn))
            for (other, floor), sweep in self._unfinished.items()
        )

    def copy(self) -> Self:
        """Returns a copy that can be changed without effect on this position."""
        made = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(made, name, copy.copy(value))
        return made

    def adopt(self, record: SinkRecord) -> None:
        """Takes a position that another job of the generation has published, which the store shows."""
        self.sweeps |= {table: max(floor, self.sweeps.get(table, 0)) for table, floor in record.sweeps.items()}
        self._unfinished = {
            (table, floor): sweep
            for (table, floor), sweep in self._unfinished.items()
            if self.sweeps.get(table, -1) < floor
        }
        self.refused |= {
            topic: refused.model_copy(update={"is_left_out": False}) for topic, refused in record.refused.items()
        }
        applied = Applied(record.epoch, record.applied_lsn, record.commit_ts_us)
        self._covered, self.applied = max(self._covered, applied), max(self.applied, applied)
        self.mark_readable(
            {
                topic: ends
                for topic, ends in record.end_offsets.items()
                if record.incarnations.get(topic, "") == self.incarnations.get(topic, "")
            }
        )

    def due_sweeps(self) -> list[SweepRecord]:
        """Returns for each table the highest sweep whose as-of position is reached, lowest floor first. It includes all
        lower ones, and in some stores each sweep reads every key. The caller executes them, then reports them done."""
        behind = self._tables_behind
        due = [
            sweep
            for (table, _), sweep in self._unfinished.items()
            if _as_of(sweep) <= self._covered[:2] and table not in behind
        ]
        highest = {table_key(sweep.table): sweep for sweep in sorted(due, key=lambda sweep: sweep.floor)}
        return sorted(highest.values(), key=lambda sweep: sweep.floor)

    def finish(self, sweep: SweepRecord) -> None:
        """Takes a sweep that is applied and readable; so is every lower one of its table."""
        table = table_key(sweep.table)
        self.sweeps[table] = max(self.sweeps.get(table, 0), sweep.floor)
        self._unfinished = {
            (other, floor): kept
            for (other, floor), kept in self._unfinished.items()
            if other != table or floor > sweep.floor
        }
        self._advance()

    def _thin(self) -> None:
        while len(self._pending) > PENDING_MAX:
            cuts = self.cut, self._newest_cut  # else sweeps as of their LSNs would seem not to be due there
            kept = [
                entry
                for entry in self._pending[:-1]
                if entry[0] % self._stride == 0 or any(entry[1] is cut for cut in cuts)
            ]
            self._pending = [*kept, self._pending[-1]]
            if len(self._pending) > PENDING_MAX:
                self._stride *= 2

    def _advance(self) -> None:
        reached = [
            place for place, (_, record) in enumerate(self._pending) if covers(self.offsets, self._awaited(record))
        ]
        for place in reached:
            number, record = self._pending[place]
            if _place(record)[:2] >= self._covered[:2]:
                self._covered_number, self._covered_topics = number, dict(record.incarnations)
                for topic in self.refused:
                    self._refuse(topic, owed_ends=record.end_offsets.get(topic, ()))
            self._covered = max(self._covered, _place(record))
            self._settle()
        if reached:
            self._pending = self._pending[reached[-1] + 1 :]
        if not self._pending:
            self._stride = 1
        self._settle()
        self._readmit()

    def _awaited(self, record: ProgressRecord) -> Offsets:
        """Returns the offsets of a position, without those of refused topics."""
        if not self.refused:
            return record.end_offsets
        return {topic: ends for topic, ends in record.end_offsets.items() if topic not in self.refused}

    def _settle(self) -> None:
        """Computes the applied LSN and what is owed below it: the LSN never passes an unfinished sweep, and never goes
        back. While rows of former topics may be there, nothing is applied."""
        self._missed &= self._unfinished.keys()
        refused = {table_key(TableId.parse(topic.table)) for topic in self.refused.values()}
        others = {*self.sweeps, *(table for table, _ in self._unfinished)} - refused
        if self._owes_sweep(others):
            return
        self.applied, self.shown = max(self.applied, self._covered), self._covered_topics
        self._owed = {
            table: (reason, number) for table, (reason, number) in self._owed.items() if number >= self._covered_number
        }


def _place(record: ProgressRecord) -> Applied:
    return Applied(record.epoch, record.lsn, record.commit_ts_us, record.seq)


def _as_of(sweep: SweepRecord) -> tuple[int, int]:
    return sweep.epoch, sweep.as_of_lsn


def _only(offsets: Offsets, topics: Collection[str]) -> Offsets:
    return {topic: ends for topic, ends in offsets.items() if topic in topics}
