"""The state of the stream: the captured tables, what was received completely, and the transaction that is being
received. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from cdc.model.control import PartialTransaction, PositionRecord
from cdc.model.events import TableId, TableSchema
from cdc.model.lsn import Lsn


@dataclass(frozen=True, slots=True)
class CapturedTables:
    """The tables of one session."""

    schemas: Sequence[TableSchema]
    # Table → LSN from which it is captured, for tables that were added later. Transactions that commit before it are
    # not published, and may have another schema.
    since: Mapping[TableId, int] = field(default_factory=dict)
    leaving: Sequence[TableSchema] = ()  # no longer configured, but part of the half published transaction


@dataclass(frozen=True, slots=True)
class StreamState:
    """The part of a position record that depends on the stream."""

    resume_lsn: Lsn
    partial: PartialTransaction | None
    seq: int
    commit_ts_us: int  # commit time of the newest complete transaction

    @classmethod
    def of(cls, position: PositionRecord) -> Self:
        """Returns the state of a session that resumes at this position."""
        return cls(Lsn(position.resume_lsn), position.partial, position.seq, commit_ts_us=0)


@dataclass(slots=True)
class OpenTransaction:
    """The PostgreSQL transaction that is being received."""

    commit_lsn: Lsn
    commit_ts_us: int
    xid: int
    next_index: int = 0
    skip_below: int = 0  # changes with a lower index are already published
    published: bool = False  # at least one of its records left the assembler
