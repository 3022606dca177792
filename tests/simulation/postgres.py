"""A PostgreSQL with one slot: transactions, sent as real pgoutput bytes, and a confirmed position that it believes.

Tables a and b are captured, x is published only. What is confirmed is kept on disk now and then; a crash of the server
goes back to that, and the transactions since are sent again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from cdc.model.errors import ConnectionLost
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.lsn import Lsn
from cdc.pgoutput.messages import NULL, Relation, TupleValue
from tests.checker.journal import Entry
from tests.checker.records import Row
from tests.simulation.world import World
from tests.support import wire

INT, TEXT = 23, 25
PREFIX = "sim"
TIMEOUT_S = 60.0  # wal_sender_timeout

Values = tuple[str, str]


def _table(name: str, oid: int, key_type: int) -> tuple[TableSchema, Relation]:
    columns = (Column("k", key_type, -1, "k", False), Column("v", TEXT, -1, "text", True))
    schema, relation = wire.schema_and_relation(columns, ["k"], table=TableId("public", name), oid=oid)
    return TableSchema(schema.table, 1, oid, columns, ("k",), f"{PREFIX}.public.{name}"), relation


_MADE = {"a": _table("a", 16384, INT), "b": _table("b", 16385, TEXT), "x": _table("x", 16386, INT)}
CAPTURED = ("a", "b")
SCHEMAS = [_MADE[name][0] for name in CAPTURED]
RELATIONS = {name: relation for name, (_, relation) in _MADE.items()}


@dataclass(frozen=True, slots=True)
class Op:
    table: str
    kind: Literal["INSERT", "UPDATE", "DELETE"]
    old: Values | None
    new: Values | None


@dataclass(frozen=True, slots=True)
class Transaction:
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_ts_us: int
    ops: tuple[Op, ...]


@dataclass(slots=True)
class Slot:
    confirmed: int
    on_disk: int
    user: "FakeStream | None" = None


@dataclass
class FakePostgres:
    world: World
    recorded: Callable[[], int]  # the judge's eye: what committed position records cover
    transactions_max: int
    log: list[Transaction] = field(default_factory=list)
    slot: Slot | None = None
    lock_holder: object | None = None
    end: int = 1_000  # of the log
    _rows: dict[str, dict[str, str]] = field(default_factory=lambda: {name: {} for name in _MADE})

    # ---- what the applications do

    @property
    def is_confirmed(self) -> bool:
        """All transactions have been committed, and capture has confirmed the last one."""
        is_over = len(self.log) >= self.transactions_max
        return is_over and self.slot is not None and self.slot.confirmed >= self.log[-1].end_lsn

    def live(self) -> None:
        """Something may happen in the source."""
        chance = self.world.chance
        if chance.random() < 0.3:
            self.end += chance.randrange(8, 400)  # nobody's business
        while len(self.log) < self.transactions_max and chance.random() < 0.5:
            self._commit()

    def _commit(self) -> None:
        chance = self.world.chance
        self.end += chance.randrange(8, 200)
        count = chance.choice((1, 1, 2, 3, 12))
        only = chance.choice((None, None, None, "x"))  # some transactions change nothing that is captured
        ops = tuple(self._op(only or chance.choice("aaabbx")) for _ in range(count))
        commit_lsn = self.end
        self.end += 48
        self.log.append(
            Transaction(700 + len(self.log), commit_lsn, self.end, self.world.now_us() - chance.randrange(1000), ops)
        )

    def _op(self, table: str) -> Op:
        chance = self.world.chance
        rows = self._rows[table]
        key, value = str(chance.randrange(6)), str(chance.randrange(10**6))
        if key not in rows:
            rows[key] = value
            return Op(table, "INSERT", None, (key, value))
        old = key, rows[key]
        if chance.random() < 0.3:
            del rows[key]
            return Op(table, "DELETE", old, None)
        free = [k for k in map(str, range(6)) if k not in rows]
        if free and chance.random() < 0.3:
            del rows[key]
            key = chance.choice(free)
        rows[key] = value
        return Op(table, "UPDATE", old, (key, value))

    # ---- what the judge asks

    def journal(self) -> list[Entry]:
        entries: list[Entry] = []
        for transaction in self.log:
            for op in transaction.ops:
                if op.table in CAPTURED:
                    rows = (_key(op, op.old), _row(op, op.old), _key(op, op.new), _row(op, op.new))
                    name = f"public.{op.table}"
                    entries.append(Entry(len(entries), transaction.xid, transaction.commit_lsn, name, op.kind, *rows))
        return entries

    def rows_at(self, table: str, lsn: int) -> dict[str, str]:
        """What a transaction snapshot at `lsn` sees."""
        rows: dict[str, str] = {}
        for transaction in self.log:
            for op in transaction.ops if transaction.commit_lsn < lsn else ():
                if op.table == table:
                    if op.old is not None:
                        rows.pop(op.old[0], None)
                    if op.new is not None:
                        rows[op.new[0]] = op.new[1]
        return rows

    def rows(self) -> dict[str, list[tuple[Row, Row]]]:
        found: dict[str, list[tuple[Row, Row]]] = {}
        for name in CAPTURED:
            typed = ((_typed(name, key), value) for key, value in self.rows_at(name, self.end).items())
            found[f"public.{name}"] = [({"k": key}, {"k": key, "v": value}) for key, value in typed]
        return found

    # ---- slot

    def create_slot(self) -> int:
        """The consistent point."""
        assert self.slot is None
        self.live()
        self.end += 8
        self.slot = Slot(self.end, self.end)
        return self.end

    def crash(self) -> None:
        """The server forgets what was confirmed since it last wrote the slot."""
        if self.slot is not None:
            self.slot.confirmed = self.slot.on_disk
            self.slot.user = None
        self.lock_holder = None


def _typed(table: str, key: str) -> int | str:
    return int(key) if table == "a" else key


def _key(op: Op, values: Values | None) -> Row | None:
    return None if values is None else {"k": _typed(op.table, values[0])}


def _row(op: Op, values: Values | None) -> Row | None:
    return None if values is None else {"k": _typed(op.table, values[0]), "v": values[1]}


class FakeStream:
    """cdc.ports.stream.LogStream: a connection that streams from the slot."""

    def __init__(self, postgres: FakePostgres) -> None:
        self._postgres = postgres
        self._world = postgres.world
        self._frames: list[bytes] = []  # of the transaction that is being sent
        self._described: set[str] = set()
        self._next = 0  # in the log
        self._told = 0  # the newest position that the client can know
        self._confirmed = 0
        self._received_at = self._world.now_s
        self._is_cut = False
        self._is_asked = False  # for a keepalive

    def start(self, lsn: int) -> bool:
        """False while another process streams."""
        self._world.step()
        slot = self._postgres.slot
        assert slot is not None
        if slot.user is not None:
            return False
        slot.user = self
        start = max(lsn, slot.confirmed)  # older positions are silently forwarded
        log = self._postgres.log
        self._next = next((i for i, t in enumerate(log) if t.commit_lsn >= start), len(log))
        self._told = self._confirmed = slot.confirmed
        self._received_at = self._world.now_s
        self._frames.append(wire.keepalive(slot.confirmed))
        return True

    def close(self) -> None:
        self._is_cut = True
        if self._postgres.slot is not None and self._postgres.slot.user is self:
            self._postgres.slot.user = None

    # ---- LogStream

    def read(self, messages_max: int, bytes_max: int) -> list[bytes]:  # noqa: ARG002 - the frames are small
        self._step()
        self._postgres.live()
        count = min(messages_max, self._world.chance.choice((0, 1, 2, 5, 40)))
        frames: list[bytes] = []
        while len(frames) < count and (frame := self._frame()) is not None:
            frames.append(frame)
        return frames

    def wait(self, timeout_s: float) -> None:
        self._step()
        self._world.now_s += timeout_s * self._world.chance.random()

    def send_status(self, received: Lsn, confirmed: Lsn, *, reply_requested: bool) -> None:
        self._is_asked = self._is_asked or reply_requested
        self._step()
        slot = self._postgres.slot
        assert slot is not None
        assert confirmed <= self._postgres.recorded(), f"{confirmed} confirmed, {self._postgres.recorded()} recorded"
        assert confirmed >= self._confirmed or confirmed <= slot.confirmed, "the confirmed position went back"
        assert confirmed <= received, "more confirmed than received"
        self._confirmed = confirmed
        self._received_at = self._world.now_s
        slot.confirmed = max(slot.confirmed, confirmed)  # whatever it is, the server believes it
        if self._world.chance.random() < 0.3:
            slot.on_disk = slot.confirmed
        self._step()

    # ---- what the server sends

    def _step(self) -> None:
        self._world.step()
        slot = self._postgres.slot
        if slot is None or slot.user is not self:
            raise ConnectionLost("the connection was closed")
        assert self._world.now_s - self._received_at < TIMEOUT_S, "the server would have hung up: no status in time"
        if self._world.happens(self._world.rates.lost_connection):
            if self._world.happens(self._world.rates.server_crash):
                self._postgres.crash()
            self.close()
            raise ConnectionLost("the connection was closed")

    def _frame(self) -> bytes | None:
        chance, postgres = self._world.chance, self._postgres
        if self._is_asked:
            self._is_asked = False
            return wire.keepalive(self._told)
        if self._frames:
            if chance.random() < 0.05:  # in the middle of a transaction: the log is not read beyond its beginning
                return wire.keepalive(self._told)
            return self._frames.pop(0)
        if self._next < len(postgres.log):
            transaction = postgres.log[self._next]
            if chance.random() < 0.2:
                just_before = max(self._told, transaction.commit_lsn)
                self._told = chance.choice((just_before, chance.randint(self._told, just_before)))
                return wire.keepalive(self._told, reply_requested=chance.random() < 0.3)
            self._next += 1
            self._told = max(self._told, transaction.commit_lsn)
            self._frames = self._encoded(transaction)
            return self._frames.pop(0)
        if chance.random() < 0.3:
            self._told = max(self._told, postgres.end)
            return wire.keepalive(self._told, reply_requested=chance.random() < 0.3)
        return None

    def _encoded(self, transaction: Transaction) -> list[bytes]:
        start = transaction.commit_lsn - 1
        messages = [wire.begin(transaction.commit_lsn, transaction.commit_ts_us, transaction.xid)]
        for op in transaction.ops:
            relation = RELATIONS[op.table]
            if op.table not in self._described or self._world.chance.random() < 0.05:
                self._described.add(op.table)
                messages.append(wire.relation_bytes(relation))
            old: list[TupleValue] | None = None if op.old is None else [op.old[0].encode(), NULL]
            new: list[TupleValue] | None = None if op.new is None else [value.encode() for value in op.new]
            if op.kind == "INSERT":
                assert new is not None
                messages.append(wire.insert(relation.oid, new))
            elif op.kind == "DELETE":
                assert old is not None
                messages.append(wire.delete(relation.oid, old))
            else:
                assert op.old is not None and op.new is not None and new is not None
                messages.append(wire.update(relation.oid, new, old if op.old[0] != op.new[0] else None))
        messages.append(wire.commit(transaction.commit_lsn, transaction.end_lsn, transaction.commit_ts_us))
        return [wire.xlog_data(message, start) for message in messages]
