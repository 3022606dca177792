"""Converts the content of a message to the row of an outbox table, so that the same router makes its record."""

import json
from dataclasses import dataclass
from typing import Final

from cdc.model.events import Column

# Debezium's columns of an outbox table.
COLUMNS: Final = (
    Column("id", 2950, -1, "uuid", nullable=False),
    Column("aggregatetype", 1043, -1, "character varying", nullable=False),
    Column("aggregateid", 1043, -1, "character varying", nullable=False),
    Column("type", 1043, -1, "character varying", nullable=False),
    Column("payload", 3802, -1, "jsonb", nullable=True),
)
KEY: Final = ("id",)
_NAMES: Final = tuple(column.name for column in COLUMNS)


@dataclass(frozen=True, slots=True)
class MessageRow:
    """The event of a message."""

    row: tuple[str | None, ...]  # texts in the order of COLUMNS
    headers: tuple[tuple[str, bytes | None], ...]


def read_message(content: bytes) -> MessageRow | str:
    """Returns the event that the publishing function wrote:
    `{"id":…,"aggregatetype":…,"aggregateid":…,"type":…,"payload":…,"headers":{…}}`, each text, the payload JSON in text
    or null. Returns the reason for any other content."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return "the content is not JSON"
    if not isinstance(found, dict) or found.keys() != {*_NAMES, "headers"}:
        return "the content has other members than an event's"
    row = tuple(found[name] for name in _NAMES)
    if not all(isinstance(text, str) for text in row[:-1]) or not isinstance(row[-1], str | None):
        return "a member of the content is not text"
    headers = {} if found["headers"] is None else found["headers"]
    if not isinstance(headers, dict) or not all(isinstance(value, str | None) for value in headers.values()):
        return "headers are not an object of texts"
    return MessageRow(row, tuple((name, None if value is None else value.encode()) for name, value in headers.items()))
