"""Computes how far a sink has applied the source's history. Pure.

A progress record says that everything up to LSN L lies below its offsets. A batch's end offsets say what the store
holds. L is applied when they cover its offsets, and when every sweep as of L or earlier is done: before that, the store
still shows deleted rows.

Positions of different epochs are ordered by epoch first: LSNs may start again lower after a failover or restore.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from cdc.model.control import ProgressRecord, SweepRecord, table_key

Offsets = Mapping[str, tuple[int, ...]]  # topic → the offset after the last one applied, for each partition

# A sink that lags keeps this many progress records, thinned evenly: that costs precision, not correctness.
PENDING_MAX: Final = 512


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


def furthest(left: Offsets, right: Offsets) -> dict[str, tuple[int, ...]]:
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
        self, offsets: Offsets | None = None, sweeps: Mapping[str, int] | None = None, applied: Applied = NOTHING
    ) -> None:
        """Takes the position that an earlier run is known to have reached. `sweeps`: table key → floor of the last
        sweep finished."""
        self.offsets: dict[str, tuple[int, ...]] = dict(offsets or {})
        self.sweeps: dict[str, int] = dict(sweeps or {})
        self.applied = applied
        self.published = applied  # the furthest position that is known to be published
        self._covered = applied  # as applied, without regard to sweeps
        self._pending: list[tuple[int, ProgressRecord]] = []  # numbered in order of arrival, not yet covered
        self._arrived = 0
        self._stride = 1  # of the pending records, those are kept whose number it divides, and the last
        self._unfinished: dict[tuple[str, int], SweepRecord] = {}

    def learn(self, progress: Iterable[ProgressRecord], sweeps: Iterable[SweepRecord]) -> None:
        """Takes records in any order; repetitions have no effect."""
        for sweep in sweeps:
            table = table_key(sweep.table)
            if self.sweeps.get(table, -1) < sweep.floor:
                self._unfinished[table, sweep.floor] = sweep
        for record in progress:
            self.published = max(self.published, _place(record))
            self._pending.append((self._arrived, record))
            self._arrived += 1
        self._thin()
        self._advance()

    def reach(self, offsets: Offsets) -> None:
        """Takes offsets below which everything is applied and readable."""
        self.offsets = furthest(self.offsets, offsets)
        self._advance()

    def adopt(self, offsets: Offsets, sweeps: Mapping[str, int], applied: Applied) -> None:
        """Takes a position that another job of the generation has published, which the store shows."""
        self.sweeps |= {table: max(floor, self.sweeps.get(table, 0)) for table, floor in sweeps.items()}
        self._unfinished = {
            (table, floor): sweep
            for (table, floor), sweep in self._unfinished.items()
            if self.sweeps.get(table, -1) < floor
        }
        self._covered, self.applied = max(self._covered, applied), max(self.applied, applied)
        self.reach(offsets)

    def due_sweeps(self) -> list[SweepRecord]:
        """Returns for each table the highest sweep whose as-of position is reached, lowest floor first. It includes all
        lower ones, and in some stores each sweep reads every key. The caller executes them, then reports them done."""
        due = [sweep for sweep in self._unfinished.values() if _as_of(sweep) <= self._covered[:2]]
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
            kept = [entry for entry in self._pending[:-1] if entry[0] % self._stride == 0]
            self._pending = [*kept, self._pending[-1]]
            if len(self._pending) > PENDING_MAX:
                self._stride *= 2

    def _advance(self) -> None:
        reached = [place for place, (_, record) in enumerate(self._pending) if covers(self.offsets, record.end_offsets)]
        for place in reached:
            record = self._pending[place][1]
            self._covered = max(self._covered, _place(record))
            self._settle()
        if reached:
            self._pending = self._pending[reached[-1] + 1 :]
        if not self._pending:
            self._stride = 1
        self._settle()

    def _settle(self) -> None:
        """Computes the applied LSN: it never passes an unfinished sweep, and never goes back."""
        if not any(_as_of(sweep) <= self._covered[:2] for sweep in self._unfinished.values()):
            self.applied = max(self.applied, self._covered)


def _place(record: ProgressRecord) -> Applied:
    return Applied(record.epoch, record.lsn, record.commit_ts_us, record.seq)


def _as_of(sweep: SweepRecord) -> tuple[int, int]:
    return sweep.epoch, sweep.as_of_lsn
