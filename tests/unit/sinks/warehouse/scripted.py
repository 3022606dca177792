"""An engine that does what a test scripted, and remembers what it was asked."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from sinks.contract import Json
from sinks.warehouse import statements
from sinks.warehouse.engine import Conflict, NewFiles, OpenTable, Snapshot
from sinks.warehouse.evolution import Evolution
from sinks.warehouse.properties import BATCH

FILES = {"total-data-files": "1", "total-files-size": "1000"}


class ScriptedEngine:
    """One table, as versions by key column `id`. A commit of another writer is a call of `intrude`."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.versions: dict[int, list[int]] = {}  # id → a version for each row of it
        self.snapshots: list[Snapshot] = []  # oldest first
        self.conflicts = 0  # of the next statements that commit, so many fail
        self.before_merge: Callable[[], None] | None = None  # called once
        self.namespace: dict[str, str] | None = None
        self.tables: dict[tuple[str, ...], dict[str, str]] = {}
        self.columns: dict[tuple[str, ...], dict[str, str]] = {}
        self.deleted = 0  # the highest version of a deleted key
        self.snapshot_times: dict[int, float] = {}  # id → time
        self.evolutions: list[Evolution] = []
        self.before_evolution: Callable[[], None] | None = None  # called once
        self.by_row: list[str] = []  # of the statements
        self.partitions: list[int | None] = []  # of each MERGE of a batch
        self._source: pa.Table | None = None
        self.tagged: dict[tuple[str, ...], dict[str, int]] = {}

    def tags(self, table: tuple[str, ...]) -> Mapping[str, int]:
        return dict(self.tagged.get(table, {}))

    def tag(self, table: tuple[str, ...], name: str, snapshot: int | None, removed: Sequence[str]) -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict
        held = self.tagged.setdefault(table, {})
        held[name] = -1 if snapshot is None else snapshot
        for other in removed:
            del held[other]

    def intrude(self, **versions: int) -> None:
        """Another writer adds rows: id (as `k1`) → version."""
        for name, version in versions.items():
            self.versions.setdefault(int(name[1:]), []).append(version)
        self._commit({})

    def run(
        self,
        statement: str,
        properties: Mapping[str, str] | None = None,
        *,
        by_row: bool = False,
        partitions: int | None = None,
    ) -> None:
        self.statements.append(statement)
        if BATCH in (properties or {}):
            self.partitions.append(partitions)
        if by_row:
            self.by_row.append(statement)
        kind = statement.split()[0]
        if kind in ("MERGE", "UPDATE", "CALL"):
            if self.before_merge and BATCH in (properties or {}):
                intrude, self.before_merge = self.before_merge, None
                intrude()
            if self.conflicts:
                self.conflicts -= 1
                raise Conflict
        if kind == "MERGE":
            self._merge(statement, properties or {})

    def _merge(self, statement: str, properties: Mapping[str, str]) -> None:
        assert self._source is not None
        if BATCH not in properties and "max(" in statement:  # the removal of rows whose key was deleted
            self._commit(properties)
            return
        if BATCH not in properties:  # the removal of doubles
            for number in self._source.column("id").to_pylist():
                self.versions[number] = [max(self.versions[number])]
            self._commit(properties)
            return
        written = 0
        for row in self._source.select(["id", "ws_version"]).to_pylist():
            held = self.versions.setdefault(row["id"], [])
            if not held or row["ws_version"] > max(held):
                written += 1
            held[:] = [max(version, row["ws_version"]) for version in held] or [row["ws_version"]]
        self._commit({**properties, "added-records": str(written)})

    def _commit(self, summary: Mapping[str, str]) -> None:
        number = len(self.snapshots) + 1
        self.snapshots.append(Snapshot(number, number - 1 or None, {**FILES, **summary}))

    def query(self, statement: str) -> pa.Table:
        if "max(" in statement:  # of deleted keys
            return pa.table({"highest": [self.deleted]})
        self.statements.append(statement)
        if ".snapshots" in statement:
            return pa.table({"snapshot_id": [*self.snapshot_times], "at_s": [*self.snapshot_times.values()]})
        return pa.table({"rows": [sum(len(held) for held in self.versions.values())]})

    def staged_source(
        self, name: str, files: Sequence[str], columns: str, key: Sequence[str] | None, *, is_small: bool
    ) -> None:
        del columns, key, is_small
        assert name == statements.SOURCE
        read = [pq.read_table(path, filesystem=system) for system, path in map(pa_fs.FileSystem.from_uri, files)]
        self._source = pa.concat_tables(read)

    def open_table(self, table: tuple[str, ...], bounds: Mapping[str, tuple[Json, Json]]) -> OpenTable | None:
        """Only statements write."""

    def commit(
        self, opened: OpenTable, files: NewFiles, properties: Mapping[str, str], *, is_guarded: bool
    ) -> Iterator[Snapshot]:
        raise AssertionError(f"only statements write: {opened}, {files}, {properties}, {is_guarded}")

    def history(self, table: tuple[str, ...]) -> Iterator[Snapshot]:
        return iter(self.snapshots[::-1]) if "__deleted" not in table[1] else iter(())

    def state(self, table: tuple[str, ...]) -> str | None:
        del table
        return str(self.deleted)

    def table_properties(self, table: tuple[str, ...]) -> Mapping[str, str] | None:
        return self.tables.get(table)

    def namespace_properties(self, namespace: tuple[str, ...]) -> Mapping[str, str] | None:
        del namespace
        return self.namespace

    def table_columns(self, table: tuple[str, ...]) -> Mapping[str, str]:
        return self.columns[table]

    def evolve(
        self, table: tuple[str, ...], change: Evolution, found: Mapping[str, str], noted: Mapping[str, str]
    ) -> None:
        if self.before_evolution:
            intrude, self.before_evolution = self.before_evolution, None
            intrude()
        if self.tables[table] != found:
            raise Conflict
        self.evolutions.append(change)
        columns = {name: kind for name, kind in self.columns[table].items() if name not in change.dropped}
        self.columns[table] = columns | dict(change.added) | dict(change.widened)
        self.tables[table] = {**found, **noted}

    def drop(self, name: tuple[str, ...]) -> None:
        self.tables.pop(name, None)

    def close(self) -> None:
        """Nothing to release."""

    def begun(self, word: str) -> list[str]:
        """Statements that begin with a word."""
        return [statement for statement in self.statements if statement.startswith(word)]
