"""Rows that were published without large values are read again, as a snapshot of their own by key.

It differs from other snapshots in the rows that it reads, in the record of its progress, and in one rule: it begins
when a transaction snapshot sees the transactions that left the values out. From then on a row that the merge drops
needs nothing more: it is gone, or a later transaction touched it, whose record is complete or noted here again.

Keys that an operator asks for (`cdc repair`) are read in the same way. Besides, those of them that the table has no row
of are deleted: their lookups follow the rule of cdc/snapshots/absent_keys.py.
"""

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Final

import structlog

from cdc.model.control import IncompleteRowsRecord, RangeRecord, SnapshotRecord
from cdc.model.events import TableSchema
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.chunk_reader import Key
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots.absent_keys import AbsentKeys
from cdc.snapshots.change_memory import TRANSACTIONS_MAX, Transactions
from cdc.snapshots.jobs import BATCH_KEYS_MAX, SnapshotJob, asked_keys

log = structlog.get_logger(__name__)

# Limits of the noted rows of one table, above which the whole table is read. The record of the notes must fit into the
# broker's message.max.bytes, 1 MiB by default.
NOTED_MAX: Final = 10_000
NOTED_BYTES_MAX: Final = 256 * 1024
UNSEEN_RETRY_S: Final = 1.0

_Noted = dict[Key, int | None]  # key → transaction that left a value out; None: it ended before this process began


class CompletionJob(SnapshotJob):
    """The rows of one table that are to be completed."""

    def __init__(self, schema: TableSchema, record: IncompleteRowsRecord | None = None) -> None:
        self._is_whole = record is not None and record.is_whole
        super().__init__(_reading(schema, record.ranges if record is not None and record.is_whole else ()), schema)
        self.key_order = record.key_order if record is not None else None
        self._noted: _Noted = dict.fromkeys(record.keys if record is not None else ())  # rows to read later
        self._batch: frozenset[Key] = frozenset()  # rows to read now
        self._bytes = sum(map(_size, self._noted))  # size of the keys of both
        self._unseen = Transactions()  # transactions to wait for before the whole table is read
        self._asked = asked_keys(schema, record.asked if record is not None else ())  # of noted keys: their record keys

    @property
    def reads_all(self) -> bool:
        return False

    @property
    def has_rows(self) -> bool:
        return bool(self._noted or self._batch or self._is_whole)

    @property
    def owed(self) -> str:
        """The reason as in Job. Rows that only an operator asked for are in the topic as far as capture knows."""
        is_owed = self._is_whole or len(self._noted) + len(self._batch) > len(self._asked)
        return "rows whose large values were not in the log are still to be read" if is_owed else ""

    def note(self, key: Key, xid: int) -> None:
        """A record of this row was published without a large value by transaction `xid`."""
        # The row was there after it was asked for, and if it is deleted later, that is an event.
        self._asked.pop(key, None)
        if key in self._noted:
            del self._noted[key]  # it is moved to the end
        else:
            self._bytes += _size(key)
        self._noted[key] = xid

    def ask(self, keys: Mapping[Key, bytes]) -> None:
        """Read these rows again, and delete those that the table has not. `keys`: with their record keys."""
        for key in keys:
            if key not in self._noted:
                self._noted[key] = None
                self._bytes += _size(key)
        self._asked |= keys

    @property
    def is_too_long(self) -> bool:
        return len(self._noted) + len(self._batch) > NOTED_MAX or self._bytes > NOTED_BYTES_MAX

    def rewind(self, now: float) -> None:
        """Restarts; if there are too many rows, with the whole table."""
        super().rewind(now)
        if self.is_too_long:
            self._read_whole()

    def _read_whole(self) -> None:
        for xid in self._noted.values():
            if xid is not None:
                self._unseen.add(xid, 0)
        if len(self._unseen.seqs) > TRANSACTIONS_MAX:
            self._unseen.keep_range()
        self._noted, self._batch, self._is_whole = {}, frozenset(), True
        self._bytes = 0
        self._restart()

    # ---- what differs from a snapshot

    @property
    def splits(self) -> bool:
        return self._is_whole

    def may_begin(self, snapshot: TransactionSnapshot, now: float) -> bool:
        """Chooses rows whose transactions the snapshot sees; the others are read later."""
        self._unseen.drop_seen(snapshot)
        if not self._is_whole and not self._batch:
            seen = (key for key, xid in self._noted.items() if xid is None or snapshot.sees(xid))
            self._batch = frozenset(islice(seen, BATCH_KEYS_MAX))
            for key in self._batch:
                del self._noted[key]
            self._restart()
        may_begin = not self._unseen.has_unseen(snapshot) if self._is_whole else bool(self._batch)
        if not may_begin:
            self.not_before = now + UNSEEN_RETRY_S
        return may_begin

    def look_for_absent(self) -> None:
        """Rows and lookups may come in any order: each is true as of its own watermark."""
        keys = tuple(key for texts, key in self._asked.items() if self._is_whole or texts in self._batch)
        if self.absent is None and keys:
            self.absent = AbsentKeys(None, None, None, is_scanned=True, pages=deque([keys]))

    def end(self) -> None:
        self._asked = {} if self._is_whole else {k: v for k, v in self._asked.items() if k not in self._batch}
        log.info("rows completed", table=self.table, rows=self.rows, of=None if self._is_whole else len(self._batch))
        self._bytes -= sum(map(_size, self._batch))
        self._is_whole, self._batch = False, frozenset()
        self._restart()
        self.fingerprint, self.ranges = None, []
        if not self.has_rows:
            self.status = "done"

    def state(self, topics: Topics) -> list[TopicRecord]:
        table = self.schema.table
        holes = IncompleteRowsRecord(
            table_schema=table.schema,
            table_name=table.name,
            keys=tuple(sorted({*self._noted, *self._batch})),
            is_whole=self._is_whole,
            ranges=self.record().ranges if self._is_whole else (),
            key_order=self.key_order if self._is_whole else None,
            asked=tuple(sorted(key.decode() for key in self._asked.values())),
        )
        return [holes.to(topics.state)]

    def _restart(self) -> None:
        """Restarts with the batch, or with the whole table."""
        part = RangeRecord(after=None, up_to=None, keys=tuple(sorted(self._batch)))
        self._record = _reading(self.schema, (part,) if self._batch else ())
        self.key_order, self.rows, self.absent = None, 0, None


def _size(key: Key) -> int:
    return sum(len(text.encode()) for text in key)


def _reading(schema: TableSchema, ranges: tuple[RangeRecord, ...]) -> SnapshotRecord:
    return SnapshotRecord(
        request="rows with holes",
        table_schema=schema.table.schema,
        table_name=schema.table.name,
        status="running",
        sweeps=False,
        ranges=ranges,
        requested_us=0,
    )
