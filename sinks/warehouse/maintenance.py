"""Small files pile up at one commit for each batch: merged, and old snapshots forgotten, at a rhythm.

Every statement opens every file of its table, so that without this a stream of hours slows down steadily.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Final

import structlog

from sinks.warehouse import statements
from sinks.warehouse.engine import Conflict, Engine

log = structlog.get_logger(__name__)

# Files beyond those that the table's size asks for. At a commit every 10 s, this is a compaction every few minutes.
SMALL_FILE_COUNT_MAX: Final = 50
# A reader that began this long ago still finds its snapshot's files.
SNAPSHOT_AGE_S: Final = 3600
SNAPSHOTS_KEPT: Final = 10


def needs_compaction(file_count: int, size_bytes: int) -> bool:
    """Of a table's data files."""
    return file_count - size_bytes // statements.SETTLED_FILE_BYTES > SMALL_FILE_COUNT_MAX


class Maintenance:
    """Keeps tables of one engine in shape."""

    def __init__(self, engine: Engine, now: Callable[[], float]) -> None:
        self._engine = engine
        self._now = now

    def tend(self, table: tuple[str, ...], alone: AbstractContextManager[object]) -> None:
        """Compact the table and expire its old snapshots, if it is time. Cheap if not. `alone`: entered while no merge
        of this process may write to the table: under a constant stream a compaction would always lose to one."""
        newest = next(self._engine.history(table), None)
        if newest is None:
            return
        file_count = int(newest.summary.get("total-data-files", 0))
        if not needs_compaction(file_count, int(newest.summary.get("total-files-size", 0))):
            return
        started = self._now()
        try:
            with alone:
                self._engine.run(statements.compact(table), by_row=True)
        except Conflict:
            log.info("compaction gave way to another writer", table=".".join(table))
            return
        older_than = datetime.fromtimestamp(started - SNAPSHOT_AGE_S, UTC).strftime("%Y-%m-%d %H:%M:%S")
        self._engine.run(statements.expire(table, older_than, SNAPSHOTS_KEPT))
        log.info("compacted", table=".".join(table), files=file_count, took_s=round(self._now() - started, 1))
