"""Records of the outbox's topics as rows of an event log. Pure.

The options of the outbox decide what the bytes of a record mean (see cdc/outbox/router.py); this is the reverse.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn

from cdc.config.event_logs import EventForm
from sinks.json_numbers import JsonNumber, json_text
from watershed.views.event_records import EventRecord

ID_HEADER: Final = "id"
_CLOUD: Final = "ce_"  # what CloudEvents' attributes begin with in headers

Named = tuple[str, Any]  # a header, a member of the envelope or an attribute, with a JSON value


class EventRow(NamedTuple):
    """A row of an event log, in the order of its columns."""

    topic: str
    partition: int
    no: int  # the record's offset
    id: str | None
    aggregatetype: str | None
    aggregateid: str | None
    type: str | None
    payload: str | None  # JSON
    payload_text: str | None  # a payload that is not JSON
    headers: str  # a JSON object
    at_ms: int | None


class MalformedError(Exception):
    """A record that is not an event in this form. The message is the reason."""


class _Event(NamedTuple):
    """The parts of an event in its format."""

    id: str | None
    payload: str | None
    payload_text: str | None
    more: list[Named]
    type: str | None = None


def event_row(record: EventRecord, form: EventForm) -> EventRow:
    """Returns the row of a record. Raises MalformedError."""
    headers: list[Named] = [
        (name, None if value is None else _text(value, f"header {name}")) for name, value in record.headers
    ]
    try:
        row = _row(record, headers, form)
    except RecursionError:
        raise MalformedError("its JSON is nested too deeply") from None
    for name, part in row._asdict().items():
        if isinstance(part, str):
            _require_storable(name, part)
    return row


def _row(record: EventRecord, headers: list[Named], form: EventForm) -> EventRow:
    match form.format:
        case "debezium":
            event = _debezium(record.value, headers, form)
        case "cloudevents_binary":
            event = _binary(record.value, headers)
        case "cloudevents_structured":
            event = _structured(record.value, headers)
    return EventRow(
        record.topic,
        record.partition,
        record.offset,
        event.id,
        _placed(form.aggregate_column, event.more, form),
        _key(record.key, form),
        event.type or _placed(form.type_column, event.more, form),
        event.payload,
        event.payload_text,
        json_text(_together(event.more)),
        record.at_ms,
    )


# ---- formats


def _debezium(value: bytes | None, headers: list[Named], form: EventForm) -> _Event:
    event_id = _taken(ID_HEADER, headers)
    if value is None:
        return _Event(event_id, None, None, headers)
    text = _text(value, "the value")
    if form.value_converter == "string":
        return _Event(event_id, *_payload_of(text), headers)
    document = _document(text, "the value", has_schema=form.has_schemas)
    if any(placement.where == "envelope" for placement in form.placements):
        if not isinstance(document, dict) or "payload" not in document:
            raise MalformedError("the value is not an envelope with a member payload")
        headers += [(name, member) for name, member in document.items() if name != "payload"]
        document = document["payload"]
    return _Event(event_id, *_payload(document), headers)


def _binary(value: bytes | None, headers: list[Named]) -> _Event:
    event_id, event_type = _taken(f"{_CLOUD}id", headers), _taken(f"{_CLOUD}type", headers)
    payload = (None, None) if value is None else _payload_of(_text(value, "the value"))
    return _Event(event_id, *payload, headers, event_type)


def _structured(value: bytes | None, headers: list[Named]) -> _Event:
    if value is None:  # route.tombstone.on.empty.payload leaves nothing of an event but its key
        return _Event(None, None, None, headers)
    document = _document(_text(value, "the value"), "the value", has_schema=False)
    if not isinstance(document, dict):
        raise MalformedError("the value is not a CloudEvent (a JSON object)")
    is_json = document.get("datacontenttype") == "application/json"
    data = document.get("data")
    payload: tuple[str | None, str | None] = (None, None)
    if "data" in document:
        payload = (json_text(data), None) if is_json or not isinstance(data, str) else (None, data)
    attributes = [(name, member) for name, member in document.items() if name != "data"]
    event_id, event_type = _taken("id", attributes), _taken("type", attributes)
    return _Event(event_id, *payload, [*headers, *attributes], event_type)


def _key(key: bytes | None, form: EventForm) -> str | None:
    if key is None:
        return None
    text = _text(key, "the key")
    if form.key_converter == "string":
        return text
    return _plain(_document(text, "the key", has_schema=form.has_schemas))


# ---- parts


def _taken(name: str, named: list[Named]) -> str | None:
    """Removes the first part of this name, and returns its text. Raises MalformedError if there is none."""
    for place, (other, value) in enumerate(named):
        if other == name:
            del named[place]
            return _plain(value)
    raise MalformedError(f"it has no {name}, so it is not an event in this form")


def _placed(column: str, named: Sequence[Named], form: EventForm) -> str | None:
    """Returns the value of a column that the outbox places in a header or in the envelope; None if it does not."""
    for placement in form.placements:
        if placement.column == column:
            return next((_plain(value) for name, value in named if name == placement.alias), None)
    return None


def _together(named: Sequence[Named]) -> dict[str, Any]:
    """Returns an object; a name that occurs several times has an array of its values."""
    found: dict[str, list[Any]] = {}
    for name, value in named:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _plain(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)


def _payload(document: Any) -> tuple[str | None, str | None]:
    """Returns the payload of converter json: a payload that was not expanded is a string, and NULL is null."""
    if document is None:
        return None, None
    return _payload_of(document) if isinstance(document, str) else (json_text(document), None)


def _payload_of(text: str) -> tuple[str | None, str | None]:
    """Returns the text as JSON, unchanged so that no number loses a digit, or as text."""
    try:
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None, text
    return text, None


def _document(text: str, what: str, *, has_schema: bool) -> Any:
    try:
        document = _DECODER.decode(text)
    except (ValueError, RecursionError):
        raise MalformedError(f"{what} is not JSON") from None
    if not has_schema:
        return document
    if not isinstance(document, dict) or document.keys() != {"schema", "payload"}:
        raise MalformedError(f"{what} is not JSON with schema and payload")
    return document["payload"]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_DECODER: Final = json.JSONDecoder(parse_float=JsonNumber, parse_constant=_refuse)


def _text(content: bytes, what: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise MalformedError(f"{what} is not UTF-8") from None


def _require_storable(name: str, text: str) -> None:
    """Raises MalformedError for a text that PostgreSQL has no form for."""
    if "\0" in text:
        raise MalformedError(f"{name} contains the character U+0000, which PostgreSQL can't store")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedError(f"{name} contains half of a surrogate pair") from None
