"""The end of a Kafka transaction, and the content of its position record. Pure.

Many small PostgreSQL transactions share a Kafka transaction. It ends when no more input is available and some
milliseconds have passed since the last one ended (see `pause_s`), so that latency is low while there is little load; or
at a limit of rows, bytes or time, so that a busy system commits rarely. It ends where a PostgreSQL transaction ends. It
ends within one only if that transaction's own records exceed the limit of rows or bytes, so `read_committed` readers
never see half of a transaction that fits.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple

from cdc.capture.stream_state import StreamState
from cdc.config.settings import CaptureConfig
from cdc.model.control import PROTOCOL, PositionRecord, SourceIdentity, TopicState
from cdc.model.topic_record import TopicRecord

_TOPIC: Final = itemgetter(TopicRecord._fields.index("topic"))
END_S_MAX: Final = 30.0
"""Seconds that a Kafka transaction waits for the end of an open PostgreSQL transaction of which nothing more arrives.
The brokers abort a transaction that is open for longer than its timeout."""
PAUSE_S_MIN: Final = 0.005
PAUSE_S_MAX: Final = 0.020
PAUSE_S_PER_ROW: Final = 0.0002
"""At 5,000 rows/s and more this makes the longest pause, because then a row waits for a share of it only."""


def pause_s(rows: int, commit_s: float) -> float:
    """Returns the seconds from the end of a Kafka transaction of so many rows to the next one's, if neither is full.
    `commit_s`: how long its commit took. While few rows come, a row's latency is mostly this pause, and the loop has
    time for commits. The more come, the more a commit costs that makes none of them much earlier. Commits take half of
    the time at most, as long as the pause is not the longest one."""
    return min(max(PAUSE_S_MIN, commit_s, rows * PAUSE_S_PER_ROW), PAUSE_S_MAX)


@dataclass(frozen=True, slots=True)
class PositionConstants:
    """The parts of the position record that are the same throughout a session."""

    epoch: int
    source: SourceIdentity
    publication: str  # the publication's fingerprint
    topics: Mapping[str, TopicState]  # of the captured tables; end offsets as far as they are known when it begins
    history: str = ""  # see ProgressRecord.history
    # Topics of tables that are no longer configured, but part of the half published transaction.
    leaving: Mapping[str, TopicState] = field(default_factory=dict)
    published_lsn: int = 0  # see PositionRecord.published_lsn; when the session begins
    read_lsn: int = 0  # see PositionRecord.read_lsn; when the session begins


class OpenContent(NamedTuple):
    """The records of a Kafka transaction."""

    opened_at: float  # monotonic seconds
    records: int
    bytes: int
    topics: tuple[str, ...]


class Publisher:
    """Counts the records of the open Kafka transaction, decides when it ends, and makes position records."""

    def __init__(self, constants: PositionConstants, limits: CaptureConfig) -> None:
        self.constants = constants
        self._limits = limits
        self._topics = {name: state.model_copy(update={"appended": 0}) for name, state in constants.topics.items()}
        # By topic, what the brokers have appended at least since the end offsets in `_topics` were answered: of Kafka
        # transactions that have ended (records that were produced before the answer are subtracted), of the open one.
        self._appended = Counter({name: state.appended for name, state in constants.topics.items()})
        self._produced: Counter[str] = Counter()
        self._rows = 0
        self._bytes = 0
        self._begun_rows = 0  # those of the PostgreSQL transaction that is being received
        self._begun_bytes = 0
        self._opened_at: float | None = None
        self._next_end_at = float("-inf")  # monotonic seconds, see `wait_s`
        self._is_split = False  # part of the open PostgreSQL transaction is in an earlier Kafka transaction
        self._published_lsn = constants.published_lsn
        self._read_lsn = constants.read_lsn  # end of the log when values were last read again from tables
        self._has_content = False  # the open Kafka transaction has records that come from the source

    @property
    def is_open(self) -> bool:
        """True if the Kafka transaction holds records."""
        return self._opened_at is not None

    @property
    def content(self) -> OpenContent | None:
        """What the open Kafka transaction holds; None if nothing of it comes from the source."""
        if self._opened_at is None or not self._has_content:
            return None
        return OpenContent(self._opened_at, self._rows, self._bytes, tuple(self._produced))

    @property
    def would_split(self) -> bool:
        """True if a commit now would show readers, for the first time, half of a PostgreSQL transaction."""
        return self._begun_rows > 0 and not self._is_split

    def on_produced(
        self, records: Sequence[TopicRecord], now: float, *, is_begun: bool = False, is_content: bool = True
    ) -> None:
        """Counts records that were produced. `now`: monotonic seconds. `is_begun`: they belong to a PostgreSQL
        transaction that has not ended. `is_content`: they come from the source."""
        if not records:
            return
        self._has_content = self._has_content or is_content
        if self._opened_at is None:
            self._opened_at = now
        size = sum(len(record.key) + len(record.value or b"") for record in records)
        self._rows += len(records)
        self._bytes += size
        self._produced.update(map(_TOPIC, records))
        if is_begun:
            self._begun_rows += len(records)
            self._begun_bytes += size

    def on_read(self, lsn: int) -> None:
        """Values for the records were read from tables, when the log ended at `lsn`."""
        self._read_lsn = max(self._read_lsn, lsn)

    def on_ended(self) -> None:
        """All PostgreSQL transactions with records in the Kafka transaction have ended."""
        self._begun_rows = self._begun_bytes = 0
        self._is_split = False

    def is_due(self, now: float, *, is_dry: bool, is_begun: bool = False) -> bool:
        """Returns whether to commit now. `is_dry`: no more input is available. `is_begun`: a PostgreSQL transaction has
        begun and not ended."""
        if self._opened_at is None:
            return False
        open_s = now - self._opened_at
        if is_begun and self.would_split:
            return self._is_full(self._begun_rows, self._begun_bytes) or open_s >= END_S_MAX
        is_late = open_s * 1000 >= self._limits.transaction_time_ms_max
        return (is_dry and self.wait_s(now) <= 0) or is_late or self._is_full(self._rows, self._bytes)

    def wait_s(self, now: float) -> float:
        """Returns the seconds that the open Kafka transaction still waits for more records although no input is
        available. The first one after a pause does not wait; under load, a commit costs brokers and readers as much as
        dozens of records."""
        return self._next_end_at - now

    def _is_full(self, rows: int, size: int) -> bool:
        return rows >= self._limits.transaction_rows_max or size >= self._limits.transaction_bytes_max

    def on_committed(self, now: float = float("-inf"), *, commit_s: float = 0.0, is_begun: bool = False) -> None:
        """The Kafka transaction has ended. `now`: monotonic seconds. `commit_s`: how long its commit took. `is_begun`:
        within a PostgreSQL transaction."""
        pause_ms = self._limits.transaction_time_ms_min
        self._next_end_at = now + (pause_s(self._rows, commit_s) if pause_ms is None else pause_ms / 1000)
        self._rows = self._bytes = self._begun_rows = self._begun_bytes = 0
        self._opened_at = None
        self._has_content = False
        self._is_split = is_begun
        # A partition gets a commit marker, before the next transaction writes to it.
        self._appended.update(self._produced.keys())
        self._appended.update(self._produced)
        self._produced.clear()

    def on_end_offsets(self, end_offsets: Mapping[str, Sequence[int]]) -> None:
        """Takes newer high watermarks of the table topics, for the next positions."""
        for topic in self._topics.keys() & end_offsets.keys():
            self._topics[topic] = self._topics[topic].model_copy(update={"end_offsets": tuple(end_offsets[topic])})
        self._appended.clear()
        self._appended.subtract(self._produced)  # they may be in the answer

    def position(self, state: StreamState, *, is_loading: bool = False) -> PositionRecord:
        """Returns the position record for the Kafka transaction of the records that `state` covers."""
        if self._has_content and self._published_lsn:
            begun = state.partial.commit_lsn + 1 if state.partial is not None else 0
            self._published_lsn = max(self._published_lsn, state.resume_lsn, begun, self._read_lsn)
        return PositionRecord(
            phase="loading" if is_loading else "streaming",
            epoch=self.constants.epoch,
            seq=state.seq,
            resume_lsn=state.resume_lsn,
            partial=state.partial,
            source=self.constants.source,
            publication=self.constants.publication,
            protocol=PROTOCOL,
            topics=(dict(self.constants.leaving) if state.partial is not None else {}) | self._topics | self._grown(),
            history=self.constants.history,
            published_lsn=self._published_lsn,
            read_lsn=self._read_lsn,
        ).sealed()

    def _grown(self) -> dict[str, TopicState]:
        """Returns the topics with records that are not below their end offsets."""
        counts = self._appended + self._produced  # without what is not above 0
        return {
            topic: self._topics[topic].model_copy(update={"appended": count})
            for topic, count in counts.items()
            if topic in self._topics
        }
