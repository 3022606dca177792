"""Observations from which the status is computed, and the ports that they are read through. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from cdc.model.comparisons import ComparisonRecord
from cdc.model.control import PositionRecord, ProgressRecord, SinkErrorRecord, SinkRecord
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.lost_events import LostEventsRecord
from cdc.model.table_state import TableRecord
from cdc.ports.source_facts import SourceFacts
from cdc.status.fill_progress import FillProgress


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The state and progress topics at one moment."""

    position: PositionRecord | None
    damage: WatershedError | None  # why the position record can't be read
    progress: ProgressRecord | None
    tables: Mapping[TableId, TableRecord]
    snapshots: Mapping[TableId, FillProgress]
    dead_letters: Mapping[TableId, int]
    skipped: Mapping[TableId, int]
    lost_events: tuple[LostEventsRecord, ...]
    sinks: tuple[SinkRecord, ...]
    sink_errors: Mapping[str, SinkErrorRecord]  # by the sink's name
    comparisons: Mapping[str, ComparisonRecord]  # likewise


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that a process knows about its own part of the pipeline and that is published nowhere."""

    part: Literal["capture", "sink"]
    name: str  # the sink's; empty for capture
    state: str  # starting, standby, streaming, retrying, gap, stopped
    message: str = ""
    next: str = ""
    is_failure: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that was observed for one status. None with an error: the server did not answer."""

    source: SourceFacts | None
    source_error: WatershedError | None
    topics: TopicFacts | None  # None without an error: capture has never run on the prefix
    topics_error: WatershedError | None
    conditions: tuple[Condition, ...] = ()


class SourceReader(Protocol):
    """Observes the source database."""

    def read(self) -> SourceFacts:
        """Reads facts of the source. Raises WatershedError if the database does not answer."""

    def close(self) -> None: ...


class TopicReader(Protocol):
    """Follows the state and progress topics."""

    def read(self) -> TopicFacts | None:
        """Reads facts of the topics; None if capture has never run on the prefix. Raises WatershedError if the brokers
        do not answer."""

    def close(self) -> None: ...
