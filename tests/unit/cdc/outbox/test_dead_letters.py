"""What is kept of events that could not be published."""

import json

from cdc.events import Position
from cdc.lsn import Lsn
from cdc.outbox.dead_letters import FOREIGN_BYTES_MAX, dead_letter, event_of

AT = Position(Lsn(17), 3)


def test_a_dead_letter_holds_the_event_and_the_reason() -> None:
    event = event_of(["id", "payload"], ["i", None])
    record = dead_letter("dead", "public.outbox", AT, "it is too old", "i", event, 5000)
    assert (record.topic, record.key, record.headers) == ("dead", b"i", [("watershed.reason", b"it is too old")])
    assert json.loads(record.value or b"") == {
        "reason": "it is too old",
        "source": "public.outbox",
        "commit_lsn": 17,
        "tx_index": 3,
        "event": {"id": "i", "payload": None},
    }
    assert record.place is not None
    assert (record.place.timestamp_ms, record.place.has_key) == (5, True)
    assert record.place.refused("whatever").place is None, "it is not refused for ever"


def test_of_a_message_that_is_not_ours_only_the_beginning_is_kept() -> None:
    record = dead_letter("dead", "p", AT, "forged", None, None, 0, b"x" * (FOREIGN_BYTES_MAX + 100))
    value = json.loads(record.value or b"")
    assert value["message_bytes"] == FOREIGN_BYTES_MAX + 100
    assert len(record.value or b"") < 2 * FOREIGN_BYTES_MAX
    assert record.place is not None
    assert not record.place.has_key
