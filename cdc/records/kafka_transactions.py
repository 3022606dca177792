"""What state says of Kafka transactions that the brokers did not end (see cdc/kafka/hanging_transactions.py)."""

from typing import Final

from cdc.records.control import U64, Record

HANGING_KEY: Final = "left-open"
EVENT_TOPIC_KEY: Final = "event-topic/"


class OpenPart(Record):
    """Records of a partition that are in the log, and of which the brokers don't say whether they are committed."""

    topic: str
    partition: int
    start: U64  # the last stable offset
    end: U64  # the high watermark


class HangingTransactionRecord(Record):
    """A committed Kafka transaction that the brokers did not end in these partitions is about to be aborted there and
    written again. Its records are lost where this stands and the partitions are closed."""

    parts: tuple[OpenPart, ...]


class EventTopicRecord(Record):
    """A topic of events that was written to; in the Kafka transaction of a session's first event for it."""

    topic: str
