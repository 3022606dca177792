"""Rows of which an update left a large value alone, in each form of records: literal ones, filled and unfilled.

That a filled one is the same row sent whole, for values of every type: tests/property/test_schemas.py.
"""

from typing import Any, Final

import pytest

from cdc.capture.toast_batch import BatchRecord, DraftRecord, ToastBatch
from cdc.config.format_options import FormatOptions
from cdc.formats.records import Draft, EnvelopeContext, OutRecord, TableEncoder
from cdc.model.events import Column
from cdc.model.topic_record import TopicRecord
from cdc.pgoutput.messages import NULL, UNCHANGED, TupleValue
from cdc.ports.row_reader import FoundRows
from tests.support import wire
from tests.support.holes import sees, without_holes

OID: Final = 16385
COLUMNS = (
    Column("id", 20, -1, "bigint", False),
    Column("total", 1700, 786_438, "numeric(12,2)", False),
    Column("lsn", 3220, -1, "pg_lsn", True),  # which Debezium does not know
    Column("body", 25, -1, "text", False),
    Column("raw", 17, -1, "bytea", True),
    Column("sum", 1700, -1, "numeric", True),
)
FORMS: Final = {
    "readable": FormatOptions(),
    "readable, schemas": FormatOptions(schemas_enable=True),
    "debezium": FormatOptions(profile="debezium", extended_headers_enabled=False),
    "debezium, schemas": FormatOptions(profile="debezium", extended_headers_enabled=False, schemas_enable=True),
}
READ: Final = {
    "readable": '{"id":1,"total":"1.10","lsn":"0/16","body":"Zoë","raw":"AQI=","sum":"2.5"}',
    "debezium": '{"id":1,"total":"bg==","body":"Zoë","raw":"AQI=","sum":{"scale":1,"value":"GQ=="}}',
}
NOT_READ: Final = {
    "readable": '{"id":1,"total":"1.10","lsn":"0/16"}',
    "debezium": '{"id":1,"total":"bg==","body":"__debezium_unavailable_value",'
    '"raw":"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==","sum":null}',
}
SOURCE: Final = (
    '"source":{"version":"0.1.0","connector":"postgresql","name":"srv","ts_ms":1767323079990,"snapshot":"false",'
    '"db":"shop","sequence":"[null,\\"24026000\\"]","ts_us":1767323079990000,"ts_ns":1767323079990000000,'
    '"schema":"public","table":"customers","txId":560,"lsn":24026000,"xmin":null,"origin":null,"origin_lsn":null,'
    '"epoch":1,"seq":%d,"commit_lsn":24026100,"tx_index":0,"schema_version":1%s}'
)
LEFT: Final[list[TupleValue]] = [b"1", b"1.10", b"0/16", UNCHANGED, UNCHANGED, UNCHANGED]
TEXTS: Final = {"body": "Zoë".encode(), "raw": rb"\x0102", "sum": b"2.5"}
NAMES: Final = '["body","raw","sum"]'
KEY_SCHEMA: Final = (
    '{"schema":{"type":"struct","fields":[{"type":"int64","optional":false,"field":"id"}],"optional":false,'
    '"name":"srv.public.customers.Key"},"payload":%s}'
)


def encoder(form: str) -> TableEncoder:
    context = EnvelopeContext("srv", "shop", 1, "0.1.0", FORMS[form])
    made = TableEncoder(*wire.schema_and_relation(COLUMNS, ["id"]), context)
    made.start_transaction(24_026_100, 1_767_323_079_990_000, 560, None)
    return made


def records(made: TableEncoder, *messages: bytes) -> list[BatchRecord]:
    found: list[OutRecord] = []
    for message in messages:
        found += made.encode(message, 0, 24_026_000, 0, 1 + len(found), 1_767_323_080_000_000)
    topic = "srv.public.customers"
    return [
        DraftRecord(topic, key, value, headers) if isinstance(value, Draft) else TopicRecord(topic, key, value, headers)
        for key, value, headers in found
    ]


def batch(made: TableEncoder, *messages: bytes) -> ToastBatch:
    return ToastBatch(records(made, *messages))


def key(form: str, payload: str) -> bytes:
    return (KEY_SCHEMA % payload if "schemas" in form else payload).encode()


def value(form: str, op: str, after: str, lists: str, seq: int = 1) -> bytes:
    """Without its schema."""
    stamps = '"ts_ms":1767323080000,"ts_us":1767323080000000,"ts_ns":1767323080000000000'
    source = SOURCE % (seq, lists)
    return f'{{"before":null,"after":{after},{source},"transaction":null,"op":"{op}",{stamps}}}'.encode()


def payload(form: str, content: bytes | None) -> bytes:
    """The record's value without the schema, which is that of any other record."""
    assert content is not None
    if "schemas" not in form:
        return content
    [made] = encoder(form).encode(wire.insert(OID, [b"1", b"1", NULL, b"", NULL, NULL]), 0, 1, 0, 1, 1)
    _, whole, _ = without_holes(made)
    head = (whole or b"").partition(b'"payload":')[0] + b'"payload":'
    assert content.startswith(head) and content.endswith(b"}")
    return content.removeprefix(head)[:-1]


@pytest.mark.parametrize("form", FORMS)
def test_what_could_be_read_is_in_the_record_in_its_columns_form(form: str) -> None:
    made = batch(encoder(form), wire.update(OID, LEFT))
    [wanted] = made.wanted()
    assert wanted.columns == ("body", "raw", "sum")  # and none that records don't have
    made.take(wanted, FoundRows(sees(560), (tuple(TEXTS[name] for name in wanted.columns),)))
    [record] = made.ready()
    assert record.key == key(form, '{"id":1}')
    after = READ[form.partition(",")[0]]
    assert payload(form, record.value) == value(form, "u", after, f',"filled":{NAMES}')
    assert made.is_done and not made.unfilled


@pytest.mark.parametrize("form", FORMS)
def test_what_could_not_be_read_is_absent_or_debeziums_placeholder_and_listed(form: str) -> None:
    made = batch(encoder(form), wire.update(OID, LEFT))
    [wanted] = made.wanted()
    made.give_up([row.place for row in wanted.rows])
    [record] = made.ready()
    after = NOT_READ[form.partition(",")[0]]
    assert payload(form, record.value) == value(form, "u", after, f',"unchanged":{NAMES}')
    [noted] = made.unfilled
    assert noted.key == ("1",)  # read again, whole, by this key


@pytest.mark.parametrize("form", FORMS)
def test_what_the_record_before_says_is_taken_also_by_a_row_that_moves(form: str) -> None:
    whole: list[TupleValue] = [b"1", b"1.10", b"0/16", *TEXTS.values()]
    moved = wire.update(OID, [b"2", *LEFT[1:]], [b"1", *[NULL] * 5])
    made = batch(encoder(form), wire.insert(OID, whole), wire.update(OID, LEFT), moved)
    inserted, updated, gone, tombstone, here = made.ready()
    after = READ[form.partition(",")[0]]
    assert payload(form, inserted.value) == value(form, "c", after, "")
    assert payload(form, updated.value) == value(form, "u", after, "", 2)
    assert (gone.key, tombstone.key, tombstone.value) == (inserted.key, inserted.key, None)
    assert here.key == key(form, '{"id":2}')
    assert here.headers == [("__debezium.oldkey", b'{"id":1}')]
    assert payload(form, here.value) == value(form, "c", after.replace('"id":1', '"id":2'), "", 4)
    assert made.is_done


@pytest.mark.parametrize("form", FORMS)
def test_a_placeholder_is_nobodys_value(form: str) -> None:
    """What follows in the batch does not take it for what the row had."""
    made = batch(encoder(form), wire.update(OID, LEFT), wire.update(OID, LEFT))
    [wanted] = made.wanted()
    made.give_up([row.place for row in wanted.rows])
    first = made.ready()
    rest: list[Any] = made.wanted()
    if not made.is_done:
        made.give_up([row.place for row in rest[0].rows])
    for record in [*first, *made.ready()]:
        assert f'"unchanged":{NAMES}'.encode() in (record.value or b"")


def test_in_a_batch_of_two_schema_versions_nothing_is_taken_from_the_other() -> None:
    made = encoder("debezium, schemas")
    other = TableEncoder(
        *wire.schema_and_relation(COLUMNS[:5], ["id"]),
        EnvelopeContext("srv", "shop", 1, "0.1.0", FORMS["debezium, schemas"]),
    )
    other.start_transaction(24_026_100, 1_767_323_079_990_000, 560, None)
    [inserted] = other.encode(wire.insert(OID, [b"1", b"1", NULL, b"x", NULL]), 0, 1, 0, 1, 1)
    _, before, _ = without_holes(inserted)
    assert made.columns_of(before or b"") is None
    assert other.columns_of(before or b"") is not None
