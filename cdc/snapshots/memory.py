"""Which keys the transactions touched that a chunk's snapshot may not see.

Remembered are the transactions received since tracking began, until every chunk that is still to be merged sees them.
The number of keys is bounded. What does not fit is forgotten in one direction only: the transaction itself stays known,
and a chunk that doesn't see it can't be merged; it is read again when it does.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from cdc.snapshots.visibility import TransactionSnapshot

KEYS_MAX: Final = 200_000  # some 40 MB at 100 bytes for a key


@dataclass(frozen=True, slots=True)
class Unseen:
    """What happened to one table in transactions that were received, but that a snapshot does not see."""

    is_forgotten: bool  # there were too many keys: nothing of the chunk may be published
    is_truncated: bool  # every key was touched
    keys: tuple[frozenset[bytes] | set[bytes], ...]  # record keys, by transaction

    def touches(self, key: bytes) -> bool:
        return self.is_truncated or any(key in keys for keys in self.keys)


@dataclass(slots=True)
class _Received:
    xid: int
    first_seq: int  # of its first row record, had it one
    keys: dict[str, set[bytes]] = field(default_factory=dict)  # topic → record keys
    truncated: set[str] = field(default_factory=set)  # topics
    forgotten: set[str] = field(default_factory=set)  # topics

    @property
    def is_empty(self) -> bool:
        return not (self.keys or self.truncated or self.forgotten)


@dataclass(slots=True, eq=False)
class Watch:
    """What was received of one table since some moment, whoever sees it. Keys that don't fit are left out."""

    is_truncated: bool = False
    keys: set[bytes] = field(default_factory=set)  # record keys


class ChangeMemory:
    """Told of each transaction as it is received; asked when a chunk is merged."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._watches: dict[str, list[Watch]] = {}  # by topic
        self._watched_count = 0
        self._received: list[_Received] = []  # in order of their commits
        self._open: _Received | None = None
        self._key_count = 0

    def begin(self, xid: int, next_seq: int) -> None:
        """`next_seq`: what the transaction's first row record will have."""
        self._open = _Received(xid, next_seq)

    def watch(self, topic: str, instead_of: Watch | None = None) -> Watch:
        """From now on until `clear`. `instead_of`: an earlier one of the topic, which nobody needs any more."""
        watches, made = self._watches.setdefault(topic, []), Watch()
        if instead_of is not None and instead_of in watches:
            watches.remove(instead_of)
            self._watched_count -= len(instead_of.keys)
        watches.append(made)
        return made

    def touch(self, topic: str, key: bytes) -> None:
        """A record of the transaction that is being received. A moved row has two keys."""
        for watch in self._watches.get(topic, ()):
            if key not in watch.keys and self._watched_count < self._keys_max:
                watch.keys.add(key)
                self._watched_count += 1
        transaction = self._open
        if transaction is None or topic in transaction.forgotten:
            return
        keys = transaction.keys.setdefault(topic, set())
        before = len(keys)
        keys.add(key)
        self._key_count += len(keys) - before
        if self._key_count > self._keys_max:
            self._make_room()

    def truncate(self, topic: str) -> None:
        for watch in self._watches.get(topic, ()):
            watch.is_truncated = True
        if self._open is not None:
            self._open.truncated.add(topic)

    def end(self) -> None:
        """The transaction that is being received has been received whole."""
        if self._open is not None and not self._open.is_empty:
            self._received.append(self._open)
        self._open = None

    def unseen(self, topic: str, snapshot: TransactionSnapshot) -> Unseen:
        """Of the transactions received whole."""
        unseen = [transaction for transaction in self._received if not snapshot.sees(transaction.xid)]
        return Unseen(
            any(topic in transaction.forgotten for transaction in unseen),
            any(topic in transaction.truncated for transaction in unseen),
            tuple(keys for transaction in unseen if (keys := transaction.keys.get(topic))),
        )

    def lowest_unseen_seq(self, topic: str, snapshot: TransactionSnapshot) -> int | None:
        """The lowest sequence number that a record of such a transaction may have; None if there is none."""
        return min(
            (
                transaction.first_seq
                for transaction in self._received
                if not snapshot.sees(transaction.xid) and (topic in transaction.keys or topic in transaction.forgotten)
            ),
            default=None,
        )

    def forget_seen_by(self, snapshots: Iterable[TransactionSnapshot]) -> None:
        """Drop what all of these see; snapshots taken later see it too."""
        wanted = tuple(snapshots)
        kept = [t for t in self._received if not all(snapshot.sees(t.xid) for snapshot in wanted)]
        if len(kept) < len(self._received):
            self._received = kept
            self._count()

    def clear(self) -> None:
        self._received = []
        self._watches = {}
        self._watched_count = 0
        self._open = None
        self._key_count = 0

    def _make_room(self) -> None:
        """The oldest first: chunks read from now on most likely see them."""
        holders = [*self._received, *([self._open] if self._open else [])]
        for transaction in holders:
            transaction.forgotten |= transaction.keys.keys()
            transaction.keys.clear()
            self._count()
            if self._key_count <= self._keys_max // 2:
                return

    def _count(self) -> None:
        holders = [*self._received, *([self._open] if self._open else [])]
        self._key_count = sum(len(keys) for transaction in holders for keys in transaction.keys.values())


UnseenRule = Callable[[ChangeMemory, str, TransactionSnapshot], Unseen]
"""ChangeMemory.unseen, or what tests put in its place."""
