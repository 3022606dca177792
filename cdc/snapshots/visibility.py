"""What a transaction snapshot sees.

A commit can be decoded from the log when its record is flushed, but is visible to SELECT only later: after the
synchronous standby has answered, when the transaction leaves the proc array. So a row read *after* an event was
received can still be older than that event. `pg_current_snapshot()` says which transactions a read did not see.
"""

from dataclasses import dataclass
from typing import Self

_XID_BITS = 32
_HALF = 1 << (_XID_BITS - 1)


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

    def sees(self, xid: int) -> bool:
        """Whether a committed transaction is visible. `xid` has the stream's 32 bits; the 64-bit id meant is the one
        nearest to the snapshot's own, as PostgreSQL itself compares them."""
        full = self.xmax + ((xid - self.xmax + _HALF) % (1 << _XID_BITS)) - _HALF
        return full < self.xmin or (full < self.xmax and full not in self.in_progress)
