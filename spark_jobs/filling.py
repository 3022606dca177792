"""Watches stores that are being filled from the topics, and from a new snapshot of the source if one was requested or
the topics may lack rows.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.sink_records import newest
from monitoring.fill_progress import (
    FillProgress,
    HistoryPosition,
    Rate,
    are_complete,
    is_whole,
    sink_progress,
    will_be_complete,
)
from monitoring.snapshot_watch import Followed, SnapshotWatch


def tables_to_read(
    watch: SnapshotWatch, captured: Collection[TableId], fresh: Collection[TableId]
) -> tuple[list[TableId], dict[TableId, str]]:
    """Returns (tables that need a snapshot, table → request of a snapshot that runs already and is sufficient).

    Raises WatershedError for a snapshot that is paused.
    """
    records = watch.snapshots()
    wanted, running = [], {}
    for table in captured:
        record = records.get(table)
        if record is not None and record.status == "paused" and is_whole(record):
            raise WatershedError(
                f"the snapshot of {table} is paused",
                f"cdc snapshot resume --table {table}, or cdc snapshot cancel --table {table}",
            )
        if table in fresh:
            wanted.append(table)
        elif are_complete(record):
            continue
        elif record is not None and will_be_complete(record):
            running[table] = record.request
        else:
            wanted.append(table)
    return wanted, running


class Filling:
    """Watches until each sink has applied everything that was published when this began, and all rows of the snapshots
    if rows of the source were requested."""

    def __init__(
        self,
        watch: SnapshotWatch,
        generations: Mapping[str, int],
        requests: Mapping[TableId, str],
        now: Callable[[], float],
    ) -> None:
        """`generations`: sink → the earliest generation that counts; `requests`: of the snapshots to wait for."""
        self._watch = watch
        self._generations = generations
        self._tables = Followed(watch, requests)
        self._now = now
        self._rates = {sink: Rate() for sink in generations}
        self._are_read = False  # whether the tables' last rows were seen published
        self._goal: HistoryPosition | None = None

    def standings(self) -> list[FillProgress]:
        """Returns the progress of each table that is read, then of each sink."""
        tables = self._tables.statuses()
        if not self._are_read and all(table.status == "done" for table in tables):
            self._are_read = True
            self._watch.tail.forget_end()
        if self._are_read and self._goal is None:
            self._goal = self._reached(after_rows=bool(tables))
        sinks, published = self._watch.sinks(), self._watch.published()
        return tables + [
            sink_progress(name, newest(sinks, name, generation), published, self._goal, self._rates[name], self._now())
            for name, generation in self._generations.items()
        ]

    def _reached(self, *, after_rows: bool) -> HistoryPosition | None:
        """Returns how far publishing is now. The position that covers a snapshot's last rows is in their Kafka
        transaction; without a snapshot the progress record is enough, which exists also while capture is down."""
        if not after_rows:
            published = self._watch.published()
            return None if published is None else HistoryPosition.published(published)
        position = self._watch.position()
        return HistoryPosition.published(position) if position is not None and self._watch.tail.is_at_end else None

    @staticmethod
    def is_over(standings: Sequence[FillProgress]) -> bool:
        """Says whether nothing more will come: all have ended, or a table has ended in a way that leaves its topic
        incomplete."""
        failed = [table for table in standings if table.what == "table" and table.is_ended and table.status != "done"]
        return bool(failed) or all(standing.is_ended for standing in standings)
