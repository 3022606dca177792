"""The progress of snapshots, from their records in the state and progress topics."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from cdc.kafka.client import NEXT_REACHABLE
from cdc.kafka.compacted import CompactedTail
from cdc.kafka.state_reader import records_of
from cdc.model.control import SnapshotProgress, SnapshotRecord
from cdc.model.errors import GapError, UnreachableError
from cdc.model.events import TableId
from cdc.model.job_records import RebuildRecord
from cdc.model.table_state import TableRecord
from cdc.model.topics import Topics
from watershed.client.pipeline_watch import PipelineWatch
from watershed.status.fill_progress import FillProgress, replaced, table_progress

BEGUN_S_MAX: Final = 30.0  # from a signal's answer until its record is read: both are in one Kafka transaction
_STEP_S: Final = 0.05


class SnapshotWatch(PipelineWatch):
    """Follows both topics. A snapshot's record in the state topic is authoritative, because it is in the Kafka
    transaction of the rows; the progress topic adds the rate. Not thread-safe."""

    def __init__(self, topics: Topics, tail: CompactedTail, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic seconds."""
        super().__init__(topics, tail)
        self._clock = clock
        self._received_at: dict[str, float] = {}  # key → time of the last record, monotonic seconds
        self._began = clock()

    def read_to_end(self) -> None:
        super().read_to_end()
        self._began = self._clock()

    def poll(self, timeout_s: float) -> set[tuple[str, str]]:
        return self._heard_of(super().poll(timeout_s))

    def read_on(self) -> set[tuple[str, str]]:
        return self._heard_of(super().read_on())

    def _heard_of(self, changed: set[tuple[str, str]]) -> set[tuple[str, str]]:
        now = self._clock()
        self._received_at.update({key: now for _, key in changed if key.startswith(SnapshotProgress.KEY)})
        return changed

    def snapshots(self) -> dict[TableId, SnapshotRecord]:
        """Returns the last snapshot of each table that ever had one, by name."""
        records = records_of(SnapshotRecord, self._topics.state, self.tail.latest[self._topics.state])
        return {record.table: record for record in sorted(records, key=lambda record: record.table)}

    def progress_of(self, record: SnapshotRecord) -> FillProgress:
        key = SnapshotRecord.key_of(record.table)
        silent_s = self._clock() - max(self._began, self._received_at.get(key, 0.0))
        return table_progress(record, self.progress(SnapshotProgress, key), silent_s)

    def stopped(self) -> dict[TableId, TableRecord]:
        """Returns the tables that are stopped, by name, except those that only an operator starts again."""
        records = records_of(TableRecord, self._topics.state, self.tail.latest[self._topics.state])
        stopped = [record for record in records if record.status == "stopped" and not record.is_held]
        return {record.table: record for record in sorted(stopped, key=lambda record: record.table)}

    def rebuild(self, sink: str) -> RebuildRecord | None:
        """The last one of this sink that was asked for."""
        return self.progress(RebuildRecord, RebuildRecord.key_of(sink))


class FollowedSnapshots:
    """The snapshots of some tables, each identified by its request. Where one owes rows that capture could not publish
    otherwise, such as those of a gap, a later snapshot of all rows takes that over, and is followed in its place."""

    def __init__(self, watch: SnapshotWatch, requests: Mapping[TableId, str]) -> None:
        self._watch = watch
        self._requests = dict(requests)
        self._owing: dict[TableId, FillProgress] = {}  # what was last seen of those that owe rows

    def statuses(self) -> list[FillProgress]:
        """Returns the progress of each table, by name."""
        records = [record for table, record in self._watch.snapshots().items() if table in self._requests]
        return [self._status(record) for record in records]

    def _status(self, record: SnapshotRecord) -> FillProgress:
        now, before = self._watch.progress_of(record), self._owing.get(record.table)
        is_own = record.request == self._requests[record.table]
        if record.owes and (is_own or (before is not None and record.is_whole)):
            self._owing[record.table], self._requests[record.table] = now, record.request
            return now
        if is_own:
            return now
        # Only a snapshot of all rows that is done clears what is owed.
        return replaced(now) if before is None or record.owes else replace(before, status="done", message="")


def await_begun(watch: SnapshotWatch, request: str, tables: Iterable[TableId]) -> dict[TableId, str]:
    """Returns table → request when the state topic shows the snapshots that a signal began. Raises UnreachableError."""
    wanted = dict.fromkeys(tables, request)
    _until(watch, lambda: all(_request(watch, table) == request for table in wanted))
    return wanted


def epoch_of(watch: SnapshotWatch) -> int:
    """Returns the epoch of the position; 0 if there is none or it is damaged."""
    try:
        position = watch.position()
    except GapError:
        return 0
    return 0 if position is None else position.epoch


def await_healed(watch: SnapshotWatch, epoch_before: int) -> dict[TableId, str]:
    """Returns table → request of the snapshots of the next epoch. Raises UnreachableError."""

    def is_streaming() -> bool:
        if epoch_of(watch) <= epoch_before:
            return False
        position = watch.position()
        return position is not None and position.phase == "streaming"

    _until(watch, is_streaming)
    own = f"epoch {epoch_of(watch)}"
    snapshots = watch.snapshots().items()
    return {table: record.request for table, record in snapshots if record.owes or record.request == own}


def _request(watch: SnapshotWatch, table: TableId) -> str | None:
    record = watch.snapshots().get(table)
    return None if record is None else record.request


def _until(watch: SnapshotWatch, is_seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BEGUN_S_MAX
    while not is_seen():
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"Kafka: the effect of capture's answer was not seen in {BEGUN_S_MAX:.0f} s", NEXT_REACHABLE
            )
        watch.poll(_STEP_S)
