"""The merge of one table's staged rows: one guarded statement, which is retried after conflicts with other writers."""

import math
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

from cdc.config.store_shapes import WarehouseMode
from sinks.contract import Json
from sinks.errors import SinkError
from sinks.warehouse import every_change, properties, statements
from sinks.warehouse.deleted_keys import DeletedKeys
from sinks.warehouse.direct import DirectMerge
from sinks.warehouse.engine import Conflict, Engine, OpenTable, Snapshot
from sinks.warehouse.every_change import HistoryTable
from sinks.warehouse.maintenance import needs_compaction
from sinks.warehouse.naming import VERSION, TableLocation
from sinks.warehouse.saved_position import Commits, as_saved
from sinks.warehouse.staged_rows import StagedRows
from sinks.warehouse.staging import KEYS_MAX, Staged, TableForm

# A zombie job loses or wins a few commits, then it ends; each attempt costs about a second.
ATTEMPT_COUNT_MAX: Final = 20
# Snapshots that are searched for this merge's commit: others commit after it only in a race.
HISTORY_MAX: Final = 50
# The load of one task of a merge. A small merge in one task writes one file, and starts no needless tasks.
ROWS_PER_PARTITION: Final = 25_000
BYTES_PER_PARTITION: Final = 32 * 1024 * 1024
LARGE_ROW_BYTES: Final = 1024 * 1024
TABLE_ROWS_PER_PARTITION: Final = 250_000  # rows of the table, of which only keys and versions are read
# Types of key columns whose record values can be literals in a statement.
_LITERAL_TYPES: Final = frozenset({"int", "bigint", "string"})


@dataclass(frozen=True, slots=True)
class PreparedTable:
    """A table into which rows are merged."""

    place: TableLocation
    form: TableForm

    @property
    def columns(self) -> list[str]:
        return list(self.form.columns)

    @property
    def key(self) -> tuple[str, ...]:
        return self.form.key

    @property
    def mode(self) -> WarehouseMode:
        return self.form.mode

    @property
    def history(self) -> HistoryTable:
        return HistoryTable(self.place.rows, self.form.types, self.key)

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns whose values are unique among the table's rows, of a change log with `kind`."""
        return {"current": self.key, "history": (*self.key, VERSION), "changelog": (VERSION,)}[self.mode]

    @property
    def kind(self) -> str:
        """An expression of a row `t` that belongs to its identity; "" if there is none."""
        return every_change.IS_SWEEP if self.mode == "changelog" else ""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge."""

    written: int  # rows; the others were stale
    needs_compaction: bool
    commits: Commits | None = None  # None if others committed meanwhile


class Merger:
    """Merges on one engine. Not thread-safe.

    **Deleted keys** are in a separate table, and no Iceberg commit spans two tables. A merge records the keys that it
    deletes, reads which keys were deleted later than its rows, and commits, even if nothing changes. When one writer
    restores a row that another deletes, one of both finds that its commit does not follow the snapshot on which it was
    planned: it reads the deleted keys again, and removes the row. If it is killed before that, the next merge of the
    table finds the same in the snapshot's summary.
    """

    def __init__(
        self, engine: Engine, pause: Callable[[float], None], deleted: DeletedKeys, direct: DirectMerge
    ) -> None:
        self._engine = engine
        self._pause = pause
        self._deleted = deleted
        self._direct = direct

    def merge(
        self, table: PreparedTable, staged: Sequence[Staged], *, lacks: bool, origin: Mapping[str, str] | None = None
    ) -> Merged:
        """Merges staged files in one commit, and records deleted keys in one more. `lacks`: some of the files' rows
        lack columns; for a table of mode `current` all of them do, and can only change rows that exist. `origin`:
        properties for the snapshot's summary. Raises SinkError when other writers win ATTEMPT_COUNT_MAX times.
        """
        batch = uuid.uuid4().hex
        rows = self._direct.rows(table.form, staged) if self._direct.suits(table.form, staged) else None
        for attempt in range(ATTEMPT_COUNT_MAX):
            opened = None if rows is None else self._direct.open(table.place.rows, table.form, rows)
            planned = self._settled(table, opened)
            summary = {
                **(origin or {}),
                properties.BATCH: batch,
                properties.PLANNED: str(_id(planned) or 0),
            }
            try:
                commits = None
                if opened is not None and rows is not None:
                    commits = self._merge_directly(table, opened, staged, rows, summary)
                is_direct = commits is not None
                if commits is None:
                    commits = self._merge_by_statement(table, staged, planned, summary, lacks=lacks)
            except Conflict:
                # A random pause keeps two writers from conflicting in step again.
                self._pause(random.random() * min(2.0, 0.1 * 2**attempt))  # noqa: S311
                continue
            merged = _look_back(table, batch, planned, commits)
            if merged.commits is not None:
                state = opened.state() if is_direct and opened is not None else None
                return replace(
                    merged,
                    written=merged.written + sum(part.delete_count for part in staged),
                    commits=merged.commits._replace(state=state),
                )
            self._open_source(table, staged, lacks=lacks, is_small=_partitions(staged, 0) == 1)
            self._repair(table, of_source=True)
            return merged
        raise SinkError(
            f"warehouse: table {'.'.join(table.place.rows)}: the merge conflicted with other writers' commits "
            f"{ATTEMPT_COUNT_MAX} times",
            "only one job may write a warehouse: stop the others",
        )

    def _merge_directly(
        self,
        table: PreparedTable,
        opened: OpenTable,
        staged: Sequence[Staged],
        rows: StagedRows,
        summary: Mapping[str, str],
    ) -> Iterator[Snapshot] | None:
        """Returns the table's commits after this merge, newest first; None if a statement must merge the rows. Raises
        Conflict."""
        deleted, lowest = table.place.deleted, min(part.lowest for part in staged)
        has_deletes = any(part.delete_count for part in staged)
        if has_deletes or self._deleted.highest(self._engine, deleted) >= lowest:
            # Read after the rows' table was opened: who adds deletes later, commits to that table later.
            keys = self._direct.open_deleted(deleted, rows, lowest)
            kept = None if keys is None else self._direct.without_deleted(keys, table.form, rows)
            if keys is None or kept is None:
                return None
            if has_deletes:
                add = partial(self._direct.add_deleted, keys, table.form, rows)
                self._deleted.note(self._engine, deleted, staged, add)
            rows = kept
        return self._direct.merge(opened, table.form, rows, summary)

    def _merge_by_statement(
        self,
        table: PreparedTable,
        staged: Sequence[Staged],
        planned: Snapshot | None,
        summary: Mapping[str, str],
        *,
        lacks: bool,
    ) -> Iterator[Snapshot]:
        """Returns the table's commits after this merge, newest first. Raises Conflict."""
        condition = _condition(table, staged)
        partitions = _partitions(staged, 0 if condition or planned is None else _total(planned, "total-records"))
        self._open_source(table, staged, lacks=lacks, is_small=partitions == 1)
        statement = self._statement(table, staged, condition, lacks=lacks)
        if any(part.delete_count for part in staged):
            deleted = table.place.deleted
            add = partial(self._engine.run, statements.note_deleted(deleted, table.key))
            self._deleted.note(self._engine, deleted, staged, add)
        self._engine.run(statement, summary, by_row=lacks or table.mode == "history", partitions=partitions)
        return self._engine.history(table.place.rows)

    def _open_source(self, table: PreparedTable, staged: Sequence[Staged], *, lacks: bool, is_small: bool) -> None:
        """Makes the staged rows readable for statements."""
        self._engine.staged_source(
            statements.SOURCE,
            [part.path for part in staged],
            statements.source_columns(table.form.types, table.form.staged_columns(lacks=lacks)),
            table.key if table.form.has_float_key and table.mode == "current" else None,
            is_small=is_small,
        )

    def _statement(self, table: PreparedTable, staged: Sequence[Staged], condition: str, *, lacks: bool) -> str:
        lowest, highest = min(part.lowest for part in staged), max(part.highest for part in staged)
        rows, deleted = table.place.rows, table.place.deleted
        match table.mode:
            case "history":
                compares = any(part.compares for part in staged)
                return table.history.merge(lowest, condition, compares=compares, lacks=lacks)
            case "changelog":
                return every_change.append(rows, table.columns, lowest, highest)
        if lacks:  # a key that is deleted has no row to change
            return statements.merge_columns(rows, table.columns, table.key, condition)
        source = statements.SOURCE
        if self._deleted.highest(self._engine, deleted) >= lowest:
            source = statements.without_deleted(deleted, table.key, lowest)
        return statements.merge(rows, table.columns, table.key, condition, source)

    def _settled(self, table: PreparedTable, opened: OpenTable | None) -> Snapshot | None:
        """Returns the newest snapshot, after repairing what a writer that was killed has left unfinished; then a table
        that was opened before is behind, and a commit to it is a conflict."""
        recent = self._engine.history(table.place.rows) if opened is None else opened.snapshots()
        planned = last = next(recent, None)
        for _ in range(HISTORY_MAX):  # skips compactions
            if last is None or properties.REPAIRED in last.summary or properties.PLANNED in last.summary:
                break
            last = next(recent, None)
        if last is None or last.summary.get(properties.PLANNED) in (None, str(last.parent_id or 0)):
            return planned
        self._repair(table, of_source=False)
        return next(self._engine.history(table.place.rows), None)

    def _repair(self, table: PreparedTable, *, of_source: bool) -> None:
        """Deletes all but the newest row of each identity (`of_source`: only of those that the source has), and rows
        whose keys were deleted. Rows of a history get ends that take the other writer's rows into account.
        """
        rows, deleted = table.place.rows, table.place.deleted
        repairs = [statements.remove_duplicates(rows, table.identity, table.kind, of_source=of_source)]
        if table.mode == "current":
            repairs.append(statements.remove_deleted(rows, deleted, table.key))
        elif table.mode == "history":
            repairs.append(table.history.repair())
        for statement in repairs:
            self._run_until_alone(table, statement, {properties.REPAIRED: "true"} if statement is repairs[-1] else {})

    def _run_until_alone(self, table: PreparedTable, statement: str, noted: Mapping[str, str]) -> None:
        for _ in range(ATTEMPT_COUNT_MAX):
            try:
                return self._engine.run(statement, noted)
            except Conflict:
                continue
        raise SinkError(
            f"warehouse: table {'.'.join(table.place.rows)}: duplicate rows can't be removed because of other writers",
            "only one job may write a warehouse: stop the others",
        )


def _look_back(table: PreparedTable, batch: str, planned: Snapshot | None, commits: Iterator[Snapshot]) -> Merged:
    """Returns the result of this merge's commit, with commits if it directly follows the snapshot on which it was
    planned. If another commit came between, the catalog may have missed a conflict: two MERGEs that match nothing are
    both appends, and keys that were deleted meanwhile are in another table.
    """
    recent = islice(commits, HISTORY_MAX)
    ours = next((snapshot for snapshot in recent if snapshot.summary.get(properties.BATCH) == batch), None)
    if ours is None:
        return Merged(0, needs_compaction=True)
    files, size = _total(ours, "total-data-files"), _total(ours, "total-files-size")
    written = _total(ours, "added-records")
    if table.mode == "history":  # ends of rows that were there are deletions by position, and added again
        written -= _total(ours, "added-position-deletes")
    is_alone = ours.parent_id == _id(planned)
    commits_alone = Commits(as_saved(planned), as_saved(ours), None) if is_alone else None
    return Merged(max(0, written), needs_compaction(files, size), commits_alone)


def _id(snapshot: Snapshot | None) -> int | None:
    return None if snapshot is None else snapshot.id


def merges(staged: Sequence[Staged]) -> list[Sequence[Staged]]:
    """Returns the files of one table, grouped into merges: one for all files, and one for each file whose rows are so
    large that Spark's copies of a few of them would fill its memory.
    """
    large = [part for part in staged if _has_large_rows([part])]
    others = [part for part in staged if part not in large]
    return [*([others] if others else []), *([part] for part in large)]


def _has_large_rows(staged: Sequence[Staged]) -> bool:
    return sum(part.byte_count for part in staged) > sum(part.row_count for part in staged) * LARGE_ROW_BYTES


def _total(snapshot: Snapshot, name: str) -> int:
    return int(snapshot.summary.get(name, 0))


def _partitions(staged: Sequence[Staged], table_rows: int) -> int:
    """Returns the number of partitions for the join of the staged rows with `table_rows` rows of the table."""
    if _has_large_rows(staged):
        return 1  # several tasks would each have copies of such a row in memory
    rows, size = sum(part.row_count for part in staged), sum(part.byte_count for part in staged)
    return max(
        1,
        math.ceil(rows / ROWS_PER_PARTITION),
        math.ceil(size / BYTES_PER_PARTITION),
        math.ceil(table_rows / TABLE_ROWS_PER_PARTITION),
    )


def _condition(table: PreparedTable, staged: Sequence[Staged]) -> str:
    """Returns the condition that limits the table's rows to the staged keys; "" if there are too many keys, or if they
    can't be literals.
    """
    keys: list[tuple[Json, ...]] = []
    for part in staged:
        if part.keys is None or len(keys) + len(part.keys) > KEYS_MAX:
            return ""
        keys += part.keys
    listed = [
        (name, sorted({key[at] for key in keys}))
        for at, name in enumerate(table.key)
        if table.form.columns[name].sql in _LITERAL_TYPES
    ]
    return statements.one_of(listed)
