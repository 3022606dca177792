"""Logical messages as records, byte for byte, and whose they are."""

import json

import pytest

from cdc.config.format_options import BinaryMode, FormatOptions
from cdc.formats.message_events import MessageEvents
from cdc.formats.records import EnvelopeContext
from cdc.model.lsn import Lsn
from cdc.pgoutput.messages import Begin, LogicalMessage, ReplicationOrigin

HELLO = LogicalMessage(True, Lsn(24_026_000), "audit", b"hello")
BEGIN = Begin(Lsn(24_026_100), 1_767_323_079_990_000, 560)
NOW_US = 1_767_323_080_000_123


def events(options: FormatOptions | None = None) -> MessageEvents:
    return MessageEvents(EnvelopeContext("srv", "shop", 1, "0.1.0", options or FormatOptions()))


def test_a_transactions_message_byte_for_byte() -> None:
    assert events().record(HELLO, BEGIN, None, 24_025_000, "null", NOW_US) == (
        b'{"prefix":"audit"}',
        b'{"op":"m","ts_ms":1767323080000,"source":{"version":"0.1.0","connector":"postgresql","name":"srv",'
        b'"ts_ms":1767323079990,"snapshot":"false","db":"shop","sequence":"[\\"24025000\\",\\"24026000\\"]",'
        b'"ts_us":1767323079990000,"ts_ns":1767323079990000000,"schema":"","table":"","txId":560,"lsn":24026000,'
        b'"xmin":null,"origin":null,"origin_lsn":null,"epoch":1,"seq":null,"commit_lsn":24026100,"tx_index":null,'
        b'"schema_version":null},"transaction":null,"message":{"prefix":"audit","content":"aGVsbG8="}}',
    )


def test_a_message_outside_of_transactions_has_the_time_of_its_publication() -> None:
    _, value = events().record(HELLO, None, None, None, "null", NOW_US)
    source = json.loads(value)["source"]
    names = ("txId", "commit_lsn", "ts_us", "sequence", "lsn")
    assert [source[name] for name in names] == [None, None, NOW_US, '[null,"24026000"]', 24_026_000]


def test_where_a_message_came_from_is_told() -> None:
    _, value = events().record(HELLO, BEGIN, ReplicationOrigin(Lsn(5_000), "up»stream"), None, "null", NOW_US)
    source = json.loads(value)["source"]
    assert (source["origin"], source["origin_lsn"]) == ("up»stream", 5_000)


@pytest.mark.parametrize(
    ("mode", "text"),
    [(None, "+/8A"), ("bytes", "+/8A"), ("base64", "+/8A"), ("base64-url-safe", "-_8A"), ("hex", "fbff00")],
)
def test_the_content_is_as_bytes_are(mode: BinaryMode | None, text: str) -> None:
    message = LogicalMessage(True, Lsn(1), "größe", b"\xfb\xff\x00")
    key, value = events(FormatOptions(binary_handling_mode=mode)).record(
        message, BEGIN, None, 24_025_000, "null", NOW_US
    )
    assert json.loads(key) == {"prefix": "größe"}
    assert json.loads(value)["message"] == {"prefix": "größe", "content": text}


@pytest.mark.parametrize(
    ("include", "exclude", "taken"),
    [
        ((), (), ["audit", "audit2", "x"]),
        (("audit",), (), ["audit"]),
        (("aud.*", "x"), (), ["audit", "audit2", "x"]),
        ((), ("audit",), ["audit2", "x"]),
    ],
)
def test_prefixes_are_matched_whole(include: tuple[str, ...], exclude: tuple[str, ...], taken: list[str]) -> None:
    made = events(FormatOptions(message_prefix_include_list=include, message_prefix_exclude_list=exclude))
    assert [prefix for prefix in ("audit", "audit2", "x") if made.publishes(prefix)] == taken


@pytest.mark.parametrize(
    ("options", "content"),
    [
        (FormatOptions(schemas_enable=True), "string"),
        (FormatOptions(profile="debezium", schemas_enable=True), "bytes"),
        (FormatOptions(profile="debezium", schemas_enable=True, binary_handling_mode="hex"), "string"),
    ],
)
def test_with_schemas_key_and_value_name_theirs(options: FormatOptions, content: str) -> None:
    key, value = (json.loads(part) for part in events(options).record(HELLO, BEGIN, None, 24_025_000, "null", NOW_US))
    assert (key["schema"]["name"], key["schema"]["version"]) == ("io.debezium.connector.postgresql.MessageKey", 1)
    assert key["payload"] == {"prefix": "audit"}
    schema = value["schema"]
    assert (schema["name"], schema["version"]) == ("io.debezium.connector.postgresql.MessageValue", 1)
    assert [field["field"] for field in schema["fields"]] == list(value["payload"])
    source = [field["field"] for field in schema["fields"][2]["fields"]]
    assert source == [*value["payload"]["source"], "unchanged", "filled"]  # of rows only, and seldom
    inner = schema["fields"][4]
    assert (inner["name"], inner["optional"]) == ("io.debezium.connector.postgresql.Message", False)
    assert [(f["field"], f["type"], f["optional"]) for f in inner["fields"]] == [
        ("prefix", "string", True),
        ("content", content, True),
    ]
