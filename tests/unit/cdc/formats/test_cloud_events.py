"""Records as CloudEvents: the attributes in both modes, and the record that they are about, byte for byte."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cdc.config.format_options import CloudEventsMode, FormatOptions
from cdc.formats.records import Draft, EnvelopeContext, OutRecord, TableEncoder, is_delete
from cdc.model.events import Column, TableId
from cdc.pgoutput.messages import NULL, UNCHANGED
from sinks.records import ordinary_change, read_record
from sinks.schema_history import SchemaHistory
from tests.support import wire
from watershed.status.table_records import read_table_record

OID = 16385
COLUMNS = (Column("id", 20, -1, "bigint", False), Column("näme", 25, -1, "text", True))
CONTEXT = EnvelopeContext(prefix="shop", database="shop", epoch=3, connector_version="0.1.0", history="ab12")
SCHEMA, RELATION = wire.schema_and_relation(COLUMNS, ["id"], table=TableId("public", 'my "t"'), oid=OID)
COMMIT_US, NOW_US = 1_767_323_079_990_123, 1_767_323_080_000_123
SOURCE = "/watershed/shop/public.my%20%22t%22"
STRUCTURED = ("content-type", b"application/cloudevents+json; charset=UTF-8")


def encoder(mode: CloudEventsMode | None, **options: Any) -> TableEncoder:
    context = replace(CONTEXT, format=FormatOptions(cloudevents=mode, **options))
    made = TableEncoder(SCHEMA, RELATION, context)
    made.start_transaction(24_026_100, COMMIT_US, 560, None)
    return made


def records(mode: CloudEventsMode | None, **options: Any) -> list[OutRecord]:
    """Insert, update with a hole, moved key with a hole, delete, an existing row."""
    made, lsn = encoder(mode, **options), 24_026_000
    found = [
        *made.encode(wire.insert(OID, [b"1", 'ü "x"'.encode()]), 0, lsn, 0, 17, NOW_US),
        *made.encode(wire.update(OID, [b"1", UNCHANGED]), 0, lsn, 1, 18, NOW_US),
        *made.encode(wire.update(OID, [b"2", UNCHANGED], [b"1", NULL]), 0, lsn, 2, 19, NOW_US),
        *made.encode(wire.delete(OID, [b"2", NULL]), 0, lsn, 3, 21, NOW_US),
    ]
    made.start_chunk(24_026_100, COMMIT_US + 5)
    return [*found, made.copy_row(b"3\tc", lsn, 0, 22, NOW_US)]


def finished(
    mode: CloudEventsMode | None, **options: Any
) -> Iterator[tuple[bytes, bytes | None, dict[str, bytes | None]]]:
    for key, value, headers in records(mode, **options):
        yield key, value.finished(("9", '"read"'), [1]) if isinstance(value, Draft) else value, dict(headers or ())


WORDS = ("insert", "update", "delete", None, "insert", "delete", None, "read")
IDS = tuple(None if seq is None else f"ab12.3.{seq}" for seq in (17, 18, 19, None, 20, 21, None, 22))


@pytest.mark.parametrize("profile", ["readable", "debezium"])
def test_binary_adds_headers_and_changes_nothing_else(profile: str) -> None:
    plain, made = list(finished(None, profile=profile)), list(finished("binary", profile=profile))
    assert [(key, value) for key, value, _ in made] == [(key, value) for key, value, _ in plain]
    for (_, _, before), (_, value, headers), word, number in zip(plain, made, WORDS, IDS, strict=True):
        if value is None:
            assert headers == before, "a tombstone is no event"
            continue
        assert number is not None
        assert headers == before | {
            "ce_specversion": b"1.0",
            "ce_source": SOURCE.encode(),
            "ce_id": number.encode(),
            "ce_type": f"watershed.{word}".encode(),
            "ce_time": b"2026-01-02T03:04:39.990128Z" if word == "read" else b"2026-01-02T03:04:39.990123Z",
            "content-type": b"application/json",
        }


@pytest.mark.parametrize("profile", ["readable", "debezium"])
def test_structured_has_the_record_as_data_and_the_attributes_around_it(profile: str) -> None:
    plain, made = list(finished(None, profile=profile)), list(finished("structured", profile=profile))
    for (key, record, before), (same_key, value, headers), word, number in zip(plain, made, WORDS, IDS, strict=True):
        assert same_key == key
        if value is None:
            assert (record, headers) == (None, before)
            continue
        assert record is not None and b'"data":' + record + b',"id":' in value
        assert headers == dict([*before.items(), STRUCTURED])
        assert json.loads(value) == {
            "specversion": "1.0",
            "source": SOURCE,
            "datacontenttype": "application/json",
            "data": json.loads(record),
            "id": number,
            "type": f"watershed.{word}",
            "time": "2026-01-02T03:04:39.990128Z" if word == "read" else "2026-01-02T03:04:39.990123Z",
        }


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_capture_reads_its_own_records_in_both_modes(mode: CloudEventsMode) -> None:
    """For large values of earlier changes, for comparisons with the table's rows, and for what is shown of a topic."""
    plain, made = encoder(None), encoder(mode)
    for (_, before, _), (key, value, headers) in zip(finished(None), finished(mode), strict=True):
        if before is None or value is None:
            continue
        assert is_delete(value) == is_delete(before)
        assert made.row_in(value) == plain.row_in(before)
        assert made.columns_of(value) == plain.columns_of(before)
        shown = read_table_record(0, 7, key, value, list(headers.items()))
        assert shown == read_table_record(0, 7, key, before, [])
        assert shown.version == (3 << 48) + json.loads(before)["source"]["seq"]


def test_without_a_key_each_change_and_truncate_is_an_event() -> None:
    schema, relation = wire.schema_and_relation(COLUMNS, [], oid=OID)
    options = FormatOptions(cloudevents="structured", skipped_operations="none")
    made = TableEncoder(schema, relation, replace(CONTEXT, format=options))
    made.start_transaction(24_026_100, COMMIT_US, 560, None)
    [(_, inserted, _)] = made.encode(wire.insert(OID, [b"1", b"x"]), 0, 24_026_000, 0, 17, NOW_US)
    assert isinstance(inserted, bytes)
    key, truncated, headers = made.truncate(24_026_000, 1, 18, NOW_US)
    assert truncated is not None
    events = [json.loads(inserted), json.loads(truncated)]
    assert [(event["type"], event["id"]) for event in events] == [
        ("watershed.insert", "ab12.3.17"),
        ("watershed.truncate", "ab12.3.18"),
    ]
    assert (key, headers) == (b"", [STRUCTURED])


@pytest.mark.combination(
    "encodings",
    "json, CloudEvents binary",
    "readable",
    "any store",
    instead="a record with these headers is read as the change that it is without them",
)
def test_a_sink_reads_the_same_change_with_the_headers() -> None:
    history = SchemaHistory((SCHEMA,))
    for number, ((key, before, _), (_, value, headers)) in enumerate(
        zip(finished(None), finished("binary"), strict=True)
    ):
        found = [
            ordinary_change(SCHEMA, key, content)
            or read_record({SCHEMA.topic: history}, SCHEMA.topic, 0, number, key, content, list(headers.items()))
            for content in (before, value)
        ]
        assert found[0] == found[1]


def test_ids_differ_within_a_run_and_between_runs() -> None:
    ids = [headers["ce_id"] for _, value, headers in finished("binary") if value is not None]
    assert len(set(ids)) == len(ids)
    later = TableEncoder(SCHEMA, RELATION, replace(CONTEXT, epoch=4, format=FormatOptions(cloudevents="binary")))
    later.start_transaction(24_026_100, COMMIT_US, 560, None)
    [(_, _, headers)] = later.encode(wire.insert(OID, [b"1", b"x"]), 0, 24_026_000, 0, 17, NOW_US)
    assert dict(headers or ())["ce_id"] not in ids
