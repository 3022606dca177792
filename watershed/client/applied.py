"""Decides whether a store shows everything up to an LSN of the source. Pure.

An answer that comes too early is worse than none. So the LSN must be of the published history: the same database
server, timeline and epoch from the beginning of the wait to the answer; if one of them changes meanwhile, the wait ends
with an error. A sink's applied LSN covers sweeps (I11), and is that of its serving generation: a store that is filled
again in place has applied nothing yet, and a generation that is built beside the serving one does not count before the
swap.

An applied LSN is not enough: rows that committed before it may be owed. Capture says of which tables it has not
published all rows (a snapshot is running, the table is stopped), and a sink passes that on with the position at which
it holds. A sink that reads other topics than those that exist now holds nothing of them. Rows that the store or capture
rejected are missing too: then the answer is an error, unless the caller accepts it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cdc.model.control import PositionRecord, ProgressRecord
from cdc.model.errors import GapError, WatershedError
from cdc.model.events import TableId
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.sink_records import SinkRecord, newest
from cdc.model.suggestions import did_you_mean
from cdc.model.topics import Topics
from watershed.client.source_facts import SourceEnd

PAGE_HEADER_BYTES: Final = 24
SEGMENT_HEADER_BYTES: Final = 40  # of the first page of a segment


class WaitError(WatershedError):
    """A question that can't be answered: a sink that does not exist, an LSN of another history."""


@dataclass(frozen=True, slots=True)
class WaitTarget:
    """The LSN that a store must show, and its history."""

    lsn: int
    epoch: int
    tables: frozenset[str] = frozenset()  # schema.table; empty: all that the store holds
    accepts_rejected: bool = False  # rows that the store or capture rejected need not be there


@dataclass(frozen=True, slots=True)
class Positions:
    """The published positions of capture and the sinks, read at one time."""

    sinks: tuple[SinkRecord, ...] = ()
    capture: PositionRecord | None = None
    progress: ProgressRecord | None = None
    prefix: str = ""  # of the topics


def target_of(
    lsn: int,
    source: SourceEnd,
    position: PositionRecord | None,
    timeline: int | None = None,
    system_identifier: str | None = None,
) -> WaitTarget:
    """Makes the target. `timeline`, `system_identifier`: the LSN's, if the caller knows them. Raises WaitError for an
    LSN that the source has not reached, or that may be another server's, GapError if the published changes are of
    another history than the source's."""
    if position is None or position.phase != "streaming":
        raise WaitError("capture has not started to stream: no store can show anything yet", "start `cdc run`")
    known = position.source
    if known.server != (source.system_identifier, source.database):
        raise GapError(
            "the source is a different database, or database server, from the one that is published",
            "let source.dsn name the one that capture reads from; if it was moved to this server: cdc source move",
        )
    if known.timeline != source.timeline:
        raise GapError(
            f"the source is on timeline {source.timeline}, the published changes are of timeline {known.timeline}",
            "wait again: after a promotion capture continues within seconds; if cdc status shows state GAP: cdc "
            "snapshot heal",
        )
    if system_identifier is not None and system_identifier != source.system_identifier:
        raise WaitError(
            f"LSN {format_lsn(lsn)} belongs to the server with system identifier {system_identifier}, but the source "
            f"has {source.system_identifier}",
            "read the row again, and wait for the LSN that the source has now",
        )
    if timeline is not None and timeline != source.timeline:
        raise WaitError(
            f"LSN {format_lsn(lsn)} belongs to timeline {timeline}, but the source is on timeline {source.timeline}",
            "read the row again, and wait for the LSN that the source has now",
        )
    if lsn < known.moved_at:
        raise WaitError(
            f"LSN {format_lsn(lsn)} is before {format_lsn(known.moved_at)}, where the log of this server ended when "
            "capture moved to it: it may be an LSN of the former server",
            "read the row again, and wait for the LSN that the source has now",
        )
    if lsn > source.insert_lsn:
        raise WaitError(
            f"LSN {format_lsn(lsn)} is beyond the end of the source's WAL, {format_lsn(source.insert_lsn)}",
            "use SELECT pg_current_wal_insert_lsn(), read after the commit and on the primary that source.dsn names",
        )
    return WaitTarget(_without_header(lsn, source), position.epoch)


def _without_header(lsn: int, source: SourceEnd) -> int:
    """Returns the end of the last record. The insert position is after a page's header before there is a record in the
    page, and no stream reaches it while nothing is written."""
    place = lsn % source.page_bytes
    is_first = (lsn - place) % source.segment_bytes == 0
    return lsn - place if place <= (SEGMENT_HEADER_BYTES if is_first else PAGE_HEADER_BYTES) else lsn


def obstacle(target: WaitTarget, sink: str, positions: Positions) -> str | None:
    """Says why a reader of the store may not see everything up to the target yet; None if it does. Raises WaitError for
    a sink that has never published a position, for a table that the store does not hold, and for rejected rows;
    GapError if a new epoch has begun since the wait started."""
    record = serving(target, sink, positions.sinks, positions.capture)
    if record is None:
        return "another generation is about to take over"
    if any(table in record.excluded for table in target.tables):
        names = ", ".join(sorted(target.tables & set(record.excluded)))
        raise WaitError(f"sink {sink} does not hold {names}", "wait for a sink that does: cdc status lists them")
    if record.epoch != target.epoch or record.applied_lsn < target.lsn:
        return f"it is at {format_lsn(Lsn(record.applied_lsn))}"
    progress = positions.progress
    if not shows_these_topics(record, positions):
        return "it has not begun to read the topics that exist now"
    for table, reason in sorted(owed_by(record, positions).items()):
        if _concerns(target, record, table):
            return f"rows of {table} are owed: {reason}"
    for table in sorted(target.tables):
        if not _is_captured(table, positions):  # also one that a pattern will take in a moment
            return f"table {table} is not captured"
    if not target.accepts_rejected:
        _require_none_rejected(target, record, progress)
    return None


def tables_of(names: Iterable[str]) -> frozenset[str]:
    """Returns tables as records name them, for WaitTarget. Raises WaitError for a text that is no name of a table."""
    try:
        return frozenset(str(TableId.parse(name)) for name in names)
    except ValueError as error:
        raise WaitError(str(error), "write schema.table") from None


def _is_captured(table: str, positions: Positions) -> bool:
    topic = Topics(positions.prefix).table(TableId.parse(table))
    return positions.capture is not None and topic in positions.capture.topics


def shows_these_topics(record: SinkRecord, positions: Positions) -> bool:
    """Says whether the sink's position is one in the topics that exist now."""
    progress = positions.progress
    return _shows_topics_of(record, positions.capture) and (progress is None or _is_of_these_topics(record, progress))


def owed_by(record: SinkRecord, positions: Positions) -> dict[str, str]:
    """Returns schema.table → why the store may lack rows up to its position, for the tables that it holds."""
    owed = {**(positions.progress.owed if positions.progress is not None else {}), **record.owed}
    return {table: reason for table, reason in owed.items() if table not in record.excluded}


def is_reached(target: WaitTarget, sink: str, positions: Positions) -> bool:
    """Says whether the sink has applied the target, whatever is owed or rejected below it. Raises as `obstacle`."""
    record = serving(target, sink, positions.sinks, positions.capture)
    return record is not None and record.epoch == target.epoch and record.applied_lsn >= target.lsn


def serving(
    target: WaitTarget, sink: str, records: Iterable[SinkRecord], position: PositionRecord | None
) -> SinkRecord | None:
    """Returns the record of the generation that readers see. None while another one is about to take over: its record
    will tell. Raises WaitError for a sink that has never published a position, GapError if a new epoch has begun since
    the wait started."""
    known = list(records)
    record = newest(known, sink)
    if record is None and not any(one.sink == sink for one in known):
        names = ", ".join(sorted({one.sink for one in known})) or "none"
        raise WaitError(
            f"no sink {sink!r} has published a position; there are: {names}{did_you_mean(sink, names.split(', '))}",
            f"start it: cdc sink run {sink}",
        )
    if position is None or position.epoch != target.epoch:
        raise ended_epoch(target.epoch)
    return record


def ended_epoch(epoch: int) -> GapError:
    """Returns the error of a wait in whose time a new epoch has begun."""
    return GapError(
        f"epoch {epoch}, to which the LSN belongs, has ended: the source was promoted or moved, or a gap in history is "
        "being healed",
        "wait again, with an LSN that is read from the source now",
    )


def _shows_topics_of(record: SinkRecord, capture: PositionRecord | None) -> bool:
    """Says whether the sink's position is of a time when capture published the topics that it publishes now: a table
    may just have been added, or begun again."""
    topics = {} if capture is None else capture.topics
    return all(record.shown.get(topic) == state.identity for topic, state in topics.items())


def _is_of_these_topics(record: SinkRecord, progress: ProgressRecord) -> bool:
    return record.history == progress.history and all(
        progress.incarnations.get(topic, incarnation) == incarnation
        for topic, incarnation in record.incarnations.items()
    )


def _concerns(target: WaitTarget, record: SinkRecord, table: str) -> bool:
    return table not in record.excluded and (not target.tables or table in target.tables)


def _require_none_rejected(target: WaitTarget, record: SinkRecord, progress: ProgressRecord | None) -> None:
    """Raises WaitError if rows are missing because the store or capture could not take them."""
    for table, count in sorted(record.rejected.items()):
        if count and _concerns(target, record, table):
            raise WaitError(
                f"{record.sink} has rejected rows of {table}: {count} dead letters are open",
                f"cdc dlq list {record.sink} shows why; or accept that they are missing: --accept-rejected",
            )
    for table, count in sorted((progress.unpublished if progress is not None else {}).items()):
        if count and _concerns(target, record, table):
            raise WaitError(
                f"{count} changes of {table} were not published, as capture.on_unpublishable says",
                f"cdc verify --sink {record.sink} --table {table} shows which rows differ; or accept that they are "
                "missing: --accept-rejected",
            )
