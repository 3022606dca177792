"""The progress of snapshots and sinks, computed from their records in topics, for people and monitoring. Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from cdc.model.control import ENDED, PositionRecord, ProgressRecord, SnapshotProgress, SnapshotRecord
from cdc.model.sink_records import SinkRecord

SILENCE_S_MAX: Final = 10.0  # capture reports every second while a snapshot runs
RATE_WINDOW_S: Final = 30.0  # longer than a batch of the warehouse


@dataclass(frozen=True, slots=True)
class FillProgress:
    """The present progress of one table's snapshot, or of filling one sink."""

    what: Literal["table", "sink"]
    name: str  # schema.table, or the name of the sink
    status: str  # waiting, running, paused; ended: done, cancelled, failed, replaced (by another snapshot)
    # Rows that were published, or compared; for a sink: offsets passed, which count records and transaction markers
    done: int
    total: int  # 0: not known
    per_s: float
    message: str = ""  # what is waited for, or why it failed
    published: int | None = None  # rows that differ from the topic, if rows are compared with it; including deletes

    @property
    def is_ended(self) -> bool:
        return self.status in ENDED or self.status == "replaced"

    @property
    def eta_s(self) -> float | None:
        """Seconds that are left at this rate; None if not known."""
        if self.is_ended or not self.total or self.per_s <= 0:
            return None
        return (self.total - self.done) / self.per_s

    def as_json(self) -> dict[str, Any]:
        """Returns the status as a JSON object."""
        eta_s = self.eta_s
        rounded = {"per_s": round(self.per_s, 1), "eta_s": None if eta_s is None else round(eta_s, 1)}
        return asdict(self) | rounded


# ---- tables


def table_progress(record: SnapshotRecord, progress: SnapshotProgress | None, silent_s: float) -> FillProgress:
    """Returns the status of a table's snapshot. `progress`: the table's last report, perhaps of an earlier snapshot.
    `silent_s`: seconds since the last report."""
    status, per_s, message = str(record.status), 0.0, record.message
    if record.deleted and not message:
        message = f"deleted {record.deleted:,} rows that no longer exist"
    if record.status == "running":
        if silent_s > SILENCE_S_MAX:
            message = f"capture has not reported for {silent_s:.0f} s: check that `cdc run` is running"
        elif progress is not None and progress.request == record.request:
            if progress.status != "waiting":
                per_s, message = progress.rows_per_s, progress.message or message
            elif progress.rows == record.rows:  # otherwise the wait is over, and the next report will show it
                status, message = "waiting", progress.message
    done = record.compared if record.compares else record.rows
    # The estimate is for the whole table.
    total = done if record.status == "done" else record.rows_estimated if is_whole(record) else 0
    total = max(total, done) if total else 0
    published = record.rows + record.deleted if record.compares else None
    return FillProgress("table", str(record.table), status, done, total, per_s, message, published)


def replaced(status: FillProgress) -> FillProgress:
    """Returns the status of a snapshot that was replaced by another one of the table."""
    return FillProgress("table", status.name, "replaced", 0, 0, 0.0, "another snapshot of the table has begun")


def is_whole(record: SnapshotRecord) -> bool:
    """Returns whether the snapshot is of all rows. Only those sweep, except the first of an epoch, which may have
    nothing to sweep."""
    return record.where is None and (record.sweeps or record.request.startswith("epoch "))


def are_complete(record: SnapshotRecord | None) -> bool:
    """Returns whether the table's topic is known to hold every row. A later snapshot of a part hides that it does."""
    return record is not None and is_whole(record) and record.status == "done"


def will_be_complete(record: SnapshotRecord | None) -> bool:
    """Returns whether the topic holds every row, or will when the present snapshot is done."""
    return record is not None and is_whole(record) and record.status in ("running", "done")


# ---- sinks


@dataclass(frozen=True, slots=True, order=True)
class HistoryPosition:
    """A position in the source's history over all epochs."""

    epoch: int
    lsn: int

    @classmethod
    def published(cls, position: PositionRecord | ProgressRecord) -> "HistoryPosition":
        """Returns the position up to which everything is in the topics."""
        lsn = position.lsn if isinstance(position, ProgressRecord) else position.resume_lsn
        return cls(position.epoch, lsn)

    @classmethod
    def applied(cls, sink: SinkRecord) -> "HistoryPosition":
        """Returns the position up to which the store shows everything."""
        return cls(sink.epoch, sink.applied_lsn)


def sink_progress(
    name: str,
    sink: SinkRecord | None,
    published: ProgressRecord | None,
    goal: HistoryPosition | None,
    rate: "Rate",
    now: float,
) -> FillProgress:
    """Returns the progress of filling a sink: done when it has applied `goal` (None: not known yet). `now`: monotonic
    seconds."""
    if sink is None:
        return FillProgress("sink", name, "waiting", 0, 0, 0.0, "Spark starts")
    ends = published.end_offsets if published is not None else {}
    total = sum(map(sum, ends.values()))
    done = sum(passed(sink.end_offsets, topic, offsets) for topic, offsets in ends.items())
    is_filled = goal is not None and HistoryPosition.applied(sink) >= goal
    rate.observe(now, done)
    return FillProgress("sink", name, "done" if is_filled else "running", done, total, rate.per_s(now))


def passed(have: Mapping[str, tuple[int, ...]], topic: str, ends: tuple[int, ...]) -> int:
    """Returns the number of the topic's offsets below `ends` that lie below `have`, too."""
    held = have.get(topic, ())
    return sum(min(end, held[partition] if partition < len(held) else 0) for partition, end in enumerate(ends))


class Rate:
    """The growth rate of a number over the last RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()  # changes within the window, and the last one before it

    def observe(self, now: float, number: int) -> None:
        if not self._seen or number != self._seen[-1][1]:
            self._seen.append((now, number))
        while len(self._seen) > 1 and self._seen[1][0] <= now - RATE_WINDOW_S:
            self._seen.popleft()

    def per_s(self, now: float) -> float:
        if not self._seen:
            return 0.0
        began, number = self._seen[0]
        span_s = now - max(began, now - RATE_WINDOW_S)
        return max(0.0, (self._seen[-1][1] - number) / span_s) if span_s > 0 else 0.0
