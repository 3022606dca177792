"""What has been received of the stream: whole transactions, and the one that is coming in."""

from dataclasses import dataclass

from cdc.model.lsn import Lsn
from cdc.records.control import PartialTransaction


@dataclass(frozen=True, slots=True)
class StreamState:
    """What the assembler has consumed: the part of a position record that the stream determines."""

    resume_lsn: Lsn
    partial: PartialTransaction | None
    seq: int
    commit_ts_us: int  # of the newest transaction consumed whole


@dataclass(slots=True)
class OpenTransaction:
    """The PostgreSQL transaction that is being received."""

    commit_lsn: Lsn
    commit_ts_us: int
    xid: int
    next_index: int = 0
    skip_below: int = 0  # changes with a smaller index are published already
    published: bool = False  # at least one of its records left the assembler
