"""Dead letters: records of events that could not be published, to be corrected and published again.

The key is the event's id. The value is JSON: `reason`, `source` (the table, or the messages' prefix), `commit_lsn` and
`tx_index` of the event, and `event`: each column's text. For a message that the publishing function did not write, the
value has its first bytes in base64. A record that is too large for the topic is cut; `cut` then has the size in bytes
of each column that was cut.
"""

from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.formats.unpublishable import record_bytes
from cdc.model.events import Position
from cdc.model.topic_record import EventDestination, TopicRecord

REASON_HEADER: Final = "watershed.reason"
REASON_CHARS_MAX: Final = 500  # a reason may quote the event
FOREIGN_BYTES_MAX: Final = 4096  # of a message that the publishing function did not write


@dataclass(frozen=True, slots=True)
class DeadLetterFactory:
    """Makes the dead letter of one event."""

    topic: str  # is not compacted, and is created if it does not exist
    source: str  # the table, or the messages' prefix
    position: Position
    now_us: int  # our clock, since 1970
    # Each column's text; or the content of a message that the publishing function did not write, or that holds no
    # event.
    event: dict[str, str | None] | bytes

    def record(self, identity: str | None, reason: str) -> TopicRecord:
        """Returns the record. `identity`: the event's id, if it has one that is known."""
        reason = reason[:REASON_CHARS_MAX]
        value: dict[str, Any] = {
            "reason": reason,
            "source": self.source,
            "commit_lsn": self.position.commit_lsn,
            "tx_index": self.position.tx_index,
            "event": self.event,
        }
        if isinstance(self.event, bytes):
            shown = b64encode(self.event[:FOREIGN_BYTES_MAX]).decode()
            value |= {"event": None, "message": shown, "message_bytes": len(self.event)}
        key = b"" if identity is None else identity.encode()
        record = TopicRecord(self.topic, key, orjson.dumps(value), [(REASON_HEADER, reason.encode())])
        destination = EventDestination(
            None,
            self.now_us // 1000,
            has_key=identity is not None,
            refused=lambda _: record,
            cut=lambda bytes_max: _cut(record, destination, value, bytes_max),
        )
        return record._replace(destination=destination)


def _cut(record: TopicRecord, destination: EventDestination, value: dict[str, Any], bytes_max: int) -> TopicRecord:
    """Halves the longest texts until the record fits; `cut` has their sizes in bytes. A key that does not fit is left
    out."""
    event: dict[str, str | None] = value["event"] or {}
    bytes_of = {name: len(text.encode()) for name, text in event.items() if text}
    room = max(map(len, filter(None, event.values())), default=0)
    while True:
        shown = {name: text and text[:room] for name, text in event.items()}
        cut = {name: bytes_of[name] for name, text in shown.items() if text != event[name]}
        made = record._replace(value=orjson.dumps(value | {"event": shown, "cut": cut}), destination=destination)
        if record_bytes((made.key, made.value, made.headers)) <= bytes_max:
            return made
        if room == 0:
            return made._replace(key=b"", destination=destination._replace(has_key=False))
        room //= 2
