"""Builds batches with holes, as the assembler makes them, from transactions that are written in one line each."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from cdc.capture.assembler import Assembler
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.capture.toast_batch import BatchRecord, OmittedChange, are_finished
from cdc.formats.records import Draft, EnvelopeContext, FinishedRecord, OutRecord
from cdc.model.events import Column, TableId
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.pgoutput.messages import NULL, UNCHANGED, TupleValue
from cdc.ports.transaction_snapshot import TransactionSnapshot
from tests.support import wire
from tests.support.snapshot_ports import UnfollowedTables, engine_of

OID: Final = 10
COLUMNS: Final = (
    Column("id", 23, -1, "integer", False),
    Column("v", 25, -1, "text", True),
    Column("big", 25, -1, "text", True),
    Column("huge", 17, -1, "bytea", True),
)
SCHEMA, RELATION = wire.schema_and_relation(COLUMNS, ["id"], table=TableId("public", "pages"), oid=OID)
CONTEXT: Final = EnvelopeContext("shop", "shop", epoch=1, connector_version="0")
COMMIT_US: Final = 1_767_323_079_000_000

U: Final = UNCHANGED
Row = tuple[int, str | None, Any, Any]  # U for a value that is not in the log


def insert(*row: Any) -> bytes:
    return wire.insert(OID, _values(row))


def update(*row: Any, was: int | None = None) -> bytes:
    """`was`: the key that it had."""
    return wire.update(OID, _values(row), None if was is None else [str(was).encode(), NULL, NULL, NULL])


def delete(number: int) -> bytes:
    return wire.delete(OID, [str(number).encode(), NULL, NULL, NULL])


def _values(row: Iterable[Any]) -> list[TupleValue]:
    return [NULL if value is None else value if value is U else str(value).encode() for value in row]


def consumed(*transactions: tuple[int, list[bytes]]) -> list[BatchRecord]:
    """Transaction id and changes of each."""
    engine = engine_of([SCHEMA], CONTEXT)
    assembler = Assembler(
        CapturedTables([SCHEMA]),
        CONTEXT,
        StreamState(Lsn(0), None, 0, 0),
        engine,
        UnfollowedTables(),
    )
    messages = []
    for number, (xid, changes) in enumerate(transactions, 1):
        lsn = 1_000 * number
        begun = [wire.begin(lsn, COMMIT_US, xid), wire.relation_bytes(RELATION)]
        messages += [*begun, *changes, wire.commit(lsn, lsn + 48, COMMIT_US)]
    records, failure = assembler.consume([wire.xlog_data(message, 0) for message in messages], COMMIT_US)
    assert failure is None
    return records


def finished(records: Sequence[BatchRecord]) -> list[TopicRecord]:
    """The records of a batch in which no row has holes, as they are produced."""
    kept = [record for record in records if not isinstance(record, OmittedChange)]
    assert are_finished(kept)
    return [*kept]


def without_holes(record: OutRecord) -> FinishedRecord:
    """A record as it goes out when none of its holes is filled."""
    key, value, headers = record
    return key, value.without_holes() if isinstance(value, Draft) else value, headers


def sees(*below: int, but: Iterable[int] = ()) -> TransactionSnapshot:
    """A snapshot that sees the transactions up to this id, but not these."""
    xmax = max(below) + 1
    running = frozenset(but)
    return TransactionSnapshot(min([xmax, *running]), xmax, running)


def published_rows(records: Iterable[TopicRecord]) -> list[dict[str, Any] | None]:
    """Each record's row, with what its source says of holes; None for deletes and tombstones."""
    message: list[dict[str, Any] | None] = []
    for record in records:
        value = json.loads(record.value or b"{}")
        row = value.get("after")
        lists = (
            {f"{name}!": value["source"][name] for name in ("unchanged", "filled") if name in value["source"]}
            if row
            else {}
        )
        message.append(None if row is None else {**row, **lists})
    return message
