"""Transaction snapshots: which transactions a read sees.

A commit can be decoded from the log as soon as its record is flushed, but becomes visible to SELECT later: after the
synchronous standby has answered, when the transaction leaves the proc array. So a row that is read after an event was
received can still be older than that event. `pg_current_snapshot()` tells which transactions a read did not see.
"""

from dataclasses import dataclass
from typing import Final, Self

_XID_BITS: Final = 32
_HALF: Final = 1 << (_XID_BITS - 1)
XID_MASK: Final = (1 << _XID_BITS) - 1


def later_xid(one: int, other: int) -> int:
    """Returns the later of two 32-bit transaction ids, which wrap around."""
    return one if (one - other) & XID_MASK < _HALF else other


@dataclass(frozen=True, slots=True)
class TransactionSnapshot:
    """A `pg_snapshot` (PostgreSQL manual, "Transaction ID and Snapshot Information Functions") with 64-bit ids."""

    xmin: int  # all transactions below have ended
    xmax: int  # this one and all above had not begun
    in_progress: frozenset[int]  # running transactions between xmin and xmax

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses `xmin:xmax:xip,…`. Raises ValueError."""
        xmin, xmax, xip = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in xip.split(",") if xid))

    def order(self) -> tuple[int, int, int]:
        """Returns the sort key of snapshots of one server: a later one is not less, and sees no less."""
        return self.xmax, self.xmin, -len(self.in_progress)

    def is_older_than(self, other: "TransactionSnapshot") -> bool:
        """Returns whether the other snapshot may see transactions that this one does not see."""
        return self.order() < other.order()

    def sees(self, xid: int) -> bool:
        """Returns whether a committed transaction is visible. `xid`: 32 bits, from the stream; it stands for the 64-bit
        id nearest to the snapshot's own, as PostgreSQL itself compares them."""
        full = self.xmax + ((xid - self.xmax + _HALF) % (1 << _XID_BITS)) - _HALF
        return full < self.xmin or (full < self.xmax and full not in self.in_progress)
