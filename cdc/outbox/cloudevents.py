"""CloudEvents 1.0 with the Kafka protocol binding, as another format of events.

Binary mode: the value is the payload, attributes are headers `ce_id`, `ce_type`…, and `content-type` describes the
value. Structured mode: the value is one JSON object with the attributes and `data`. Attributes: `id` and `type` (the
event's), `source` (`/watershed/<topic prefix>/<outbox>`), `subject` (the record key's column), `time` (of the commit).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn
from urllib.parse import quote

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
    kind = _TEXT if _data(event.payload) is None else _JSON
    return event.payload.encode(), (*headers, ("content-type", kind.encode()))


def _structured(prefix: str, event: Envelope) -> tuple[bytes | None, tuple[Header, ...]]:
    members = [f"{json.dumps(name)}:{_quoted(value)}" for name, value in _attributes(prefix, event).items()]
    if event.payload is not None:
        data = _data(event.payload)
        members.append(f'"datacontenttype":{_quoted(_TEXT if data is None else _JSON)}')
        members.append(f'"data":{_quoted(event.payload) if data is None else data}')
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


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _data(payload: str) -> str | None:
    """Returns the payload unchanged if it is JSON, so that no number loses a digit; else None."""
    try:
        json.loads(payload, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return payload


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
