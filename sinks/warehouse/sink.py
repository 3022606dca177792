"""The warehouse as a sink: one guarded MERGE for each table of a batch, several tables at once."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from queue import SimpleQueue

from cdc.config.store_shapes import WarehouseMode, WarehouseOptions
from cdc.model.control import ProgressRecord
from cdc.model.events import TableId, TableSchema
from sinks.contract import Change, Result, StoredRow
from sinks.errors import SinkError
from sinks.schema_history import SchemaHistory
from sinks.warehouse import properties, statements
from sinks.warehouse.deleted_keys import DeletedKeys
from sinks.warehouse.direct import DirectMerge, FileContents
from sinks.warehouse.engine import Conflict, Engine
from sinks.warehouse.every_change import sweep_log
from sinks.warehouse.layout import layout_of
from sinks.warehouse.merging import ATTEMPT_COUNT_MAX, Merger, PreparedTable, merges
from sinks.warehouse.naming import TableLocation, table_location
from sinks.warehouse.preparation import Preparation
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.saved_position import SavedPosition
from sinks.warehouse.staging import Staged, Stager, TableForm, delete_staged
from sinks.warehouse.tags import Tags


class WarehouseSink:
    """Keeps Iceberg tables through an Engine. Implements `sinks.contract.Sink`."""

    def __init__(
        self,
        engine: Engine,
        merging: Sequence[Engine],
        reader: WarehouseReader,
        staging: str,
        pause: Callable[[float], None] = time.sleep,
        name: str = "warehouse",
        options: WarehouseOptions | None = None,
    ) -> None:
        """`merging`: engines for merges only, as many as tables are merged at once; `engine`: for everything else,
        which another thread does at the same time. `staging`: the URI of the folder for staged files.
        """
        self.name = name
        self._engine = engine
        self._engines = (engine, *merging)
        self._reader = reader
        self._namespace = reader.namespace
        self._staging = staging
        self._tables: dict[TableId, PreparedTable] = {}
        self._schemas: dict[TableId, TableSchema] = {}
        self._options = options or WarehouseOptions()
        self._deleted = DeletedKeys()
        self._preparation = Preparation(self._engine, self._namespace, pause)
        self._saved_position = SavedPosition(self._engine, self._namespace, self._place)
        self._threads = ThreadPoolExecutor(len(merging), "merge")
        self._mergers: SimpleQueue[Merger] = SimpleQueue()
        contents = FileContents()
        for one in merging:
            self._mergers.put(Merger(one, pause, self._deleted, DirectMerge(one, contents, self._options.s3)))
        self._state = threading.Lock()  # guards the two attributes below
        self._locks: dict[tuple[str, ...], threading.Lock] = {}  # by table
        self._due: set[tuple[str, ...]] = set()  # tables that need compaction

    # ---- generation

    def generation(self) -> int | None:
        """Returns the namespace's marker if every table that it lists exists and has the same marker."""
        noted = self._engine.namespace_properties((self._namespace,))
        if noted is None or not noted.get(properties.GENERATION, "").isdecimal():
            return None
        marker = noted[properties.GENERATION]
        for table in properties.listed_tables(noted):
            found = self._engine.table_properties(self._place(table).rows)
            if found is None or found.get(properties.GENERATION) not in properties.markers(noted):
                return None
        return int(marker)

    def begin_generation(self, generation: int) -> None:
        """Implements Sink.begin_generation. Tables of earlier generations stay as they are until they are prepared."""
        if self.generation() == generation:
            return
        self._engine.run(statements.create_namespace((self._namespace,)))
        marker = {
            properties.GENERATION: str(generation),
            properties.TABLES: "[]",
            properties.ADOPTED: "[]",
            properties.NOTE: properties.NO_NOTE,
        }
        self._engine.run(statements.set_namespace_properties((self._namespace,), marker))

    def save_position(self, text: str, before: str | None) -> None:
        self._saved_position.write(text, before)

    def saved_position(self) -> str | None:
        return self._saved_position.read()

    # ---- tables

    def reset_versions(self, table: TableId) -> None:
        self._preparation.discard(table, self._place(table))

    def discard(self, table: TableId) -> None:
        self._preparation.discard(table, self._place(table))

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        layout = layout_of(self._options.shape(schema.table), schema)
        self.attach(schema)
        self._preparation.prepare(SchemaHistory.of([*earlier, schema]), self._tables[schema.table], layout)

    def attach(self, schema: TableSchema) -> None:
        self._schemas[schema.table] = schema
        form = TableForm.of(schema, self.mode(schema.table))
        self._tables[schema.table] = PreparedTable(self._place(schema.table), form)

    def _place(self, table: TableId) -> TableLocation:
        return table_location(self._namespace, table, is_flat=self._options.is_flat)

    def mode(self, table: TableId) -> WarehouseMode:
        return self._options.shape(table).mode

    # ---- rows

    def reduced(self, changes: Sequence[Change]) -> list[Change]:
        """Implements spark_jobs.piece_writer.ChangeWriter.reduced."""
        return Stager(self._staging, self._schemas.values(), self.mode).reduced(changes)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        """Stages the changes and merges them, in one process; in production tasks stage and the driver merges."""
        stager = Stager(self._staging, self._schemas.values(), self.mode, self._options.s3)
        results = stager.apply(changes)
        staged = stager.finish()
        try:
            self.take(staged)
        finally:
            delete_staged((part.path for part in staged), self._options.s3)
        return results

    def take(self, staged: Sequence[Staged], origins: Mapping[TableId, Mapping[str, str]] | None = None) -> int:
        """Merges staged files, guarded by version: one commit for each table, one more for rows that lack columns, and
        one for the keys that were deleted. `origins`: table → properties that say where its rows came from, for the
        snapshots' summaries. Returns the number of written rows; the others were stale. Raises SinkError after all
        tables have been attempted.
        """
        files: dict[TableId, list[Staged]] = {}
        for part in staged:
            files.setdefault(part.table, []).append(part)
        self._saved_position.written(files)
        # The largest tables are first, so that all threads end at about the same time.
        by_size = sorted(files.items(), key=lambda entry: -sum(part.byte_count for part in entry[1]))
        results = [self._threads.submit(self._take, *entry, (origins or {}).get(entry[0])) for entry in by_size]
        wait(results)
        return sum(result.result() for result in results)

    def _take(self, table_id: TableId, staged: Sequence[Staged], origin: Mapping[str, str] | None) -> int:
        table = self._tables[table_id]
        merger = self._mergers.get()
        try:
            with self._lock(table.place.rows):
                if table.mode == "current":
                    # Whole rows first: rows that lack columns are merged into existing rows, in a second commit.
                    parts = [(lacks, [part for part in staged if part.lacks is lacks]) for lacks in (False, True)]
                else:
                    parts = [(any(part.lacks for part in staged), list(staged))]
                merged = [
                    merger.merge(table, part, lacks=lacks, origin=origin)
                    for lacks, all_ in parts
                    for part in merges(all_)
                ]
        finally:
            self._mergers.put(merger)
        commits = merged[0].commits
        for later in merged[1:]:
            commits = commits and commits.and_then(later.commits)
        self._saved_position.committed(table_id, commits)
        with self._state:
            if merged[-1].needs_compaction:
                self._due.add(table.place.rows)
            if any(part.delete_count for part in staged):
                self._due.add(table.place.deleted)
        return sum(one.written for one in merged)

    def sweep(self, table: TableId, floor: int) -> int:
        self._saved_position.written([table])
        known = self._tables[table]
        rows, deleted = known.place.rows, known.place.deleted
        below = known.history.count_below(floor) if known.mode == "history" else statements.count_below(rows, floor)
        for _ in range(ATTEMPT_COUNT_MAX):
            count = int(self._engine.query(below).column(0)[0].as_py())
            if not count:
                return 0
            try:
                with self._lock(rows):
                    if known.mode == "current":
                        self._engine.run(statements.note_swept(rows, deleted, known.key, floor))
                        self._engine.run(statements.remove_deleted(rows, deleted, known.key, floor))
                    elif known.mode == "history":
                        self._engine.run(known.history.sweep(floor))
                    else:
                        self._engine.run(sweep_log(rows, floor))
            except Conflict:
                continue
            return count
        raise SinkError(
            f"warehouse: table {table}: the sweep conflicted with other writers' commits {ATTEMPT_COUNT_MAX} times",
            "only one job may write a warehouse: stop the others",
        )

    def make_readable(self, tables: Collection[TableId]) -> None:
        """Does nothing: a commit is visible at once."""

    def tag(self, cut: ProgressRecord, topics: Mapping[TableId, str]) -> bool:
        """Tags tables that have everything up to the cut, see Tags. `topics`: table → its topic."""
        tags = Tags(self._engine, self._options.tags_kept)
        return tags.set(cut, {self._place(table).rows: topic for table, topic in topics.items()})

    def take_due(self) -> set[tuple[str, ...]]:
        """Returns the tables that have become due for compaction since the last call. Thread-safe."""
        with self._state:
            due, self._due = self._due, set()
        return due

    def without_merges(self, table: tuple[str, ...]) -> AbstractContextManager[object]:
        """Returns a context during which this object merges nothing into the table; merges wait. Thread-safe."""
        return self._lock(table)

    def _lock(self, table: tuple[str, ...]) -> threading.Lock:
        with self._state:
            return self._locks.setdefault(table, threading.Lock())

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        return self._reader.rows(table)

    def close(self) -> None:
        self._threads.shutdown(wait=False)
        for engine in self._engines:
            engine.close()
