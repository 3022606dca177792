"""What a transaction snapshot sees.

A commit can be decoded from the log when its record is flushed, but is visible to SELECT only later: after the
synchronous standby has answered, when the transaction leaves the proc array. So a row read *after* an event was
received can still be older than that event. `pg_current_snapshot()` says which transactions a read did not see.
"""

from dataclasses import dataclass
from typing import Final, Self

_XID_BITS: Final = 32
_HALF: Final = 1 << (_XID_BITS - 1)
XID_MASK: Final = (1 << _XID_BITS) - 1


def later_xid(one: int, other: int) -> int:
    """The later of two ids of 32 bits, which wrap around."""
    return one if (one - other) & XID_MASK < _HALF else other


@dataclass(frozen=True, slots=True)
class TransactionSnapshot:
    """`pg_snapshot` (PostgreSQL manual, "Transaction ID and Snapshot Information Functions"); ids of 64 bits."""

    xmin: int  # all transactions below have ended
    xmax: int  # this one and all above had not begun
    in_progress: frozenset[int]  # of those in between

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `xmin:xmax:xip,…`. Raises ValueError for anything else."""
        xmin, xmax, xip = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in xip.split(",") if xid))

    def order(self) -> tuple[int, int, int]:
        """Snapshots of one server are taken one after the other: a later one is not less, and sees no less."""
        return self.xmax, self.xmin, -len(self.in_progress)

    def is_older_than(self, other: "TransactionSnapshot") -> bool:
        """Whether the other one may see transactions that this one does not see."""
        return self.order() < other.order()

    def sees(self, xid: int) -> bool:
        """Whether a committed transaction is visible. `xid` has the stream's 32 bits; the 64-bit id meant is the one
        nearest to the snapshot's own, as PostgreSQL itself compares them."""
        full = self.xmax + ((xid - self.xmax + _HALF) % (1 << _XID_BITS)) - _HALF
        return full < self.xmin or (full < self.xmax and full not in self.in_progress)
