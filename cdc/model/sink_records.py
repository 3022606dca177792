"""The position of a sink in the progress topic, which its job writes."""

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import Field

from cdc.model.control import U64, Record
from cdc.model.job_records import PerGenerationRecord

JobId = tuple[int, str]
"""A number that grows with each start of a sink's job, and a random text; the greater one continues."""

STALLED_S: Final = 5.0  # a capture, sink or view without progress for this time is a problem


class RefusedTopic(Record):
    """A topic with a record that the sink can't read: nothing behind it is applied, and the table's sweeps wait. The
    applied position goes on without the topic."""

    table: str  # schema.table
    reason: str
    next: str
    places: dict[int, int]  # partition → offset of the record
    owed_ends: tuple[int, ...] = ()  # the topic's end offsets as of applied_lsn, which the store lacks
    is_left_out: bool = False  # until it is tried again, batches do not read it
    since_us: int = 0  # our clock when it was refused first
    is_old: bool = False  # deletes behind the record may be gone from the topic since


class SinkRecord(PerGenerationRecord):
    """Says that a sink has applied every record below `end_offsets`, and every sweep of `sweeps`.

    `applied_lsn` is the largest progress LSN whose offsets are covered and whose sweeps are done.
    """

    KEY = "sink/"
    end_offsets: dict[str, tuple[int, ...]]
    applied_lsn: U64
    epoch: int  # of applied_lsn; 0 before the first progress
    commit_ts_us: int  # commit time that belongs to applied_lsn
    applied_ts_us: int  # our clock when it was readable in the store
    applied_since_us: int = 0  # our clock when applied_lsn was readable first; 0: not known
    sweeps: dict[str, U64]  # table key → floor of the last sweep finished
    written: int  # changes written since the job started
    stale: int  # changes that were already there, or superseded
    excluded: tuple[str, ...] = ()  # tables that the store does not hold, as schema.table
    # schema.table → fingerprint of the mapping with which its rows were written; a table without one has no mapping.
    mappings: dict[str, str] = Field(default_factory=dict)
    dead_letters: int = 0  # rows that the store rejected, and of which it has taken no later version
    rejected: dict[str, int] = Field(default_factory=dict)  # schema.table → dead letters, where there are any
    # ProgressRecord.history, and .incarnations of the topics in end_offsets: without them the offsets mean nothing.
    history: str = ""
    incarnations: dict[str, str] = Field(default_factory=dict)
    # ProgressRecord.incarnations of the record whose LSN is applied_lsn, of all topics that capture published then.
    shown: dict[str, str] = Field(default_factory=dict)
    # ProgressRecord.owed at applied_lsn, of the tables that the store holds: rows up to applied_lsn that it lacks.
    owed: dict[str, str] = Field(default_factory=dict)
    # Of a sink that is written up to cuts (ProgressRecord.is_cut): the end offsets of the one up to which it is written
    # next, or is. Empty: it is not, or none was published yet.
    cut_offsets: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    refused: dict[str, RefusedTopic] = Field(default_factory=dict)  # by topic
    store: str = ""  # the type of its store: search, cache, warehouse, sql, or one of another package
    patience_s: float = 0.0  # for which it may publish nothing although records wait, by its trigger
    job: JobId = (0, "")  # of the job that has written this record
    # Readers see the serving generation only. A building one is filled beside it; a kept one was replaced by it.
    role: Literal["serving", "building", "kept"] = "serving"


def newest(sinks: Iterable[SinkRecord], name: str, generation_min: int = 0) -> SinkRecord | None:
    """Returns the record of the sink's serving generation: that of the newest job. None while one generation replaces
    another. `generation_min`: earlier ones belong to discarded stores."""
    own = [sink for sink in sinks if sink.sink == name and sink.generation >= generation_min and sink.role == "serving"]
    return max(own, key=lambda sink: (sink.job, sink.generation), default=None)
