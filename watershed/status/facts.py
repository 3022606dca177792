"""Observations from which the status is computed, and the ports that they are read through. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cdc.model.comparisons import ComparisonRecord
from cdc.model.condition import Condition
from cdc.model.control import PositionRecord, ProgressRecord
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.job_records import QueryRecord, RebuildRecord, SinkErrorRecord
from cdc.model.lost_events import LostEventsRecord
from cdc.model.sink_records import SinkRecord
from cdc.model.table_state import SelectionRecord, TableRecord
from watershed.client.source_facts import SourceFacts
from watershed.status.fill_progress import FillProgress
from watershed.status.view_facts import ViewFacts


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The state and progress topics at one moment; nothing where capture has never run on the prefix."""

    position: PositionRecord | None = None
    damage: WatershedError | None = None  # why the position record can't be read
    progress: ProgressRecord | None = None
    tables: Mapping[TableId, TableRecord] = field(default_factory=dict)
    selection: SelectionRecord | None = None
    snapshots: Mapping[TableId, FillProgress] = field(default_factory=dict)
    dead_letters: Mapping[TableId, int] = field(default_factory=dict)
    skipped: Mapping[TableId, int] = field(default_factory=dict)
    lost_events: tuple[LostEventsRecord, ...] = ()
    sinks: tuple[SinkRecord, ...] = ()
    sink_errors: Mapping[str, SinkErrorRecord] = field(default_factory=dict)  # by the sink's name
    rebuilds: Mapping[str, RebuildRecord] = field(default_factory=dict)  # likewise
    queries: tuple[QueryRecord, ...] = ()
    comparisons: Mapping[str, ComparisonRecord] = field(default_factory=dict)  # likewise
    prefixes: tuple[str, ...] = ()  # whose topics exist; read only while this prefix has no position


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that was observed for one status. An error: the server did not answer, and nothing is known of it."""

    source: SourceFacts | None
    source_error: WatershedError | None
    topics: TopicFacts
    topics_error: WatershedError | None
    conditions: tuple[Condition, ...] = ()
    # By the view's name. An error: its base does not answer. A view is missing until its base has answered or refused.
    views: Mapping[str, ViewFacts | WatershedError] = field(default_factory=dict)


class SourceReader(Protocol):
    """Observes the source database."""

    def read(self) -> SourceFacts:
        """Reads facts of the source. Raises WatershedError if the database does not answer."""

    def close(self) -> None: ...


class TopicFactsReader(Protocol):
    """Follows the state and progress topics."""

    def read(self) -> TopicFacts:
        """Reads facts of the topics. Raises WatershedError if the brokers do not answer."""

    def close(self) -> None: ...


class ViewReader(Protocol):
    """Observes the views of one base."""

    @property
    def views(self) -> Sequence[str]:
        """The names of the views."""

    def read(self) -> Mapping[str, ViewFacts]:
        """Reads facts of each view. Raises WatershedError if the base does not answer."""

    def close(self) -> None: ...
