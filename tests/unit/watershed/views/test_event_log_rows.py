"""Rows of an event log from records: the reverse of what the outbox does, in each of its forms."""

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import pytest

from cdc.config.event_logs import EventForm, EventLogConfig, event_form
from cdc.config.outbox_settings import OutboxConfig
from cdc.outbox.cloudevents import FORMATS, attributes_of
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import Insert
from tests.support.outbox_fixtures import Fixture, Recorded, fixtures
from watershed.views.event_log_rows import EventRow, MalformedError, event_row
from watershed.views.event_records import EventRecord

LOG: Final = EventLogConfig(base="reports", topics=("outbox.event.order",))
# Fixtures whose payload is a column of another type than text or JSON, or that have no record.
OTHER_PAYLOADS: Final = ("payload-bytea-json", "payload-numeric-json")
FIXTURES: Final = [
    one
    for one in fixtures()
    if one.records and one.content["value.converter"] != "bytes" and one.name not in OTHER_PAYLOADS
]


def form(**options: Any) -> EventForm:
    return event_form(LOG, OutboxConfig.model_validate({"tables": [{"table": "cdc.outbox", **options}]}))


def record(
    value: bytes | None, key: bytes | None = b"7", headers: Sequence[tuple[str, bytes | None]] = (("id", b"1"),)
) -> EventRecord:
    return EventRecord("outbox.event.order", 2, 17, key, value, headers, 1_700_000_000_123)


def inserted(fixture: Fixture) -> dict[str, dict[str, str | None]]:
    """The inserted rows by the text of their id, which the header has."""
    id_column = fixture.options.get("table.field.event.id", "id")
    found = {}
    for frame in fixture.content["frames"]:
        match decode(b64decode(frame), "a frame"):
            case Insert(new=new):
                texts = [bytes(value).decode() if isinstance(value, memoryview) else None for value in new]
                row = dict(zip((column[0] for column in fixture.content["columns"]), texts, strict=True))
                found[row[id_column] or ""] = row
    return found


def rows(fixture: Fixture) -> list[EventRow]:
    options = {name: value for name, value in fixture.options.items() if value is not None}
    read = form(**options)

    def made(one: Recorded) -> EventRecord:
        return EventRecord(one.topic, one.partition, 0, one.key, one.value, one.headers, one.timestamp_ms)

    return [event_row(made(one), read) for one in fixture.records]


def without_nothing(value: Any) -> Any:
    """Leaves out what an expanded payload has no place for unless an option says so: nulls and empty arrays; members
    that other elements of an array have are null."""
    match value:
        case dict():
            return {name: without_nothing(one) for name, one in value.items() if one not in (None, [])}
        case list():
            return [without_nothing(one) for one in value]
    return value


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_debeziums_records_become_the_rows_of_the_outbox_again(fixture: Fixture) -> None:
    sources, options = inserted(fixture), fixture.options
    for row in rows(fixture):
        source = sources.get(row.id or "")
        if source is None:
            assert fixture.name.startswith("update"), "an update of the id has no insert"
            continue
        assert row.aggregateid == source[options.get("table.field.event.key", "aggregateid")]
        text = source[options.get("table.field.event.payload", "payload")]
        _require_same_payload(row, text, options)


def _refused(constant: str) -> NoReturn:
    raise ValueError(constant)


def _require_same_payload(row: EventRow, text: str | None, options: Mapping[str, Any]) -> None:
    is_tombstone = options.get("route.tombstone.on.empty.payload") == "true" and not (text or "").strip()
    if text is None or is_tombstone:
        assert (row.payload, row.payload_text) == (None, None)
        return
    if options.get("table.expand.json.payload") == "true":
        text = text.removesuffix(" trailing")  # Debezium's expansion leaves out what follows an object
    if options.get("table.field.event.payload") == "ok":
        text = {"t": "true", "f": "false"}[text]
    try:
        expected = json.loads(text, parse_constant=_refused)
    except ValueError:
        assert (row.payload, row.payload_text) == (None, text)
        return
    assert row.payload is not None
    assert row.payload_text is None
    found = json.loads(row.payload)
    if options.get("table.expand.json.payload") == "true":
        assert without_nothing(found) == without_nothing(expected)
    elif "f8" in str(options.get("table.field.event.payload")):
        assert float(found) == float(expected)
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("name", "alias"),
    [("placement-header", "type"), ("placement-envelope-json", "type"), ("expand-envelope", "eventType")],
)
def test_the_type_is_read_where_the_outbox_places_it(name: str, alias: str) -> None:
    (fixture,) = (one for one in FIXTURES if one.name == name)
    sources = inserted(fixture)
    for row in rows(fixture):
        assert row.type == sources[row.id or ""]["type"]
        assert json.loads(row.headers)[alias] == row.type
        assert row.aggregatetype is None
    (fixture,) = (one for one in FIXTURES if one.name == "defaults-string")
    assert {row.type for row in rows(fixture)} == {None}, "it is placed nowhere"


def test_further_headers_are_kept_and_a_repeated_name_has_all_its_values() -> None:
    headers = (("id", b"1"), ("trace", "ü".encode()), ("id", b"2"), ("trace", b"b"), ("none", None))
    row = event_row(record(b"{}", headers=headers), form())
    assert row.id == "1"
    assert json.loads(row.headers) == {"trace": ["ü", "b"], "id": "2", "none": None}


def test_a_place_is_topic_partition_and_offset_and_the_time_is_the_records() -> None:
    row = event_row(record(b'{"a": 1}'), form())
    assert (row.topic, row.partition, row.no, row.at_ms) == ("outbox.event.order", 2, 17, 1_700_000_000_123)
    assert event_row(record(b"1", key=None), form()).aggregateid is None


@pytest.mark.parametrize(
    ("value", "payload", "text"),
    [
        (
            b'{"total": 12.50, "n": 123456789012345678901234567890}',
            '{"total": 12.50, "n": 123456789012345678901234567890}',
            None,
        ),
        (b"null", "null", None),
        (b"plain text", None, "plain text"),
        (b"NaN", None, "NaN"),
        (b"", None, ""),
        (b"[" * 100_000, None, "[" * 100_000),
        (None, None, None),
    ],
)
def test_a_payload_is_json_or_text_or_nothing(value: bytes | None, payload: str | None, text: str | None) -> None:
    row = event_row(record(value), form())
    assert (row.payload, row.payload_text) == (payload, text)


def test_numbers_of_an_enveloped_payload_keep_their_digits() -> None:
    options = {"table.fields.additional.placement": "aggregatetype:envelope:kind", "schemas.enable": True}
    value = b'{"schema":{},"payload":{"payload":{"total":12.50,"huge":1e400},"kind":"order"}}'
    row = event_row(record(value), form(**options))
    assert row.payload == '{"total": 12.50, "huge": 1e400}'
    assert row.aggregatetype == "order"
    assert json.loads(row.headers) == {"kind": "order"}


@pytest.mark.parametrize(
    ("options", "made", "reason"),
    [
        ({}, record(b"\xff"), "the value is not UTF-8"),
        ({}, record(b"{}", key=b"\xff"), "the key is not UTF-8"),
        ({}, record(b"{}", headers=(("id", b"\xff"),)), "header id is not UTF-8"),
        ({}, record(b"{}", headers=()), "it has no id"),
        ({}, record(b"a\0b"), r"payload_text contains the character U\+0000"),
        ({}, record(b"{}", key=b"\0"), r"aggregateid contains the character U\+0000"),
        ({"value.converter": "json"}, record(b"{"), "the value is not JSON"),
        ({"value.converter": "json"}, record(b'{"a":' * 900 + b"1" + b"}" * 900), "its JSON is nested too deeply"),
        ({"value.converter": "json"}, record(rb'"\ud800"'), "payload_text contains half of a surrogate pair"),
        ({"value.converter": "json", "schemas.enable": True}, record(b"{}"), "not JSON with schema and payload"),
        ({"table.fields.additional.placement": "type:envelope"}, record(b"[]"), "not an envelope"),
        ({"key.converter": "json"}, record(b"{}", key=b"seven"), "the key is not JSON"),
        ({"format": "cloudevents_binary"}, record(b"{}"), "it has no ce_id"),
        ({"format": "cloudevents_structured"}, record(b"[]"), "not a CloudEvent"),
    ],
)
def test_a_record_of_another_form_is_malformed(options: dict[str, Any], made: EventRecord, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        event_row(made, form(**options))


@pytest.mark.parametrize("kind", ["cloudevents_binary", "cloudevents_structured"])
@pytest.mark.parametrize("payload", ['{"total": 12.50}', '"text"', "no JSON", None])
def test_cloudevents_are_read_in_both_modes(kind: str, payload: str | None) -> None:
    named = attributes_of("shop", "public.outbox", "e1", "OrderPlaced", "7", 1_767_323_080_000_123)
    value, headers = FORMATS[kind](named, payload)
    row = event_row(record(value, headers=headers), form(format=kind))
    assert (row.id, row.type, row.aggregateid) == ("e1", "OrderPlaced", "7")
    is_text = payload == "no JSON"
    assert (row.payload, row.payload_text) == (None if is_text else payload, payload if is_text else None)
    attributes = {name.removeprefix("ce_"): value for name, value in json.loads(row.headers).items()}
    assert attributes["source"] == "/watershed/shop/public.outbox"
    assert attributes["time"] == "2026-01-02T03:04:40.000123Z"


def test_an_emptied_structured_cloudevent_is_an_event_without_a_payload() -> None:
    row = event_row(record(None, headers=()), form(format="cloudevents_structured"))
    assert (row.id, row.aggregateid, row.payload, row.payload_text) == (None, "7", None, None)
