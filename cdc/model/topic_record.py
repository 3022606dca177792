"""A record on its way to Kafka."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class EventDestination(NamedTuple):
    """Of an event's record."""

    partition: int | None  # None: the key's
    timestamp_ms: int  # since 1970
    has_key: bool  # so that an empty key is one
    refused: "Callable[[str], TopicRecord]"  # what goes out instead where the topic can't take it, for a reason
    cut: "Callable[[int], TopicRecord] | None" = None  # of a dead letter: the same in so many bytes


class TopicRecord(NamedTuple):
    """A record on its way to Kafka; the partition is the key's murmur2, as Java's producers choose it. An empty key is
    none."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] | None = None
    destination: EventDestination | None = (
        None  # of an event: its topic is one of the application's, which may have to be created
    )
