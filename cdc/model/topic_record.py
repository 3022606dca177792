"""A record that is to be produced to Kafka."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class EventDestination(NamedTuple):
    """The destination of an event's record, and the records that replace it if the topic can't take it."""

    partition: int | None  # None: by the key
    timestamp_ms: int  # since 1970
    has_key: bool  # distinguishes an empty key from none
    refused: "Callable[[str], TopicRecord]"  # reason → the dead letter that is produced instead
    cut: "Callable[[int], TopicRecord] | None" = None  # for a dead letter: bytes → the same record, cut to this size


class TopicRecord(NamedTuple):
    """A record that is to be produced. The partition is the key's murmur2, as Java's producers choose it. An empty key
    means that there is none."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] | None = None
    # For an event: its topic is one of the application's, which may have to be created.
    destination: EventDestination | None = None
