"""Computes the status from observations. Pure."""

from dataclasses import dataclass
from typing import Final

from cdc.config.config_file import Config
from cdc.model.comparisons import ComparisonRecord
from cdc.model.condition import Condition
from cdc.model.control import PositionRecord, ProgressRecord
from cdc.model.events import TableId
from cdc.model.job_records import QueryRecord
from cdc.model.lsn import format_lsn
from cdc.model.sink_records import STALLED_S, SinkRecord, newest
from cdc.model.topics import Topics
from watershed.client.source_facts import SlotFacts, SourceFacts
from watershed.status.facts import Reading, TopicFacts
from watershed.status.fill_progress import FillProgress, passed
from watershed.status.history import ObservationHistory
from watershed.status.model import (
    BrokerStatus,
    CaptureStatus,
    ComparisonStatus,
    QueryStatus,
    RunStatus,
    SinkStatus,
    SlotStatus,
    SnapshotStatus,
    SourceStatus,
    Status,
    TableStatus,
    WalBudget,
)
from watershed.status.problems import problems_of
from watershed.status.views import view_statuses

_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of an observation."""

    monotonic_s: float
    unix_us: int


def status_of(config: Config, reading: Reading, history: ObservationHistory, now: Moment) -> Status:
    """Returns the status at this moment, and adds the observation to `history`."""
    config = config.in_force(reading.topics.selection)
    end = _end(reading)
    if end is not None:
        history.observe_end(now.monotonic_s, (_epoch(reading.topics), end))
    status = Status(
        prefix=config.topics.prefix,
        unix_seconds=now.unix_us / _US,
        source=_source(config, reading.source, history, now),
        brokers=BrokerStatus(is_reachable=reading.topics_error is None),
        capture=_capture(reading, history, now, end),
        tables=tuple(_table(table, reading) for table in config.source.table_ids),
        sinks=_sinks(config, reading, history, now, end),
        views=view_statuses(config, reading, history, now.monotonic_s),
        problems=(),
    )
    return status.model_copy(update={"problems": problems_of(config, reading, status)})


def _epoch(topics: TopicFacts) -> int:
    return topics.position.epoch if topics.position is not None else 0


def _end(reading: Reading) -> int | None:
    """Returns the known end of the source's log."""
    topics, ends = reading.topics, [reading.source.flush_lsn] if reading.source is not None else []
    if not ends and topics.position is not None:
        ends.append(topics.position.resume_lsn)
    if topics.progress is not None and topics.progress.epoch == _epoch(topics):
        ends.append(topics.progress.lsn)
    return max(ends, default=None)


# ---- source


def _source(config: Config, facts: SourceFacts | None, history: ObservationHistory, now: Moment) -> SourceStatus:
    if facts is None:
        return SourceStatus(is_reachable=False)
    slot = facts.slot
    return SourceStatus(
        is_reachable=True,
        database=facts.database,
        version=facts.version,
        timeline=facts.timeline,
        lsn=format_lsn(facts.flush_lsn),
        slot=SlotStatus(
            name=config.source.slot,
            exists=slot is not None,
            is_active=slot is not None and slot.is_active,
            wal_status=None if slot is None else slot.wal_status,
            restart_lsn=None if slot is None else _text(slot.restart_lsn),
            confirmed_lsn=None if slot is None else _text(slot.confirmed_lsn),
            budget=wal_budget(facts, slot, config.http.wal_bytes_max, history.wal_rate(now.monotonic_s)),
        ),
    )


def wal_budget(facts: SourceFacts, slot: SlotFacts | None, wal_bytes_max: int | None, rate: float | None) -> WalBudget:
    """Returns the WAL budget. `wal_bytes_max`: how much WAL the disk can hold for the slot, as configured."""
    retained = None if slot is None or slot.restart_lsn is None else max(0, facts.flush_lsn - slot.restart_lsn)
    left: list[int] = []
    if slot is not None and slot.safe_wal_bytes is not None:
        left.append(slot.safe_wal_bytes)
    if wal_bytes_max is not None and retained is not None:
        left.append(wal_bytes_max - retained)
    if slot is not None and slot.wal_status == "lost":
        left = [0]
    remaining = max(0, min(left)) if left else None
    limits = [limit for limit in (facts.slot_wal_bytes_max, wal_bytes_max) if limit is not None]
    return WalBudget(
        retained_bytes=retained,
        limit_bytes=min(limits, default=None),
        remaining_bytes=remaining,
        rate_bytes_per_second=rate,
        seconds_left=remaining / rate if remaining is not None and rate else None,
    )


# ---- capture


def _capture(reading: Reading, history: ObservationHistory, now: Moment, end: int | None) -> CaptureStatus:
    own = [condition for condition in reading.conditions if condition.part == "capture"]
    position, progress = reading.topics.position, reading.topics.progress
    lost = sum(1 for record in reading.topics.lost_events if not record.settled_us)
    if position is None:
        state = own[0].state if own else "not started" if reading.topics_error is None else "unknown"
        return CaptureStatus(state=state, lost_events=lost)
    commit_ts_us = progress.commit_ts_us if progress is not None else 0
    place = (position.epoch, position.resume_lsn)
    state = own[0].state if own else _phase(position, reading.source)
    reported_at_us = progress.published_ts_us if progress is not None and progress.epoch == position.epoch else 0
    reported_age_s = (now.unix_us - reported_at_us) / _US if reported_at_us else 0.0
    reached = (position.epoch, position.seq, position.resume_lsn)
    silent_s = history.silent_s("capture", reached, now.monotonic_s, reported_age_s)
    return CaptureStatus(
        state=state,
        epoch=position.epoch,
        seq=position.seq,
        lsn=format_lsn(position.resume_lsn),
        lag_bytes=None if end is None else max(0, end - position.resume_lsn),
        # A start that has seen no commit yet knows when it was in step.
        lag_seconds=_lag_s(history, place, commit_ts_us or reported_at_us, now),
        silent_seconds=round(silent_s, 3),
        last_commit_unix_seconds=commit_ts_us / _US if commit_ts_us else None,
        lost_events=lost,
    )


def _phase(position: PositionRecord, source: SourceFacts | None) -> str:
    """Returns what capture does, as others see it: the position record says `streaming` also when nothing runs."""
    if position.phase != "streaming":
        return position.phase
    if source is None:
        return "unknown"
    return "streaming" if _is_streamed(source) else "not streaming"


def _is_streamed(source: SourceFacts) -> bool:
    return source.slot is not None and source.slot.is_active


def _lag_s(history: ObservationHistory, place: tuple[int, int], commit_ts_us: int, now: Moment) -> float:
    """Returns the lag in seconds. If the beginning of the lag was not observed, it is the age of the newest covered
    commit: an upper bound."""
    behind_s, is_observed = history.behind_s(place, now.monotonic_s)
    if not is_observed and commit_ts_us:
        behind_s = max(behind_s, (now.unix_us - commit_ts_us) / _US)
    return round(behind_s, 3)


# ---- tables


def _table(table: TableId, reading: Reading) -> TableStatus:
    topics = reading.topics
    record, progress = topics.tables.get(table), topics.snapshots.get(table)
    is_stopped = record is not None and record.status == "stopped"
    is_captured = record is not None or progress is not None
    is_read = progress is not None and progress.status in ("running", "waiting", "paused")
    is_followed = reading.source is None or _is_streamed(reading.source)
    followed = "streaming" if is_followed else "not streaming"
    state = "snapshotting" if is_read else followed if is_captured else "not captured"
    owed = topics.progress.owed if topics.progress is not None else {}
    return TableStatus(
        table=str(table),
        state="stopped" if is_stopped else state,
        message=record.message if record is not None else "",
        next=record.next if record is not None else "",
        starts_by_itself=record is not None and is_stopped and not record.is_held,
        dead_letters=topics.dead_letters.get(table, 0),
        skipped=topics.skipped.get(table, 0),
        owed=owed.get(str(table), ""),
        snapshot=None if progress is None else _snapshot(progress),
    )


def _snapshot(progress: FillProgress) -> SnapshotStatus:
    return SnapshotStatus(
        status=progress.status,
        rows=progress.done,
        rows_total=progress.total,
        rows_published=progress.published,
        rows_per_second=round(progress.per_s, 1),
        seconds_left=progress.eta_s,
        message=progress.message,
    )


# ---- sinks


def _sinks(
    config: Config, reading: Reading, history: ObservationHistory, now: Moment, end: int | None
) -> tuple[SinkStatus, ...]:
    conditions = {condition.name: condition for condition in reading.conditions if condition.part == "sink"}
    records, published = reading.topics.sinks, reading.topics.progress
    found = [newest(records, name) for name in sorted({record.sink for record in records})]
    return tuple(
        _sink(
            record,
            section.type if (section := config.sinks.get(record.sink)) is not None else record.store,
            lag_records(config, record, published),
            end if published is not None and published.epoch == record.epoch else None,
            history,
            now,
            conditions.get(record.sink) or published_error(reading.topics, record.sink),
        ).model_copy(
            update={
                "comparison": _comparison(reading.topics.comparisons.get(record.sink)),
                "query": _query(record, reading.topics.queries),
            }
        )
        for record in found
        if record is not None
    )


def published_error(topics: TopicFacts, sink: str) -> Condition | None:
    """A sink's last error as its job has published it, unless the sink has moved since."""
    error = topics.sink_errors.get(sink)
    record = newest(topics.sinks, sink)
    if error is None or (record is not None and record.applied_ts_us > error.at_us):
        return None
    state = "stopped" if error.is_final else "retrying"
    return Condition("sink", sink, state, error.message, error.next, is_failure=True)


def _sink(
    record: SinkRecord,
    kind: str,
    missing: int,
    end: int | None,
    history: ObservationHistory,
    now: Moment,
    condition: Condition | None,
) -> SinkStatus:
    """`kind`: the type of its store. `end`: the end of the source's log, if it is in the record's epoch."""
    name, applied = record.sink, (record.generation, record.end_offsets, record.applied_lsn)
    reported_age_s = (now.unix_us - record.applied_ts_us) / _US
    silent_s = history.silent_s(f"sink/{name}", applied, now.monotonic_s, reported_age_s)
    waiting_s = history.silent_s(f"waiting/{name}", missing > 0, now.monotonic_s)
    place = (record.epoch, record.applied_lsn)
    lag_s = _lag_s(history, place, record.commit_ts_us, now) if record.applied_lsn else None
    unread_s = lag_s if missing else 0.0
    patience_s = record.patience_s or STALLED_S
    readable_s = (record.applied_ts_us - record.commit_ts_us) / _US if record.commit_ts_us else None
    return SinkStatus(
        sink=record.sink,
        type=kind,
        generation=record.generation,
        epoch=record.epoch,
        applied_lsn=format_lsn(record.applied_lsn),
        lag_bytes=None if end is None else max(0, end - record.applied_lsn),
        lag_records=missing,
        lag_seconds=lag_s,
        unread_seconds=unread_s,
        is_catching_up=unread_s is None or unread_s > patience_s,
        patience_seconds=patience_s,
        freshness_seconds=None if readable_s is None else round(max(0.0, readable_s), 3),
        silent_seconds=round(silent_s, 3),
        waiting_seconds=round(waiting_s, 3) if missing else 0.0,
        written=record.written,
        stale=record.stale,
        dead_letters=record.dead_letters,
        owed=record.owed,
        refused={one.table: one.next for one in record.refused.values() if one.table in record.owed},
        state=condition.state if condition is not None else "",
        error=condition.message if condition is not None else "",
        next=condition.next if condition is not None else "",
    )


def _comparison(record: ComparisonRecord | None) -> ComparisonStatus | None:
    if record is None:
        return None
    runs = (
        RunStatus(
            **run.model_dump(exclude={"begun_us", "applied_lsn"}),
            begun_unix_seconds=run.begun_us / _US,
            applied_lsn=format_lsn(run.applied_lsn),
        )
        for run in record.runs
    )
    return ComparisonStatus(drift_rows=sum(record.drift.values()), drift=record.drift, runs=tuple(runs))


def _query(sink: SinkRecord, queries: tuple[QueryRecord, ...]) -> QueryStatus | None:
    found = next((one for one in queries if (one.sink, one.generation) == (sink.sink, sink.generation)), None)
    if found is None:
        return None
    status = QueryStatus(failures=found.failures, shortage=found.shortage, next=found.shortage_next)
    if found.batch is None:
        return status
    batch_s = found.batch_ms / 1000
    return status.model_copy(
        update={
            "ended_unix_seconds": found.ended_us / _US,
            "batch": found.batch,
            "batch_seconds": batch_s,
            "overhead_seconds": max(0, found.batch_ms - found.task_ms) / 1000,
            "rows": found.rows,
            "records": found.records,
            "bytes": found.bytes,
            "records_per_second": round(found.records / batch_s, 1) if batch_s else None,
        }
    )


def lag_records(config: Config, record: SinkRecord, published: ProgressRecord | None) -> int:
    """Returns the number of published offsets that the store does not show, in the tables that it holds."""
    if published is None:
        return 0
    topics, excluded = Topics(config.topics.prefix), set(record.excluded)
    section = config.sinks.get(record.sink)
    stored = {
        topics.table(table)
        for table in config.source.stored_table_ids
        if str(table) not in excluded and (section is None or section.holds(table))
    }
    stored -= {topic for topic, refused in record.refused.items() if refused.is_left_out}  # a problem of its own
    wanted = {topic: ends for topic, ends in published.end_offsets.items() if topic in stored}
    return sum(sum(ends) - passed(record.end_offsets, topic, ends) for topic, ends in wanted.items())


def _text(lsn: int | None) -> str | None:
    return None if lsn is None else format_lsn(lsn)
