"""Observations from which the status is computed, and the ports that they are read through. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

    part: Literal["capture", "sink", "view"]
    name: str  # the sink's or the view's; empty for capture
    state: str  # starting, standby, streaming, retrying, gap, stopped
    message: str = ""
    next: str = ""
    is_failure: bool = False


@dataclass(frozen=True, slots=True)
class ViewFacts:
    """A view, or an event log, as its base describes it."""

    state: str  # never run, filling, filled, serving, rebuild, failed
    is_kept: bool  # a process has the view's lock
    changes: int  # changes of base tables that are noted and not collected
    oldest_s: float | None  # the age of the oldest of them
    keys: int  # keys of view rows that are to be computed
    rejected: int  # rows that the target does not take, or that the query can't compute
    written_s: float | None  # since rows were written last
    error: str
    next: str
    failing_s: float  # for how long the view has had an error; 0: it has none
    behind: int | None = None  # records that an event log has not loaded; None for a view


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that was observed for one status. None with an error: the server did not answer."""

    source: SourceFacts | None
    source_error: WatershedError | None
    topics: TopicFacts | None  # None without an error: capture has never run on the prefix
    topics_error: WatershedError | None
    conditions: tuple[Condition, ...] = ()
    # By the view's name. An error: its base does not answer. A view is missing until its base has answered or refused.
    views: Mapping[str, ViewFacts | WatershedError] = field(default_factory=dict)


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


class ViewReader(Protocol):
    """Observes the views of one base."""

    @property
    def views(self) -> Sequence[str]:
        """The names of the views."""

    def read(self) -> Mapping[str, ViewFacts]:
        """Reads facts of each view. Raises WatershedError if the base does not answer."""

    def close(self) -> None: ...
