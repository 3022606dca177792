"""Fills a derived store that did not exist before: the checks, the process that does it, and its progress. Does not use
Spark.

A store is filled from the topics, and from a new snapshot of the source if one was requested or topics may lack rows.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig, sink_config
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.sink_records import SinkRecord, newest
from sinks.errors import SinkError
from sinks.registry import make_sink
from spark_jobs.generations import Checkpoints, sink_folder
from watershed.status.children import CDC, end_with_parent
from watershed.status.fill_progress import (
    FillProgress,
    HistoryPosition,
    Rate,
    are_complete,
    is_whole,
    sink_progress,
    will_be_complete,
)
from watershed.status.snapshot_watch import FollowedSnapshots, SnapshotWatch

END_S_MAX: Final = 15.0  # `cdc sink run` promises 10 s
LOG_NAME: Final = "bootstrap.log"
LOG_LINES: Final = 15  # in the error


@dataclass(frozen=True, slots=True)
class Store:
    """The state of a derived store."""

    sink: str
    generation: int | None  # the one that it holds; None: none
    is_running: bool  # a process on this machine runs the sink


def read_store(config: Config, sink: str) -> Store:
    """Reads the state of a store. Raises ConfigError for a sink that is not configured, SinkError for a store that
    can't be used."""
    sink_config(config.sinks, sink)
    checkpoints = Checkpoints(config.spark.checkpoint_location, config.topics.prefix, sink)
    generation = _generation(config, sink)
    return Store(sink, generation, checkpoints.is_locked())


def _generation(config: Config, sink: str) -> int | None:
    section = sink_config(config.sinks, sink)
    if not isinstance(section, WarehouseConfig):
        with closing(make_sink(sink, section, config.topics.prefix)) as opened:
            return opened.generation()
    try:
        from sinks.warehouse.catalog import catalog_place
        from sinks.warehouse.reader import WarehouseReader
    except ModuleNotFoundError as error:
        raise SinkError(
            f"the sink {sink} needs the Python package {error.name}", "pip install 'watershed-cdc[warehouse]'"
        ) from error
    return WarehouseReader(catalog_place(section, config.topics.prefix)).generation()


def generation_to_watch(store: Store, published: Sequence[SinkRecord], *, is_fresh: bool) -> int:
    """Returns the generation that will be filled, or a lower bound of it. `published`: every sink's records.

    Raises SinkError for a store that was filled before, unless fresh rows are wanted: those reach it without a new
    generation.
    """
    own = {record.generation: record for record in published if record.sink == store.sink}
    if store.generation is None:
        return max(own, default=0) + 1
    record = own.get(store.generation)
    if record is None or record.applied_lsn == 0:  # an earlier filling was interrupted: it continues
        return store.generation
    if not is_fresh:
        raise SinkError(
            f"the {store.sink} store already holds generation {store.generation}, so it is not new",
            f"`cdc sink run {store.sink}` keeps it in step; --fresh writes every row of the source to it again; a "
            "store whose data was deleted is filled again",
        )
    return store.generation


class SinkProcess:
    """Runs `cdc sink run` as a child process with its own log. It ends with this process, however it ends."""

    def __init__(self, config: Config, config_file: Path, sinks: Sequence[str], command: Sequence[str] = CDC) -> None:
        self._sinks = sinks
        self.log = sink_folder(config.spark.checkpoint_location, config.topics.prefix, sinks[0]) / LOG_NAME
        self._command = [*command, "sink", "run", *sinks, "--config", str(config_file), "--http-port", "0"]
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal's Ctrl-C is for this process, which tells the child
                preexec_fn=end_with_parent(),
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def check(self) -> None:
        """Raises SinkError if the job has ended by itself."""
        assert self._child is not None
        code = self._child.poll()
        if code is not None:
            lines = self.log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-LOG_LINES:]
            names = ", ".join(self._sinks)
            raise SinkError(
                f"the job of {names} ended by itself (exit code {code})", "\n".join([f"see {self.log}:", *lines])
            )

    def stop(self) -> None:
        """Sends SIGTERM: the job ends after its batch."""
        assert self._child is not None
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(END_S_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(self._child.pid, signal.SIGKILL)
                self._child.wait()


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


class FillWatch:
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
        self._tables = FollowedSnapshots(watch, requests)
        self._now = now
        self._rates = {sink: Rate() for sink in generations}
        self._goal: HistoryPosition | None = None

    def progress(self) -> list[FillProgress]:
        """Returns the progress of each table that is read, then of each sink."""
        tables = self._tables.statuses()
        if self._goal is None and all(table.status == "done" for table in tables):
            self._watch.read_on()
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
        return None if position is None else HistoryPosition.published(position)

    @staticmethod
    def is_over(progress: Sequence[FillProgress]) -> bool:
        """Says whether nothing more will come: all have ended, or a table has ended in a way that leaves its topic
        incomplete."""
        failed = [table for table in progress if table.what == "table" and table.is_ended and table.status != "done"]
        return bool(failed) or all(entry.is_ended for entry in progress)
