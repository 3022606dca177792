"""Events in the stream: what is published, and what becomes of what can't be. Rows are held against Debezium's records
in test_router."""

import json
from typing import Any

import pytest

from cdc.config.format_options import FormatOptions
from cdc.config.outbox_settings import OutboxMessages, OutboxTable
from cdc.model.errors import DamagedTextError, ProtocolError, UnsupportedChangeError
from cdc.model.events import Column, Position, TableId, TableSchema
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.outbox.event_stream import OutboxStream, OutboxWarning
from cdc.outbox.seal import SealKey
from cdc.pgoutput.messages import NULL, UNCHANGED, LogicalMessage, TupleValue
from tests.support import wire

KEY = SealKey(bytes(32))
AT = Position(Lsn(100), 2)
NOW_US = 1_700_000_000_000_000
XID = 560
EVENT = {
    "id": "i",
    "aggregatetype": "order",
    "aggregateid": "7",
    "type": "Placed",
    "payload": '{"a": 1}',
    "headers": None,
}
COLUMNS = tuple(
    Column(name, 25, -1, "text", nullable=True) for name in ("id", "aggregatetype", "aggregateid", "payload")
)
SCHEMA = TableSchema(TableId("public", "outbox"), 1, 5, COLUMNS, (), "shop.public.outbox")


def outbox(**options: Any) -> OutboxStream:
    made = OutboxStream(
        "shop",
        [OutboxTable.model_validate({"table": "public.outbox", **options})],
        (OutboxMessages.model_validate(options), KEY),
        FormatOptions(),
    )
    made.describe(5, SCHEMA)
    return made


def published(content: bytes, made: OutboxStream | None = None) -> TopicRecord:
    message = LogicalMessage(True, Lsn(90), "watershed.outbox", content)
    (record,) = (made or outbox()).message(message, XID, AT, NOW_US, NOW_US)
    return record


def sealed(**changed: Any) -> bytes:
    return KEY.seal(XID, json.dumps(EVENT | changed).encode())


def inserted(*values: str | None, **options: Any) -> TopicRecord:
    (record,) = outbox(**options).row(memoryview(change(b"I", values)), AT, NOW_US, NOW_US)
    return record


@pytest.mark.parametrize("promises_utf8", [True, False])
def test_damaged_text_is_blamed_on_the_database_only_where_its_encoding_allows_it(promises_utf8: bool) -> None:
    made = OutboxStream(
        "shop",
        [OutboxTable.model_validate({"table": "public.outbox"})],
        None,
        FormatOptions(),
        promises_utf8=promises_utf8,
    )
    made.describe(5, SCHEMA)
    damaged = change(b"I", ("1", "order", "7", "{}")).replace(b"order", b"ord\xffr")
    with pytest.raises(UnsupportedChangeError, match="not UTF-8") as caught:
        made.row(memoryview(damaged), AT, NOW_US, NOW_US)
    assert isinstance(caught.value, DamagedTextError) == promises_utf8
    assert ("SQL_ASCII" in caught.value.hint) != promises_utf8


def change(kind: bytes, values: tuple[str | None, ...]) -> bytes:
    return kind + (5).to_bytes(4) + b"N" + row(values)


def row(values: tuple[str | None, ...]) -> bytes:
    written = [b"n" if v is None else b"t" + len(v.encode()).to_bytes(4) + v.encode() for v in values]
    return len(values).to_bytes(2) + b"".join(written)


def reason(record: TopicRecord) -> str:
    return str(json.loads(record.value or b"")["reason"])


def test_a_message_and_a_row_become_the_same_record() -> None:
    message, inserted_row = published(sealed()), inserted("i", "order", "7", '{"a": 1}')
    assert message[:4] == inserted_row[:4]
    assert message[:4] == ("outbox.event.order", b"7", b'{"a": 1}', [("id", b"i")])


def test_headers_of_a_message_follow_the_others() -> None:
    placed = outbox(**{"table.fields.additional.placement": "aggregatetype:header"})
    record = published(sealed(headers={"trace": "t"}), placed)
    assert record.headers == [("id", b"i"), ("aggregatetype", b"order"), ("trace", b"t")]


def test_a_forged_message_and_a_replayed_one_are_dead_letters() -> None:
    for content in (json.dumps(EVENT).encode(), KEY.seal(XID + 1, json.dumps(EVENT).encode()), b""):
        record = published(content)
        assert (record.topic, record.key) == ("shop.outbox_dead_letters", b"")
        assert "not written by the function" in reason(record)


def test_a_sealed_message_without_an_event_is_a_dead_letter() -> None:
    assert "not text" in reason(published(sealed(id=7)))


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (("i", None, "7", "p"), {}, "aggregatetype is null"),
        (("i", "a b", "7", "p"), {}, "not one that Kafka takes"),
        (
            ("i", "public.orders", "7", "p"),
            {"route.topic.replacement": "shop.${routedByValue}"},
            "reserved for capture",
        ),
    ],
)
def test_a_row_that_can_not_be_routed_is_a_dead_letter_in_its_tables_topic(
    values: tuple[str | None, ...], options: dict[str, str], message: str
) -> None:
    record = inserted(*values, **options)
    assert (record.topic, record.key) == ("shop.public.outbox", b"i")
    assert message in reason(record)
    assert json.loads(record.value or b"")["event"]["aggregateid"] == "7"


def test_an_event_whose_payload_is_not_known_is_a_dead_letter_and_no_tombstone() -> None:
    former: list[TupleValue] = [b"h", NULL, NULL, NULL]
    message = wire.update(5, [b"i", b"order", b"7", UNCHANGED], former)
    (record,) = outbox().row(memoryview(message), AT, NOW_US, NOW_US)
    assert record.topic == "shop.public.outbox"
    assert "an update left a large value unchanged" in reason(record)


def test_what_its_topic_can_not_take_has_a_dead_letter_ready() -> None:
    record = inserted("i", "order", "7", "p")
    assert record.destination is not None
    assert reason(record.destination.refused("no such partition")) == "no such partition"


def test_an_empty_key_is_one_and_null_is_none() -> None:
    empty, null = inserted("i", "order", "", "p"), inserted("i", "order", None, "p")
    assert empty.destination is not None
    assert null.destination is not None
    assert (empty.destination.has_key, null.destination.has_key) == (True, False)


def test_a_delete_is_no_event() -> None:
    deleted = b"D" + (5).to_bytes(4) + b"K" + row(("i", None, None, None))
    assert outbox().row(memoryview(deleted), AT, NOW_US, NOW_US) == []


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ProtocolError, match="3 columns, not 4"):
        inserted("i", "order", "7")


def test_columns_that_do_not_leave_the_source_are_passed_over() -> None:
    """Seen: source.exclude_columns matched a column of the outbox, and its first event ended capture, as if the stream
    was damaged."""
    made = outbox()
    made.describe(5, SCHEMA, (0, None, 1, 2, 3, None))
    sent = change(b"I", ("i", "secret", "order", "7", '{"a": 1}', None))
    (record,) = made.row(memoryview(sent), AT, NOW_US, NOW_US)
    assert record[:3] == inserted("i", "order", "7", '{"a": 1}')[:3]
    old = b"U" + (5).to_bytes(4) + b"O" + row(("i", "was", "order", "7", "{}", None))
    again = old + b"N" + row(("i", "is", "order", "7", "{}", None))
    with pytest.warns(OutboxWarning, match="a row was updated"):
        assert made.row(memoryview(again), AT, NOW_US, NOW_US) == [], "the same event"
    with pytest.raises(ProtocolError, match="5 columns, not 4"):
        made.row(memoryview(change(b"I", ("i", "order", "7", "{}", None))), AT, NOW_US, NOW_US)


def test_it_knows_its_tables_by_name_and_then_by_relation() -> None:
    made = outbox()
    assert made.takes(TableId("public", "outbox"))
    assert not made.takes(TableId("public", "orders"))
    assert made.follows(5)
    assert not made.follows(6)
    assert made.message_prefix == "watershed.outbox"


@pytest.mark.parametrize(
    ("at", "timestamp_ms"),
    [("1970-01-01 00:00:00.001", 1), ("1970-01-01 00:00:00.0009", None), ("1969-12-31 23:59:59", None)],
)
def test_a_timestamp_that_the_client_would_replace_by_its_own_is_a_dead_letter(
    at: str, timestamp_ms: int | None
) -> None:
    """A client takes the timestamp 0 for none."""
    columns = (*COLUMNS, Column("at", 1114, -1, "timestamp", nullable=True))
    table = OutboxTable.model_validate({"table": "public.outbox", "table.field.event.timestamp": "at"})
    made = OutboxStream("shop", [table], None, FormatOptions())
    made.describe(5, TableSchema(SCHEMA.table, 1, 5, columns, (), SCHEMA.topic))
    (record,) = made.row(memoryview(change(b"I", ("i", "order", "7", "p", at))), AT, NOW_US, NOW_US)
    if timestamp_ms is None:
        assert record.topic == SCHEMA.topic
        assert "not after the beginning of 1970" in reason(record)
    else:
        assert (record.topic, record.destination and record.destination.timestamp_ms) == (
            "outbox.event.order",
            timestamp_ms,
        )
