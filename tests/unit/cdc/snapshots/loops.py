"""An engine, and the stream and the reader that it is told of, one step for each line of a test."""

import json
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from cdc.config.settings import SnapshotConfig
from cdc.formats.unpublishable import Unpublishable
from cdc.model.control import IncompleteRowsRecord, SnapshotRecord, SweepRecord
from cdc.model.events import TableId, TableSchema
from cdc.model.lsn import Lsn
from cdc.model.seq import SeqCounter
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.chunk_reader import (
    BarrierPassed,
    Chunk,
    ChunkRead,
    DescribeTable,
    KeyPage,
    KeysRead,
    LookedUp,
    Lookup,
    Request,
    TableDescribed,
    TopicRequest,
    TransactionBarrier,
)
from cdc.ports.row_reader import Unfilled
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots.change_memory import ChangeMemory
from cdc.snapshots.chunk_engine import RecordedSnapshots, SnapshotEngine
from cdc.snapshots.chunk_records import RowRecords
from cdc.snapshots.sweeps import Sweeps
from tests.unit.cdc.capture.loops import CONTEXT, SCHEMA

TOPICS = Topics("shop")
NOW_US = 1_767_323_080_000_000


def wanted(schema: TableSchema = SCHEMA, **fields: Any) -> SnapshotRecord:
    return SnapshotRecord.model_validate(
        {
            "request": "r",
            "table_schema": schema.table.schema,
            "table_name": schema.table.name,
            "status": "running",
            "sweeps": True,
            "requested_us": 1,
        }
        | fields
    )


def snapshot(xmax: int, *running: int) -> TransactionSnapshot:
    return TransactionSnapshot(min([xmax, *running]), xmax, frozenset(running))


def key(number: int) -> bytes:
    return b'{"id":%d}' % number


class Beside:
    """The engine with its surroundings."""

    def __init__(
        self,
        *records: SnapshotRecord,
        schemas: Iterable[TableSchema] = (SCHEMA,),
        keys_max: int = 1_000,
        seq: int = 0,
        tombstones: Mapping[TableId, int] | None = None,
        holes: Iterable[IncompleteRowsRecord] = (),
        unpublishable: Unpublishable | None = None,
        **limits: Any,
    ) -> None:
        self.sweeps = Sweeps(TOPICS, CONTEXT.epoch, {})
        self.seq = seq
        self.lsn = 1_000
        self.now = 100.0
        numbers = count(1)
        self.engine = SnapshotEngine(
            schemas=schemas,
            row_records=RowRecords(CONTEXT, unpublishable),
            sweeps=self.sweeps,
            limits=SnapshotConfig(**limits),
            recorded=RecordedSnapshots(records=records, tombstones=tombstones, incomplete=holes),
            memory=ChangeMemory(keys_max),
            new_nonce=lambda: f"n{next(numbers)}",
        )

    def unfilled(self, xid: int, *numbers: int) -> list[IncompleteRowsRecord]:
        """Rows went out with holes that this transaction left; what is noted."""
        rows = [Unfilled(SCHEMA, (str(number),), xid) for number in numbers]
        return noted(self.engine.complete(rows))

    # ---- the stream

    def transaction(
        self, xid: int, *keys: int, watermarks: Iterable[str] = (), truncates: bool = False
    ) -> list[TopicRecord]:
        """Receive a transaction that touches these keys; what the engine publishes at its end."""
        is_heard = self.engine.begin(xid, self.seq + 1)
        for number in keys:
            self.seq += 1
            if is_heard:
                self.engine.memory.touch(SCHEMA.topic, key(number))
        if truncates and is_heard:
            self.engine.memory.truncate(SCHEMA.topic)
        for nonce in watermarks:
            self.engine.watermark(nonce.encode())
        self.lsn += 100
        seq = SeqCounter(self.seq)
        records = self.engine.end(Lsn(self.lsn), seq, NOW_US)
        self.seq = seq.last
        self.engine.tombstones.on_committed()
        return records

    # ---- the reader

    def asks(self, *, is_behind: bool = False) -> list[Request | TopicRequest]:
        return self.engine.requests(self.now, is_behind=is_behind)

    def ask(self) -> Request | TopicRequest:
        (request,) = self.asks()
        return request

    def pass_barrier(self, at: TransactionSnapshot) -> None:
        barrier = self.ask()
        assert isinstance(barrier, TransactionBarrier)
        self.engine.take([BarrierPassed(barrier.nonce, at)], self.now)

    def begin(self, at: TransactionSnapshot, *bounds: tuple[str, ...], xid: int = 900) -> None:
        """The table is looked at, and the mark comes back."""
        request = self.ask()
        assert isinstance(request, DescribeTable)
        self.engine.take([TableDescribed(request.nonce, at, "shape", 10, 20, bounds, "order")], self.now)
        assert self.transaction(xid, watermarks=[request.nonce]) == []

    def read(
        self, request: Request | TopicRequest, at: TransactionSnapshot, *numbers: int, is_end: bool = False
    ) -> str:
        """The chunk's rows; its nonce."""
        assert isinstance(request, Chunk)
        lines = tuple(b"%d\tx" % number for number in numbers)
        last = (str(numbers[-1]),) if numbers else None
        self.engine.take([ChunkRead(request.nonce, at, lines, last, is_end, 0.01)], self.now)
        return request.nonce

    def pages(self, request: Request | TopicRequest, *numbers: int, is_end: bool = True) -> None:
        """The keys that the topic holds."""
        assert isinstance(request, KeyPage)
        self.engine.take([KeysRead(request.nonce, tuple(map(key, numbers)), is_end)], self.now)

    def look_up(self, request: Request | TopicRequest, at: TransactionSnapshot, *absent: int) -> str:
        """Those of them that have no row; the nonce."""
        assert isinstance(request, Lookup)
        self.engine.take([LookedUp(request.nonce, at, tuple(map(key, absent)))], self.now)
        return request.nonce


def deletes(records: Iterable[TopicRecord]) -> list[int]:
    """Keys that were deleted, each with its tombstone."""
    found = [record for record in records if record.topic == SCHEMA.topic]
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert all(json.loads(delete.value or b"")["op"] == "d" and not tomb.value for delete, tomb in pairs)
    assert all(delete.key == tomb.key for delete, tomb in pairs)
    return [json.loads(delete.key)["id"] for delete, _ in pairs]


def rows(records: Iterable[TopicRecord]) -> list[int]:
    """Keys of the rows among them."""
    return [json.loads(record.key)["id"] for record in records if record.topic == SCHEMA.topic]


def states(records: Iterable[TopicRecord]) -> list[SnapshotRecord]:
    return [SnapshotRecord.decode(record.value or b"", "state") for record in records if record.topic == TOPICS.state]


def noted(records: Iterable[TopicRecord]) -> list[IncompleteRowsRecord]:
    """What is said of rows with holes."""
    found = [record for record in records if record.key.startswith(b"holes/")]
    return [IncompleteRowsRecord.decode(record.value or b"", "state") for record in found]


def sweeps(records: Iterable[TopicRecord]) -> list[tuple[int, int]]:
    """(floor, as-of LSN) of each."""
    found = [SweepRecord.decode(r.value or b"", "control") for r in records if r.topic == TOPICS.control]
    return [(sweep.floor, sweep.as_of_lsn) for sweep in found]
