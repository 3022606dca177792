"""The envelope, record by record, in full."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdc.config.format_options import FormatOptions
from cdc.formats.records import Draft, EnvelopeContext, TableEncoder
from cdc.formats.transaction_metadata import TransactionMetadata
from cdc.model.control import PartialTransaction
from cdc.model.errors import UnsupportedChangeError
from cdc.model.events import Column, TableId
from cdc.model.lsn import Lsn
from cdc.pgoutput.messages import NULL, UNCHANGED, Begin, TupleValue
from tests.support import wire

OID = 16385
CONTEXT = EnvelopeContext(prefix="shop", database="shop", epoch=1, connector_version="0.1.0")
COLUMNS = (Column("id", 20, -1, "bigint", False), Column("name", 25, -1, "text", True))
NOW_US = 1_767_323_080_000_123
ROW: list[TupleValue] = [b"1", b"x"]


def encoder(identity: str = "d", context: EnvelopeContext = CONTEXT) -> TableEncoder:
    made = TableEncoder(*wire.schema_and_relation(COLUMNS, ["id"], identity=identity), context)
    made.start_transaction(24_026_100, 1_767_323_079_990_123, 560, 24_025_000)
    return made


def source(seq: int, **changes: object) -> dict[str, object]:
    """The `source` block as the tests' transactions have it."""
    return {
        "version": "0.1.0",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_767_323_079_990,
        "snapshot": "false",
        "db": "shop",
        "sequence": '["24025000","24026000"]',
        "ts_us": 1_767_323_079_990_123,
        "ts_ns": 1_767_323_079_990_123_000,
        "schema": "public",
        "table": "customers",
        "txId": 560,
        "lsn": 24_026_000,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
        "epoch": 1,
        "seq": seq,
        "commit_lsn": 24_026_100,
        "tx_index": 0,
        "schema_version": 1,
        **changes,
    }


def envelope(op: str, before: object, after: object, source_block: object) -> bytes:
    value = {
        "before": before,
        "after": after,
        "source": source_block,
        "transaction": None,
        "op": op,
        "ts_ms": 1_767_323_080_000,
        "ts_us": NOW_US,
        "ts_ns": 1_767_323_080_000_123_000,
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def test_an_insert_is_one_record_byte_for_byte() -> None:
    frame = wire.xlog_data(wire.insert(OID, ROW), 24_026_000)
    assert encoder().encode(frame, 25, 24_026_000, 0, 17, NOW_US) == [
        (
            b'{"id":1}',
            b'{"before":null,"after":{"id":1,"name":"x"},"source":{"version":"0.1.0","connector":"postgresql",'
            b'"name":"shop","ts_ms":1767323079990,"snapshot":"false","db":"shop",'
            b'"sequence":"[\\"24025000\\",\\"24026000\\"]","ts_us":1767323079990123,"ts_ns":1767323079990123000,'
            b'"schema":"public","table":"customers","txId":560,"lsn":24026000,"xmin":null,"origin":null,'
            b'"origin_lsn":null,"epoch":1,"seq":17,"commit_lsn":24026100,"tx_index":0,"schema_version":1},'
            b'"transaction":null,"op":"c","ts_ms":1767323080000,"ts_us":1767323080000123,'
            b'"ts_ns":1767323080000123000}',
            None,
        )
    ]


def test_an_update_has_the_old_row_only_if_it_was_sent() -> None:
    new: list[TupleValue] = [b"1", b"y"]
    after = {"id": 1, "name": "y"}
    [record] = encoder().encode(wire.update(OID, new), 0, 24_026_000, 0, 17, NOW_US)
    assert record == (b'{"id":1}', envelope("u", None, after, source(17)), None)
    [record] = encoder("f").encode(wire.update(OID, new, ROW, b"O"), 0, 24_026_000, 0, 17, NOW_US)
    assert record == (b'{"id":1}', envelope("u", {"id": 1, "name": "x"}, after, source(17)), None)


def test_a_delete_is_followed_by_a_tombstone_of_its_version() -> None:
    assert encoder().encode(wire.delete(OID, [b"1", NULL]), 0, 24_026_000, 0, 17, NOW_US) == [
        (b'{"id":1}', envelope("d", {"id": 1}, None, source(17)), None),
        (b'{"id":1}', None, [("watershed.version", b"281474976710673")]),  # 1 << 48 | 17
    ]


def test_a_moved_key_is_delete_tombstone_and_create() -> None:
    message = wire.update(OID, [b"2", b"x"], [b"1", NULL])
    assert encoder().encode(message, 0, 24_026_000, 0, 17, NOW_US) == [
        (b'{"id":1}', envelope("d", {"id": 1}, None, source(17)), [("__debezium.newkey", b'{"id":2}')]),
        (
            b'{"id":1}',
            None,
            [("__debezium.newkey", b'{"id":2}'), ("watershed.version", b"281474976710673")],
        ),
        (
            b'{"id":2}',
            envelope("c", None, {"id": 2, "name": "x"}, source(18)),
            [("__debezium.oldkey", b'{"id":1}')],
        ),
    ]


def test_an_old_key_that_equals_the_new_one_moves_nothing() -> None:
    [record] = encoder().encode(wire.update(OID, ROW, [b"1", NULL]), 0, 24_026_000, 0, 17, NOW_US)
    assert record[1] == envelope("u", {"id": 1}, {"id": 1, "name": "x"}, source(17))


def test_an_existing_row_is_read_at_the_consistent_point() -> None:
    reading = encoder()
    reading.start_snapshot(24_026_500, 1_767_323_070_000_000)
    block = source(
        5,
        ts_ms=1_767_323_070_000,
        ts_us=1_767_323_070_000_000,
        ts_ns=1_767_323_070_000_000_000,
        snapshot="true",
        sequence='[null,"24026500"]',
        txId=None,
        lsn=24_026_500,
        commit_lsn=24_026_500,
        tx_index=4,
    )
    assert reading.copy_row(b"1\tx\n", 24_026_500, 4, 5, NOW_US) == (
        b'{"id":1}',
        envelope("r", None, {"id": 1, "name": "x"}, block),
        None,
    )


def test_a_key_that_was_not_found_is_a_delete_of_what_is_known_of_it() -> None:
    made = encoder()
    made.start_chunk(24_026_200, 1_767_323_079_990_123)
    (key, value, _), tombstone = made.absent(b'{"id":7}', 24_026_200, 3, 9, NOW_US)
    block = source(9, snapshot="incremental", sequence='[null,"24026200"]', lsn=24_026_200, txId=None)
    assert key == b'{"id":7}'
    assert value == envelope("d", {"id": 7}, None, block | {"commit_lsn": 24_026_200, "tx_index": 3})
    assert tombstone == (b'{"id":7}', None, [("watershed.version", b"%d" % (1 << 48 | 9))])


def test_the_first_transaction_of_a_session_has_no_last_commit() -> None:
    first = encoder()
    first.start_transaction(24_026_100, 1_767_323_079_990_123, 560, None)
    [(_, value, _)] = first.encode(wire.insert(OID, ROW), 0, 24_026_000, 0, 17, NOW_US)
    assert value == envelope("c", None, {"id": 1, "name": "x"}, source(17, sequence='[null,"24026000"]'))


def test_each_transaction_and_each_clock_reading_is_its_own() -> None:
    made = encoder()
    made.encode(wire.insert(OID, ROW), 0, 1, 0, 1, 5)
    made.start_transaction(7, 8_000, 4_294_967_295, 6)
    [(_, value, _)] = made.encode(wire.insert(OID, ROW), 0, 2, 3, 4, 9_001)
    assert isinstance(value, bytes)
    record = json.loads(value)
    assert (record["ts_ms"], record["ts_us"], record["ts_ns"]) == (9, 9_001, 9_001_000)
    assert record["source"] == source(
        4,
        ts_ms=8,
        ts_us=8_000,
        ts_ns=8_000_000,
        sequence='["6","2"]',
        txId=4_294_967_295,
        lsn=2,
        commit_lsn=7,
        tx_index=3,
    )


def test_names_are_escaped_as_json_and_stay_utf_8() -> None:
    context = EnvelopeContext('sh"op', "dätabase", 1, "0.1.0")
    table = TableId("pub\\lic", "Ünï\n")
    made = TableEncoder(*wire.schema_and_relation(COLUMNS, ["id"], table=table), context)
    made.start_transaction(1, 2, 3, None)
    [(_, value, _)] = made.encode(wire.insert(OID, ROW), 0, 1, 0, 1, 1)
    assert isinstance(value, bytes)
    assert "dätabase".encode() in value
    found = json.loads(value)["source"]
    assert (found["name"], found["db"], found["schema"], found["table"]) == ('sh"op', "dätabase", *table)


@pytest.mark.parametrize("value", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"a\xf8\x88\x80\x80\x80"])
def test_bytes_that_are_not_utf_8_are_refused(value: bytes) -> None:
    with pytest.raises(UnsupportedChangeError, match=r"public\.customers at 0/16E9BF4#2: a value is not UTF-8"):
        encoder().encode(wire.insert(OID, [b"1", value]), 0, 1, 2, 1, 1)
    with pytest.raises(UnsupportedChangeError, match="not UTF-8"):
        encoder().copy_row(b"1\t" + value, 1, 2, 1, 1)


def test_two_halves_of_a_character_in_neighbouring_columns_are_refused() -> None:
    columns = [Column("a", 25, -1, "text", False), Column("b", 25, -1, "text", False)]
    made = TableEncoder(*wire.schema_and_relation(columns, ["a"]), CONTEXT)
    made.start_transaction(1, 2, 3, None)
    with pytest.raises(UnsupportedChangeError):
        made.encode(wire.insert(OID, [b"\xc3", b"\xab"]), 0, 1, 0, 1, 1)


def test_an_encoder_is_not_made_for_an_altered_table() -> None:
    schema, relation = wire.schema_and_relation(COLUMNS, ["id"], oid=7)
    _, altered = wire.schema_and_relation([*COLUMNS, Column("new", 25, -1, "text", True)], ["id"], oid=7)
    TableEncoder(schema, relation, CONTEXT)
    with pytest.raises(UnsupportedChangeError, match="column new was added"):
        TableEncoder(schema, altered, CONTEXT)


def test_without_a_key_each_change_is_one_record() -> None:
    made = TableEncoder(*wire.schema_and_relation(COLUMNS, [], identity="f"), CONTEXT)
    made.start_transaction(24_026_100, 1_767_323_079_990_123, 560, 24_025_000)
    moved: list[TupleValue] = [b"2", b"y"]
    reported = []
    for seq, message in enumerate(
        (wire.insert(OID, ROW), wire.update(OID, moved, ROW, old_kind=b"O"), wire.delete(OID, moved, old_kind=b"O")), 1
    ):
        ((key, value, headers),) = made.encode(message, 0, 24_026_000, 0, seq, NOW_US)
        assert (key, headers) == (b"", None)
        assert isinstance(value, bytes)
        found = json.loads(value)
        reported.append((found["op"], found["before"], found["after"], found["source"]["seq"]))
    row, after = {"id": 1, "name": "x"}, {"id": 2, "name": "y"}
    assert reported == [("c", None, row, 1), ("u", row, after, 2), ("d", after, None, 3)]
    made.start_snapshot(24_026_000, NOW_US)
    assert made.copy_row(b"1\tx", 24_026_000, 0, 4, NOW_US)[0] == b""


# ---- rows with holes


def test_a_hole_keeps_its_place_in_its_transaction() -> None:
    metadata = TransactionMetadata(schemas_enable=False)
    partial = PartialTransaction(commit_lsn=1, xid=560, next_index=6, events={"public.customers": 4, "b": 2})
    metadata.start(Begin(Lsn(24_026_100), 0, 560), partial)
    made = TableEncoder(*wire.schema_and_relation(COLUMNS, ["id"]), CONTEXT, metadata=metadata)
    made.start_transaction(24_026_100, 1_767_323_079_990_123, 560, None)
    moved = wire.update(OID, [b"2", UNCHANGED], [b"1", NULL])
    [(_, gone, _), _, (_, hole, _)] = made.encode(moved, 0, 24_026_000, 0, 17, NOW_US)
    [(_, whole, _)] = made.encode(wire.update(OID, [b"2", b"y"]), 0, 24_026_000, 1, 19, NOW_US)
    assert isinstance(gone, bytes) and isinstance(hole, Draft) and isinstance(whole, bytes)
    values = [json.loads(value) for value in (gone, hole.finished(("2", '"x"'), [1]), whole)]
    assert [(value["op"], value["transaction"]) for value in values] == [
        (op, {"id": "560:24026100", "total_order": 6 + i, "data_collection_order": 4 + i})
        for i, op in enumerate("dcu", 1)
    ]
    assert made.columns_of(whole) == ("2", '"y"')


def test_a_hole_has_the_headers_of_its_record_and_no_tombstone_where_there_are_none() -> None:
    options = FormatOptions(extended_headers_enabled=True, tombstones_on_delete=False)
    made = encoder(context=replace(CONTEXT, format=options))
    [stayed] = made.encode(wire.update(OID, [b"1", UNCHANGED]), 0, 24_026_000, 0, 17, NOW_US)
    assert (stayed[0], type(stayed[1]), stayed[2]) == (b'{"id":1}', Draft, CONTEXT_HEADERS)
    gone, here = made.encode(wire.update(OID, [b"2", UNCHANGED], [b"1", NULL]), 0, 24_026_000, 1, 18, NOW_US)
    assert (gone[0], gone[2]) == (b'{"id":1}', [("__debezium.newkey", b'{"id":2}'), *CONTEXT_HEADERS])
    assert (here[0], type(here[1])) == (b'{"id":2}', Draft)
    assert here[2] == [("__debezium.oldkey", b'{"id":1}'), *CONTEXT_HEADERS]


def draft(message: bytes) -> Draft:
    made = encoder()
    *_, (_, value, _) = made.encode(message, 0, 24_026_000, 0, 17, NOW_US)
    assert isinstance(value, Draft)
    return value


def test_a_hole_is_absent_and_listed_a_filled_one_is_there_and_listed() -> None:
    made = draft(wire.update(OID, [b"1", UNCHANGED]))
    assert made.key == ("1",)
    unfilled, filled = made.finished(made.columns, ()), made.finished(("1", '"x"'), [1])
    assert unfilled == envelope("u", None, {"id": 1}, source(17, unchanged=["name"]))
    assert filled == envelope("u", None, {"id": 1, "name": "x"}, source(17, filled=["name"]))


def test_a_moved_row_with_a_hole_is_a_delete_a_tombstone_and_a_create_with_the_hole() -> None:
    records = encoder().encode(wire.update(OID, [b"2", UNCHANGED], [b"1", NULL]), 0, 24_026_000, 0, 17, NOW_US)
    assert [(key, type(value)) for key, value, _ in records] == [
        (b'{"id":1}', bytes),
        (b'{"id":1}', type(None)),
        (b'{"id":2}', Draft),
    ]
    made = draft(wire.update(OID, [b"2", UNCHANGED], [b"1", NULL]))
    assert (made.xid, made.former_key) == (560, b'{"id":1}')
    assert made.finished(("2", "null"), ()) == envelope("c", None, {"id": 2, "name": None}, source(18))


def test_a_record_says_again_what_its_columns_were_if_it_is_whole_and_of_this_version() -> None:
    made = draft(wire.update(OID, [b"1", UNCHANGED]))
    [(_, whole, _)] = encoder().encode(wire.insert(OID, [b"1", 'a"é,"source":'.encode()]), 0, 1, 0, 1, 1)
    [(_, gone, _), _] = encoder().encode(wire.delete(OID, [b"1", NULL]), 0, 1, 0, 1, 1)
    assert isinstance(whole, bytes) and isinstance(gone, bytes)
    assert made.encoder.columns_of(whole) == ("1", '"a\\"é,\\"source\\":"'.encode().decode("latin-1"))
    assert made.encoder.columns_of(gone) is None
    assert made.encoder.columns_of(whole.replace(b'"schema_version":1', b'"schema_version":2')) is None


def test_what_was_read_is_refused_where_its_column_can_not_hold_it() -> None:
    made = draft(wire.update(OID, [b"1", UNCHANGED]))
    assert made.encoded("name", 'é"'.encode()) == '"é\\""'.encode().decode("latin-1")
    assert made.encoded("name", None) == "null"
    assert made.encoded("id", b"x") is made.encoded("gone", b"x") is made.encoded("name", b"Zo\xeb") is None


# ---- the profile `debezium`, and schemas

ORDER_COLUMNS = (
    Column("id", 20, -1, "bigint", False),
    Column("name", 25, -1, "text", False),
    Column("total", 1700, 786_438, "numeric(12,2)", False),
    Column("at", 1114, -1, "timestamp without time zone", True),
    Column("lsn", 3220, -1, "pg_lsn", True),
)
ORDER: list[TupleValue] = [b"1", b"x", b"1.10", b"1970-01-01 00:00:01", b"0/16"]
CONTEXT_HEADERS = [
    ("__debezium.context.connectorLogicalName", b"shop"),
    ("__debezium.context.taskId", b"0"),
    ("__debezium.context.connectorName", b"postgresql"),
]


def orders_encoder(**options: Any) -> TableEncoder:
    context = replace(CONTEXT, format=FormatOptions(profile="debezium", **options))
    made = TableEncoder(*wire.schema_and_relation(ORDER_COLUMNS, ["id"]), context)
    made.start_transaction(24_026_100, 1_767_323_079_990_123, 560, 24_025_000)
    return made


def test_debeziums_profile_has_its_values_and_headers_and_leaves_out_what_it_does_not_know() -> None:
    assert orders_encoder().encode(wire.insert(OID, ORDER), 0, 24_026_000, 0, 17, NOW_US) == [
        (
            b'{"id":1}',
            envelope("c", None, {"id": 1, "name": "x", "total": "bg==", "at": 1_000_000}, source(17)),
            CONTEXT_HEADERS,
        )
    ]
    line = b"1\tx\t1.10\t1970-01-01 00:00:01\t0/16"
    copied = orders_encoder().copy_row(line, 24_026_000, 0, 17, NOW_US)
    assert copied[1] is not None
    assert json.loads(copied[1])["after"] == {"id": 1, "name": "x", "total": "bg==", "at": 1_000_000}
    assert copied[2] == CONTEXT_HEADERS


def test_debeziums_profile_fills_a_key_only_old_row_with_nulls_and_zeroes() -> None:
    delete = wire.delete(OID, [b"1", *[NULL] * 4])
    before = {"id": 1, "name": "", "total": "AA==", "at": None}
    [deleted, tombstone] = orders_encoder().encode(delete, 0, 24_026_000, 0, 17, NOW_US)
    assert deleted == (b'{"id":1}', envelope("d", before, None, source(17)), CONTEXT_HEADERS)
    version = ("watershed.version", b"281474976710673")
    assert tombstone == (b'{"id":1}', None, [version, *CONTEXT_HEADERS])


def test_a_moved_key_has_debeziums_headers_beside_the_context() -> None:
    message = wire.update(OID, [b"2", *ORDER[1:]], [b"1", *[NULL] * 4])
    gone, tombstone, here = orders_encoder().encode(message, 0, 24_026_000, 0, 17, NOW_US)
    new_key = ("__debezium.newkey", b'{"id":2}')
    assert gone[2] == [new_key, *CONTEXT_HEADERS]
    assert tombstone[2] == [new_key, ("watershed.version", b"281474976710673"), *CONTEXT_HEADERS]
    assert here[2] == [("__debezium.oldkey", b'{"id":1}'), *CONTEXT_HEADERS]


def test_without_tombstones_a_delete_is_one_record_and_a_moved_key_two() -> None:
    made = orders_encoder(tombstones_on_delete=False, extended_headers_enabled=False)
    delete = wire.delete(OID, [b"1", *[NULL] * 4])
    [(_, value, headers)] = made.encode(delete, 0, 24_026_000, 0, 17, NOW_US)
    assert value is not None
    assert headers is None
    moved = made.encode(wire.update(OID, [b"2", *ORDER[1:]], [b"1", *[NULL] * 4]), 0, 24_026_000, 0, 17, NOW_US)
    assert [(key, value is None) for key, value, _ in moved] == [(b'{"id":1}', False), (b'{"id":2}', False)]


def test_what_has_no_place_in_a_required_column_stops_with_table_column_and_position() -> None:
    message = wire.insert(OID, [b"1", b"x", b"NaN", NULL, NULL])
    with pytest.raises(
        UnsupportedChangeError, match=r"public\.customers at 0/16E9BF4#2, column total: a value"
    ) as stop:
        orders_encoder().encode(message, 0, 24_026_000, 2, 17, NOW_US)
    assert "section format" in stop.value.hint


def test_with_schemas_key_and_value_are_what_connects_converter_writes() -> None:
    made = encoder(context=replace(CONTEXT, format=FormatOptions(schemas_enable=True)))
    [(key, value, headers)] = made.encode(wire.insert(OID, ROW), 0, 24_026_000, 0, 17, NOW_US)
    assert headers is None
    assert key == (
        b'{"schema":{"type":"struct","fields":[{"type":"int64","optional":false,"field":"id"}],"optional":false,'
        b'"name":"shop.public.customers.Key"},"payload":{"id":1}}'
    )
    row = (
        b'{"type":"struct","fields":[{"type":"int64","optional":false,"field":"id"},'
        b'{"type":"string","optional":true,"field":"name"}],"optional":true,"name":"shop.public.customers.Value",'
    )
    assert isinstance(value, bytes)
    assert value.startswith(
        b'{"schema":{"type":"struct","fields":['
        + row
        + b'"field":"before"},'
        + row
        + b'"field":"after"},{"type":"struct","fields":[{"type":"string","optional":false,"field":"version"},'
        b'{"type":"string","optional":false,"field":"connector"},{"type":"string","optional":false,"field":"name"},'
        b'{"type":"int64","optional":false,"field":"ts_ms"},{"type":"string","optional":true,'
        b'"name":"io.debezium.data.Enum","version":1,"parameters":{"allowed":'
        b'"true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"},"default":"false",'
        b'"field":"snapshot"},{"type":"string","optional":false,"field":"db"}'
    )
    payload = envelope("c", None, {"id": 1, "name": "x"}, source(17))
    assert value.endswith(
        b'{"type":"string","optional":false,"field":"op"},{"type":"int64","optional":true,"field":"ts_ms"},'
        b'{"type":"int64","optional":true,"field":"ts_us"},{"type":"int64","optional":true,"field":"ts_ns"}],'
        b'"optional":false,"name":"shop.public.customers.Envelope","version":2},"payload":' + payload + b"}"
    )
    assert made.copy_row(b"1\tx", 24_026_000, 0, 17, NOW_US)[0] == key


def test_with_schemas_every_key_has_its_own() -> None:
    made = encoder(context=replace(CONTEXT, format=FormatOptions(schemas_enable=True)))
    moved = made.encode(wire.update(OID, [b"2", b"x"], [b"1", NULL]), 0, 24_026_000, 0, 17, NOW_US)
    assert [json.loads(key)["payload"] for key, _, _ in moved] == [{"id": 1}, {"id": 1}, {"id": 2}]
    # Headers have none, as Debezium's do not: Connect's own converter of headers would hand it on as a map.
    assert moved[0][2] == [("__debezium.newkey", b'{"id":2}')]
    assert moved[2][2] == [("__debezium.oldkey", b'{"id":1}')]


def test_a_column_that_is_left_out_may_be_missing() -> None:
    [(_, value, _)] = orders_encoder().encode(wire.update(OID, [*ORDER[:4], UNCHANGED]), 0, 24_026_000, 0, 17, NOW_US)
    assert isinstance(value, bytes)
    assert json.loads(value)["after"] == {"id": 1, "name": "x", "total": "bg==", "at": 1_000_000}


def test_without_a_key_a_hole_stops_its_table() -> None:
    made = TableEncoder(*wire.schema_and_relation(COLUMNS, []), CONTEXT)
    made.start_transaction(24_026_100, 1_767_323_079_990_123, 560, 24_025_000)
    with pytest.raises(UnsupportedChangeError, match=r"public\.customers at 0/16E9BF4#0: .* without a key") as stop:
        made.encode(wire.update(OID, [b"1", UNCHANGED]), 0, 24_026_000, 0, 17, NOW_US)
    assert "REPLICA IDENTITY FULL" in stop.value.hint
