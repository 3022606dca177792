"""Maintenance of tables, in which small files accumulate at one commit for each batch: they are merged, and old
snapshots are expired.

Every statement opens every file of its table, so without maintenance a stream slows down steadily over hours. The
sink's job merges small files regularly, and its own merges into the table wait for that. `cdc warehouse maintain` does
more, in a separate process beside the job: it never delays the job, and gives up a part that conflicts with a batch.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import structlog

from cdc.config.store_shapes import WarehouseOptions
from cdc.model.events import TableId
from sinks.warehouse import properties, statements
from sinks.warehouse.engine import Conflict, Engine
from sinks.warehouse.naming import table_location

log = structlog.get_logger(__name__)

# Files beyond those that the table's size requires. At a commit every 3 s, this is a compaction every few minutes.
SMALL_FILE_COUNT_MAX: Final = 50
# A reader that began at most this long ago still finds its snapshot's files, however many batches there were since.
HOUR_S: Final = 3600
DAY_S: Final = 86400
ATTEMPT_COUNT_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result for one table."""

    table: str
    rewritten_files: int = 0
    added_files: int = 0
    expired_snapshots: int = 0
    gave_way: bool = False  # a part was not compacted because of conflicts with batches


def needs_compaction(file_count: int, size_bytes: int) -> bool:
    """Returns whether a table with these data files has enough small ones to merge."""
    return file_count - size_bytes // statements.SETTLED_FILE_BYTES > SMALL_FILE_COUNT_MAX


def expired(snapshots: Iterable[tuple[int, float]], now_s: float, days: float) -> list[int]:
    """Returns the snapshots (id, time) to expire: all that are older than `days`, and of those older than an hour all
    but the last of each hour. The newest snapshot stays.
    """
    kept: dict[int, int] = {}  # hour → the last snapshot in it
    gone: list[int] = []
    by_time = sorted(snapshots, key=lambda snapshot: snapshot[1])
    for number, at_s in by_time[:-1]:
        if now_s - at_s > days * DAY_S:
            gone.append(number)
        elif now_s - at_s > HOUR_S:
            if (earlier := kept.get(int(at_s // HOUR_S))) is not None:
                gone.append(earlier)
            kept[int(at_s // HOUR_S)] = number
    return gone


class Maintenance:
    """Compacts tables of one engine, and expires their snapshots."""

    def __init__(self, engine: Engine, now: Callable[[], float], options: WarehouseOptions | None = None) -> None:
        self._engine = engine
        self._now = now
        self._options = options or WarehouseOptions()

    def run_if_due(self, table: tuple[str, ...], alone: AbstractContextManager[object]) -> None:
        """Merges the table's small files and expires its old snapshots if they are due; cheap otherwise. `alone`:
        entered while no merge of this process may write to the table, because under a constant stream a compaction
        would always lose against merges.
        """
        newest = next(self._engine.history(table), None)
        if newest is None or not self._options.compacts:
            return
        file_count = int(newest.summary.get("total-data-files", 0))
        if not needs_compaction(file_count, int(newest.summary.get("total-files-size", 0))):
            return
        started = self._now()
        try:
            with alone:
                if properties.DELETED_KEYS in (self._engine.table_properties(table) or {}):
                    self._forget_deleted(table)
                self._engine.run(statements.compact(table), by_row=True)
        except Conflict:
            log.info("compaction gave way to another writer", table=".".join(table))
            return
        self._expire(table)
        log.info("compacted", table=".".join(table), files=file_count, took_s=round(self._now() - started, 1))

    def maintain(self, namespace: str) -> list[Maintained]:
        """Maintains all tables of a warehouse, one after the other, whether they are due or not."""
        noted = self._engine.namespace_properties((namespace,)) or {}
        return [done for table in properties.listed_tables(noted) for done in self._maintain(namespace, table)]

    def _maintain(self, namespace: str, table: TableId) -> Iterable[Maintained]:
        where = table_location(namespace, table, is_flat=self._options.is_flat)
        if self._engine.table_properties(where.rows) is not None:
            yield self._rewrite(where.rows)
        if self._engine.table_properties(where.deleted) is not None:
            # Its writer only adds rows, so nothing here can conflict with a batch.
            self._retried(lambda: self._forget_deleted(where.deleted))
            yield self._rewrite(where.deleted)

    def _forget_deleted(self, table: tuple[str, ...]) -> None:
        older_than = _timestamp(self._now() - self._options.tombstone_ttl_s)
        self._engine.run(statements.forget_deleted(table, older_than))

    def _rewrite(self, table: tuple[str, ...]) -> Maintained:
        done: list[pa.Table] = []
        _, sorts = json.loads((self._engine.table_properties(table) or {}).get(properties.LAYOUT, "[[], []]"))
        statement = statements.rewrite(table, is_sorted=bool(sorts))
        gave_way = not self._retried(lambda: done.append(self._engine.query(statement)))
        counts = done[0].to_pylist()[0] if done else {}
        gave_way = gave_way or bool(counts.get("failed_data_files_count"))
        return Maintained(
            ".".join(table),
            int(counts.get("rewritten_data_files_count", 0)),
            int(counts.get("added_data_files_count", 0)),
            self._expire(table),
            gave_way,
        )

    def _retried(self, work: Callable[[], object]) -> bool:
        """Returns whether `work` was done before the attempts were used up by conflicts."""
        for _ in range(ATTEMPT_COUNT_MAX):
            try:
                work()
            except Conflict:
                continue
            return True
        return False

    def _expire(self, table: tuple[str, ...]) -> int:
        """Expires old snapshots and returns their number."""
        found = self._engine.query(statements.snapshots(table)).to_pylist()
        now_s, days = self._now(), self._options.snapshot_days
        tagged = set(self._engine.tags(table).values())  # Iceberg refuses to expire these
        old = expired([(row["snapshot_id"], row["at_s"]) for row in found], now_s, days)
        gone = [snapshot for snapshot in old if snapshot not in tagged]
        if gone:
            self._engine.run(statements.expire(table, gone, _timestamp(now_s - days * DAY_S)))
        return len(gone)


def _timestamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
