"""Transaction metadata and logical messages, from frames to records: exactly once wherever capture dies."""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cdc.capture.assembler import Assembler
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.config.format_options import FormatOptions
from cdc.formats.records import EnvelopeContext
from cdc.model.control import PartialTransaction
from cdc.model.errors import ProtocolError
from cdc.model.events import Column, TableId
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.pgoutput.messages import NULL
from cdc.ports.chunk_reader import WATERMARK_PREFIX
from tests.support import wire
from tests.support.holes import finished
from tests.support.snapshot_ports import UnfollowedTables, engine_of

COLUMNS = (Column("id", 23, -1, "integer", False), Column("name", 25, -1, "text", True))
CUSTOMERS, CUSTOMERS_RELATION = wire.schema_and_relation(COLUMNS, ["id"], table=TableId("public", "customers"), oid=10)
AUDIT, AUDIT_RELATION = wire.schema_and_relation(COLUMNS, [], identity="f", table=TableId("public", "audit"), oid=11)
SCHEMAS = [CUSTOMERS, AUDIT]
NOW_US = 1_767_323_080_000_000
TS_US = 1_767_323_079_000_000
START = StreamState(Lsn(1_000), None, seq=0, commit_ts_us=0)
ALL = FormatOptions(provide_transaction_metadata=True, message_prefix_include_list=("audit.*",))
TRANSACTION, MESSAGE = "shop.transaction", "shop.message"
RELATIONS = [wire.relation_bytes(CUSTOMERS_RELATION), wire.relation_bytes(AUDIT_RELATION)]


def assembler(options: FormatOptions = ALL, resume: StreamState = START) -> Assembler:
    context = EnvelopeContext("shop", "shop", epoch=2, connector_version="0", format=options)
    return Assembler(
        CapturedTables(SCHEMAS),
        context,
        resume,
        engine_of(SCHEMAS, context),
        UnfollowedTables(),
    )


def insert(number: int, oid: int = 10) -> bytes:
    return wire.insert(oid, [str(number).encode(), b"x"])


def message(content: str, prefix: str = "audit", lsn: int = 1_050) -> bytes:
    return wire.logical_message(prefix, content.encode(), lsn=lsn)


def transaction(commit_lsn: int, *changes: bytes, xid: int = 7) -> list[bytes]:
    messages = [wire.begin(commit_lsn, TS_US, xid), *RELATIONS, *changes]
    return [wire.xlog_data(m, 1_050) for m in (*messages, wire.commit(commit_lsn, commit_lsn + 48, TS_US))]


def consume(made: Assembler, payloads: Sequence[bytes]) -> list[TopicRecord]:
    records, failure = made.consume(payloads, NOW_US)
    assert failure is None
    return finished(records)


def summaries(records: Sequence[TopicRecord]) -> list[Any]:
    """BEGIN and END as their count; a message as its content; of a row op, id and block."""
    found: list[Any] = []
    for record in records:
        value: Any = json.loads(record.value or b"null")
        if record.topic == TRANSACTION:
            found.append(value["event_count"] if value["status"] == "END" else "BEGIN")
        elif record.topic == MESSAGE:
            found.append((base64.b64decode(value["message"]["content"]).decode(), _block(value)))
        elif value is not None and record.topic != "shop.control":
            row = value["after"] or value["before"] or {}
            found.append((value["op"], row.get("id"), _block(value)))
    return found


def _block(value: Any) -> Any:
    block = value["transaction"]
    return block and (block["id"], block["total_order"], block["data_collection_order"])


CHANGES = [
    insert(1),
    message("one"),
    insert(5, oid=11),
    wire.update(10, [b"9", b"x"], [b"1", NULL]),  # delete and create
    message("not this", prefix="other"),
    message("two"),
    insert(2),
]
EVENTS = [
    "BEGIN",
    ("c", 1, ("7:1100", 1, 1)),
    ("one", ("7:1100", 2, 1)),
    ("c", 5, ("7:1100", 3, 1)),
    ("d", 1, ("7:1100", 4, 2)),
    ("c", 9, ("7:1100", 5, 3)),
    ("two", ("7:1100", 6, 2)),
    ("c", 2, ("7:1100", 7, 4)),
    7,
]


def test_each_event_says_which_of_its_transaction_and_of_its_table_it_is() -> None:
    records = consume(assembler(), transaction(1_100, *CHANGES))
    assert summaries(records) == EVENTS
    assert json.loads(records[-1].value or b"")["data_collections"] == [
        {"data_collection": "public.customers", "event_count": 4},
        {"data_collection": "LOGICAL_DECODING_MESSAGE", "event_count": 2},
        {"data_collection": "public.audit", "event_count": 1},
    ]
    assert {record.key for record in records if record.topic == TRANSACTION} == {b'{"id":"7:1100"}'}


@pytest.mark.promise(1)
@pytest.mark.parametrize("cut", range(1, 11))
def test_a_crash_anywhere_inside_loses_and_repeats_nothing_and_counts_right(cut: int) -> None:
    payloads = transaction(1_100, *CHANGES)
    before = assembler()
    records = consume(before, payloads[:cut])
    position = PartialTransaction.decode(before.state.partial.encode(), "state") if before.state.partial else None
    after = assembler(resume=replace(before.state, partial=position))
    again = consume(after, payloads[:3])  # and once more, before it comes that far
    records += again + consume(assembler(resume=after.state), payloads)
    assert summaries(records) == EVENTS


def test_transactions_without_events_have_no_records() -> None:
    """Whether the server sends an empty transaction depends on its version, and on our own marks."""
    mark = wire.logical_message(WATERMARK_PREFIX, b"nonce")
    made = assembler()
    assert consume(made, transaction(1_100, mark, message("x", prefix="other"))) == []
    assert summaries(consume(made, transaction(1_200, insert(1), xid=8))) == ["BEGIN", ("c", 1, ("8:1200", 1, 1)), 1]


def test_what_was_published_whole_is_not_told_again() -> None:
    assert consume(assembler(), transaction(900, *CHANGES)) == []


def test_a_transaction_that_was_half_published_without_metadata_ends_without() -> None:
    options = FormatOptions(message_prefix_include_list=("audit.*",))
    before = assembler(options)
    records = consume(before, transaction(1_100, *CHANGES)[:5])
    after = assembler(resume=before.state)
    records += consume(after, transaction(1_100, *CHANGES))
    assert summaries(records) == [(*event[:-1], None) for event in EVENTS if isinstance(event, tuple)]
    assert summaries(consume(after, transaction(1_200, insert(3), xid=8)))[0] == "BEGIN"


def test_without_the_options_nothing_is_told() -> None:
    records = consume(assembler(FormatOptions()), transaction(1_100, *CHANGES))
    assert {record.topic for record in records} == {"shop.public.customers", "shop.public.audit"}
    assert {block for *_, block in summaries(records)} == {None}


# ---- messages outside of transactions


def outside(content: str, lsn: int, prefix: str = "audit") -> bytes:
    return wire.xlog_data(wire.logical_message(prefix, content.encode(), lsn=lsn, transactional=False), lsn)


def test_a_message_outside_of_transactions_is_published_once() -> None:
    made = assembler()
    payloads = [outside("old", 999), outside("one", 1_020), *transaction(1_100, insert(1)), outside("two", 1_200)]
    records = consume(made, payloads)
    assert summaries(records) == [("one", None), "BEGIN", ("c", 1, ("7:1100", 1, 1)), 1, ("two", None)]
    assert made.state.resume_lsn == made.received_lsn == 1_201
    # A server sends nothing that begins before where it is asked to.
    assert consume(assembler(resume=made.state), [outside("two", 1_200)]) == []


@pytest.mark.parametrize("cut", range(1, 9))
def test_messages_between_transactions_are_not_repeated_after_a_crash(cut: int) -> None:
    payloads = [outside("one", 1_020), *transaction(1_100, insert(1), insert(2)), outside("two", 1_200)]
    before = assembler()
    records = consume(before, payloads[:cut])
    records += consume(assembler(resume=before.state), payloads)
    contents = [event[0] for event in summaries(records) if isinstance(event, tuple)]
    assert contents == ["one", "c", "c", "two"]


def test_marks_and_other_prefixes_are_not_published() -> None:
    made = assembler(FormatOptions(provide_transaction_metadata=True, message_prefix_exclude_list=("other",)))
    assert consume(made, [outside("x", 1_020, WATERMARK_PREFIX), outside("x", 1_030, "other")]) == []
    assert made.state == START
    assert summaries(consume(made, [outside("y", 1_040, "otherwise")])) == [("y", None)]


def test_a_message_that_is_not_transactional_is_refused_inside_a_transaction() -> None:
    begun = transaction(1_100, insert(1))[:-1]
    with pytest.raises(ProtocolError, match="is not transactional, but was sent inside a transaction"):
        assembler().consume([*begun, outside("x", 1_060)], NOW_US)


# ---- truncate, and where a transaction came from


def test_truncate_is_an_event_where_records_have_no_key_and_it_is_not_skipped() -> None:
    emptied = transaction(1_100, insert(5, oid=11), wire.truncate([10, 11]), insert(6, oid=11))
    records = consume(assembler(ALL.model_copy(update={"skipped_operations": "none"})), emptied)
    [event] = [r for r in records if r.value is not None and json.loads(r.value).get("op") == "t"]
    assert (event.topic, event.key, event.headers) == ("shop.public.audit", b"", None)
    value = json.loads(event.value or b"")
    assert (value["before"], value["after"]) == (None, None)
    assert [value["source"][name] for name in ("schema", "table", "seq", "tx_index", "lsn")] == [
        "public", "audit", 3, 2, 1_050,
    ]  # fmt: skip
    assert summaries(records) == [
        "BEGIN",
        ("c", 5, ("7:1100", 1, 1)),
        ("t", None, ("7:1100", 2, 2)),
        ("c", 6, ("7:1100", 3, 3)),
        3,
    ]
    assert [record.topic for record in records].count("shop.control") == 2  # the sweeps are there all the same
    assert "t" not in [event[0] for event in summaries(consume(assembler(), emptied)) if isinstance(event, tuple)]


def test_a_transaction_that_came_by_replication_names_its_origin() -> None:
    origin = b"O" + (5_000).to_bytes(8) + b"upstream\0"
    made = assembler()
    records = consume(made, transaction(1_100, origin, insert(1), insert(5, oid=11), message("m")))
    records += consume(made, transaction(1_200, insert(2), xid=8))
    sources = [json.loads(r.value or b"")["source"] for r in records if r.topic != TRANSACTION]
    assert [(s["origin"], s["origin_lsn"]) for s in sources] == [("upstream", 5_000)] * 3 + [(None, None)]
