"""Decides whether a store shows everything up to an LSN of the source. Pure.

An answer that comes too early is worse than none. So the LSN must be of the published history: the same database
server, timeline and epoch from the beginning of the wait to the answer; if one of them changes meanwhile, the wait ends
with an error. A sink's applied LSN covers sweeps (I11), and is that of its serving generation: a store that is filled
again in place has applied nothing yet, and a generation that is built beside the serving one does not count before the
swap.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cdc.model.control import PositionRecord
from cdc.model.errors import NEXT_AFTER_GAP, GapError, WatershedError
from cdc.model.lsn import format_lsn
from cdc.model.sink_records import SinkRecord, newest
from watershed_client.source_facts import SourceEnd

PAGE_HEADER_BYTES: Final = 24
SEGMENT_HEADER_BYTES: Final = 40  # of the first page of a segment


class WaitError(WatershedError):
    """A question that can't be answered: a sink that does not exist, an LSN of another history."""


@dataclass(frozen=True, slots=True)
class Target:
    """The LSN that a store must show, and its history."""

    lsn: int
    epoch: int


def target_of(lsn: int, source: SourceEnd, position: PositionRecord | None, timeline: int | None = None) -> Target:
    """Makes the target. `timeline`: the LSN's, if the caller knows it. Raises WaitError for an LSN that the source has
    not reached, GapError if the published changes are of another history than the source's."""
    if position is None or position.phase != "streaming":
        raise WaitError("capture has not started to stream: no store can show anything yet", "start `cdc run`")
    known = position.source
    if known.system_identifier != source.system_identifier:
        raise GapError("the source is a different database server from the one that is published", NEXT_AFTER_GAP)
    if known.timeline != source.timeline:
        raise GapError(
            f"the source is on timeline {source.timeline}, the published changes are of timeline {known.timeline}",
            NEXT_AFTER_GAP,
        )
    if timeline is not None and timeline != source.timeline:
        raise WaitError(
            f"LSN {format_lsn(lsn)} belongs to timeline {timeline}, but the source is on timeline {source.timeline}",
            "read the row again, and wait for the LSN that the source has now",
        )
    if lsn > source.insert_lsn:
        raise WaitError(
            f"LSN {format_lsn(lsn)} is beyond the end of the source's WAL, {format_lsn(source.insert_lsn)}",
            "use SELECT pg_current_wal_insert_lsn(), read after the commit and on the primary that source.dsn names",
        )
    return Target(_without_header(lsn, source), position.epoch)


def _without_header(lsn: int, source: SourceEnd) -> int:
    """Returns the end of the last record. The insert position is after a page's header before there is a record in the
    page, and no stream reaches it while nothing is written."""
    place = lsn % source.page_bytes
    is_first = (lsn - place) % source.segment_bytes == 0
    return lsn - place if place <= (SEGMENT_HEADER_BYTES if is_first else PAGE_HEADER_BYTES) else lsn


def is_shown(target: Target, sink: str, records: Iterable[SinkRecord], position: PositionRecord | None) -> bool:
    """Says whether a reader of the store sees everything up to the target. Raises WaitError for a sink that has never
    published a position, GapError if a new epoch has begun since the wait started."""
    known = list(records)
    record = newest(known, sink)
    if record is None and not any(one.sink == sink for one in known):
        names = ", ".join(sorted({one.sink for one in known})) or "none"
        raise WaitError(
            f"no sink {sink!r} has published a position; there are: {names}", f"start it: cdc sink run {sink}"
        )
    if position is None or position.epoch != target.epoch:
        raise GapError(
            f"epoch {target.epoch}, to which the LSN belongs, has ended: a gap in history is being healed",
            "wait again, with an LSN that is read from the source now",
        )
    # Without a serving generation another one is about to take over: its record will tell.
    return record is not None and record.epoch == target.epoch and record.applied_lsn >= target.lsn
