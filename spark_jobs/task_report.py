"""The input of a round's task, and its report to the driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdc.model.errors import BrokerError, ConfigError, UnreachableError, WatershedError
from cdc.model.events import TableId
from sinks.errors import FullError, RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs.reading import Partition
from spark_jobs.rejections import DeadLetterUpdates


@dataclass(frozen=True, slots=True)
class SchemaCatalog:
    """The schemas of the sink's tables."""

    name: str  # a different one for each catalog
    schema_histories: Mapping[str, SchemaHistory]  # by topic


class TaskFailure(NamedTuple):
    """An error that the driver raises again. Spark would drop the hint of an exception."""

    kind: str  # the name of a class in cdc.model.errors
    message: str
    hint: str

    @classmethod
    def of(cls, error: WatershedError) -> "TaskFailure":
        return cls(type(error).__name__, error.message, error.hint)

    def error(self) -> WatershedError:
        for kind in (RefusedError, FullError, ConfigError, UnreachableError, BrokerError):
            if kind.__name__ == self.kind:
                return kind(self.message, self.hint)
        return SinkError(self.message, self.hint)


@dataclass(slots=True)
class TaskReport:
    """The work of a task. Everything below `offsets` is in the store, or was superseded there."""

    offsets: dict[Partition, int] = field(default_factory=dict)
    records: int = 0
    written: int = 0
    stale: int = 0
    write_s: float = 0.0  # spent in the store's client
    tables: set[TableId] = field(default_factory=set)  # of which there were records
    is_behind: bool = False  # it ended before it had read the records that were there
    unknown_schema: str = ""  # the record, whose schema is not in the catalog, that ended it
    failure: TaskFailure | None = None
    staged: tuple[Any, ...] = ()  # files or rows for a store that the driver writes
    dead_letters: DeadLetterUpdates = field(default_factory=dict)  # dead letters that were opened or closed
    lost: dict[Partition, str] = field(default_factory=dict)  # see spark_jobs.reading.Piece

    @property
    def has_progress(self) -> bool:
        return bool(self.offsets or self.lost)

    def clear(self) -> None:
        """Empties the report after it was sent."""
        self.offsets, self.tables, self.dead_letters, self.lost = {}, set(), {}, {}
        self.records = self.written = self.stale = 0
        self.write_s = 0.0
