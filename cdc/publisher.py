"""When a Kafka transaction ends, and what its position record says. Pure.

Many small PostgreSQL transactions share a Kafka transaction: it ends when the input runs dry, so that an idle
system has low latency, or at a limit of rows, bytes or time, so that a busy one pays for a commit rarely.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdc.config import CaptureConfig
from cdc.control import PositionRecord, SourceIdentity, TopicState
from cdc.ports import TopicRecord
from cdc.transactions import StreamState

PROTOCOL = "proto_version=1"
"""The protocol options that positions depend on; a half published transaction must be resumed under the same."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What all positions of one epoch have in common."""

    epoch: int
    source: SourceIdentity
    publication: str  # its fingerprint
    topic_ids: Mapping[str, str]
    entries: Mapping[str, str] = field(default_factory=dict)  # topic → fingerprint of the table's in the publication
    since: Mapping[str, int] = field(default_factory=dict)  # topic → LSN, of tables that joined later
    # Of tables that are captured no more but for the half published transaction: by topic, as they were.
    leaving: Mapping[str, TopicState] = field(default_factory=dict)


class Publisher:
    """Counts what the open Kafka transaction holds, and writes positions."""

    def __init__(self, lineage: Lineage, limits: CaptureConfig, end_offsets: Mapping[str, Sequence[int]]) -> None:
        self.lineage = lineage
        self._limits = limits
        self._end_offsets = {topic: tuple(offsets) for topic, offsets in end_offsets.items()}
        self._rows = 0
        self._bytes = 0
        self._opened_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the Kafka transaction holds records."""
        return self._opened_at is not None

    def on_produced(self, records: Sequence[TopicRecord], now: float) -> None:
        """These records went into the open Kafka transaction."""
        if not records:
            return
        if self._opened_at is None:
            self._opened_at = now
        self._rows += len(records)
        self._bytes += sum(len(record.key) + len(record.value or b"") for record in records)

    def is_due(self, now: float, *, is_dry: bool) -> bool:
        """Whether the open Kafka transaction should be committed now."""
        if self._opened_at is None:
            return False
        return (
            is_dry
            or self._rows >= self._limits.transaction_rows_max
            or self._bytes >= self._limits.transaction_bytes_max
            or (now - self._opened_at) * 1000 >= self._limits.transaction_time_ms_max
        )

    def on_committed(self) -> None:
        """The Kafka transaction has ended."""
        self._rows = self._bytes = 0
        self._opened_at = None

    def on_end_offsets(self, end_offsets: Mapping[str, Sequence[int]]) -> None:
        """Newer high watermarks of the table topics, for the positions to come."""
        self._end_offsets.update({topic: tuple(offsets) for topic, offsets in end_offsets.items()})

    def position(self, state: StreamState, *, is_loading: bool = False) -> PositionRecord:
        """The record that goes into the same Kafka transaction as the records that `state` covers."""
        return PositionRecord(
            phase="loading" if is_loading else "streaming",
            epoch=self.lineage.epoch,
            seq=state.seq,
            resume_lsn=state.resume_lsn,
            partial=state.partial,
            source=self.lineage.source,
            publication=self.lineage.publication,
            protocol=PROTOCOL,
            topics=(dict(self.lineage.leaving) if state.partial is not None else {})
            | {
                topic: TopicState(
                    topic_id=topic_id,
                    end_offsets=self._end_offsets.get(topic, ()),
                    publication_entry=self.lineage.entries.get(topic, ""),
                    since_lsn=self.lineage.since.get(topic, 0),
                )
                for topic, topic_id in self.lineage.topic_ids.items()
            },
        ).sealed()
