"""CloudEvents 1.0 with the Kafka protocol binding, as another format of events.

Binary mode: the value is the payload, attributes are headers `ce_id`, `ce_type`…, and `content-type` describes the
value. Structured mode: the value is one JSON object with the attributes and `data`. Attributes: `id` and `type` (the
event's), `source` (`/watershed/<topic prefix>/<outbox>`), `subject` (the record key's column), `time` (of the commit).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote

from cdc.outbox.expansion import STRICT_JSON

VERSION: Final = "1.0"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"


Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Envelope:
    """The parts of an event from which a CloudEvent is made."""

    id: str
    type: str
    subject: str | None
    source: str
    time_us: int  # of the commit, since 1970
    payload: str | None


def _binary(prefix: str, event: Envelope) -> tuple[bytes | None, tuple[Header, ...]]:
    attributes = _attributes(prefix, event)
    headers: list[Header] = [(f"ce_{name}", value.encode()) for name, value in attributes.items()]
    if event.payload is None:
        return None, tuple(headers)
    kind = _JSON if _is_json(event.payload) else _TEXT
    return event.payload.encode(), (*headers, ("content-type", kind.encode()))


def _structured(prefix: str, event: Envelope) -> tuple[bytes | None, tuple[Header, ...]]:
    members = [f"{json.dumps(name)}:{_quoted(value)}" for name, value in _attributes(prefix, event).items()]
    if event.payload is not None:
        is_json = _is_json(event.payload)
        members.append(f'"datacontenttype":{_quoted(_JSON if is_json else _TEXT)}')
        # JSON is not written again, so that no number loses a digit.
        members.append(f'"data":{event.payload if is_json else _quoted(event.payload)}')
    value = "{" + ",".join(members) + "}"
    return value.encode(), (("content-type", b"application/cloudevents+json; charset=UTF-8"),)


FORMATS: Final[Mapping[str, Callable[[str, Envelope], tuple[bytes | None, tuple[Header, ...]]]]] = {
    "cloudevents_binary": _binary,
    "cloudevents_structured": _structured,
}
"""Value and headers of an event, by the format's name in the configuration. The first argument is the topics'
prefix."""


def _attributes(prefix: str, event: Envelope) -> dict[str, str]:
    time = (_EPOCH + timedelta(microseconds=event.time_us)).isoformat(timespec="microseconds")
    found = {
        "specversion": VERSION,
        "id": event.id,
        "source": f"/watershed/{quote(prefix)}/{quote(event.source)}",
        "type": event.type,
        "time": time.replace("+00:00", "Z"),
    }
    if event.subject:  # attributes must not be empty
        found["subject"] = event.subject
    return found


def _is_json(payload: str) -> bool:
    try:
        STRICT_JSON.decode(payload)
    except (ValueError, RecursionError):
        return False
    return True


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
