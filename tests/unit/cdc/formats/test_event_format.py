"""Debezium's record format, line by line, with literal records: what each has, in which order, and where it is null.

The numbers are sections of the format's description as one reads it: anatomy, envelope, source, old rows, tombstones,
headers, JSON, transactions, messages, heartbeats. Where Watershed differs on purpose, the test's name says so; the
docs/reference/debezium.md lists these places. Values are in test_event_format_values.py.
"""

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from cdc.capture.assembler import Assembler
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.config.format_options import FormatOptions
from cdc.formats.heartbeats import Heartbeats
from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.model.events import Column, TableId
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.messages import NULL, TupleValue
from tests.support import wire
from tests.support.snapshot_ports import UnfollowedTables, engine_of

OID: Final = 16385
COLUMNS = (
    Column("id", 20, -1, "bigint", False),
    Column("name", 25, -1, "text", False),
    Column("note", 25, -1, "text", True),
)
COMMIT_TS_US, NOW_US = 1_767_323_079_990_000, 1_767_323_080_000_000
LSN, COMMIT_LSN = 24_026_000, 24_026_100
ROW: list[TupleValue] = [b"1", b"x", NULL]
KEY_ONLY: list[TupleValue] = [b"1", NULL, NULL]
DEBEZIUM = FormatOptions(profile="debezium")
CONTEXT_HEADERS = [
    ("__debezium.context.connectorLogicalName", b"srv"),
    ("__debezium.context.taskId", b"0"),
    ("__debezium.context.connectorName", b"postgresql"),
]
SOURCE = (
    '{"version":"0.1.0","connector":"postgresql","name":"srv","ts_ms":1767323079990,"snapshot":"false","db":"shop",'
    '"sequence":"[null,\\"24026000\\"]","ts_us":1767323079990000,"ts_ns":1767323079990000000,"schema":"public",'
    '"table":"customers","txId":560,"lsn":24026000,"xmin":null,"origin":null,"origin_lsn":null,'
    '"epoch":1,"seq":%d,"commit_lsn":24026100,"tx_index":0,"schema_version":1}'
)
STAMPS = '"ts_ms":1767323080000,"ts_us":1767323080000000,"ts_ns":1767323080000000000'


def value(op: str, before: str, after: str, seq: int = 1) -> bytes:
    source = SOURCE % seq
    text = f'{{"before":{before},"after":{after},"source":{source},"transaction":null,"op":"{op}",{STAMPS}}}'
    return text.encode()


def published(*changes: bytes, options: FormatOptions = DEBEZIUM, identity: str = "d", key: str = "id") -> Any:
    """Records of one transaction."""
    names = [key] if key else []
    schema, relation = wire.schema_and_relation(COLUMNS, names, identity=identity)
    schema = replace(schema, topic="srv.public.customers")
    context = EnvelopeContext("srv", "shop", 1, "0.1.0", options)
    engine = engine_of([schema], context)
    made = Assembler(
        CapturedTables([schema]),
        context,
        StreamState(Lsn(1), None, 0, 0),
        engine,
        UnfollowedTables(),
    )
    messages = [wire.begin(COMMIT_LSN, COMMIT_TS_US, 560), wire.relation_bytes(relation), *changes]
    messages.append(wire.commit(COMMIT_LSN, COMMIT_LSN + 48, COMMIT_TS_US))
    records, failure = made.consume([wire.xlog_data(message, LSN) for message in messages], NOW_US)
    assert failure is None
    return records


# ---- 1.0 anatomy


def test_1_0_the_topic_is_prefix_schema_and_table_with_underscores_for_what_kafka_does_not_allow() -> None:
    assert Topics("srv").table(TableId("public", "orders")) == "srv.public.orders"
    assert Topics("srv").table(TableId("my schema", "größe$1-a.b")) == "srv.my_schema.gr__e_1-a.b"


def test_1_0_a_record_has_the_tables_topic_the_key_columns_as_key_and_the_envelope_as_value() -> None:
    [record] = published(wire.insert(OID, ROW))
    assert record == TopicRecord(
        "srv.public.customers",
        b'{"id":1}',
        value("c", "null", '{"id":1,"name":"x","note":null}'),
        CONTEXT_HEADERS,
    )


def test_1_0_and_1_5_without_a_key_there_is_none_and_no_tombstone() -> None:
    [record] = published(wire.delete(OID, ROW, b"O"), identity="f", key="")
    assert (record.key, record.value) == (b"", value("d", '{"id":1,"name":"x","note":null}', "null"))


# ---- 1.1 names of schemas


def test_1_1_schemas_have_debeziums_names_and_versions() -> None:
    with_schemas = FormatOptions(profile="debezium", schemas_enable=True)
    [record] = published(wire.insert(OID, ROW), options=with_schemas)
    key, envelope = json.loads(record.key)["schema"], json.loads(record.value)["schema"]
    fields = {field["field"]: field for field in envelope["fields"]}

    def said(schema: Any) -> tuple[Any, ...]:
        return schema["name"], schema.get("version"), schema["optional"]

    assert said(key) == ("srv.public.customers.Key", None, False)
    assert said(fields["before"]) == said(fields["after"]) == ("srv.public.customers.Value", None, True)
    assert said(envelope) == ("srv.public.customers.Envelope", 2, False)
    assert said(fields["source"]) == ("io.debezium.connector.postgresql.Source", 1, False)
    assert said(fields["transaction"]) == ("event.block", 1, True)


def test_1_1_schemas_are_called_as_their_topic() -> None:
    schema, relation = wire.schema_and_relation(COLUMNS, ["id"])
    odd = TableId("public", "Größe Tab")
    context = EnvelopeContext("srv", "shop", 1, "0.1.0", FormatOptions(schemas_enable=True))
    made = TableEncoder(replace(schema, table=odd), replace(relation, name=odd.name), context)
    made.start_transaction(COMMIT_LSN, COMMIT_TS_US, 560, 24_025_000)
    [(key, record, _)] = made.encode(wire.insert(OID, ROW), 0, LSN, 0, 1, NOW_US)
    assert json.loads(key)["schema"]["name"] == "srv.public.Gr__e_Tab.Key"
    assert isinstance(record, bytes)
    envelope = json.loads(record)["schema"]
    assert envelope["name"] == "srv.public.Gr__e_Tab.Envelope"
    assert envelope["fields"][1]["name"] == "srv.public.Gr__e_Tab.Value"


# ---- 1.2 the envelope


@pytest.mark.parametrize(
    ("message", "identity", "expected"),
    [
        (wire.insert(OID, ROW), "d", value("c", "null", '{"id":1,"name":"x","note":null}')),
        (wire.update(OID, ROW), "d", value("u", "null", '{"id":1,"name":"x","note":null}')),
        (wire.delete(OID, KEY_ONLY), "d", value("d", '{"id":1,"name":"","note":null}', "null")),
        (
            wire.update(OID, ROW, [b"1", b"w", b"n"], b"O"),
            "f",
            value("u", '{"id":1,"name":"w","note":"n"}', '{"id":1,"name":"x","note":null}'),
        ),
    ],
)
def test_1_2_the_envelopes_fields_are_these_in_this_order(message: bytes, identity: str, expected: bytes) -> None:
    assert published(message, identity=identity)[0].value == expected


def test_1_2_an_existing_row_is_op_r_and_differs_in_snapshot_which_is_true_for_all_of_them() -> None:
    made = TableEncoder(
        *wire.schema_and_relation(COLUMNS, ["id"]), EnvelopeContext("srv", "shop", 1, "0.1.0", DEBEZIUM)
    )
    made.start_snapshot(LSN, COMMIT_TS_US)
    _, row, _ = made.copy_row(b"1\tx\t\\N\n", LSN, 0, 1, NOW_US)
    expected = value("r", "null", '{"id":1,"name":"x","note":null}').replace(
        b'"snapshot":"false"', b'"snapshot":"true"'
    )
    expected = expected.replace(b'"txId":560', b'"txId":null').replace(
        b'"commit_lsn":24026100', b'"commit_lsn":24026000'
    )
    assert row == expected


def test_1_2_truncate_is_op_t_without_key_and_rows_where_the_topic_is_not_compacted() -> None:
    every = FormatOptions(profile="debezium", skipped_operations="none")
    [sweep, record] = published(wire.truncate([OID]), options=every, identity="f", key="")
    assert sweep.topic == "srv.control"
    assert record == TopicRecord("srv.public.customers", b"", value("t", "null", "null"), CONTEXT_HEADERS)
    assert [r.topic for r in published(wire.truncate([OID]), identity="f", key="")] == ["srv.control"]
    assert [r.topic for r in published(wire.truncate([OID]), options=every)] == ["srv.control"]


# ---- 1.3 source


def test_1_3_source_has_debeziums_fields_first_and_then_ours() -> None:
    with_schemas = FormatOptions(profile="debezium", schemas_enable=True)
    record = json.loads(published(wire.insert(OID, ROW), options=with_schemas)[0].value)
    [schema] = [field for field in record["schema"]["fields"] if field["field"] == "source"]
    fields = [(field["field"], field["type"], field["optional"]) for field in schema["fields"]]
    assert fields == [
        ("version", "string", False),
        ("connector", "string", False),
        ("name", "string", False),
        ("ts_ms", "int64", False),
        ("snapshot", "string", True),
        ("db", "string", False),
        ("sequence", "string", True),
        ("ts_us", "int64", True),
        ("ts_ns", "int64", True),
        ("schema", "string", False),
        ("table", "string", False),
        ("txId", "int64", True),
        ("lsn", "int64", True),
        ("xmin", "int64", True),
        ("origin", "string", True),
        ("origin_lsn", "int64", True),
        *((name, "int64", True) for name in ("epoch", "seq", "commit_lsn", "tx_index", "schema_version")),
        *((name, "array", True) for name in ("unchanged", "filled")),
    ]
    assert [name for name, _, _ in fields[:-2]] == list(record["payload"]["source"])
    snapshot = schema["fields"][4]
    assert (snapshot["name"], snapshot["default"]) == ("io.debezium.data.Enum", "false")
    assert snapshot["parameters"] == {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    }


def test_1_3_sequence_is_a_text_with_the_commit_before_and_the_changes_own_lsn() -> None:
    made = TableEncoder(*wire.schema_and_relation(COLUMNS, ["id"]), EnvelopeContext("srv", "shop", 1, "0.1.0"))
    made.start_transaction(COMMIT_LSN, COMMIT_TS_US, 560, 24_025_000)
    [(_, record, _)] = made.encode(wire.insert(OID, ROW), 0, LSN, 0, 1, NOW_US)
    assert isinstance(record, bytes)
    assert b'"sequence":"[\\"24025000\\",\\"24026000\\"]"' in record


def test_1_3_a_row_read_in_chunks_differs_in_having_the_marks_lsn() -> None:
    made = TableEncoder(*wire.schema_and_relation(COLUMNS, ["id"]), EnvelopeContext("srv", "shop", 1, "0.1.0"))
    made.start_chunk(COMMIT_LSN, COMMIT_TS_US)
    source = json.loads(made.copy_row(b"1\tx\t\\N\n", LSN, 0, 1, NOW_US)[1] or b"")["source"]
    assert [source[name] for name in ("snapshot", "txId", "xmin", "lsn")] == ["incremental", None, None, LSN]


# ---- 1.4 what `before` contains


@pytest.mark.parametrize(
    ("identity", "message", "before"),
    [
        ("d", wire.insert(OID, ROW), "null"),
        ("f", wire.insert(OID, ROW), "null"),
        ("d", wire.update(OID, ROW), "null"),
        ("i", wire.update(OID, ROW), "null"),
        ("f", wire.update(OID, ROW, [b"1", b"w", b"n"], b"O"), '{"id":1,"name":"w","note":"n"}'),
        ("d", wire.delete(OID, KEY_ONLY), '{"id":1,"name":"","note":null}'),
        ("i", wire.delete(OID, KEY_ONLY), '{"id":1,"name":"","note":null}'),
        ("f", wire.delete(OID, ROW, b"O"), '{"id":1,"name":"x","note":null}'),
    ],
)
def test_1_4_before_by_replica_identity(identity: str, message: bytes, before: str) -> None:
    assert published(message, identity=identity)[0].value.startswith(f'{{"before":{before},"after":'.encode())


def test_1_4_profile_readable_differs_in_that_columns_that_are_not_known_are_absent() -> None:
    record = published(wire.delete(OID, KEY_ONLY), options=FormatOptions())[0]
    assert record.value == value("d", '{"id":1}', "null")


@pytest.mark.parametrize(
    ("options", "before"),
    [(DEBEZIUM, '{"id":1,"name":"","note":null}'), (FormatOptions(), '{"id":1}')],
)
def test_1_4_the_row_of_a_key_that_was_not_found_is_as_any_old_one(options: FormatOptions, before: str) -> None:
    context = EnvelopeContext("srv", "shop", 1, "0.1.0", options)
    made = TableEncoder(*wire.schema_and_relation(COLUMNS, ["id"]), context)
    made.start_chunk(COMMIT_LSN, COMMIT_TS_US)
    deleted, tombstone = made.absent(b'{"id":1}', LSN, 0, 1, NOW_US)
    assert (deleted[1] or b"").startswith(f'{{"before":{before},"after":null,"source"'.encode())
    assert (tombstone[0], tombstone[1]) == (b'{"id":1}', None)


# ---- 1.5 tombstones, 1.6 headers


def test_1_5_a_delete_is_followed_by_a_tombstone_with_its_key_and_headers() -> None:
    deleted, tombstone = published(wire.delete(OID, KEY_ONLY))
    assert (tombstone.topic, tombstone.key, tombstone.value) == (deleted.topic, b'{"id":1}', None)
    assert tombstone.headers == [("watershed.version", b"281474976710657"), *CONTEXT_HEADERS]
    without = FormatOptions(profile="debezium", tombstones_on_delete=False)
    assert [record.value is None for record in published(wire.delete(OID, KEY_ONLY), options=without)] == [False]


def test_1_6_a_moved_key_is_delete_tombstone_and_create_with_each_others_keys() -> None:
    moved = published(wire.update(OID, [b"2", b"x", NULL], KEY_ONLY))
    new, old = ("__debezium.newkey", b'{"id":2}'), ("__debezium.oldkey", b'{"id":1}')
    assert [(record.key, record.value, record.headers) for record in moved] == [
        (b'{"id":1}', value("d", '{"id":1,"name":"","note":null}', "null"), [new, *CONTEXT_HEADERS]),
        (b'{"id":1}', None, [new, ("watershed.version", b"281474976710657"), *CONTEXT_HEADERS]),
        (b'{"id":2}', value("c", "null", '{"id":2,"name":"x","note":null}', 2), [old, *CONTEXT_HEADERS]),
    ]


def test_1_6_profile_readable_has_no_context_headers_unless_they_are_asked_for() -> None:
    assert published(wire.insert(OID, ROW), options=FormatOptions())[0].headers is None
    asked = FormatOptions(extended_headers_enabled=True)
    assert published(wire.insert(OID, ROW), options=asked)[0].headers == CONTEXT_HEADERS


# ---- 1.7 JSON


def test_1_7_with_schemas_key_and_value_are_schema_and_payload() -> None:
    [record] = published(wire.insert(OID, ROW), options=FormatOptions(profile="debezium", schemas_enable=True))
    assert record.key == (
        b'{"schema":{"type":"struct","fields":[{"type":"int64","optional":false,"field":"id"}],"optional":false,'
        b'"name":"srv.public.customers.Key"},"payload":{"id":1}}'
    )
    payload = value("c", "null", '{"id":1,"name":"x","note":null}')
    assert record.value.startswith(b'{"schema":{"type":"struct","fields":[')
    assert record.value.endswith(b',"payload":' + payload + b"}")


# ---- 1.9 transactions


def test_1_9_begin_end_and_events_differ_in_that_they_have_one_id() -> None:
    reported = FormatOptions(profile="debezium", provide_transaction_metadata=True)
    begin, row, end = published(wire.insert(OID, ROW), options=reported)
    assert begin == TopicRecord(
        "srv.transaction",
        b'{"id":"560:24026100"}',
        b'{"status":"BEGIN","id":"560:24026100","event_count":null,"data_collections":null,"ts_ms":1767323079990}',
    )
    block = b'"transaction":{"id":"560:24026100","total_order":1,"data_collection_order":1},"op":"c"'
    assert row.value == value("c", "null", '{"id":1,"name":"x","note":null}').replace(
        b'"transaction":null,"op":"c"', block
    )
    assert end == TopicRecord(
        "srv.transaction",
        b'{"id":"560:24026100"}',
        b'{"status":"END","id":"560:24026100","event_count":1,'
        b'"data_collections":[{"data_collection":"public.customers","event_count":1}],"ts_ms":1767323079990}',
    )


def test_1_9_with_schemas_begin_and_end_have_theirs_in_key_and_value() -> None:
    reported = FormatOptions(profile="debezium", provide_transaction_metadata=True, schemas_enable=True)
    begin, row, end = published(wire.insert(OID, ROW), options=reported)
    key = (
        b'{"schema":{"type":"struct","fields":[{"type":"string","optional":false,"field":"id"}],"optional":false,'
        b'"name":"io.debezium.connector.common.TransactionMetadataKey","version":1},"payload":{"id":"560:24026100"}}'
    )
    head = (
        b'{"schema":{"type":"struct","fields":[{"type":"string","optional":false,"field":"status"},'
        b'{"type":"string","optional":false,"field":"id"},{"type":"int64","optional":true,"field":"event_count"},'
        b'{"type":"array","items":{"type":"struct","fields":[{"type":"string","optional":false,'
        b'"field":"data_collection"},{"type":"int64","optional":false,"field":"event_count"}],"optional":true,'
        b'"name":"event.collection","version":1},"optional":true,"field":"data_collections"},'
        b'{"type":"int64","optional":false,"field":"ts_ms"}],"optional":false,'
        b'"name":"io.debezium.connector.common.TransactionMetadataValue","version":1},"payload":'
    )
    assert begin == TopicRecord(
        "srv.transaction",
        key,
        head + b'{"status":"BEGIN","id":"560:24026100","event_count":null,"data_collections":null,'
        b'"ts_ms":1767323079990}}',
    )
    assert end == TopicRecord(
        "srv.transaction",
        key,
        head + b'{"status":"END","id":"560:24026100","event_count":1,'
        b'"data_collections":[{"data_collection":"public.customers","event_count":1}],"ts_ms":1767323079990}}',
    )
    block = json.loads(row.value)
    assert block["payload"]["transaction"] == {"id": "560:24026100", "total_order": 1, "data_collection_order": 1}
    [schema] = [field for field in block["schema"]["fields"] if field["field"] == "transaction"]
    assert [(field["field"], field["type"], field["optional"]) for field in schema["fields"]] == [
        ("id", "string", False),
        ("total_order", "int64", False),
        ("data_collection_order", "int64", False),
    ]


def test_1_9_a_transaction_without_events_differs_in_having_no_records() -> None:
    assert published(options=FormatOptions(profile="debezium", provide_transaction_metadata=True)) == []


# ---- 1.10 messages, 1.11 heartbeats, 1.12 schema changes


def test_1_10_a_message_is_op_m_without_headers_in_a_topic_of_its_own() -> None:
    [record] = published(wire.logical_message("audit", b"hello", lsn=LSN))
    source = (SOURCE % 0).replace('"public"', '""').replace('"customers"', '""').replace('"seq":0', '"seq":null')
    source = source.replace('"tx_index":0', '"tx_index":null').replace('"schema_version":1', '"schema_version":null')
    assert record == TopicRecord(
        "srv.message",
        b'{"prefix":"audit"}',
        f'{{"op":"m","ts_ms":1767323080000,"source":{source},"transaction":null,'
        '"message":{"prefix":"audit","content":"aGVsbG8="}}'.encode(),
        None,
    )


def test_1_10_profile_readable_differs_in_that_messages_are_published_if_a_list_names_them() -> None:
    message = wire.logical_message("audit", b"hello", lsn=LSN)
    assert published(message, options=FormatOptions()) == []
    assert len(published(message, options=FormatOptions(message_prefix_include_list=("audit",)))) == 1


def test_1_11_a_heartbeat_has_the_servers_name_and_the_time() -> None:
    beats = Heartbeats("srv", 1, schemas_enable=False)
    assert beats.due(0.0, 1_767_323_090_000_000) == [(b'{"serverName":"srv"}', b'{"ts_ms":1767323090000}')]
    assert Topics("srv").heartbeat == "__debezium-heartbeat.srv"


def test_1_12_a_table_that_is_described_gives_no_record() -> None:
    assert published(wire.insert(OID, ROW))[0].value is not None
    assert published() == []
