"""Observations of a source database at one moment."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """A row of pg_replication_slots."""

    is_active: bool
    restart_lsn: int | None
    confirmed_lsn: int | None
    wal_status: str | None  # reserved, extended, unreserved, lost
    safe_wal_bytes: int | None  # how much WAL may be written before the slot can be lost; None: no limit, or lost
    invalidation: str | None  # why the server invalidated it (PostgreSQL 17 and later)


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The source database at one moment."""

    database: str
    version: str
    timeline: int
    flush_lsn: int
    slot: SlotFacts | None
    slot_wal_bytes_max: int | None  # max_slot_wal_keep_size; None: unlimited
    has_publication: bool


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """The source's history, and the end of its log."""

    system_identifier: str
    database: str
    timeline: int
    insert_lsn: int
    page_bytes: int
    segment_bytes: int
