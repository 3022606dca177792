"""The router makes Debezium's records, byte for byte: each fixture was recorded from the real one."""

from collections import defaultdict
from collections.abc import Iterable

import pytest

from cdc.model.errors import SourceError, UnsupportedChangeError
from cdc.model.topic_record import EventDestination, TopicRecord
from tests.support.outbox_fixtures import NOW_US, Fixture, Recorded, fixtures

FIXTURES = fixtures()
# Where Debezium's task dies we refuse at the start, or when the row comes.
REFUSED: dict[str, type[Exception]] = {
    "placement-missing-error": SourceError,
    "timestamp-tz": SourceError,
    "update-fatal": UnsupportedChangeError,
}


def sendable(fixture: Fixture) -> list[Recorded]:
    """Debezium's records but for those of the timestamp 0, in whose place our client would send its own time."""
    return [record for record in fixture.records if record.timestamp_ms != 0]


def events(fixture: Fixture) -> list[tuple[TopicRecord, EventDestination]]:
    """What our router makes, without dead letters."""
    return [(r, r.destination) for r in fixture.routed() if r.destination and r.topic != fixture.schema.topic]


def named(name: str) -> Fixture:
    return next(fixture for fixture in FIXTURES if fixture.name == name)


def test_there_are_records_for_dozens_of_combinations() -> None:
    assert len(FIXTURES) > 40
    assert {fixture.name for fixture in FIXTURES if fixture.content["failure"]} == set(REFUSED)


@pytest.mark.parametrize("fixture", [f for f in FIXTURES if f.name not in REFUSED], ids=lambda fixture: fixture.name)
def test_topic_key_value_and_headers_are_debeziums_in_its_order(fixture: Fixture) -> None:
    is_placed = fixture.name == "placement-partition"
    assert by_key(
        (r.topic, r.partition if is_placed else None, r.key, r.value, r.headers) for r in sendable(fixture)
    ) == by_key(
        (r.topic, destination.partition, r.key if destination.has_key else None, r.value, tuple(r.headers or ()))
        for r, destination in events(fixture)
    )


@pytest.mark.parametrize("name", ["timestamp-micro", "timestamp-milli", "timestamp-null"])
def test_the_timestamp_is_the_columns_or_the_clock_where_that_is_null(name: str) -> None:
    fixture = named(name)
    theirs = {dict(r.headers)["id"]: r.timestamp_ms for r in sendable(fixture)}
    ours = {dict(r.headers or ())["id"]: destination.timestamp_ms for r, destination in events(fixture)}
    assert theirs.keys() == ours.keys()
    is_null = name == "timestamp-null"
    assert all(ours[id_] == (NOW_US // 1000 if is_null and id_ == b"1" else theirs[id_]) for id_ in ours)


def test_the_partition_is_the_columns() -> None:
    fixture = named("placement-partition")
    theirs = {dict(r.headers)["id"]: r.partition for r in fixture.records}
    assert theirs == {dict(r.headers or ())["id"]: r.destination.partition for r in fixture.routed() if r.destination}


@pytest.mark.parametrize("name", REFUSED)
def test_what_debezium_dies_of_is_a_named_error(name: str) -> None:
    with pytest.raises(REFUSED[name]) as caught:
        named(name).routed()
    assert "public.outbox" in str(caught.value)


Compared = tuple[str, int | None, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def by_key(records: Iterable[Compared]) -> dict[tuple[object, ...], list[Compared]]:
    """Only the records of a key in a partition have an order."""
    found: dict[tuple[object, ...], list[Compared]] = defaultdict(list)
    for record in records:
        found[record[:3]].append(record)
    return dict(found)
