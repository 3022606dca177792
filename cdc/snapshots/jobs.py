"""The snapshot of one table: its ranges, then the keys of rows that vanished without an event."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeVar

import structlog

from cdc.model.control import ENDED, RangeRecord, SnapshotRecord, TombstonesRecord
from cdc.model.events import TableSchema, pack_version
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.record_keys import RecordKeys
from cdc.ports.chunk_reader import Key, TableDescribed
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots.absent_keys import AbsentKeys
from cdc.snapshots.ranges import RETRY_S, ChunkSize, Range

log = structlog.get_logger(__name__)

T = TypeVar("T")

BATCH_KEYS_MAX: Final = 500  # keys in one statement
RETRY_S_MAX: Final = 5.0  # a table that was altered can be read only when the stream reaches that change

STATUSES_BEFORE: Final = {
    "paused": ("running",),
    "running": ("paused", "failed"),
    "cancelled": ("running", "paused", "failed"),
}
"""The statuses from which an operator can set a new one."""

_IN_WORDS: Final = {
    "running": "is running",
    "paused": "is paused",
    "cancelled": "was cancelled",
    "failed": "has failed",
    "done": "is done",
}


class SnapshotJob:
    """One table's snapshot while this process works on it."""

    def __init__(self, record: SnapshotRecord, schema: TableSchema, *, below: int | None = None) -> None:
        """`below`: the job has no ranges, and only writes the tombstones of rows that were swept below this version."""
        self._record = record
        self.schema = schema
        self.table = str(schema.table)
        self.request = record.request
        self.where = record.where
        self.sweeps = record.sweeps
        self.below = below
        self.fingerprint: str | None = None  # None: the table is not described yet
        self.not_before = 0.0
        self._delay_s = RETRY_S  # after the next failure
        self._failed_with = ""  # the last logged reason
        self.ranges: list[Range] = []
        self.absent: AbsentKeys | None = None  # set when every row is published, if keys of vanished rows are wanted
        self.rows = record.rows
        self.deleted = record.deleted
        self.compares = record.compares
        self.compared = record.compared
        self.floor = record.floor
        self.key_order = record.key_order
        self.status = record.status
        self.message = record.message
        self.owes = record.owes
        self.unpublished = record.unpublished
        self.rows_estimated = record.rows_estimated
        self._keys = asked_keys(schema, record.keys)  # the only ones, if there are any

    @classmethod
    def of_tombstones(cls, schema: TableSchema, floor: int) -> "SnapshotJob":
        """Returns a job that writes the tombstones of rows that were swept below this floor. It has no record: after a
        restart it is found to be due again."""
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
    def is_active(self) -> bool:
        return self.status == "running"

    @property
    def is_ended(self) -> bool:
        return self.status in ENDED

    @property
    def is_whole(self) -> bool:
        return self._record.is_whole

    @property
    def reads_all(self) -> bool:
        """Says whether every row of the table is published, unless the topic has it."""
        return self.is_whole and not self._keys and self.below is None

    @property
    def owed(self) -> str:
        """The reason why committed rows may be missing from the table's topic, in words; empty if none are."""
        if not self.owes:
            return ""
        words = _IN_WORDS[self.status] if self.is_whole else "was not completed"
        return f"{self.owes} {words}" + (f": {self.message}" if self.message else "")

    @property
    def is_read_out(self) -> bool:
        return self.fingerprint is not None and all(part.record.is_done for part in self.ranges)

    @property
    def splits(self) -> bool:
        """True if a large table is read in several ranges."""
        return True

    def may_begin(self, snapshot: TransactionSnapshot, now: float) -> bool:  # noqa: ARG002 - for jobs of other kinds
        """Returns whether chunks that see no less than `snapshot` are useful now; if not, the table is described again
        later."""
        return True

    def end(self) -> None:
        """Ends the job: nothing is left to do."""
        self.status = "done"
        if self.is_whole:
            self.owes = ""
        compared = {"compared": self.compared} if self.compares else {}
        log.info(
            "table published", table=self.table, request=self.request, rows=self.rows, deleted=self.deleted, **compared
        )

    def state(self, topics: Topics) -> list[TopicRecord]:
        """Returns the records of the job's progress. For tombstones, only the end is recorded."""
        if self.below is None:
            return [self.record().to(topics.state)]
        table = self.schema.table
        written = TombstonesRecord(table_schema=table.schema, table_name=table.name, floor=self.below)
        return [written.to(topics.state)] if self.status == "done" else []

    def fix_floor(self, epoch: int, seq: int, unseen: int | None) -> None:
        """Fixes the floor of the sweep. `seq`: the next one when the watermark of the first description was received. A
        chunk's row may be dropped in favour of an event that is older than that watermark, so the floor is below all of
        those; `unseen` is the lowest. Transactions that the description's snapshot sees, later snapshots see too."""
        self.floor = pack_version(epoch, seq if unseen is None else min(unseen, seq))

    def take_description(self, described: TableDescribed, size: tuple[int, int]) -> None:
        """Takes a description of the table. `size`: the maximum rows and bytes of a chunk. If the order of the keys
        differs from the recorded one, the recorded ranges are void, and everything is read from the beginning."""
        if self.key_order not in (None, described.order):
            log.warning("the order of the key's index changed: all rows are read again", table=self.table)
            self._restart()
        self.fingerprint = described.fingerprint
        self.rows_estimated = len(self._keys) or described.rows_estimated
        self.key_order = described.order
        ranges = () if self.below is not None else self._record.ranges or self._parts(described.bounds)
        self.ranges = [Range(part, ChunkSize(*size, described.row_bytes)) for part in ranges]

    def _parts(self, bounds: tuple[Key, ...]) -> tuple[RangeRecord, ...]:
        if self._keys:
            return tuple(RangeRecord(after=None, up_to=None, keys=part) for part in batches(sorted(self._keys)))
        edges = (None, *bounds, None)
        return tuple(RangeRecord(after=low, up_to=high) for low, high in pairwise(edges))

    def _restart(self) -> None:
        """Restarts at the beginning."""
        asked = self._record.deletes_in
        self._record = self._record.model_copy(update={"ranges": () if asked is None else (asked,)})
        self.rows, self.compared, self.absent = 0, 0, None

    @property
    def rows_read(self) -> int:
        """The number of rows that were read, published or left out."""
        return self.compared if self.compares else self.rows

    @property
    def parts(self) -> "list[Range | AbsentKeys]":
        """What is to be read from the source now."""
        if self.absent is None:
            return [*self.ranges]
        is_read = self.absent.is_read or not self.absent.compares
        return [*(self.ranges if is_read else ()), self.absent]

    def wants_topic(self, now: float, scans: Sequence[AbsentKeys]) -> bool:
        """Returns whether to request the next page of keys, or the rows that chunks are compared with. `scans`: those
        of all tables."""
        if self.absent is None or not self.absent.wants_page(now, scans):
            return False
        return not self.absent.is_read or self.is_read_out

    def look_for_absent(self) -> None:
        """Begins the lookups of absent keys when every row is published, if they are wanted; the comparison, and the
        lookups of single keys, before any row is read. Idempotent."""
        if self.absent is None and self._keys:  # rows and lookups may come in any order, each as of its own watermark
            self.absent = AbsentKeys(None, None, None, is_scanned=True, pages=deque(batches(list(self._keys.values()))))
        if self.absent is None and self.compares:
            self.absent = AbsentKeys(None, None, None, compares=True)
        asked = self._record.deletes_in
        if self.absent is None and asked is not None and self.is_read_out:
            self.absent = AbsentKeys(asked.after, asked.up_to, self.below)

    @property
    def is_complete(self) -> bool:
        return self.is_read_out and (self.absent is None or self.absent.is_done)

    def rewind(self, now: float) -> None:
        """Restarts at what is published, with a new description of the table. All its requests are void."""
        self._record = self.record()
        if self.absent is not None:
            self.absent.rewind(now)
        self.fingerprint = None
        self.ranges = []
        self.not_before = now + RETRY_S

    def failed(self, why: str, now: float) -> None:
        """A read failed and may succeed later. It is repeated with a delay that doubles from one failure to the next;
        each reason is logged once. Call `rewind` first."""
        self.not_before = now + self._delay_s
        self._delay_s = min(self._delay_s * 2, RETRY_S_MAX)
        if why != self._failed_with:
            self._failed_with = why
            log.warning("reading a chunk failed: it is tried again until it succeeds", table=self.table, error=why)

    def merged(self, part: Range | AbsentKeys) -> None:
        """The first open chunk of this part was published, so reads succeed again."""
        part.merged()
        self._delay_s, self._failed_with = RETRY_S, ""
        self.look_for_absent()

    def alter(self, schema: TableSchema) -> None:
        """The table has this schema from here on; previous failures may be due to it. Call `rewind` first."""
        self.schema = schema
        self._delay_s, self._failed_with = RETRY_S, ""
        if self.compares:
            self.absent = None  # the topic is read again, because its digests are those of the former schema

    def record(self) -> SnapshotRecord:
        """Returns the job's present record."""
        return self._record.model_copy(
            update={
                "status": self.status,
                "message": self.message,
                "floor": self.floor,
                "ranges": tuple(part.record for part in self.ranges) or self._record.ranges,
                "rows": self.rows,
                "rows_estimated": self.rows_estimated,
                "deleted": self.deleted,
                "compared": self.compared,
                "key_order": self.key_order,
                "owes": self.owes,
                "unpublished": self.unpublished,
            }
        )


def asked_keys(schema: TableSchema, keys: Iterable[str]) -> dict[Key, bytes]:
    """Record keys by their texts; without those that are no keys of the table, as it is now."""
    records = RecordKeys(schema)
    read = ((records.texts(key.encode()), key.encode()) for key in keys)
    return {texts: key for texts, key in read if texts is not None}


def batches(keys: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Yields the keys in order, as many at once as one statement may have."""
    for begin in range(0, len(keys), BATCH_KEYS_MAX):
        yield tuple(keys[begin : begin + BATCH_KEYS_MAX])
