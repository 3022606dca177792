"""A PostgreSQL whose commits are decodable before they are visible, and the reader of its existing rows.

A transaction writes, which locks its rows; its commit record goes into the log, from where it is streamed; only later
do snapshots see it, and only then are its locks free. How much later, chance says. TRUNCATE excludes everybody. A large
value that an update does not touch is not in the log. The log is streamed as real pgoutput bytes. Transaction ids have
64 bits, of which the stream has the lower 32, and the runs begin shortly before these wrap around.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cdc.model.errors import SourceError
from cdc.model.events import Column, TableId
from cdc.pgoutput.messages import NULL, UNCHANGED, TupleValue
from cdc.ports.chunk_reader import (
    WATERMARK_PREFIX,
    Answer,
    BarrierPassed,
    Chunk,
    ChunkRead,
    Compared,
    DescribeTable,
    KeyPage,
    KeysRead,
    LookedUp,
    Lookup,
    ReadFailed,
    ReadTopic,
    Request,
    ScanLostError,
    TableDescribed,
    TopicRead,
    TopicRequest,
    TransactionBarrier,
)
from cdc.ports.transaction_snapshot import TransactionSnapshot
from tests.support import wire

INT, TEXT = 23, 25
TABLES: Final = ("a", "b")
KEYS: Final = range(8)
COLUMNS: Final = (
    Column("id", INT, -1, "integer", False),
    Column("v", TEXT, -1, "text", True),
    Column("big", TEXT, -1, "text", True),
)
_MADE = {
    name: wire.schema_and_relation(COLUMNS, ["id"], table=TableId("public", name), oid=16384 + number)
    for number, name in enumerate(TABLES)
}
SCHEMAS = {name: schema for name, (schema, _) in _MADE.items()}
RELATIONS = {name: relation for name, (_, relation) in _MADE.items()}
XID_MASK: Final = (1 << 32) - 1
COMMIT_US: Final = 1_800_000_000_000_000


class Row(NamedTuple):
    v: str
    big: str  # stored out of line


Rows = dict[int, Row]


@dataclass(frozen=True, slots=True)
class Op:
    """old and new are both None for TRUNCATE."""

    table: str
    old: int | None
    new: tuple[int, Row] | None
    has_hole: bool = False  # `big` was not touched

    @property
    def is_truncate(self) -> bool:
        return self.old is None and self.new is None

    def apply(self, rows: Rows) -> None:
        if self.is_truncate:
            rows.clear()
        if self.old is not None:
            del rows[self.old]
        if self.new is not None:
            rows[self.new[0]] = self.new[1]


@dataclass(slots=True)
class Transaction:
    xid: int  # of 64 bits
    ops: list[Op] = field(default_factory=list)
    keys: set[tuple[str, int]] = field(default_factory=set)  # locked
    truncated: set[str] = field(default_factory=set)  # tables, locked as a whole


@dataclass(frozen=True, slots=True)
class Entry:
    """A commit in the log."""

    xid: int
    commit_lsn: int
    end_lsn: int
    ops: tuple[Op, ...]
    watermark: bytes  # empty: none
    rows: dict[str, Rows]  # after it


class Source:
    """`lag`: how slowly commits become visible, 0 to 1."""

    def __init__(self, chance: random.Random, lag: float, truncates: bool) -> None:
        self._chance = chance
        self._lag = lag
        self._truncates = truncates
        self._wants_truncate: str | None = None  # a table: who wants to write waits behind the TRUNCATE
        self._next_xid = (chance.randrange(1, 4) << 32) - chance.choice((3, 20, 60, 1 << 31))
        self._ended_xid = self._next_xid - 1  # the newest
        self._values = 0
        self._writing: list[Transaction] = []
        self._logged: list[Transaction] = []  # and not visible
        self.log: list[Entry] = []
        self.end = 1_000
        self.visible: dict[str, Rows] = {
            name: {key: self._row() for key in KEYS if chance.random() < 0.6} for name in TABLES
        }
        self._last = {name: dict(rows) for name, rows in self.visible.items()}  # by the log
        self.first = {name: dict(rows) for name, rows in self.visible.items()}

    @property
    def running(self) -> frozenset[int]:
        return frozenset(transaction.xid for transaction in (*self._writing, *self._logged))

    def snapshot(self) -> TransactionSnapshot:
        """pg_current_snapshot(): xmax is one above the newest transaction that has ended, and what runs above it is not
        listed."""
        xmax = self._ended_xid + 1
        running = frozenset(xid for xid in self.running if xid < xmax)
        return TransactionSnapshot(min(running, default=xmax), xmax, running)

    def op_at(self, commit_lsn: int, tx_index: int) -> Op:
        """What a transaction did there."""
        return next(entry.ops[tx_index] for entry in reversed(self.log) if entry.commit_lsn == commit_lsn)

    def rows_since(self, table: str, key: int, commit_lsn: int) -> list[Row]:
        """That the key had after this transaction and after each later one."""
        later = (entry.rows[table].get(key) for entry in self.log if entry.commit_lsn >= commit_lsn)
        return [row for row in later if row is not None]

    def rows_at(self, table: str, commit_lsn: int) -> Rows:
        """By the log, after the transaction that commits there."""
        return next(entry.rows[table] for entry in reversed(self.log) if entry.commit_lsn == commit_lsn)

    def rows_before(self, table: str, lsn: int) -> Rows:
        """By the log, after all that ends at this position or before it."""
        return next((entry.rows[table] for entry in reversed(self.log) if entry.end_lsn <= lsn), self.first[table])

    def is_truncating(self, table: str) -> bool:
        """ACCESS EXCLUSIVE is held."""
        return any(table in transaction.truncated for transaction in (*self._writing, *self._logged))

    # ---- what happens

    def live(self, *, is_calm: bool) -> None:
        """One step of some transaction."""
        chance = self._chance
        kind = chance.random()
        if kind < 0.35 and not is_calm:
            self._begin()
        elif kind < 0.65 and self._writing:
            transaction = self._writing.pop(chance.randrange(len(self._writing)))
            if chance.random() < 0.9:
                self._commit(transaction, b"")
            else:
                self._ended(transaction)
        elif self._logged and (is_calm or chance.random() >= self._lag):
            transaction = self._logged.pop(chance.randrange(len(self._logged)))
            self._ended(transaction)
            for op in transaction.ops:
                op.apply(self.visible[op.table])

    def _ended(self, transaction: Transaction) -> None:
        self._ended_xid = max(self._ended_xid, transaction.xid)

    @property
    def is_quiet(self) -> bool:
        return not self._writing and not self._logged

    def emit(self, watermark: bytes) -> None:
        """pg_logical_emit_message(true, …) in a transaction of its own."""
        self._next_xid += 1
        self._commit(Transaction(self._next_xid - 1), watermark)

    def _commit(self, transaction: Transaction, watermark: bytes) -> None:
        self.end += self._chance.randrange(8, 200)
        commit_lsn, self.end = self.end, self.end + 48
        for op in transaction.ops:
            rows = self._last[op.table] = dict(self._last[op.table])
            op.apply(rows)
        low_xid = transaction.xid & XID_MASK
        self.log.append(Entry(low_xid, commit_lsn, self.end, tuple(transaction.ops), watermark, dict(self._last)))
        self._logged.append(transaction)

    def _begin(self) -> None:
        transaction = Transaction(self._next_xid)
        views = {name: dict(rows) for name, rows in self.visible.items()}
        for _ in range(self._chance.choice((1, 1, 2, 4))):
            self._write(transaction, views)
        if transaction.ops:
            self._next_xid += 1
            self._writing.append(transaction)

    def _write(self, transaction: Transaction, views: dict[str, Rows]) -> None:
        """A change of a row that nobody has locked, or a TRUNCATE, where that is possible."""
        chance = self._chance
        others = (*self._writing, *self._logged)
        table = chance.choice(TABLES)
        if self.is_truncating(table):
            return
        rows = views[table]
        locked = {key for other in others for name, key in other.keys if name == table}
        if self._truncates and self._wants_truncate is None and chance.random() < 0.2:
            self._wants_truncate = table
        if self._wants_truncate == table:
            if not locked:
                self._wants_truncate = None
                transaction.truncated.add(table)
                self._did(transaction, Op(table, None, None), rows)
            return
        free = [key for key in KEYS if key not in locked]
        if not free:
            return
        key = chance.choice(free)
        vacant = [other for other in free if other not in rows]
        if key not in rows:
            op = Op(table, None, (key, self._row()))
        elif chance.random() < 0.35:
            op = Op(table, key, None)
        else:
            has_hole = chance.random() < 0.6
            row = rows[key]._replace(v=self._value()) if has_hole else self._row()
            moves = bool(vacant) and chance.random() < 0.3
            op = Op(table, key, (chance.choice(vacant) if moves else key, row), has_hole)
        transaction.keys |= {(table, k) for k in (op.old, op.new and op.new[0]) if k is not None}
        self._did(transaction, op, rows)

    def _did(self, transaction: Transaction, op: Op, rows: Rows) -> None:
        op.apply(rows)
        transaction.ops.append(op)

    def _row(self) -> Row:
        return Row(self._value(), f"B{self._values}")

    def _value(self) -> str:
        self._values += 1
        return f"v{self._values}"


class Stream:
    """A replication connection: frames of whole log entries in order, cut anywhere."""

    def __init__(self, chance: random.Random, source: Source, start_lsn: int) -> None:
        self._chance = chance
        self._source = source
        self._next = next((i for i, e in enumerate(source.log) if e.commit_lsn >= start_lsn), len(source.log))
        self._frames: list[bytes] = []
        self._described: set[str] = set()

    @property
    def is_dry(self) -> bool:
        return not self._frames and self._next == len(self._source.log)

    def read(self) -> list[bytes]:
        frames: list[bytes] = []
        for _ in range(self._chance.choice((0, 1, 2, 5, 20))):
            if not self._frames:
                if self._next == len(self._source.log):
                    break
                if self._chance.random() < 0.1:
                    frames.append(wire.keepalive(self._source.log[self._next].commit_lsn))
                self._frames = self._encoded(self._source.log[self._next])
                self._next += 1
            frames.append(self._frames.pop(0))
        return frames

    def _encoded(self, entry: Entry) -> list[bytes]:
        messages = [wire.begin(entry.commit_lsn, COMMIT_US, entry.xid), *self._changes(entry)]
        if entry.watermark:
            messages.append(wire.logical_message(WATERMARK_PREFIX, entry.watermark))
        messages.append(wire.commit(entry.commit_lsn, entry.end_lsn, COMMIT_US))
        return [wire.xlog_data(message, entry.commit_lsn - 1) for message in messages]

    def _changes(self, entry: Entry) -> Iterator[bytes]:
        for op in entry.ops:
            relation = RELATIONS[op.table]
            if op.table not in self._described:
                self._described.add(op.table)
                yield wire.relation_bytes(relation)
            old: list[TupleValue] = [str(op.old).encode(), NULL, NULL]
            if op.new is None:
                yield wire.truncate([relation.oid]) if op.old is None else wire.delete(relation.oid, old)
                continue
            key, row = op.new
            big = UNCHANGED if op.has_hole else row.big.encode()
            new: list[TupleValue] = [str(key).encode(), row.v.encode(), big]
            if op.old is None:
                yield wire.insert(relation.oid, new)
            else:
                yield wire.update(relation.oid, new, old if op.old != op.new[0] else None)


@dataclass(slots=True)
class _Task:
    request: Request | TopicRequest
    waits_for: frozenset[int] | None = None  # a fence's
    is_answered: bool = False  # and the mark is still to be written
    is_failed: bool = False  # there is no mark


class Reader:
    """cdc.ports.chunk_reader.ChunkReader, of both kinds: works on all requests at once, in any order, and fails
    now and then.
    `mark_delay`: how slowly marks follow their answers, 0 to 1.

    `lows` tells for each chunk's snapshot which commits were in the log before its SELECT: what a low watermark would
    have told.
    """

    def __init__(
        self,
        chance: random.Random,
        source: Source,
        live_keys: Callable[[str], Mapping[bytes, int]],
        topic_rows: Callable[[str, int], Mapping[int, Row]],
        mark_delay: float,
        *,
        waits_at_barriers: bool,
    ) -> None:
        """`live_keys`: of a topic, as far as it is committed, with the versions of their rows. `topic_rows`: of a
        table, those with a version of at least this."""
        self._live_keys = live_keys
        self._topic_rows = topic_rows
        self._compared: tuple[str, Mapping[int, Row]] = "", {}  # name of the reading, and what it found
        self._met: set[int] = set()  # keys that chunks had
        self._scan = ""
        self._scanned: list[bytes] = []
        self._chance = chance
        self._mark_delay = mark_delay
        self._source = source
        self._waits_at_fences = waits_at_barriers
        self._tasks: list[_Task] = []
        self._answers: list[Answer] = []
        self.lows: dict[int, tuple[TransactionSnapshot, int]] = {}

    # ---- ChunkReader

    def ask(self, request: Request | TopicRequest) -> None:
        self._tasks.append(_Task(request))

    def answers(self) -> list[Answer]:
        came, self._answers = self._answers, []
        return came

    # ---- what happens

    def live(self, *, is_calm: bool) -> None:
        if not self._tasks:
            return
        task = self._chance.choice(self._tasks)
        if task.is_answered and not is_calm and self._chance.random() < self._mark_delay:
            return
        fails = not is_calm and self._chance.random() < 0.04
        if isinstance(task.request, KeyPage | ReadTopic):
            failed = ReadFailed(task.request.nonce, SourceError("lost", "again"), is_permanent=False)
            self._answers.append(failed if fails else self._of_topic(task.request))
            is_over = True
        elif isinstance(task.request, TransactionBarrier):
            is_over = self._barrier(task, task.request)
        elif fails:
            if task.is_answered and self._chance.random() < 0.5:  # written, and the connection was lost
                self._source.emit(task.request.nonce.encode())
            is_permanent = self._chance.random() < 0.1
            self._answers.append(ReadFailed(task.request.nonce, SourceError("lost", "again"), is_permanent))
            is_over = True
        elif task.is_answered:
            self._source.emit(task.request.nonce.encode())
            is_over = True
        else:
            self._answer(task, task.request)
            is_over = task.is_failed
        if is_over:
            self._tasks.remove(task)

    def _barrier(self, task: _Task, barrier: TransactionBarrier) -> bool:
        if task.waits_for is None:
            task.waits_for = self._source.running if self._waits_at_fences else frozenset()
        if task.waits_for & self._source.running:
            return False
        self._answers.append(BarrierPassed(barrier.nonce, self._source.snapshot()))
        return True

    def _of_topic(self, request: TopicRequest) -> Answer:
        if isinstance(request, KeyPage):
            return self._page(request)
        self._compared, self._met = (request.scan, self._topic_rows(request.schema.table.name, request.floor)), set()
        return TopicRead(request.nonce, len(self._compared[1]))

    def _page(self, request: KeyPage) -> KeysRead:
        if request.scan != self._scan:
            self._scan = request.scan
            live = self._live_keys(request.topic)
            self._scanned = [key for key, v in live.items() if request.below is None or v < request.below]
            if request.scan == self._compared[0]:
                self._scanned = [b'{"id":%d}' % key for key in self._compared[1] if key not in self._met]
        count = self._chance.choice((1, 2, 8))
        page, self._scanned = self._scanned[:count], self._scanned[count:]
        return KeysRead(request.nonce, tuple(page), is_end=not self._scanned)

    def _answer(self, task: _Task, request: DescribeTable | Chunk | Lookup) -> None:
        if self._source.is_truncating(request.schema.table.name):
            return  # waits for the lock, with no snapshot yet
        task.is_answered = True
        if isinstance(request, DescribeTable):
            count = self._chance.randrange(3)
            bounds = tuple((str(key),) for key in sorted(self._chance.sample(KEYS, count)))
            self._answers.append(
                TableDescribed(request.nonce, self._source.snapshot(), "shape", 5, 20, bounds, "order")
            )
        elif isinstance(request, Lookup):
            self._answers.append(self._look_up(request))
        else:
            is_lost = request.compared_with not in (None, self._compared[0])
            lost = ReadFailed(request.nonce, ScanLostError("read again", ""), is_permanent=False)
            self._answers.append(lost if is_lost else self._chunk(request))
            task.is_failed = is_lost

    def _look_up(self, request: Lookup) -> LookedUp:
        """Whether they meet the snapshot's condition does not matter."""
        snapshot = self._source.snapshot()
        self.lows[id(snapshot)] = snapshot, self._source.end
        rows = self._source.visible[request.schema.table.name]
        above, up_to = _number(request.after, min(KEYS) - 1), _number(request.up_to, max(KEYS))
        numbers = {key: json.loads(key)["id"] for key in request.keys}
        absent = tuple(key for key, number in numbers.items() if above < number <= up_to and number not in rows)
        return LookedUp(request.nonce, snapshot, absent)

    def _chunk(self, request: Chunk) -> ChunkRead:
        snapshot = self._source.snapshot()
        self.lows[id(snapshot)] = snapshot, self._source.end  # held, so that its id stays its own
        above = _number(request.after, min(KEYS) - 1)
        up_to = _number(request.up_to, max(KEYS))
        keys = None if request.keys is None else {int(key) for (key,) in request.keys}
        rows = sorted(
            (key, row)
            for key, row in self._source.visible[request.schema.table.name].items()
            if above < key <= up_to and (keys is None or key in keys) and (request.where is None or key % 2 == 0)
        )
        chunk = rows[: request.rows_max]
        wanted = chunk
        if request.compared_with is not None:
            self._met |= {key for key, _ in chunk}
            wanted = [(key, row) for key, row in chunk if self._compared[1].get(key) != row]
        return ChunkRead(
            request.nonce,
            snapshot,
            tuple(wire.copy_line([str(key), *row]) for key, row in wanted),
            (str(chunk[-1][0]),) if chunk else None,
            len(rows) < request.rows_max or (len(rows) == len(chunk) and self._chance.random() < 0.5),
            self._chance.choice((0.0, 0.1, 1.0)),
            None if request.compared_with is None else Compared(len(chunk), 10 * len(chunk)),
        )


def _number(key: tuple[str, ...] | None, otherwise: int) -> int:
    return otherwise if key is None else int(key[0])
