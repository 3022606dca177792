"""What the capture loop tells of a Kafka transaction that it has committed."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from cdc.model.lsn import Lsn


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """A Kafka transaction, without its position record. Times in µs since 1970."""

    begun_us: int  # its first record was produced
    ended_us: int
    commit_s: float  # duration of the commit
    epoch: int
    position_lsn: Lsn  # from which capture may stream again
    # Commit LSNs of the first and the last PostgreSQL transaction in it; None: it has only rows of a snapshot, or
    # records that are not of a table.
    commits: tuple[Lsn, Lsn] | None
    commit_ts_us: int  # commit time of the newest PostgreSQL transaction
    is_partial: bool  # it ends within a PostgreSQL transaction
    records: int
    rows: int  # records of rows that took a number (`seq`): no tombstones
    bytes: int  # of keys and values
    topics: Collection[str]


OnPublished = Callable[[PublishedBatch], None]
"""Must return at once: the loop waits for it."""
