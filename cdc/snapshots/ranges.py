"""A key range of a table: how far it is read and published, and what is on its way. Pure.

A range is read ahead of what is published, by few chunks. When one of them can't be merged, it and all later ones of
the range are read again.
"""

from dataclasses import dataclass, field
from typing import Final

from cdc.ports.chunk_reader import Chunk, ChunkRead, Key, LookedUp, Lookup
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots.chunk_size import ChunkSize

AHEAD_MAX: Final = 2  # chunks of a range that are read or wait for their mark
RETRY_S: Final = 0.25


@dataclass(slots=True)
class OpenChunk:
    """Asked for and not merged."""

    request: Chunk | Lookup
    since: TransactionSnapshot  # its own snapshot is not older than this
    asked_at: float  # monotonic seconds
    read: ChunkRead | LookedUp | None = None
    has_watermark: bool = False  # its watermark was received


@dataclass(slots=True)
class Range:
    after: Key | None  # published up to here
    up_to: Key | None
    is_done: bool
    size: ChunkSize
    keys: tuple[Key, ...] | None = None  # of rows with these keys only
    open: list[OpenChunk] = field(default_factory=list)  # in key order
    not_before: float = 0.0

    def wants(self, now: float) -> bool:
        """Whether the next chunk may be asked for."""
        if self.is_done or now < self.not_before or len(self.open) >= AHEAD_MAX:
            return False
        last = self._last_read
        return not self.open or (last is not None and not last.is_end)

    @property
    def rows_max(self) -> int:
        """Of its next chunk. One more than there can be, so that the last chunk is seen to be the last."""
        return self.size.rows if self.keys is None else min(self.size.rows, len(self.keys) + 1)

    @property
    def next_after(self) -> Key | None:
        """Where the next chunk begins."""
        if not self.open:
            return self.after
        last = self._last_read
        assert last is not None
        return last.last

    @property
    def _last_read(self) -> ChunkRead | None:
        read = self.open[-1].read if self.open else None
        return read if isinstance(read, ChunkRead) else None

    def merged(self) -> None:
        """The first open chunk is published."""
        read = self.open.pop(0).read
        assert isinstance(read, ChunkRead)
        self.after = read.last or self.after
        self.is_done = read.is_end

    def rewind(self, now: float) -> list[OpenChunk]:
        """Give up what is open, and begin again a moment later where publishing stands."""
        given_up, self.open = self.open, []
        self.not_before = now + RETRY_S
        return given_up
