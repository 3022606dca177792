"""A key range of a table: how far it is read and published, its open chunks, and the size of the next one. Pure.

A few chunks of a range are read ahead of what is published. When one of them can't be merged, it and all later ones of
the range are read again.
"""

from dataclasses import dataclass, field
from typing import Final

from cdc.model.control import RangeRecord
from cdc.ports.chunk_reader import Chunk, ChunkRead, DescribeTable, Key, LookedUp, Lookup, TableDescribed
from cdc.ports.transaction_snapshot import TransactionSnapshot

AHEAD_MAX: Final = 2  # chunks of a range that are being read or wait for their watermark
RETRY_S: Final = 0.25
ROWS_FIRST: Final = 1_000
TARGET_S: Final = 0.5  # short enough for a transaction that holds back vacuum
# Seconds from the read of a chunk to its merge. The stream is delayed by the chunks that wait; on a slow processor,
# rows are read faster than they are published.
WAIT_S: Final = 0.25
_GROWTH_MAX: Final = 2.0


WatermarkedAnswer = TableDescribed | ChunkRead | LookedUp


@dataclass(slots=True)
class OpenRequest:
    """A request whose watermark had no effect yet."""

    request: DescribeTable | Chunk | Lookup
    since: TransactionSnapshot  # a snapshot that is not newer than the answer's
    asked_at: float  # monotonic seconds
    answer: WatermarkedAnswer | None = None
    has_watermark: bool = False  # its watermark was received

    @property
    def snapshot(self) -> TransactionSnapshot:
        """The answer's snapshot; before the answer, one that is not newer."""
        return self.since if self.answer is None else self.answer.snapshot


class ChunkSize:
    """The number of rows of the next chunk: as many as fit into the time and the bytes that a chunk may take. It adapts
    to the previous chunks of one range."""

    def __init__(self, rows_max: int, bytes_max: int, row_bytes: int) -> None:
        """`row_bytes`: approximate size of a row; 0: not known."""
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        first = min(ROWS_FIRST, bytes_max // row_bytes if row_bytes else ROWS_FIRST)
        self.rows = max(1, min(rows_max, first))

    def took(self, rows: int, size: int, read_s: float, wait_s: float) -> None:
        """A chunk of so many rows and bytes took `read_s` seconds to read, then `wait_s` until it was merged."""
        if rows == 0:
            return
        fit = min(TARGET_S / max(read_s, 1e-6), WAIT_S / max(wait_s, 1e-6), self._bytes_max / 2 / max(size, 1))
        self.rows = max(1, min(self._rows_max, int(rows * min(fit, _GROWTH_MAX))))


@dataclass(slots=True)
class Range:
    record: RangeRecord  # how far it is published
    size: ChunkSize
    open: list[OpenRequest] = field(default_factory=list)  # in key order
    not_before: float = 0.0

    def wants(self, now: float) -> bool:
        if self.record.is_done or now < self.not_before or len(self.open) >= AHEAD_MAX:
            return False
        last = self._last_read
        return not self.open or (last is not None and not last.is_end)

    @property
    def rows_max(self) -> int:
        """The maximum number of rows of the next chunk; with `keys`, one more than can exist, so that the last chunk is
        recognised."""
        keys = self.record.keys
        return self.size.rows if keys is None else min(self.size.rows, len(keys) + 1)

    @property
    def next_after(self) -> Key | None:
        """The key behind which the next chunk begins."""
        if not self.open:
            return self.record.after
        last = self._last_read
        assert last is not None
        return last.last

    @property
    def _last_read(self) -> ChunkRead | None:
        read = self.open[-1].answer if self.open else None
        return read if isinstance(read, ChunkRead) else None

    def merged(self) -> None:
        """The first open chunk was published."""
        read = self.open.pop(0).answer
        assert isinstance(read, ChunkRead)
        published = {"after": read.last or self.record.after, "is_done": read.is_end}
        self.record = self.record.model_copy(update=published)

    def rewind(self, now: float) -> None:
        """Restarts behind what is published, after RETRY_S. The open chunks are void."""
        self.open = []
        self.not_before = now + RETRY_S
