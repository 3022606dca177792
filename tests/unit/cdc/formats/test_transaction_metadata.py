"""BEGIN, END and the block of each event, byte for byte."""

import json

from cdc.formats.transaction_metadata import TransactionMetadata
from cdc.model.control import PartialTransaction
from cdc.model.lsn import Lsn
from cdc.pgoutput.messages import Begin


def started(*, schemas_enable: bool = False, counts: dict[str, int] | None = None) -> TransactionMetadata:
    made = TransactionMetadata(schemas_enable=schemas_enable)
    partial = None
    if counts is not None:
        partial = PartialTransaction(commit_lsn=53_195_832, xid=571, next_index=0, events=counts)
    made.start(Begin(Lsn(53_195_832), 1_486_500_577_125_999, 571), partial)
    return made


def test_begin_events_and_end() -> None:
    made = started()
    assert made.counts is None
    assert made.opening() == [
        (
            b'{"id":"571:53195832"}',
            b'{"status":"BEGIN","id":"571:53195832","event_count":null,"data_collections":null,"ts_ms":1486500577125}',
        )
    ]
    assert made.opening() == []
    assert [made.block(name) for name in ("s1.a", "s2.a", "s1.a")] == [
        '{"id":"571:53195832","total_order":1,"data_collection_order":1}',
        '{"id":"571:53195832","total_order":2,"data_collection_order":1}',
        '{"id":"571:53195832","total_order":3,"data_collection_order":2}',
    ]
    assert made.closing() == [
        (
            b'{"id":"571:53195832"}',
            b'{"status":"END","id":"571:53195832","event_count":3,"data_collections":[{"data_collection":"s1.a",'
            b'"event_count":2},{"data_collection":"s2.a","event_count":1}],"ts_ms":1486500577125}',
        )
    ]


def test_what_is_half_published_goes_on_at_its_counts_without_another_begin() -> None:
    made = started(counts={"s1.a": 2, "s2.a": 1})
    assert made.opening() == []
    assert made.block("s2.a") == '{"id":"571:53195832","total_order":4,"data_collection_order":2}'
    assert made.counts == {"s1.a": 2, "s2.a": 2}


def test_a_name_with_any_character_is_json() -> None:
    made = started()
    made.opening()
    made.block('s."größe"')
    [(_, value)] = made.closing()
    assert json.loads(value)["data_collections"] == [{"data_collection": 's."größe"', "event_count": 1}]


def test_with_schemas_key_and_value_name_theirs() -> None:
    made = started(schemas_enable=True)
    [(key, begin)] = made.opening()
    assert key == (
        b'{"schema":{"type":"struct","fields":[{"type":"string","optional":false,"field":"id"}],"optional":false,'
        b'"name":"io.debezium.connector.common.TransactionMetadataKey","version":1},"payload":{"id":"571:53195832"}}'
    )
    schema, payload = json.loads(begin)["schema"], json.loads(begin)["payload"]
    assert payload["status"] == "BEGIN"
    assert (schema["name"], schema["version"]) == ("io.debezium.connector.common.TransactionMetadataValue", 1)
    assert [(field["field"], field["type"], field["optional"]) for field in schema["fields"]] == [
        ("status", "string", False),
        ("id", "string", False),
        ("event_count", "int64", True),
        ("data_collections", "array", True),
        ("ts_ms", "int64", False),
    ]
    collection = schema["fields"][3]["items"]
    assert (collection["name"], collection["version"], collection["optional"]) == ("event.collection", 1, True)
