"""The keys that were touched by transactions which a chunk's transaction snapshot may not see.

Snapshots of one server are ordered in time: a later one sees everything that an earlier one sees. Therefore a
transaction that the oldest snapshot in use sees does not matter any more, and is not remembered. Of the others, the
last transaction that touched it is remembered for each key. Earlier ones are not needed: the last one waited for their
locks, so a snapshot that sees it sees them.

Two numbers are bounded. Keys that do not fit are dropped, the oldest first, and the ids of their transactions are kept;
if there are too many ids as well, only their range is kept. A chunk whose snapshot may not see one of these
transactions can't be merged and is read again, with a later snapshot. The cost of a call does not depend on how much is
remembered: half of it is dropped at once, so that the calls that filled it pay for that.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Final
from weakref import WeakSet

from cdc.ports.transaction_snapshot import XID_MASK, TransactionSnapshot, later_xid

KEYS_MAX: Final = 200_000  # some 40 MB at 100 bytes for a key
TRANSACTIONS_MAX: Final = 50_000  # transactions whose keys were dropped; some 6 MB
_PRUNE_FIRST: Final = 1_000  # below this size, nothing is checked for being obsolete
_XIDS_MAX: Final = 1 << 30  # ids are compared modulo 2**32, so none may be kept for much longer
_SEQ_SHIFT: Final = 32


@dataclass(frozen=True, slots=True)
class Unseen:
    """The changes of one table in transactions that were received and that a snapshot does not see."""

    is_forgotten: bool  # keys were dropped: no row of the chunk may be published
    is_truncated: bool  # every key was touched
    touched: Callable[[bytes], bool]  # whether such a transaction touched the record key

    def touches(self, key: bytes) -> bool:
        return self.is_truncated or self.touched(key)


@dataclass(slots=True)
class Transactions:
    """Transactions of one table: their ids, each with the sequence number of its first record; or only the range of the
    ids if there are too many."""

    seqs: dict[int, int] = field(default_factory=dict)
    newest: int | None = None  # the newest of the ids
    span: tuple[int, int, int] | None = None  # lowest and highest id, lowest sequence number

    def add(self, xid: int, seq: int) -> None:
        self.seqs.setdefault(xid, seq)
        self.newest = xid if self.newest is None else later_xid(self.newest, xid)

    def has_unseen(self, snapshot: TransactionSnapshot) -> bool:
        """Returns whether the snapshot may not see one of them. Costs one lookup for each transaction that ran then."""
        if self.newest is not None and not snapshot.sees(self.newest):
            return True
        return any(xid & XID_MASK in self.seqs for xid in snapshot.in_progress) or self._has_unseen_span(snapshot)

    def _has_unseen_span(self, snapshot: TransactionSnapshot) -> bool:
        if self.span is None:
            return False
        low, high, _ = self.span
        width = (high - low) & XID_MASK
        return not snapshot.sees(high) or any((xid - low) & XID_MASK <= width for xid in snapshot.in_progress)

    def unseen_seqs(self, snapshot: TransactionSnapshot) -> Iterator[int]:
        if self.span is not None and self._has_unseen_span(snapshot):
            yield self.span[2]
        yield from (seq for xid, seq in self.seqs.items() if not snapshot.sees(xid))

    def drop_seen(self, snapshot: TransactionSnapshot) -> None:
        self.seqs = {xid: seq for xid, seq in self.seqs.items() if not snapshot.sees(xid)}
        self.newest = reduce(later_xid, self.seqs) if self.seqs else None
        if not self._has_unseen_span(snapshot):
            self.span = None

    def keep_range(self, others: Iterable[tuple[int, int]] = ()) -> None:
        """Replaces the ids, and the given ones with their sequence numbers, by the range that they lie in."""
        for xid, seq in (*self.seqs.items(), *others):
            low, high, lowest = self.span or (xid, xid, seq)
            self.span = xid if later_xid(low, xid) == low else low, later_xid(high, xid), min(lowest, seq)
        self.seqs, self.newest = {}, None


@dataclass(slots=True)
class _Topic:
    keys: dict[bytes, int] = field(default_factory=dict)  # record key → stamp of the last transaction that touched it
    truncations: Transactions = field(default_factory=Transactions)
    forgotten: Transactions = field(default_factory=Transactions)  # transactions whose keys were dropped

    @property
    def transaction_count(self) -> int:
        return len(self.truncations.seqs) + len(self.forgotten.seqs)

    @property
    def is_empty(self) -> bool:
        return not (self.keys or self.transaction_count or self.forgotten.span)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Watch:
    """Changes of one table since a moment, whichever snapshot sees them. Keys that do not fit are left out."""

    topic: str
    is_truncated: bool = False
    keys: set[bytes] = field(default_factory=set)  # record keys


class ChangeMemory:
    """Records each transaction as it is received, and answers which changes a snapshot does not see."""

    def __init__(self, keys_max: int = KEYS_MAX, transactions_max: int = TRANSACTIONS_MAX) -> None:
        self._keys_max = keys_max
        self._transactions_max = transactions_max
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._topics: dict[str, _Topic] = {}
        self._key_count = self._transaction_count = 0
        self._prune_at = _PRUNE_FIRST
        self._pruned_xmax = 0
        self._since: TransactionSnapshot | None = None  # changes that it sees are not remembered
        self._newest: TransactionSnapshot | None = None
        self._stamp: int | None = None  # sequence number and id of the current transaction
        self._first_seq: int | None = None  # sequence number at the first transaction
        self._watches: WeakSet[Watch] = WeakSet()
        self._watched_count = 0

    def __len__(self) -> int:
        """The number of keys and transactions that are remembered."""
        return self._key_count + self._transaction_count

    # ---- the stream

    def begin(self, xid: int, next_seq: int) -> bool:
        """A transaction begins. `next_seq`: the seq of its first row record. Returns whether `touch` must be called for
        its records."""
        if self._first_seq is None:
            self._first_seq = next_seq
        is_seen = self._since is not None and self._since.sees(xid)
        self._stamp = None if is_seen else next_seq << _SEQ_SHIFT | xid & XID_MASK
        return not is_seen or bool(self._watches)

    def watch(self, topic: str) -> Watch:
        """Returns a watch that records changes from now on until `clear`, or until nobody refers to it."""
        made = Watch(topic)
        self._watches.add(made)
        return made

    def touch(self, topic: str, key: bytes) -> None:
        """Records a change of the current transaction. A moved row has two keys."""
        if self._watches:
            self._note_watched(topic, key)
        stamp = self._stamp
        if stamp is None:
            return
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _Topic()
        elif stamp & XID_MASK in known.forgotten.seqs:
            return  # its other keys were dropped, so the transaction counts as touching every key
        if key not in known.keys:
            self._key_count += 1
        known.keys[key] = stamp
        if self._key_count > self._keys_max:
            self._make_room()

    def _note_watched(self, topic: str, key: bytes) -> None:
        for watch in self._watches:
            if watch.topic == topic and key not in watch.keys:
                if self._watched_count >= self._keys_max:  # some of the watches may be gone
                    self._watched_count = sum(len(other.keys) for other in self._watches)
                if self._watched_count < self._keys_max:
                    watch.keys.add(key)
                    self._watched_count += 1

    def truncate(self, topic: str) -> None:
        """Records a TRUNCATE in the current transaction."""
        for watch in self._watches:
            watch.is_truncated = watch.is_truncated or watch.topic == topic
        if self._stamp is not None:
            known = self._topics.setdefault(topic, _Topic())
            known.truncations.add(self._stamp & XID_MASK, self._stamp >> _SEQ_SHIFT)
            self._transaction_count += 1
            self._bound_transactions()

    def end(self) -> None:
        self._stamp = None

    # ---- what a snapshot does not see

    def unseen(self, topic: str, snapshot: TransactionSnapshot) -> Unseen:
        """Returns the changes that were received and that the snapshot does not see."""
        known = self._topics.get(topic) or _Topic()
        keys, sees = known.keys, snapshot.sees

        def touched(key: bytes) -> bool:
            stamp = keys.get(key)
            return stamp is not None and not sees(stamp & XID_MASK)

        is_forgotten = self._is_too_old(snapshot) or known.forgotten.has_unseen(snapshot)
        return Unseen(is_forgotten, known.truncations.has_unseen(snapshot), touched)

    def lowest_unseen_seq(self, topic: str, snapshot: TransactionSnapshot) -> int | None:
        """Returns a lower bound of the seq of the last record of each key that such a transaction touched; None if
        there is none. Examines every key of the table, so it is for the beginning of a snapshot."""
        if self._is_too_old(snapshot):
            return self._first_seq
        known = self._topics.get(topic) or _Topic()
        stamps = (stamp for stamp in known.keys.values() if not snapshot.sees(stamp & XID_MASK))
        lowest = min(stamps, default=None)
        seqs = [*known.forgotten.unseen_seqs(snapshot), *([] if lowest is None else [lowest >> _SEQ_SHIFT])]
        return min(seqs, default=None)

    def _is_too_old(self, snapshot: TransactionSnapshot) -> bool:
        """Returns whether transactions that the snapshot does not see may be forgotten already."""
        return self._since is not None and snapshot.is_older_than(self._since)

    # ---- what is no longer needed

    def forget_seen_by(self, snapshots: Iterable[TransactionSnapshot]) -> None:
        """`snapshots`: those in use. Changes that all of them see, and so later ones see, are not needed any more."""
        wanted = sorted(snapshots, key=TransactionSnapshot.order)
        self._newest = wanted[-1]
        self._raise_since(wanted[0])
        is_due = len(self) >= self._prune_at or wanted[0].xmax - self._pruned_xmax > _XIDS_MAX
        if is_due:
            self._prune()

    def _raise_since(self, snapshot: TransactionSnapshot) -> None:
        if self._since is None or self._since.is_older_than(snapshot):
            self._since = snapshot

    def _prune(self) -> None:
        """Drops changes that `_since` sees."""
        if self._since is not None:
            for known in self._topics.values():
                sees = self._since.sees
                known.keys = {key: stamp for key, stamp in known.keys.items() if not sees(stamp & XID_MASK)}
                known.truncations.drop_seen(self._since)
                known.forgotten.drop_seen(self._since)
            self._pruned_xmax = self._since.xmax
        self._count()

    def _count(self) -> None:
        self._topics = {topic: known for topic, known in self._topics.items() if not known.is_empty}
        self._key_count = sum(len(known.keys) for known in self._topics.values())
        self._transaction_count = sum(known.transaction_count for known in self._topics.values())
        self._prune_at = max(_PRUNE_FIRST, 2 * len(self))

    def _make_room(self) -> None:
        """Drops the changes that the newest snapshot sees first: chunks with older snapshots are read again. Then it
        drops the oldest keys, since chunks read from now on most likely see their transactions."""
        if self._newest is not None:
            self._raise_since(self._newest)
        self._prune()
        kept_max = self._keys_max // 2
        if self._key_count > kept_max:
            stamps = sorted(stamp for known in self._topics.values() for stamp in known.keys.values())
            last_dropped = stamps[len(stamps) - kept_max - 1]
            for known in self._topics.values():
                for stamp in known.keys.values():
                    if stamp <= last_dropped:
                        known.forgotten.add(stamp & XID_MASK, stamp >> _SEQ_SHIFT)
                known.keys = {key: stamp for key, stamp in known.keys.items() if stamp > last_dropped}
            self._count()
            self._bound_transactions()

    def _bound_transactions(self) -> None:
        """Keeps only the range of the ids if there are too many. A TRUNCATE in that range counts as a transaction whose
        keys were dropped."""
        if self._transaction_count > self._transactions_max:
            for known in self._topics.values():
                known.forgotten.keep_range(known.truncations.seqs.items())
                known.truncations = Transactions()
            self._count()
