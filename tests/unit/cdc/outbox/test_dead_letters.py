"""What is kept of events that could not be published."""

import json

from cdc.formats.unpublishable import record_bytes
from cdc.model.events import Position
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.outbox.dead_letters import FOREIGN_BYTES_MAX, REASON_CHARS_MAX, DeadLetterFactory

AT = Position(Lsn(17), 3)


def test_a_dead_letter_holds_the_event_and_the_reason() -> None:
    event = {"id": "i", "payload": None}
    record = DeadLetterFactory("dead", "public.outbox", AT, 5_000, event).record("i", "it is too old")
    assert (record.topic, record.key, record.headers) == ("dead", b"i", [("watershed.reason", b"it is too old")])
    assert json.loads(record.value or b"") == {
        "reason": "it is too old",
        "source": "public.outbox",
        "commit_lsn": 17,
        "tx_index": 3,
        "event": {"id": "i", "payload": None},
    }
    assert record.destination is not None
    assert (record.destination.timestamp_ms, record.destination.has_key) == (5, True)
    assert record.destination.refused("whatever").destination is None, "it is not refused for ever"


def test_of_a_message_that_is_not_ours_only_the_beginning_is_kept() -> None:
    record = DeadLetterFactory("dead", "p", AT, 0, b"x" * (FOREIGN_BYTES_MAX + 100)).record(None, "forged")
    value = json.loads(record.value or b"")
    assert value["message_bytes"] == FOREIGN_BYTES_MAX + 100
    assert len(record.value or b"") < 2 * FOREIGN_BYTES_MAX
    assert record.destination is not None
    assert not record.destination.has_key


def cut(record: TopicRecord, bytes_max: int) -> TopicRecord:
    assert record.destination is not None and record.destination.cut is not None
    return record.destination.cut(bytes_max)


def test_what_does_not_fit_is_cut_to_its_longest_texts_and_says_how_large_they_were() -> None:
    event = {"id": "i", "type": "OrderPlaced", "payload": "\u0001é" * 50_000, "note": None}
    record = DeadLetterFactory("dead", "public.outbox", AT, 5_000, event).record("i", "too large")
    made = cut(record, 20_000)
    assert 5_000 < record_bytes((made.key, made.value, made.headers)) <= 20_000
    value = json.loads(made.value or b"")
    assert value["cut"] == {"payload": 150_000}
    assert value["event"] == event | {"payload": event["payload"][: len(value["event"]["payload"])]}  # type: ignore[index]
    assert (made.key, made.destination) == (b"i", record.destination)


def test_a_key_that_does_not_fit_is_left_out() -> None:
    event = {"id": "i" * 5000, "payload": None}
    made = cut(DeadLetterFactory("dead", "public.outbox", AT, 5_000, event).record("i" * 5_000, "too large"), 1000)
    assert record_bytes((made.key, made.value, made.headers)) <= 1000
    assert json.loads(made.value or b"")["cut"] == {"id": 5000}
    assert made.destination is not None and not made.destination.has_key


def test_a_reason_is_bounded() -> None:
    record = DeadLetterFactory("dead", "p", AT, 0, {}).record("i", "contract of " + "x" * 10_000)
    assert len(json.loads(record.value or b"")["reason"]) == REASON_CHARS_MAX
