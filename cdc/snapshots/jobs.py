"""The snapshot of one table: its ranges, then the rows that vanished without an event. Pure."""

from itertools import pairwise
from typing import Final

import structlog

from cdc.model.events import TableSchema, pack_version
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.chunk_reader import Key, TableDescribed
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.records.control import ENDED, RangeRecord, SnapshotRecord
from cdc.records.topic_records import snapshot_record, tombstones_record
from cdc.snapshots.absent_keys import AbsentKeys
from cdc.snapshots.chunk_size import ChunkSize
from cdc.snapshots.ranges import RETRY_S, OpenChunk, Range

log = structlog.get_logger(__name__)

RETRY_S_MAX: Final = 5.0  # a catalog that is ahead of the log stays so until a backlog is read
_FAILURES_COUNTED: Final = 16

STATUSES_BEFORE: Final = {
    "paused": ("running",),
    "running": ("paused", "failed"),
    "cancelled": ("running", "paused", "failed"),
}
"""Of which status a job must be to get another by an operator's wish."""


class Job:
    """One table's snapshot while this process works on it."""

    def __init__(self, record: SnapshotRecord, schema: TableSchema, *, below: int | None = None) -> None:
        """`below`: it only gives what was swept below this version its tombstones, and has no ranges."""
        self._record = record
        self.schema = schema
        self.below = below
        self.fingerprint: str | None = None  # None: the table has not been looked at by this process
        self.begin: str | None = None  # nonce of the Begin that is on its way
        self.not_before = 0.0
        self._failures = 0  # readings that failed one after the other
        self._failed_with = ""  # what was last said of them
        self.ranges: list[Range] = []
        self.absent: AbsentKeys | None = None  # once every row is published, where rows that vanished are looked for
        self.rows = record.rows
        self.deleted = record.deleted
        self.floor = record.floor
        self.key_order = record.key_order
        self.status = record.status
        self.message = record.message
        self.rows_estimated = record.rows_estimated

    @classmethod
    def of_tombstones(cls, schema: TableSchema, floor: int) -> "Job":
        """For the rows that were swept below this floor. It is in no record: a restart sees again that it is due."""
        record = SnapshotRecord(
            request=f"sweep below {floor}",
            table_schema=schema.table.schema,
            table_name=schema.table.name,
            status="running",
            sweeps=False,
            deletes_in=RangeRecord(after=None, up_to=None),
            requested_us=0,
        )
        return cls(record, schema, below=floor)

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
        return self.fingerprint is not None and all(part.is_done for part in self.ranges)

    @property
    def splits(self) -> bool:
        """Whether a large table is read in several ranges."""
        return True

    def may_begin(self, snapshot: TransactionSnapshot, now: float) -> bool:  # noqa: ARG002 - for jobs of other kinds
        """Whether chunks that see no less than this are of use; else it is to be looked again later."""
        return True

    def end(self) -> None:
        """There is nothing left to do."""
        self.status = "done"
        log.info("table published", table=self.table, request=self.request, rows=self.rows, deleted=self.deleted)

    def state(self, topics: Topics) -> list[TopicRecord]:
        """What tells how far it is. Of tombstones only the end is recorded."""
        if self.below is None:
            return [snapshot_record(topics, self.record())]
        return [tombstones_record(topics, self.schema.table, self.below)] if self.status == "done" else []

    def fix_floor(self, epoch: int, seq: int, unseen: int | None) -> None:
        """Of its sweep. `seq`: the next one where the watermark of its first look was received. A chunk's row may be
        dropped in favour of an event that is older than that watermark: the floor is below all of those, whose lowest
        is `unseen`. Transactions that the look's snapshot sees, later ones see too."""
        self.floor = pack_version(epoch, seq if unseen is None else min(unseen, seq))

    def look(self, begun: TableDescribed, size: tuple[int, int]) -> bool:
        """The table was looked at. `size`: rows and bytes that a chunk may have. False: its keys lie in another order
        than when the ranges were recorded, which therefore mean nothing any more: all is read from the beginning."""
        self.fingerprint = begun.fingerprint
        self.rows_estimated = begun.rows_estimated
        is_same = self.key_order in (None, begun.order)
        if not is_same:
            self.rows, self.absent = 0, None
        asked = self._record.deletes_in
        known = self._record.ranges if is_same else (asked,) if asked is not None else ()
        self.key_order = begun.order
        ranges = () if self.below is not None else known or _split(begun.bounds)
        self.ranges = [
            Range(part.after, part.up_to, part.is_done, ChunkSize(*size, begun.row_bytes), part.keys) for part in ranges
        ]
        return is_same

    @property
    def parts(self) -> "list[Range | AbsentKeys]":
        """What is read."""
        return [*self.ranges, *([] if self.absent is None else [self.absent])]

    def look_for_absent(self) -> None:
        """When every row is published: go on to those that are gone, if that was asked for. Idempotent."""
        asked = self._record.deletes_in
        if self.absent is None and asked is not None and self.is_read_out:
            self.absent = AbsentKeys(asked.after, asked.up_to, self.below)

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to do."""
        return self.is_read_out and (self.absent is None or self.absent.is_done)

    def forget(self, now: float) -> list[OpenChunk]:
        """Begin again where publishing stands, with a new look at the table; what was open."""
        self._record = self.record()
        given_up = [chunk for part in self.parts for chunk in part.rewind(now)]
        self.fingerprint = self.begin = None
        self.ranges = []
        self.not_before = now + RETRY_S
        return given_up

    def failed(self, why: str, now: float) -> None:
        """A reading failed, and may succeed later: another one follows with a delay that doubles from one failure to
        the next. The log has one line for each reason. Call `forget` first."""
        delay_s = min(RETRY_S * 2**self._failures, RETRY_S_MAX)
        self.not_before = now + delay_s
        self._failures = min(self._failures + 1, _FAILURES_COUNTED)
        if why != self._failed_with:
            self._failed_with = why
            log.warning("chunk failed, it is read again until it succeeds", table=self.table, error=why)

    def merged(self, part: Range | AbsentKeys) -> None:
        """The first open chunk of this part is published: readings succeed again."""
        part.merged()
        self._failures, self._failed_with = 0, ""
        self.look_for_absent()

    def alter(self, schema: TableSchema) -> None:
        """The table has this schema from here on, perhaps the one that readings have failed for. Call `forget`
        first."""
        self.schema = schema
        self._failures, self._failed_with = 0, ""

    def record(self) -> SnapshotRecord:
        """As it stands."""
        ranges = self._record.ranges
        if self.ranges:
            ranges = tuple(
                RangeRecord(after=r.after, up_to=r.up_to, is_done=r.is_done, keys=r.keys) for r in self.ranges
            )
        return self._record.model_copy(
            update={
                "status": self.status,
                "message": self.message,
                "floor": self.floor,
                "ranges": ranges,
                "rows": self.rows,
                "rows_estimated": self.rows_estimated,
                "deleted": self.deleted,
                "key_order": self.key_order,
            }
        )


def _split(bounds: tuple[Key, ...]) -> tuple[RangeRecord, ...]:
    edges = (None, *bounds, None)
    return tuple(RangeRecord(after=low, up_to=high) for low, high in pairwise(edges))
