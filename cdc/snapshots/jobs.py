"""The snapshot of one table: its ranges, how far each is read and published, and what is on its way. Pure.

A range is read ahead of what is published, by few chunks. When one of them can't be merged, it and all later ones of
the range are read again.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from cdc.control import ENDED, RangeRecord, SnapshotRecord
from cdc.events import TableSchema
from cdc.snapshots.reading import Chunk, ChunkRead, Key
from cdc.snapshots.sizing import ChunkSize
from cdc.snapshots.visibility import TransactionSnapshot

AHEAD_MAX: Final = 2  # chunks of a range that are read or wait for their mark
RETRY_S: Final = 0.25


@dataclass(slots=True)
class OpenChunk:
    """Asked for and not merged."""

    request: Chunk
    since: TransactionSnapshot  # its own snapshot is not older than this
    asked_at: float  # monotonic seconds
    read: ChunkRead | None = None
    is_marked: bool = False  # its mark was received


@dataclass(slots=True)
class Range:
    after: Key | None  # published up to here
    up_to: Key | None
    is_done: bool
    size: ChunkSize
    open: list[OpenChunk] = field(default_factory=list)  # in key order
    not_before: float = 0.0

    def wants(self, now: float) -> bool:
        """Whether the next chunk may be asked for."""
        if self.is_done or now < self.not_before or len(self.open) >= AHEAD_MAX:
            return False
        last = self.open[-1].read if self.open else None
        return not self.open or (last is not None and not last.is_end)

    @property
    def next_after(self) -> Key | None:
        """Where the next chunk begins."""
        if not self.open:
            return self.after
        last = self.open[-1].read
        assert last is not None
        return last.last

    def merged(self) -> None:
        """The first open chunk is published."""
        read = self.open.pop(0).read
        assert read is not None
        self.after = read.last or self.after
        self.is_done = read.is_end

    def rewind(self, now: float) -> list[OpenChunk]:
        """Give up what is open, and begin again a moment later where publishing stands."""
        given_up, self.open = self.open, []
        self.not_before = now + RETRY_S
        return given_up


class Job:
    """One table's snapshot while this process works on it."""

    def __init__(self, record: SnapshotRecord, schema: TableSchema) -> None:
        self._record = record
        self.schema = schema
        self.shape: str | None = None  # None: the table has not been looked at by this process
        self.begin: str | None = None  # nonce of the Begin that is on its way
        self.not_before = 0.0
        self.ranges: list[Range] = []
        self.rows = record.rows
        self.floor = record.floor
        self.status = record.status
        self.message = record.message
        self.rows_estimated = record.rows_estimated

    @property
    def table(self) -> str:
        return str(self.schema.table)

    @property
    def request(self) -> str:
        return self._record.request

    @property
    def where(self) -> str | None:
        return self._record.where

    @property
    def sweeps(self) -> bool:
        return self._record.sweeps

    @property
    def is_active(self) -> bool:
        return self.status == "running"

    @property
    def is_ended(self) -> bool:
        return self.status in ENDED

    @property
    def is_read_out(self) -> bool:
        """Whether every row is published."""
        return self.shape is not None and all(part.is_done for part in self.ranges)

    def look(
        self, shape: str, rows_estimated: int, row_bytes: int, bounds: tuple[Key, ...], size: tuple[int, int]
    ) -> None:
        """The table was looked at. `size`: rows and bytes that a chunk may have."""
        self.shape = shape
        self.rows_estimated = rows_estimated
        ranges = self._record.ranges or _split(bounds)
        self.ranges = [Range(part.after, part.up_to, part.is_done, ChunkSize(*size, row_bytes)) for part in ranges]

    def forget(self, now: float) -> list[OpenChunk]:
        """Begin again where publishing stands, with a new look at the table; what was open."""
        self._record = self.record()
        given_up = [chunk for part in self.ranges for chunk in part.open]
        self.shape = self.begin = None
        self.ranges = []
        self.not_before = now + RETRY_S
        return given_up

    def record(self) -> SnapshotRecord:
        """As it stands."""
        ranges = self._record.ranges
        if self.ranges:
            ranges = tuple(RangeRecord(after=r.after, up_to=r.up_to, is_done=r.is_done) for r in self.ranges)
        return self._record.model_copy(
            update={
                "status": self.status,
                "message": self.message,
                "floor": self.floor,
                "ranges": ranges,
                "rows": self.rows,
                "rows_estimated": self.rows_estimated,
            }
        )


def _split(bounds: tuple[Key, ...]) -> tuple[RangeRecord, ...]:
    edges = (None, *bounds, None)
    return tuple(RangeRecord(after=low, up_to=high) for low, high in pairwise(edges))
