"""What a task of a round is given, and what it reports to the driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdc.model.errors import BrokerError, ConfigError, RefusedError, SinkError, UnreachableError, WatershedError
from cdc.model.events import TableId
from sinks.lineage import Lineage
from spark_jobs.reading import Partition
from spark_jobs.rejections import Letters


@dataclass(frozen=True, slots=True)
class Catalog:
    """The schemas of the sink's tables."""

    name: str  # a different one for each catalog
    lineages: Mapping[str, Lineage]  # by topic


class Failure(NamedTuple):
    """An error that the driver raises again. Exceptions lose their hints on the way through Spark."""

    kind: str  # the name of a class in cdc.model.errors
    message: str
    hint: str

    @classmethod
    def of(cls, error: WatershedError) -> "Failure":
        return cls(type(error).__name__, error.message, error.hint)

    def error(self) -> WatershedError:
        for kind in (RefusedError, ConfigError, UnreachableError, BrokerError):
            if kind.__name__ == self.kind:
                return kind(self.message, self.hint)
        return SinkError(self.message, self.hint)


@dataclass(slots=True)
class TaskReport:
    """What a task did. Whatever lies below `offsets` is in the store, or was superseded there."""

    offsets: dict[Partition, int] = field(default_factory=dict)
    records: int = 0
    written: int = 0
    stale: int = 0
    write_s: float = 0.0  # spent in the store's client
    tables: set[TableId] = field(default_factory=set)  # of which there were records
    is_behind: bool = False  # it ended before it had read what was there
    unknown_schema: str = ""  # the record, whose schema is not in the catalog, that ended it
    failure: Failure | None = None
    staged: tuple[Any, ...] = ()  # what a store that is written by the driver has to take in
    letters: Letters = field(default_factory=dict)  # dead letters that were opened or closed

    @property
    def has_news(self) -> bool:
        return bool(self.offsets)

    def clear(self) -> None:
        """It was reported."""
        self.offsets, self.tables, self.letters = {}, set(), {}
        self.records = self.written = self.stale = 0
        self.write_s = 0.0
