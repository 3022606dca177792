"""A key range of a table: how far it is read and published, and its open chunks. Pure.

A few chunks of a range are read ahead of what is published. When one of them can't be merged, it and all later ones of
the range are read again.
"""

from dataclasses import dataclass, field
from typing import Final

from cdc.ports.chunk_reader import Chunk, ChunkRead, Key, LookedUp, Lookup
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots.chunk_size import ChunkSize

AHEAD_MAX: Final = 2  # chunks of a range that are being read or wait for their watermark
RETRY_S: Final = 0.25


@dataclass(slots=True)
class OpenChunk:
    """A chunk or lookup that was requested and is not merged."""

    request: Chunk | Lookup
    since: TransactionSnapshot  # a snapshot that is not newer than its own
    asked_at: float  # monotonic seconds
    read: ChunkRead | LookedUp | None = None
    has_watermark: bool = False  # its watermark was received


@dataclass(slots=True)
class Range:
    after: Key | None  # the last published key
    up_to: Key | None
    is_done: bool
    size: ChunkSize
    keys: tuple[Key, ...] | None = None  # if given, only rows with these keys
    open: list[OpenChunk] = field(default_factory=list)  # in key order
    not_before: float = 0.0

    def wants(self, now: float) -> bool:
        if self.is_done or now < self.not_before or len(self.open) >= AHEAD_MAX:
            return False
        last = self._last_read
        return not self.open or (last is not None and not last.is_end)

    @property
    def rows_max(self) -> int:
        """The maximum number of rows of the next chunk; with `keys`, one more than can exist, so that the last chunk is
        recognised."""
        return self.size.rows if self.keys is None else min(self.size.rows, len(self.keys) + 1)

    @property
    def next_after(self) -> Key | None:
        """The key behind which the next chunk begins."""
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
        """The first open chunk was published."""
        read = self.open.pop(0).read
        assert isinstance(read, ChunkRead)
        self.after = read.last or self.after
        self.is_done = read.is_end

    def rewind(self, now: float) -> list[OpenChunk]:
        """Restarts behind what is published, after RETRY_S. Returns the chunks that are void."""
        void, self.open = self.open, []
        self.not_before = now + RETRY_S
        return void
