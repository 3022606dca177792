"""The dead letters of sinks: reading them, and discarding them by order of an operator."""

from collections.abc import Iterable
from dataclasses import dataclass

from cdc.config.config_file import Config
from cdc.kafka.compacted import read_latest
from cdc.kafka.signals import deliver
from cdc.model.rejected_rows import RejectedRow, dead_letter_generation
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One open dead letter."""

    sink: str
    topic: str
    key: str  # record key in the topic
    row: RejectedRow

    @property
    def generation(self) -> int | None:
        """The generation of the sink's store that rejected the row; None for a key of another form."""
        return dead_letter_generation(self.key)


def read_dead_letters(config: Config, sinks: Iterable[str]) -> list[DeadLetter]:
    """Returns the open letters of these sinks, of all generations, by sink and key. Raises UnreachableError,
    BrokerError."""
    topics = Topics(config.topics.prefix)
    return [
        DeadLetter(sink, topic, key, RejectedRow.decode(value, f"topic {topic}, key {key}"))
        for sink in sinks
        for topic in (topics.sink_dead_letter(sink),)
        for key, value in sorted(read_latest(config.kafka, topic).items())
    ]


def discard_dead_letters(config: Config, dead_letters: Iterable[DeadLetter]) -> None:
    for dead_letter in dead_letters:
        deliver(config.kafka, TopicRecord(dead_letter.topic, dead_letter.key.encode(), None))
