"""One table's staged rows merged into it: one guarded statement, tried again when another writer comes between."""

import math
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from cdc.model.errors import SinkError
from sinks.contract import Json
from sinks.warehouse import properties, statements
from sinks.warehouse.engine import Conflict, Engine, Snapshot
from sinks.warehouse.maintenance import needs_compaction
from sinks.warehouse.naming import Place
from sinks.warehouse.staging import KEYS_MAX, Staged, TableForm

# A zombie beside us loses or wins a few commits, then its job ends; each attempt costs about a second.
ATTEMPT_COUNT_MAX: Final = 20
# Snapshots looked at to find our own commit: others commit between ours and the look only in a race.
HISTORY_MAX: Final = 50
# How much of it one task of a merge takes: a small merge in one task has one file and no needless start of others.
ROWS_PER_PARTITION: Final = 25_000
BYTES_PER_PARTITION: Final = 32 * 1024 * 1024
LARGE_ROW_BYTES: Final = 1024 * 1024
TABLE_ROWS_PER_PARTITION: Final = 250_000  # of the table, of which only keys and versions are read
# Types of key columns whose values a statement says as the record does.
_SAYABLE: Final = frozenset({"int", "bigint", "string"})


@dataclass(frozen=True, slots=True)
class PreparedTable:
    """A table that rows are merged into."""

    place: Place
    form: TableForm

    @property
    def columns(self) -> list[str]:
        return list(self.form.columns)

    @property
    def key(self) -> tuple[str, ...]:
        return self.form.key


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did."""

    written: int  # rows; the others were stale
    needs_compaction: bool


class Merger:
    """Merges on one engine. Not for use by two threads."""

    def __init__(self, engine: Engine, pause: Callable[[float], None]) -> None:
        self._engine = engine
        self._pause = pause

    def merge(self, table: PreparedTable, staged: Sequence[Staged], *, lacks: bool) -> Merged:
        """One commit. `lacks`: these files' rows lack columns, and can only change others that are there."""
        batch = uuid.uuid4().hex
        condition = _condition(table, staged)
        types = {name: kind.sql for name, kind in table.form.columns.items()}
        for attempt in range(ATTEMPT_COUNT_MAX):
            planned = next(self._engine.history(table.place.rows), None)
            partitions = _partitions(staged, 0 if condition or planned is None else _total(planned, "total-records"))
            self._engine.staged_source(
                statements.SOURCE,
                [part.path for part in staged],
                statements.source_columns(types, lacks=lacks),
                table.key if table.form.has_float_key else None,
                is_small=partitions == 1,
            )
            write = statements.merge_columns if lacks else statements.merge
            try:
                self._engine.run(
                    write(table.place.rows, table.columns, table.key, condition),
                    {properties.BATCH: batch},
                    by_row=lacks,
                    partitions=partitions,
                )
            except Conflict:
                # Two writers that lose to each other in step must not do so again.
                self._pause(random.random() * min(2.0, 0.1 * 2**attempt))  # noqa: S311
                continue
            return self._look_back(table, batch, planned)
        raise SinkError(
            f"warehouse: table {'.'.join(table.place.rows)}: other writers' commits came before ours "
            f"{ATTEMPT_COUNT_MAX} times",
            "one job may write a warehouse: stop the others",
        )

    def _look_back(self, table: PreparedTable, batch: str, planned: Snapshot | None) -> Merged:
        """Our commit must stand directly on the snapshot that it was planned on. If another's came between, the
        catalog's own check for conflicts may have had a hole (two MERGEs that match nothing are both appends)."""
        recent = islice(self._engine.history(table.place.rows), HISTORY_MAX)
        ours = next((snapshot for snapshot in recent if snapshot.summary.get(properties.BATCH) == batch), None)
        if ours is None or ours.parent_id != (planned.id if planned else None):
            self._remove_doubles(table)
        if ours is None:
            return Merged(0, needs_compaction=True)
        files, size = _total(ours, "total-data-files"), _total(ours, "total-files-size")
        return Merged(_total(ours, "added-records"), needs_compaction(files, size))

    def _remove_doubles(self, table: PreparedTable) -> None:
        """Leave one row for each of the registered keys, the newest."""
        for _ in range(ATTEMPT_COUNT_MAX):
            try:
                return self._engine.run(statements.remove_doubles(table.place.rows, table.key))
            except Conflict:
                continue
        raise SinkError(
            f"warehouse: table {'.'.join(table.place.rows)}: other writers keep it from being mended",
            "one job may write a warehouse: stop the others",
        )


def merges(staged: Sequence[Staged]) -> list[Sequence[Staged]]:
    """The files of one table, in parts that are merged one after the other: all at once, unless rows are so large that
    Spark's copies of a few of them fill its memory."""
    large = [part for part in staged if _has_large_rows([part])]
    others = [part for part in staged if part not in large]
    return [*([others] if others else []), *([part] for part in large)]


def _has_large_rows(staged: Sequence[Staged]) -> bool:
    return sum(part.byte_count for part in staged) > sum(part.row_count for part in staged) * LARGE_ROW_BYTES


def _total(snapshot: Snapshot, name: str) -> int:
    return int(snapshot.summary.get(name, 0))


def _partitions(staged: Sequence[Staged], table_rows: int) -> int:
    """In how many parts to join the staged rows with the table's, of which so many are read."""
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
    """What the staged rows' keys are, so that of the table no other row is joined; empty where they are many, or can't
    be said."""
    keys: list[tuple[Json, ...]] = []
    for part in staged:
        if part.keys is None or len(keys) + len(part.keys) > KEYS_MAX:
            return ""
        keys += part.keys
    sayable = [
        (name, sorted({key[at] for key in keys}))
        for at, name in enumerate(table.key)
        if table.form.columns[name].sql in _SAYABLE
    ]
    return statements.one_of(sayable)
