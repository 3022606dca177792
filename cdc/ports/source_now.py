"""Observations of a source database at one moment."""

from dataclasses import dataclass

from cdc.model.lsn import Lsn


@dataclass(frozen=True, slots=True)
class SourceNow:
    """The present state of the source."""

    system_identifier: str
    timeline: int
    database: str
    flush_lsn: Lsn
    slot_wal_status: str | None
    slot_confirmed_lsn: Lsn | None
    publication: str | None  # fingerprint; None: there is no such publication
    # The timelines that led to `timeline`, each with the LSN at which it was left; None: the server does not know
    ended: tuple[tuple[int, int], ...] | None = ()
    is_standby: bool = False  # the server that has the slot
    slot_invalidation: str = ""  # why the server invalidated the slot (PostgreSQL 17 and later)
