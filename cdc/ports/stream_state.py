"""What has been received of the stream: whole transactions, and the one that is coming in."""

from dataclasses import dataclass
from typing import Self

from cdc.model.lsn import Lsn
from cdc.records.control import PartialTransaction, PositionRecord


@dataclass(frozen=True, slots=True)
class StreamState:
    """What the assembler has consumed: the part of a position record that the stream determines."""

    resume_lsn: Lsn
    partial: PartialTransaction | None
    seq: int
    commit_ts_us: int  # of the newest transaction consumed whole

    @classmethod
    def of(cls, position: PositionRecord) -> Self:
        """Where a session begins that resumes at this position."""
        return cls(Lsn(position.resume_lsn), position.partial, position.seq, commit_ts_us=0)


@dataclass(slots=True)
class OpenTransaction:
    """The PostgreSQL transaction that is being received."""

    commit_lsn: Lsn
    commit_ts_us: int
    xid: int
    next_index: int = 0
    skip_below: int = 0  # changes with a smaller index are published already
    published: bool = False  # at least one of its records left the assembler
