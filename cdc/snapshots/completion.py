"""Rows that went out without large values are read again, whole: the keys of a table, as a snapshot of their own. Pure.

It differs from other snapshots in what it reads, in the record that says how far it is, and in one rule: it begins when
a transaction snapshot sees the transactions that left the holes. From then on a row that is not published needs nothing
more: it is gone, or a later transaction touched it, and that one's own record is whole or is noted here again.

Keys that an operator asks for (`cdc repair`) are read in the same way. Besides, those of them that the table has no row
of are deleted: their lookups follow the rule of cdc/snapshots/absent_keys.py.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import structlog

from cdc.model.events import TableId, TableSchema
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.record_keys import RecordKeys
from cdc.ports.chunk_reader import Key, TableDescribed
from cdc.ports.row_reader import Unfilled
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.records.control import IncompleteRowsRecord, RangeRecord, SnapshotRecord
from cdc.records.topic_records import incomplete_rows_record
from cdc.snapshots.absent_keys import AbsentKeys
from cdc.snapshots.change_memory import TRANSACTIONS_MAX, Transactions
from cdc.snapshots.jobs import Job
from cdc.snapshots.ranges import OpenChunk

log = structlog.get_logger(__name__)

BATCH_KEYS_MAX: Final = 500  # in one statement
# Noted for one table; with more the whole table is read. The record that notes them must fit into the broker's
# message.max.bytes, 1 MiB by default.
NOTED_MAX: Final = 10_000
NOTED_BYTES_MAX: Final = 256 * 1024
UNSEEN_RETRY_S: Final = 1.0

_Noted = dict[Key, int | None]  # the transaction that left the hole; None: it had ended when this process began


class CompletionJob(Job):
    """The rows of one table that are to be completed."""

    def __init__(
        self, schema: TableSchema, record: IncompleteRowsRecord | None = None, noted_max: int = NOTED_MAX
    ) -> None:
        self._noted_max = noted_max
        self._is_whole = record is not None and record.is_whole
        super().__init__(_reading(schema, record.ranges if record is not None and record.is_whole else ()), schema)
        self.key_order = record.key_order if record is not None else None
        self._noted: _Noted = dict.fromkeys(record.keys if record is not None else ())  # not being read yet
        self._batch: frozenset[Key] = frozenset()  # being read
        self._bytes = sum(map(_size, self._noted))  # of both
        self._asked = asked_keys(schema, record.asked if record is not None else ())  # of noted keys: their record keys
        self._unseen = Transactions()  # that left holes in a table that is to be read whole

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to read."""
        return bool(self._noted or self._batch or self._is_whole)

    def note(self, key: Key, xid: int) -> None:
        """A record of this row went out with a hole."""
        if key in self._noted:
            del self._noted[key]  # it goes behind the others
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
        """Whether there are more rows than can be noted."""
        return len(self._noted) + len(self._batch) > self._noted_max or self._bytes > NOTED_BYTES_MAX

    def forget(self, now: float) -> list[OpenChunk]:
        """Where there are too many rows, the table is read from its beginning instead."""
        given_up = super().forget(now)
        if self.is_too_long:
            self._read_whole()
        return given_up

    def _read_whole(self) -> None:
        for xid in self._noted.values():
            if xid is not None:
                self._unseen.add(xid, 0)
        if len(self._unseen.seqs) > TRANSACTIONS_MAX:
            self._unseen.keep_range()
        self._noted, self._batch, self._is_whole = {}, frozenset(), True
        self._bytes = 0
        self._begin_anew()

    # ---- what differs from a snapshot

    @property
    def splits(self) -> bool:
        return self._is_whole

    def may_begin(self, snapshot: TransactionSnapshot, now: float) -> bool:
        """Chooses the rows whose transactions are seen; others are left for later."""
        self._unseen.drop_seen(snapshot)
        if not self._is_whole and not self._batch:
            seen = (key for key, xid in self._noted.items() if xid is None or snapshot.sees(xid))
            self._batch = frozenset(islice(seen, BATCH_KEYS_MAX))
            for key in self._batch:
                del self._noted[key]
            self._begin_anew()
        may_begin = not self._unseen.has_unseen(snapshot) if self._is_whole else bool(self._batch)
        if not may_begin:
            self.not_before = now + UNSEEN_RETRY_S
        return may_begin

    def look(self, begun: TableDescribed, size: tuple[int, int]) -> bool:
        is_same = self.key_order in (None, begun.order)
        if not is_same:
            self._begin_anew()
        return super().look(begun, size) and is_same

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
        self._begin_anew()
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
        return [incomplete_rows_record(topics, holes)]

    def _begin_anew(self) -> None:
        """With the batch, or the whole table."""
        part = RangeRecord(after=None, up_to=None, keys=tuple(sorted(self._batch)))
        self._record = _reading(self.schema, (part,) if self._batch else ())
        self.key_order, self.rows, self.absent = None, 0, None


class Completions:
    """Of all tables, for one session."""

    def __init__(
        self, schemas: Iterable[TableSchema], records: Iterable[IncompleteRowsRecord] = (), noted_max: int = NOTED_MAX
    ) -> None:
        """`records`: of state."""
        self._schemas = {schema.table: schema for schema in schemas}
        self._noted_max = noted_max
        self.jobs = {
            record.table: CompletionJob(self._schemas[record.table], record, noted_max)
            for record in records
            if record.table in self._schemas
        }
        self.settle()

    def alter(self, schema: TableSchema) -> None:
        """The table has another shape from here on."""
        self._schemas[schema.table] = schema

    def note(self, rows: Iterable[Unfilled]) -> list[CompletionJob]:
        """Records that went out with holes: the jobs that shall complete them."""
        noted: dict[TableId, CompletionJob] = {}
        for row in rows:
            table = row.schema.table
            if table not in self.jobs:
                self.jobs[table] = CompletionJob(self._schemas[table], None, self._noted_max)
            noted[table] = self.jobs[table]
            noted[table].note(row.key, row.xid)
        return list(noted.values())

    def ask(self, table: TableId, keys: Mapping[Key, bytes]) -> CompletionJob:
        """See CompletionJob.ask."""
        if table not in self.jobs:
            self.jobs[table] = CompletionJob(self._schemas[table], None, self._noted_max)
        self.jobs[table].ask(keys)
        return self.jobs[table]

    def settle(self) -> None:
        """Jobs that have nothing to read are at their end."""
        self.jobs = {table: job for table, job in self.jobs.items() if job.has_rows}


def asked_keys(schema: TableSchema, keys: Iterable[str]) -> dict[Key, bytes]:
    """Record keys by their texts; without those that are no keys of the table, as it is now."""
    records = RecordKeys(schema)
    read = ((records.texts(key.encode()), key.encode()) for key in keys)
    return {texts: key for texts, key in read if texts is not None}


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
