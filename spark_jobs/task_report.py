"""The input of a task, and its report to the driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdc.config.settings import KafkaConfig
from cdc.config.stores import StoreConfig
from sinks.schema_history import SchemaHistory
from spark_jobs.rejections import DeadLetterUpdates
from spark_jobs.source.group import TaskCounts
from spark_jobs.source.reading import Partition


@dataclass(frozen=True, slots=True)
class SinkTaskConfig:
    """One sink, in the form that a task needs; small enough to be sent with each task."""

    sink: str
    kafka: KafkaConfig
    section: StoreConfig
    prefix: str
    generation: int
    staging: str = ""  # the URI of the folder for files that the driver merges
    slot: str | None = None  # of the generation, see sinks.slots
    functions: Mapping[str, str] = field(default_factory=dict)  # of the section's mappings → version, where the job is


@dataclass(frozen=True, slots=True)
class SchemaCatalog:
    """The schemas of the sink's tables."""

    name: str  # a different one for each catalog
    schema_histories: Mapping[str, SchemaHistory]  # by topic


class Blocked(NamedTuple):
    """The first record of a partition that can't be read: it and all behind it are not written."""

    offset: int
    reason: str
    next: str
    may_follow: bool = False  # its schema is not known, and may be on its way


@dataclass(slots=True)
class TaskReport:
    """The work of a task. Everything from `start_offsets` to `end_offsets` is in the store, or was superseded there."""

    start_offsets: dict[Partition, int] = field(default_factory=dict)
    end_offsets: dict[Partition, int] = field(default_factory=dict)
    records: int = 0
    written: int = 0
    stale: int = 0
    write_s: float = 0.0  # spent in the store's client
    is_behind: bool = False  # more records may follow at once
    blocked: dict[Partition, Blocked] = field(default_factory=dict)
    staged: tuple[Any, ...] = ()  # files or rows for a store that the driver writes
    dead_letters: DeadLetterUpdates = field(default_factory=dict)  # dead letters that were opened or closed
    lost: dict[Partition, str] = field(default_factory=dict)  # partitions that are not read on, and why

    @property
    def counts(self) -> TaskCounts:
        """What the task has done since its batch began."""
        return TaskCounts(self.records, self.written, self.stale, round(self.write_s * 1000))
