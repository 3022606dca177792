"""A generation that is built beside the serving one, by a separate query, until it can replace it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Final, Literal, TypeGuard

import structlog
from pyspark.sql import SparkSession

from cdc.config.config_file import Config
from cdc.daemon.conditions import Conditions
from cdc.model.errors import WatershedError
from cdc.model.events import pack_version
from cdc.model.job_records import RebuildRecord
from cdc.model.sink_records import SinkRecord, newest
from sinks.errors import FullError, RefusedError
from spark_jobs.applied import Applied
from spark_jobs.failures import reason
from spark_jobs.generations import reshaped_tables
from spark_jobs.observing import SinkObserver
from spark_jobs.rebuild import swap_goal
from spark_jobs.sink_thread import OpenSink, PipelineConnections, SinkThread
from spark_jobs.starting import continued, first_position, included_again, of_tables, parse_position
from spark_jobs.sync import SinkSync

log = structlog.get_logger(__name__)

# The generation is ready when it shows what had been published, or shown to readers, so short a time before.
BEHIND_S_MAX: Final = 5.0
LOOK_S: Final = 0.05


class Builder(SinkThread):
    """Fills one slot. A failure does not affect the serving generation, and is passed to `on_failure`."""

    def __init__(
        self,
        name: str,
        config: Config,
        spark: SparkSession,
        open_sink: Callable[[str | None], OpenSink],
        target: tuple[str, int],
        on_failure: Callable[[str, str], None],
        request: RebuildRecord,
        observer: SinkObserver | None = None,
    ) -> None:
        """`config`: of the tables that are built; `target`: slot and generation; `on_failure`: called at each failure,
        with a message and the next step."""
        super().__init__(name, config, spark, open_sink, threading.Event(), Conditions(), observer)
        self.slot, self.generation = target
        self._on_failure = on_failure
        self._is_rollback = request.action == "rollback"
        self._tables = request.table_ids
        self.role: Literal["building", "kept"] = "kept" if self._is_rollback else "building"
        self._is_ready = threading.Event()
        self._refusal = ""  # why it was said last that the generation waits
        self._goal: tuple[tuple[int, int], float] | None = None
        self._thread = threading.Thread(target=self.run, name=f"{name} {self.slot}", daemon=True)

    @property
    def is_ready(self) -> bool:
        """Returns whether the generation has caught up with the published records."""
        return self._is_ready.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Requests the end of the query, which ends after the running batch."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Returns whether the builder has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def reaches(self, goal: Applied, timeout_s: float) -> bool:
        """Waits until the generation shows this position. Returns False after the time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (sync := self._sync) is not None and sync.state.applied[:2] >= goal[:2]:
                return True
            time.sleep(LOOK_S)
        return False

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Does nothing: the serving worker holds the lock."""
        yield True

    def _report(self, state: str, error: Exception | None = None) -> None:
        if error is not None and not self._stop.is_set():
            message = error.message if isinstance(error, WatershedError) else reason(error)
            log.warning("rebuild is held up", sink=self.name, state=state, because=message)
            self._on_failure(message, getattr(error, "hint", ""))

    def _is_permanent(self, error: Exception) -> TypeGuard[WatershedError]:
        """Returns True also for a full store, because the serving generation needs the remaining space."""
        return isinstance(error, FullError) or super()._is_permanent(error)

    def _work(self, stack: ExitStack, connections: PipelineConnections) -> None:
        opened = self._open_sink(self.slot)
        stack.enter_context(closing(opened))
        assert opened.slots is not None
        slots = opened.slots
        last = continued(opened.sink.generation(), parse_position(opened.sink.saved_position()), connections.history)
        if last is not None and last.generation == self.generation and self._has_shape_of(last, connections):
            # A job that was killed just before the swap has saved what the other tables show, too.
            histories = connections.control.schema_histories
            topics = {str(table): history.newest.topic for table, history in histories.items()}
            start = last if self._tables is None else of_tables(last, topics)
            self._mappings, is_continued = dict(start.mappings), True
        elif self._is_rollback:
            raise RefusedError(
                f"{self.name}: generation {self.generation} was kept, but can't serve: it is incomplete, was filled "
                "from topics that no longer exist, or the sink's mapping or shapes have changed since",
                "restore the sink's former configuration, or drop the generation: cdc rebuild --drop-old",
            )
        else:
            self._mappings, is_continued = {}, False
            slots.drop(self.slot)
            opened.sink.begin_generation(self.generation)
            start = first_position(self.name, self.generation, connections.history, (), time.time_ns() // 1000)
            opened.sink.save_position(start.encode().decode(), None)
        sync = self._begin_sync(opened, connections, start)
        log.info("generation is built", sink=self.name, generation=self.generation, goes_on=is_continued)

        def is_over() -> bool:
            if not self._is_ready.is_set() and self._has_caught_up(sync, connections):
                applied = sync.state.applied
                removed = slots.remove_unmet(self.slot, pack_version(applied.epoch, applied.seq), self._tables)
                log.info("generation has caught up", sink=self.name, generation=self.generation, removed=removed)
                self._is_ready.set()
            return False

        self._run_queries(sync, self.generation, is_over)

    def _has_shape_of(self, last: SinkRecord, connections: PipelineConnections) -> bool:
        """Says whether the generation holds the tables that are configured now, in the configured form."""
        reshaped = reshaped_tables(self._section, connections.control.schema_histories.values(), last)
        return not reshaped and not included_again(last, self._section.holds)

    def _has_caught_up(self, sync: SinkSync, connections: PipelineConnections) -> bool:
        """Returns whether the generation shows all that it must show (`swap_goal`), as of a short time ago."""
        now = time.monotonic()
        if self._goal is None or now - self._goal[1] > BEHIND_S_MAX:
            serving = newest(connections.control.sinks.values(), self.name)
            self._goal = (swap_goal(sync.state.published, serving, time.time()), now)
        has_caught_up = sync.state.applied[:2] >= self._goal[0] > (0, 0) and sync.state.has_read_out
        return has_caught_up and self._has_all_tables(sync)

    def _has_all_tables(self, sync: SinkSync) -> bool:
        """A generation without a part of a table does not replace one that has it."""
        refused = next(iter(sync.state.refused.values()), None)
        if refused is not None and refused.reason != self._refusal:
            log.warning("generation waits for a table", sink=self.name, table=refused.table, because=refused.reason)
            self._on_failure(f"it waits for {refused.table}: {refused.reason}", refused.next)
            self._refusal = refused.reason
        return refused is None
