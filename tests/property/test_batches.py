"""Any mix of events and row changes in one batch: every record is in its own topic, under its own key, with its value.

Events may have empty and null payloads; updates leave large values out of the log, rows move to other keys and are
deleted. What a record says must never depend on what its neighbours lack.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.capture.assembler import Assembler
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.capture.toast_backfill import ToastBackfill
from cdc.capture.toast_batch import BatchRecord
from cdc.config.format_options import FormatOptions
from cdc.config.outbox_settings import OutboxTable
from cdc.model.events import Column, TableId
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.outbox.event_stream import OutboxStream
from cdc.pgoutput.messages import NULL, TupleValue
from cdc.ports.row_reader import FoundRows, RowsRequest, Unreadable
from cdc.ports.stream import WhileWaiting
from tests.support import wire
from tests.support.holes import COMMIT_US, CONTEXT, RELATION, SCHEMA, U, delete, insert, sees, update
from tests.support.snapshot_ports import UnfollowedTables, engine_of
from tests.unit.cdc.capture.loops import Clock

OUTBOX_OID: Final = 20
_OUTBOX_COLUMNS: Final = tuple(
    Column(name, 25, -1, "text", nullable=name == "payload")
    for name in ("id", "aggregatetype", "aggregateid", "type", "payload")
)
OUTBOX_SCHEMA, OUTBOX_RELATION = wire.schema_and_relation(
    _OUTBOX_COLUMNS, ["id"], table=TableId("public", "outbox"), oid=OUTBOX_OID
)
EVENTS: Final = "outbox.event.order"
KEYS: Final = range(4)
SECRET: Final = "a private value "
Expected = tuple[str, bytes, str, bytes | None]
"""Topic, key, operation (empty for an event), and the value of an event or `v` of a row."""


@dataclass
class Batch:
    """Changes as they are drawn, the records that must come of them, and the rows at the end."""

    changes: list[bytes] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 1})  # key → the number of its row

    def add(self, number: int, key: int, kind: str, payload: str | None) -> None:
        row = f"{SECRET}{number}"
        if kind == "event":
            values: list[TupleValue] = [b"%d" % number, b"order", b"%d" % key, b"Placed"]
            self.changes.append(wire.insert(OUTBOX_OID, [*values, NULL if payload is None else payload.encode()]))
            self.expected.append((EVENTS, b"%d" % key, "", None if payload is None else payload.encode()))
        elif key not in self.rows:
            self.rows[key] = number
            self.changes.append(insert(key, row, f"{SECRET} large {number}", None))
            self._expect(key, "c", row)
        elif kind == "delete":
            del self.rows[key]
            self.changes.append(delete(key))
            self._expect(key, "d", row)
        elif kind == "move" and (free := [other for other in KEYS if other not in self.rows]):
            self.rows[free[0]] = self.rows.pop(key)
            self.changes.append(update(free[0], row, U, U, was=key))
            self._expect(key, "d", row)
            self._expect(free[0], "c", row)
        else:
            self.changes.append(update(key, row, U, U))
            self._expect(key, "u", row)

    def _expect(self, key: int, operation: str, v: str) -> None:
        record_key = b'{"id":%d}' % key
        self.expected.append((SCHEMA.topic, record_key, operation, None if operation == "d" else v.encode()))
        if operation == "d":
            self.expected.append((SCHEMA.topic, record_key, "tombstone", None))


@dataclass
class Reader:
    """Tells what rows have at the end; or nothing, as it is drawn."""

    batch: Batch
    answers: bool

    def read(self, wanted: RowsRequest, _bytes_max: int, _while_waiting: WhileWaiting) -> FoundRows | Unreadable | None:
        if not self.answers:
            return Unreadable("no privilege")
        numbers = [self.batch.rows.get(int(row.key[0])) for row in wanted.rows]
        texts = {"big": SECRET.encode(), "huge": b"\\x00"}
        found = tuple(None if n is None else tuple(texts[name] for name in wanted.columns) for n in numbers)
        return FoundRows(sees(1_000), found)


def assembler() -> Assembler:
    outbox = OutboxStream("shop", [OutboxTable(table="public.outbox")], None, FormatOptions())
    schemas = [SCHEMA, OUTBOX_SCHEMA]
    return Assembler(
        CapturedTables(schemas),
        CONTEXT,
        StreamState(Lsn(0), None, 0, 0),
        engine_of(schemas, CONTEXT),
        UnfollowedTables(),
        outbox=outbox,
    )


def consumed(batch: Batch, per_transaction: int) -> list[BatchRecord]:
    """All changes in one batch, so many in each transaction."""
    messages = []
    for number, start in enumerate(range(0, len(batch.changes), per_transaction), 1):
        begun = [wire.begin(1_000 * number, COMMIT_US, 100 + number)]
        relations = [wire.relation_bytes(RELATION), wire.relation_bytes(OUTBOX_RELATION)]
        changes = batch.changes[start : start + per_transaction]
        messages += [*begun, *relations, *changes, wire.commit(1_000 * number, 1_000 * number + 48, COMMIT_US)]
    records, failure = assembler().consume([wire.xlog_data(message, 0) for message in messages], COMMIT_US)
    assert failure is None
    return records


def as_expected(record: TopicRecord) -> Expected:
    if record.topic == EVENTS:
        return EVENTS, record.key, "", record.value
    if record.value is None:
        return record.topic, record.key, "tombstone", None
    value = json.loads(record.value)
    row = value["after"] or value["before"]
    assert record.key == b'{"id":%d}' % row["id"]
    v = None if value["op"] == "d" else value["after"]["v"].encode()
    return record.topic, record.key, value["op"], v


def no_notes(rows: Sequence[object]) -> list[TopicRecord]:
    return []


CHANGES = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from(["event", "event", "update", "update", "move", "delete"]),
    st.sampled_from(["", "", None, "text", " "]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(CHANGES, min_size=1, max_size=12), st.integers(1, 12), st.booleans())
def test_every_record_of_a_mixed_batch_is_its_own(
    changes: list[tuple[int, str, str | None]], per_transaction: int, answers: bool
) -> None:
    batch = Batch()
    for number, (key, kind, payload) in enumerate(changes, 2):
        batch.add(number, key, kind, payload)
    clock = Clock()
    backfill = ToastBackfill(Reader(batch, answers), no_notes, clock, lambda _: None)
    pieces = backfill.fill(consumed(batch, per_transaction), lambda: None)
    assert [as_expected(record) for piece in pieces for record in piece] == batch.expected
