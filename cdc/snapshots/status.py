"""How far snapshots and sinks are, from what the topics say of them: for people and machines who watch. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdc.records.control import ENDED, PositionRecord, ProgressRecord, SinkRecord, SnapshotProgress, SnapshotRecord

SILENCE_S_MAX: Final = 10.0  # capture reports every second while a snapshot runs
RATE_WINDOW_S: Final = 30.0  # a batch of the warehouse takes seconds


@dataclass(frozen=True, slots=True)
class Standing:
    """One table's snapshot, or one sink's filling, at this moment."""

    what: Literal["table", "sink"]
    name: str  # schema.table, or the sink's
    status: str  # waiting, running, paused; ended: done, cancelled, failed, replaced (by another snapshot)
    done: int  # rows published; of a sink: offsets passed, which are its records and the markers among them
    total: int  # 0: not known
    per_s: float
    message: str = ""  # what it waits for, or why it failed

    @property
    def is_ended(self) -> bool:
        return self.status in ENDED or self.status == "replaced"

    @property
    def eta_s(self) -> float | None:
        """Seconds that are left at this rate; None where that can't be told."""
        if self.is_ended or not self.total or self.per_s <= 0:
            return None
        return (self.total - self.done) / self.per_s

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        eta_s = self.eta_s
        return {
            "what": self.what,
            "name": self.name,
            "status": self.status,
            "done": self.done,
            "total": self.total,
            "per_s": round(self.per_s, 1),
            "eta_s": None if eta_s is None else round(eta_s, 1),
            "message": self.message,
        }


# ---- tables


def table_standing(record: SnapshotRecord, progress: SnapshotProgress | None, silent_s: float) -> Standing:
    """`progress`: of the table, perhaps of an earlier snapshot; `silent_s`: since capture has said something of it."""
    status, per_s, message = str(record.status), 0.0, record.message
    if record.deleted and not message:
        message = f"deleted {record.deleted:,} that had vanished"
    if record.status == "running":
        if silent_s > SILENCE_S_MAX:
            message = f"capture has said nothing for {silent_s:.0f} s: does `cdc run` run?"
        elif progress is not None and progress.request == record.request:
            if progress.status != "waiting":
                per_s, message = progress.rows_per_s, progress.message or message
            elif progress.rows == record.rows:  # else that has passed, and the next report will say so
                status, message = "waiting", progress.message
    # What is estimated is the table: of a part of it nothing is known.
    total = record.rows if record.status == "done" else record.rows_estimated if is_whole(record) else 0
    return Standing("table", str(record.table), status, record.rows, max(total, record.rows) if total else 0, per_s,
                    message)  # fmt: skip


def replaced(standing: Standing) -> Standing:
    """Of a snapshot in whose place another has begun."""
    return Standing("table", standing.name, "replaced", 0, 0, 0.0, "another one of the table has begun")


def is_whole(record: SnapshotRecord) -> bool:
    """Whether it is of all rows: only those sweep, except for an epoch's first one, which may have nothing to sweep."""
    return record.where is None and (record.sweeps or record.request.startswith("epoch "))


def are_complete(record: SnapshotRecord | None) -> bool:
    """Whether the table's topic surely holds every row. A later snapshot of a part hides that it does."""
    return record is not None and is_whole(record) and record.status == "done"


def will_be_complete(record: SnapshotRecord | None) -> bool:
    """Whether it holds them, or will when the snapshot that runs is done."""
    return record is not None and is_whole(record) and record.status in ("running", "done")


# ---- sinks


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in the source's history, over all epochs."""

    epoch: int
    lsn: int

    @classmethod
    def published(cls, position: PositionRecord | ProgressRecord) -> "Mark":
        """Up to which everything lies in the topics."""
        lsn = position.lsn if isinstance(position, ProgressRecord) else position.resume_lsn
        return cls(position.epoch, lsn)

    @classmethod
    def applied(cls, sink: SinkRecord) -> "Mark":
        """That a reader of the store sees."""
        return cls(sink.epoch, sink.applied_lsn)


def newest(sinks: Iterable[SinkRecord], name: str, generation_min: int = 0) -> SinkRecord | None:
    """The record of the sink's serving generation: that of the newest job. None while one generation replaces another.
    `generation_min`: earlier ones belong to stores that are gone."""
    own = [sink for sink in sinks if sink.sink == name and sink.generation >= generation_min and sink.role == "serving"]
    return max(own, key=lambda sink: (sink.job, sink.generation), default=None)


def sink_standing(
    name: str, sink: SinkRecord | None, published: ProgressRecord | None, goal: Mark | None, rate: "Rate", now: float
) -> Standing:
    """Filled when it has applied `goal`; None: that is not known yet. `now`: monotonic seconds."""
    if sink is None:
        return Standing("sink", name, "waiting", 0, 0, 0.0, "Spark starts")
    ends = published.end_offsets if published is not None else {}
    total = sum(map(sum, ends.values()))
    done = sum(_passed(sink.end_offsets, topic, offsets) for topic, offsets in ends.items())
    is_filled = goal is not None and Mark.applied(sink) >= goal
    rate.observe(now, done)
    return Standing("sink", name, "done" if is_filled else "running", done, total, rate.per_s(now))


def _passed(have: Mapping[str, tuple[int, ...]], topic: str, ends: tuple[int, ...]) -> int:
    held = have.get(topic, ())
    return sum(min(end, held[partition] if partition < len(held) else 0) for partition, end in enumerate(ends))


class Rate:
    """How fast a number grows, over the last RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()  # each change, and the last one before the window

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
