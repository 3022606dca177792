"""Records in state about Kafka transactions that the brokers did not end (see cdc/kafka/hanging_transactions.py)."""

from cdc.model.control import U64, Record


class OpenPart(Record):
    """Records of a partition that are in the log without an end marker: neither committed nor aborted for consumers."""

    topic: str
    partition: int
    start: U64  # the last stable offset
    end: U64  # the high watermark


class HangingTransactionRecord(Record):
    """Says that a committed Kafka transaction, not ended by the brokers in these partitions, is about to be aborted
    there and written again. If a start finds this record and no open transaction there, its records are lost."""

    KEY = "left-open"
    parts: tuple[OpenPart, ...]


class EventTopicRecord(Record):
    """A topic of events that was written to. Written in the Kafka transaction of a session's first event for it."""

    KEY = "event-topic/"
    topic: str

    @property
    def record_key(self) -> str:
        return f"{self.KEY}{self.topic}"
