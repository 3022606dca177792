"""Where the source's TRUNCATEs stand in the stream. They make no row record: a sweep stands for them, in another topic.

A table is locked from its TRUNCATE to the end of that transaction. So between what the journal wrote in this one and
what it wrote next in any other, the log holds nothing of the table but this commit, and perhaps the end of a snapshot.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tests.checker.journal import Entry
from tests.checker.positions import Sweep
from tests.checker.records import SEQ_BITS, Change

_SEQ = (1 << SEQ_BITS) - 1


@dataclass(frozen=True, slots=True)
class Place:
    """The table is empty before the first change with at least this seq."""

    table: str  # schema.table
    seq: int


@dataclass(frozen=True, slots=True)
class Truncations:
    """Those that are in the stream of an epoch."""

    places: Sequence[Place] = ()
    streamed: frozenset[int] = frozenset()  # numbers of their journal entries
    lost: Sequence[str] = ()  # complaints: those without the sweep that they call for


def find(
    changes: Sequence[Change], journal: Sequence[Entry], sweeps: Sequence[Sweep], epoch: int, begins: int
) -> Truncations:
    """Of the epoch whose stream begins at the LSN `begins`; no TRUNCATE is under way there, since capture locks the
    tables. `sweeps`: every one that was ever written, so this is for a control topic that was not compacted."""
    stream = _Stream([change for change in changes if change.epoch == epoch], journal, sweeps, epoch)
    places, streamed, lost = [], set(), []
    for entry in journal:
        if not entry.is_truncate or (entry.xid not in stream.events and entry.lsn < begins):
            continue
        if entry.xid in stream.events:
            above, place = stream.place_among_events(entry)
            if not stream.has_sweep(entry, above, below=place):
                lost.append(f"TRUNCATE of {entry.table} in transaction {entry.xid} has no sweep between its changes")
        else:
            found = stream.place_of_sweep(entry)
            if found is None:
                lost.append(f"TRUNCATE of {entry.table} in transaction {entry.xid} has no sweep")
                continue
            place = found
        streamed.add(entry.number)
        places.append(Place(entry.table, place))
    return Truncations(places, frozenset(streamed), lost)


class _Stream:
    """An epoch's changes and sweeps, and what the journal says of the transactions that they belong to."""

    def __init__(
        self, changes: Sequence[Change], journal: Sequence[Entry], sweeps: Sequence[Sweep], epoch: int
    ) -> None:
        self.events: dict[int, list[Change]] = {}  # by transaction, in order
        in_order = sorted(changes, key=lambda change: change.seq)
        for change in in_order:
            if change.is_streamed:
                self.events.setdefault(change.xid or 0, []).append(change)
        self._entries: dict[int, list[Entry]] = {}  # by transaction
        self._of_table: dict[str, list[Entry]] = {}
        for entry in journal:
            self._entries.setdefault(entry.xid, []).append(entry)
            self._of_table.setdefault(entry.table, []).append(entry)
        self._sweeps = sorted(
            (sweep.table, sweep.as_of_lsn - 1, sweep.floor & _SEQ) for sweep in sweeps if sweep.epoch == epoch
        )
        self._seqs = [change.seq for change in in_order]
        # The lowest commit LSN of this change and all that follow it.
        self._lowest = list(accumulate((change.commit_lsn for change in reversed(in_order)), min))[::-1]
        self._with_chunk = {(change.table, change.commit_lsn) for change in in_order if not change.is_streamed}

    def place_among_events(self, truncate: Entry) -> tuple[int, int]:
        """Seqs: of the last change before it, and of the first that follows it in its transaction or later."""
        before = 0
        for entry in self._entries[truncate.xid]:
            if entry.number < truncate.number and not entry.is_truncate:
                before += 1 + (None not in (entry.old_key, entry.new_key) and entry.old_key != entry.new_key)
        events = self.events[truncate.xid]
        at = bisect_left(self._seqs, events[before].seq if before < len(events) else events[-1].seq + 1)
        return (self._seqs[at - 1] if at else 0), (self._seqs[at] if at < len(self._seqs) else 1 << SEQ_BITS)

    def has_sweep(self, truncate: Entry, above: int, below: int) -> bool:
        """With a floor of its own between the two seqs: a store that has swept takes an equal version for a replay."""
        commit_lsn = self.events[truncate.xid][0].commit_lsn
        return any(
            (table, lsn) == (truncate.table, commit_lsn) and above < seq < below for table, lsn, seq in self._sweeps
        )

    def place_of_sweep(self, truncate: Entry) -> int | None:
        """The seq of its sweep's floor, for one whose transaction has no row record; None without a sweep.

        A snapshot may end within the same span. Its floor lies in the past, unless nothing was published since: then
        it says the same.
        """
        of_table = self._of_table[truncate.table]
        later = of_table[bisect_right(of_table, truncate.number, key=lambda entry: entry.number) :]
        until = next((entry.lsn for entry in later if entry.xid != truncate.xid), 1 << 64)
        for table, commit_lsn, seq in self._sweeps[bisect_left(self._sweeps, (truncate.table, truncate.lsn, 0)) :]:
            if table != truncate.table or commit_lsn >= until:
                return None
            if self._empties(table, commit_lsn, seq):
                return seq
        return None

    def _empties(self, table: str, commit_lsn: int, seq: int) -> bool:
        """Whether the seq is the floor's own, and nothing above it was published before this transaction."""
        at = bisect_left(self._seqs, seq)
        is_newest = at == len(self._seqs) or (self._seqs[at] > seq and self._lowest[at] >= commit_lsn)
        return is_newest and seq > 0 and (table, commit_lsn) not in self._with_chunk
