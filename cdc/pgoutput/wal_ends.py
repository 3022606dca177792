"""Decides which positions of keepalives can be trusted. Pure.

A transaction's end is in several of its messages, a keepalive's WAL end is in one. A damaged one that is too high would
be recorded and confirmed, and the server would discard changes that nobody has read. The server's positions never go
back, so the lower of two consecutive ones was reached, whichever of them is damaged.
"""

from cdc.model.lsn import Lsn


class WalEnds:
    """The WAL ends of one connection's keepalives, in their order."""

    def __init__(self) -> None:
        self._named = Lsn(0)  # by the last keepalive
        self.reached = Lsn(0)
        """The highest position that two keepalives in succession have named or passed."""

    def add(self, wal_end: Lsn) -> Lsn:
        """Takes the position of a keepalive. Returns the position that this keepalive and the previous one show to be
        reached."""
        reached = min(self._named, wal_end)
        self._named = wal_end
        self.reached = max(self.reached, reached)
        return reached

    @property
    def needs_another(self) -> bool:
        """Says whether the last keepalive named a position that only another keepalive can show to be reached."""
        return self._named > self.reached
