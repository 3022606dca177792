"""CloudEvents 1.0 with the Kafka protocol binding, as another format of events.

Binary mode: the value is the payload, attributes are headers `ce_id`, `ce_type`…, and `content-type` describes the
value. Structured mode: the value is one JSON object with the attributes and `data`. Attributes: `id` and `type` (the
event's), `source` (`/watershed/<topic prefix>/<outbox>`), `subject` (the record key's column), `time` (of the commit).
"""

import json
from collections.abc import Mapping
from typing import Final

from cdc.formats.cloud_events import JSON, STRUCTURED, VERSION, Header, source_of, time_of
from cdc.outbox.expansion import STRICT_JSON

_TEXT: Final = "text/plain; charset=utf-8"


def attributes_of(
    prefix: str, source: str, id: str, event_type: str, subject: str | None, time_us: int
) -> dict[str, str]:
    """Returns the attributes of an event. `prefix`: that of the topics. `source`: the table, or the messages' prefix.
    `subject`: the record key's column. `time_us`: of the commit, since 1970."""
    found = {
        "specversion": VERSION,
        "id": id,
        "source": source_of(prefix, source),
        "type": event_type,
        "time": time_of(time_us),
    }
    if subject:  # attributes must not be empty
        found["subject"] = subject
    return found


def _binary(attributes: Mapping[str, str], payload: str | None) -> tuple[bytes | None, tuple[Header, ...]]:
    headers: list[Header] = [(f"ce_{name}", value.encode()) for name, value in attributes.items()]
    if payload is None:
        return None, tuple(headers)
    kind = JSON if _is_json(payload) else _TEXT
    return payload.encode(), (*headers, ("content-type", kind.encode()))


def _structured(attributes: Mapping[str, str], payload: str | None) -> tuple[bytes | None, tuple[Header, ...]]:
    members = [f"{json.dumps(name)}:{_quoted(value)}" for name, value in attributes.items()]
    if payload is not None:
        is_json = _is_json(payload)
        members.append(f'"datacontenttype":{_quoted(JSON if is_json else _TEXT)}')
        # JSON is not written again, so that no number loses a digit.
        members.append(f'"data":{payload if is_json else _quoted(payload)}')
    value = "{" + ",".join(members) + "}"
    return value.encode(), STRUCTURED


FORMATS: Final = {"cloudevents_binary": _binary, "cloudevents_structured": _structured}
"""Functions from attributes and payload to value and headers, by the format's name in the configuration."""


def _is_json(payload: str) -> bool:
    try:
        STRICT_JSON.decode(payload)
    except (ValueError, RecursionError):
        return False
    return True


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
