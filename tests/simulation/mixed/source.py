"""The PostgreSQL of tests/simulation/snapshots, which executes the mixture: tables with large values, outbox tables and
messages, sent as real pgoutput bytes from a slot.
"""

import json
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cdc.config.outbox_settings import MESSAGE_PREFIX
from cdc.model.errors import ConnectionLost
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.lsn import Lsn
from cdc.outbox.seal import KEY_BYTES, SealKey
from cdc.pgoutput.messages import NULL, UNCHANGED, Relation, TupleValue
from tests.checker.journal import Entry as JournalEntry
from tests.checker.records import Row as JournalRow
from tests.mixed.judge import Written
from tests.mixed.operations import (
    ALTERED,
    EVENT_SOURCES,
    HEAVY,
    MASKED,
    PLAIN,
    Alter,
    Empty,
    Event,
    Mixture,
    Move,
    Operation,
    Put,
    Remove,
    Sizes,
    Touch,
)
from tests.simulation.mixed.catalog import SHAPE, altered, extra, first_shape, relation
from tests.simulation.snapshots.source import (
    COLUMNS,
    KEYS,
    TEXT,
    XID_MASK,
    Entry,
    Op,
    Row,
    Rows,
    Source,
    Stream,
    Transaction,
)
from tests.simulation.world import World
from tests.support import wire

PREFIX: Final = "sim"
TABLES: Final = (PLAIN, MASKED, HEAVY, ALTERED)
OUTBOXES: Final = ("outbox", "blobs")
SIZES: Final = Sizes(usual=60, too_large=4_000)
LARGE_MAX: Final = 1_000  # characters between the two
KEY: Final = SealKey(b"k" * KEY_BYTES)
VARCHAR, UUID, BYTEA = 1043, 2950, 17
TIMEOUT_S: Final = 60.0  # wal_sender_timeout
FIRST_XID: Final = 12_345_678  # of the rows that are there at first: no other transaction comes to have it
_PAYLOADS: Final = {
    "outbox": Column("payload", TEXT, -1, "text", True),
    "blobs": Column("payload", BYTEA, -1, "bytea", True),
}
_EVENT_COLUMNS: Final = (
    Column("id", UUID, -1, "uuid", False),
    *(Column(name, VARCHAR, -1, "character varying", False) for name in ("aggregatetype", "aggregateid", "type")),
)


def _made(name: str, oid: int) -> tuple[TableSchema, Relation]:
    columns = (*_EVENT_COLUMNS, _PAYLOADS[name]) if name in OUTBOXES else COLUMNS
    key = () if name in OUTBOXES else ("id",)
    made, relation = wire.schema_and_relation(columns, key, table=TableId("public", name), oid=oid)
    return TableSchema(made.table, 1, oid, columns, key, f"{PREFIX}.public.{name}"), relation


_MADE: Final = {name: _made(name, 16384 + number) for number, name in enumerate((*TABLES, *OUTBOXES))}
SCHEMAS: Final = {name: schema for name, (schema, _) in _MADE.items()}
RELATIONS: Final = {name: relation for name, (_, relation) in _MADE.items()}


def event_topic(source: str) -> str:
    return f"{PREFIX}-{source}-thing"


def dead_letter_topic(source: str) -> str:
    return f"{PREFIX}.outbox_dead_letters" if source == "message" else f"{PREFIX}.public.{source}"


@dataclass(frozen=True, slots=True)
class EventOp(Op):
    """An event is inserted into its outbox table, or written as a message. It changes no row of a captured table."""

    event: Event = None  # type: ignore[assignment]  # behind fields with defaults

    @property
    def is_truncate(self) -> bool:
        return False

    def apply(self, rows: Rows) -> None:
        pass

    @property
    def written(self) -> Written:
        event = self.event
        topic = event_topic(event.source) if event.is_routable else dead_letter_topic(event.source)
        return Written(event.id, topic, str(event.aggregate), event.payload, not event.is_routable)


class MixedSource(Source):
    """`is_over`: nobody begins a transaction any more."""

    def __init__(self, chance: random.Random, lag: float, transactions_max: int) -> None:
        super().__init__(chance, lag, truncates=False)
        self._mixture = Mixture(chance, SIZES, KEYS, tables=TABLES)
        self._left = transactions_max
        names = (*TABLES, *EVENT_SOURCES)
        self.visible = {name: self._existing(name) if name in TABLES else {} for name in names}
        self.visible[SHAPE] = first_shape()
        self._last = {name: dict(rows) for name, rows in self.visible.items()}
        self.first = {name: dict(rows) for name, rows in self.visible.items()}

    def _existing(self, table: str) -> Rows:
        puts = [self._mixture.put(table, key) for key in KEYS if self._chance.random() < 0.6]
        return {put.key: Row(put.v, put.big or "") for put in puts}

    @property
    def is_over(self) -> bool:
        return not self._left and self.is_quiet

    # ---- what happens

    def live(self, *, is_calm: bool) -> None:
        super().live(is_calm=is_calm or not self._left)

    def backlog(self, table: str, count: int) -> None:
        """So many transactions of one row each are committed at once, and can be seen."""
        for _ in range(count):
            self._execute_at_once(self._mixture.single(table).kept)

    def delete_too_large(self) -> None:
        """What no topic can hold, so that topics and source are equal in the end."""
        while too_large := [key for key, row in self._last[HEAVY].items() if len(row.big) > LARGE_MAX]:
            self._execute_at_once([Remove(HEAVY, key) for key in too_large])

    def _execute_at_once(self, operations: list[Operation]) -> None:
        while not self.is_quiet:
            super().live(is_calm=True)
        self._execute(operations)
        while not self.is_quiet:
            super().live(is_calm=True)

    def _begin(self) -> None:
        self._left -= 1
        transaction = self._mixture.transaction()
        self._execute(transaction.kept)  # the rest is not in the log

    def _execute(self, operations: list[Operation]) -> None:
        made = Transaction(self._next_xid)
        views = {name: dict(rows) for name, rows in self.visible.items()}
        for operation in operations:
            op = self._op(operation, views, made)
            if op is not None:
                made.keys |= {(op.table, key) for key in (op.old, op.new and op.new[0]) if key is not None}
                self._did(made, op, views[op.table])
        if made.ops:
            self._next_xid += 1
            self._writing.append(made)

    def _op(self, operation: Operation, views: dict[str, Rows], made: Transaction) -> Op | None:
        """What comes of it; None where that is nothing, or would have to wait for another transaction."""
        if isinstance(operation, Event):
            return EventOp(operation.source, None, None, event=operation)
        table = ALTERED if isinstance(operation, Alter) else operation.table
        if self.is_truncating(table):
            return None
        locked = {key for other in (*self._writing, *self._logged) for name, key in other.keys if name == table}
        if isinstance(operation, Empty | Alter):
            if locked:
                return None
            made.truncated.add(table)  # locked as a whole
            return Op(table, None, None) if isinstance(operation, Empty) else altered(operation, views[SHAPE][0])
        return _row_op(operation, views[table], locked)

    # ---- what the judge asks

    def journal(self) -> list[JournalEntry]:
        """Rows that were there at first are a transaction of their own."""
        rows = {name: dict(self.first[name]) for name in TABLES}
        existing = [Op(name, None, item) for name in TABLES for item in rows[name].items()]
        entries = [_entry(number, FIRST_XID, 500, op, {}) for number, op in enumerate(existing)]
        for logged in self.log:
            for op in logged.ops:
                if op.table in TABLES:
                    entries.append(_entry(len(entries), logged.xid, logged.commit_lsn, op, rows[op.table]))
                    op.apply(rows[op.table])
        return entries

    def rows(self) -> dict[str, list[tuple[JournalRow, JournalRow]]]:
        return {
            f"public.{name}": [({"id": key}, _row(key, row)) for key, row in self._last[name].items()]
            for name in TABLES
        }

    def ledger(self) -> list[Written]:
        return [op.written for entry in self.log for op in entry.ops if isinstance(op, EventOp)]


def _row_op(operation: Operation, rows: Rows, locked: set[int]) -> Op | None:
    match operation:
        case Put(table, key, v, big) if key not in locked:
            return Op(table, key if key in rows else None, (key, Row(v, big or "")))
        case Touch(table, key, v) if key in rows and key not in locked:
            return Op(table, key, (key, Row(v, rows[key].big)), has_hole=bool(rows[key].big))
        case Move(table, key, to, v) if key in rows and to not in rows and not {key, to} & locked:
            return Op(table, key, (to, Row(v, rows[key].big)), has_hole=bool(rows[key].big))
        case Remove(table, key) if key in rows and key not in locked:
            return Op(table, key, None)
    return None


def _row(key: int, row: Row) -> JournalRow:
    return {"id": key, "v": row.v, "big": row.big}


def _entry(number: int, xid: int, lsn: int, op: Op, rows: Rows) -> JournalEntry:
    old = None if op.old is None else ({"id": op.old}, _row(op.old, rows[op.old]))
    new = None if op.new is None else ({"id": op.new[0]}, _row(*op.new))
    kinds = {(True, True): "UPDATE", (True, False): "DELETE", (False, True): "INSERT", (False, False): "TRUNCATE"}
    kind = kinds[old is not None, new is not None]
    return JournalEntry(number, xid, lsn, f"public.{op.table}", kind, *(old or (None, None)), *(new or (None, None)))


@dataclass
class Slot:
    """`recorded`: what committed position records cover. `living`: what happens beside each reading."""

    recorded: Callable[[], int]
    living: Callable[[], None]
    confirmed: int
    user: "MixedStream | None" = None


class MixedStream(Stream):
    """cdc.ports.stream.LogStream: from the source's one slot."""

    def __init__(self, world: World, slot: "Slot", source: MixedSource) -> None:
        self._world = world
        self._slot = slot
        self._mixed = source
        self._wal_end = slot.confirmed
        self._told = deque([wire.keepalive(slot.confirmed)])
        self._received_at = world.now_s

    def start(self, lsn: int) -> bool:
        """False while another process streams."""
        self._world.step()
        if self._slot.user is not None:
            return False
        self._slot.user = self
        super().__init__(self._world.chance, self._mixed, max(lsn, self._slot.confirmed))
        self._received_at = self._world.now_s
        return True

    def close(self) -> None:
        if self._slot.user is self:
            self._slot.user = None

    # ---- LogStream

    def read(self, messages_max: int = 4_000, bytes_max: int = 0) -> list[bytes]:  # noqa: ARG002 - frames are small
        self._step()
        self._slot.living()
        count = min(messages_max, self._chance.choice((0, 1, 5, 40, 40, 4_000)))
        frames: list[bytes] = [*self._told]
        self._told.clear()
        while len(frames) < count:
            if not self._frames:
                if self._next == len(self._source.log):
                    break
                if self._chance.random() < 0.05:
                    self._wal_end = self._source.log[self._next].commit_lsn
                    frames.append(wire.keepalive(self._wal_end))
                self._frames = self._encoded(self._source.log[self._next])
                self._next += 1
            taken = count - len(frames)
            frames += self._frames[:taken]
            self._frames = self._frames[taken:]
        return frames

    def wait(self, timeout_s: float) -> None:
        self._step()
        self._world.now_s += timeout_s * self._world.chance.random()

    def send_status(self, received: Lsn, confirmed: Lsn, *, reply_requested: bool) -> None:
        self._step()
        if reply_requested and self._world.chance.random() < 0.9:
            self._told.append(wire.keepalive(self._wal_end))
        assert confirmed <= self._slot.recorded(), "more confirmed than is recorded"
        assert confirmed <= received, "more confirmed than received"
        self._received_at = self._world.now_s
        self._slot.confirmed = max(self._slot.confirmed, confirmed)

    def _step(self) -> None:
        self._world.step()
        if self._slot.user is not self:
            raise ConnectionLost("the connection was closed")
        assert self._world.now_s - self._received_at < TIMEOUT_S, "the server would have hung up: no status in time"
        if self._world.happens(self._world.rates.lost_connection):
            self.close()
            raise ConnectionLost("the connection was closed")

    # ---- what the server sends

    def _encoded(self, entry: Entry) -> list[bytes]:
        messages = super()._encoded(entry)
        if not entry.ops and not entry.watermark:
            return []
        return messages

    def _changes(self, entry: Entry) -> Iterator[bytes]:
        fingerprint = entry.rows[SHAPE][0]
        for op in entry.ops:
            if op.table == SHAPE:
                self._described.discard(ALTERED)
                continue
            if isinstance(op, EventOp) and op.event.source == "message":
                content = _message(op.event)
                yield wire.logical_message(MESSAGE_PREFIX, KEY.seal(entry.xid & XID_MASK, content))
                continue
            is_altered = op.table == ALTERED
            described = relation(RELATIONS[op.table], fingerprint) if is_altered else RELATIONS[op.table]
            nulls: list[TupleValue] = [NULL] * (len(extra(fingerprint)) if is_altered else 0)
            if op.table not in self._described:
                self._described.add(op.table)
                yield wire.relation_bytes(described)
            if isinstance(op, EventOp):
                yield wire.insert(described.oid, _event_row(op.event))
            elif op.new is None:
                key = None if op.old is None else [*_key(op.old), *nulls]
                yield wire.truncate([described.oid]) if key is None else wire.delete(described.oid, key)
            else:
                number, row = op.new
                big: TupleValue = UNCHANGED if op.has_hole else row.big.encode()
                new: list[TupleValue] = [str(number).encode(), row.v.encode(), big, *nulls]
                if op.old is None:
                    yield wire.insert(described.oid, new)
                else:
                    old = None if op.old == number else [*_key(op.old), *nulls]
                    yield wire.update(described.oid, new, old)


def _key(key: int) -> list[TupleValue]:
    return [str(key).encode(), NULL, NULL]


def _event_row(event: Event) -> list[TupleValue]:
    payload: TupleValue = NULL
    if event.payload is not None:
        payload = event.payload if event.source == "outbox" else b"\\x" + event.payload.hex().encode()
    texts = (event.id, event.aggregate_type, str(event.aggregate), "Said")
    return [*(text.encode() for text in texts), payload]


def _message(event: Event) -> bytes:
    """As the function for applications writes it."""
    return json.dumps(
        {
            "id": event.id,
            "aggregatetype": event.aggregate_type,
            "aggregateid": str(event.aggregate),
            "type": "Said",
            "payload": None if event.payload is None else event.payload.decode(),
            "headers": None,
        }
    ).encode()
