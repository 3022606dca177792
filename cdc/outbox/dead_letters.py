"""Records of events that could not be published: to be seen, corrected and published anew, never lost.

The key is the event's id. The value is JSON: `reason`, `source` (the table, or the messages' prefix), `commit_lsn` and
`tx_index` of the event, and `event`: each column's text. A message that is not ours has its first bytes in base64.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Final

import orjson

from cdc.events import Position
from cdc.ports import Place, TopicRecord

REASON_HEADER: Final = "watershed.reason"
FOREIGN_BYTES_MAX: Final = 4096  # of a message that is not ours: what it says is nobody's event


def dead_letter(
    topic: str,
    source: str,
    position: Position,
    reason: str,
    identity: str | None,
    event: dict[str, str | None] | None,
    now_us: int,
    foreign: bytes = b"",
) -> TopicRecord:
    """For `topic`, which is not compacted and is created where it is not there. `foreign`: a message that is not ours,
    or holds no event."""
    value: dict[str, object] = {
        "reason": reason,
        "source": source,
        "commit_lsn": position.commit_lsn,
        "tx_index": position.tx_index,
        "event": event,
    }
    if event is None:
        value |= {"message": b64encode(foreign[:FOREIGN_BYTES_MAX]).decode(), "message_bytes": len(foreign)}
    key = b"" if identity is None else identity.encode()
    record = TopicRecord(topic, key, orjson.dumps(value), [(REASON_HEADER, reason.encode())])
    place = Place(None, now_us // 1000, has_key=identity is not None, refused=lambda _: record)
    return record._replace(place=place)


def event_of(names: Sequence[str], row: Sequence[str | None]) -> dict[str, str | None]:
    """By column."""
    return dict(zip(names, row, strict=True))
