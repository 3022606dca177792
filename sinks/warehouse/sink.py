"""The warehouse as a sink: one guarded MERGE for each table of a batch."""

import math
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from cdc.errors import SinkError
from cdc.events import TableId, TableSchema
from sinks.contract import Change, Json, Outcome, Result, StoredRow
from sinks.lineage import Lineage
from sinks.warehouse import properties, statements
from sinks.warehouse.columns import ColumnType, Unholdable, column_type
from sinks.warehouse.engine import Conflict, Engine
from sinks.warehouse.maintenance import Maintenance
from sinks.warehouse.naming import DELETED, VERSION, Place, check_columns, place
from sinks.warehouse.preparation import Preparation
from sinks.warehouse.reader import WarehouseReader

# A zombie beside us loses or wins a few commits, then its job ends; each attempt costs about a second.
ATTEMPT_COUNT_MAX: Final = 20
# Snapshots looked at to find our own commit: others commit between ours and the look only in a race.
HISTORY_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class _Table:
    """A prepared table."""

    place: Place
    columns: dict[str, ColumnType]
    key: tuple[str, ...]
    source: pa.Schema  # of the rows that MERGE reads
    has_float_key: bool  # in which Spark takes -0.0 and 0.0 for one, as PostgreSQL does


class WarehouseSink:
    """Iceberg tables behind an Engine. See `sinks.contract.Sink` for what each method promises."""

    name = "warehouse"

    def __init__(
        self,
        engine: Engine,
        reader: WarehouseReader,
        namespace: str,
        now: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`now`: seconds since 1970, for the age of snapshots."""
        self._engine = engine
        self._reader = reader
        self._namespace = namespace
        self._pause = pause
        self._tables: dict[TableId, _Table] = {}
        self._preparation = Preparation(engine, namespace, pause)
        self._maintenance = Maintenance(engine, now)

    # ---- generation

    def generation(self) -> int | None:
        """The namespace's marker, provided that every table it lists is there and bears the same."""
        noted = self._engine.namespace_properties((self._namespace,))
        if noted is None or not noted.get(properties.GENERATION, "").isdecimal():
            return None
        marker = noted[properties.GENERATION]
        for table in properties.listed_tables(noted):
            found = self._engine.table_properties(place(self._namespace, table).rows)
            if found is None or found.get(properties.GENERATION) != marker:
                return None
        return int(marker)

    def begin_generation(self, generation: int) -> None:
        """Tables of earlier generations stay as they are until they are prepared."""
        if self.generation() == generation:
            return
        self._engine.run(statements.create_namespace((self._namespace,)))
        marker = {properties.GENERATION: str(generation), properties.TABLES: "[]"}
        self._engine.run(statements.set_namespace_properties((self._namespace,), marker))

    # ---- tables

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        check_columns(schema)
        where = place(self._namespace, schema.table)
        columns = {column.name: column_type(column) for column in schema.columns}
        types = {name: kind.sql for name, kind in columns.items()}
        self._preparation.prepare(Lineage.of([*earlier, schema]), where, types)
        fields = [pa.field(name, kind.arrow) for name, kind in columns.items()]
        fields += [pa.field(VERSION, pa.int64()), pa.field(DELETED, pa.bool_())]
        has_float_key = any(_has_floats(columns[name].arrow) for name in schema.key)
        self._tables[schema.table] = _Table(where, columns, schema.key, pa.schema(fields), has_float_key)

    # ---- rows

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        results: list[Result] = [Result(Outcome.STALE)] * len(changes)
        by_table: dict[TableId, list[int]] = {}
        for index, change in enumerate(changes):
            by_table.setdefault(change.table, []).append(index)
        for table_id, indices in by_table.items():
            table = self._tables[table_id]
            # What lacks columns is merged into the rows that are there, in a commit of its own; it is rare.
            for lacks in (False, True):
                part = [index for index in indices if bool(changes[index].unchanged) is lacks]
                self._write(table, changes, part, results)
        return results

    def _write(self, table: _Table, changes: Sequence[Change], indices: Sequence[int], results: list[Result]) -> None:
        held: list[int] = []
        rows: list[list[Any]] = []
        for index in indices:
            try:
                rows.append(_convert(table, changes[index]))
                held.append(index)
            except Unholdable as error:
                results[index] = Result(Outcome.REJECTED, str(error))
        if not rows:
            return
        if table.has_float_key:
            kept = _newest_of_equal_keys(table, rows)
            held, rows = [held[number] for number in kept], [rows[number] for number in kept]
        arrow = _arrow(table, rows)
        lacks = bool(changes[held[0]].unchanged)
        if lacks:
            names = pa.array([sorted(changes[index].unchanged) for index in held], pa.list_(pa.string()))
            arrow = arrow.append_column(statements.UNCHANGED, names)
        for index, written in zip(held, self._merge(table, arrow, lacks=lacks), strict=True):
            results[index] = Result(Outcome.WRITTEN if written else Outcome.STALE)

    def _merge(self, table: _Table, rows: pa.Table, *, lacks: bool) -> list[bool]:
        """Write what is newer than the table; whether each row was. One commit, or none if nothing can win. `lacks`:
        these rows lack columns, and can only change others that are there."""
        write = statements.merge_columns if lacks else statements.merge
        versions = rows.column(VERSION).to_pylist()
        batch = uuid.uuid4().hex
        for attempt in range(ATTEMPT_COUNT_MAX):
            planned = next(self._engine.history(table.place.rows), None)
            self._register(rows)
            stored = self._stored(table, len(versions), planned.id if planned else None, of_live_rows_only=lacks)
            newer = [
                not lacks if held is None else version > held for version, held in zip(versions, stored, strict=True)
            ]
            if not any(newer):
                return newer
            if not all(newer):
                self._register(rows.filter(pa.array(newer)))
            try:
                statement = write(table.place.rows, list(table.columns), table.key)
                self._engine.run(statement, {properties.BATCH: batch}, by_row=lacks)
            except Conflict:
                # Two writers that lose to each other in step must not do so again.
                self._pause(random.random() * min(2.0, 0.1 * 2**attempt))  # noqa: S311
                continue
            if self._follows(table, batch, planned.id if planned else None):
                return newer
            self._register(rows)
            self._remove_doubles(table)
            latest = next(self._engine.history(table.place.rows), None)
            stored = self._stored(table, len(versions), latest.id if latest else None)
            return [won and version == held for won, version, held in zip(newer, versions, stored, strict=True)]
        raise SinkError(
            f"warehouse: table {'.'.join(table.place.rows)}: other writers' commits came before ours "
            f"{ATTEMPT_COUNT_MAX} times",
            "one job may write a warehouse: stop the others",
        )

    def _register(self, rows: pa.Table) -> None:
        ordinals = pa.array(range(len(rows)), pa.int32())
        self._engine.source(statements.SOURCE, rows.append_column(statements.ORDINAL, ordinals))

    def _stored(
        self, table: _Table, row_count: int, snapshot_id: int | None, *, of_live_rows_only: bool = False
    ) -> list[int | None]:
        """The version that the table holds of each of the batch's keys. Mends doubled keys where it meets them."""
        stored: list[int | None] = [None] * row_count
        if snapshot_id is None:
            return stored
        query = statements.stored_versions(
            table.place.rows, table.key, snapshot_id, of_live_rows_only=of_live_rows_only
        )
        found = self._engine.query(query)
        doubled = False
        for ordinal, version in zip(found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True):
            held = stored[ordinal]
            doubled = doubled or held is not None
            stored[ordinal] = version if held is None else max(held, version)
        if doubled:
            self._remove_doubles(table)
        return stored

    def _follows(self, table: _Table, batch: str, planned_id: int | None) -> bool:
        """Whether our commit stands directly on the snapshot that it was planned on. If another's commit came between,
        the catalog's own check for conflicts may have had a hole (two MERGEs that match nothing are both appends)."""
        for snapshot in islice(self._engine.history(table.place.rows), HISTORY_MAX):
            if snapshot.summary.get(properties.BATCH) == batch:
                return snapshot.parent_id == planned_id
        return False

    def _remove_doubles(self, table: _Table) -> None:
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

    def sweep(self, table: TableId, floor: int) -> int:
        known = self._tables[table]
        for _ in range(ATTEMPT_COUNT_MAX):
            count = int(self._engine.query(statements.count_below(known.place.rows, floor)).column(0)[0].as_py())
            if not count:
                return 0
            try:
                self._engine.run(statements.sweep(known.place.rows, list(known.columns), known.key, floor))
            except Conflict:
                continue
            return count
        raise SinkError(
            f"warehouse: table {table}: other writers' commits came before the sweep {ATTEMPT_COUNT_MAX} times",
            "one job may write a warehouse: stop the others",
        )

    def make_readable(self) -> None:
        """Nothing to do: a commit is readable."""

    def maintain(self) -> None:
        """Merge small files and forget old snapshots where they pile up. For the job, between batches."""
        for table in self._tables.values():
            self._maintenance.tend(table.place.rows)

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        return self._reader.rows(table)

    def close(self) -> None:
        self._engine.close()


def _newest_of_equal_keys(table: _Table, rows: Sequence[list[Any]]) -> list[int]:
    """Numbers of the rows to write: a key that went from 0.0 to -0.0 is a delete and a create, but one row to MERGE,
    which takes no two changes of a row. The older one is stale."""
    names = list(table.columns)
    key_at = [names.index(name) for name in table.key]
    version_at = len(names)
    newest: dict[tuple[Any, ...], int] = {}
    for number, row in enumerate(rows):
        key = tuple(_comparable(row[at]) for at in key_at)
        if key not in newest or row[version_at] > rows[newest[key]][version_at]:
            newest[key] = number
    return sorted(newest.values())


def _comparable(value: Any) -> Any:
    """The same for values that Spark calls equal: Python does so too, but for NaN, and does not hash lists."""
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _has_floats(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind.value_type if pa.types.is_list(kind) else kind))


def _arrow(table: _Table, rows: list[list[Any]]) -> pa.Table:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, table.source, strict=True)]
    return pa.table(arrays, schema=table.source)


def _convert(table: _Table, change: Change) -> list[Any]:
    """The row that MERGE reads, in the order of `table.source`. Raises Unholdable, naming the column."""
    row = change.row
    if row is None:
        row = dict.fromkeys(table.columns) | change.key
    elif len(row) + len(change.unchanged) != len(table.columns):
        raise Unholdable("the row has other columns than the table")
    elif change.unchanged:
        row = dict.fromkeys(change.unchanged) | row
    values = [_convert_value(name, kind, row) for name, kind in table.columns.items()]
    return [*values, change.version, change.row is None]


def _convert_value(name: str, kind: ColumnType, row: dict[str, Json]) -> Any:
    try:
        value = row[name]
        return None if value is None else kind.convert(value)
    except KeyError:
        raise Unholdable(f"column {name}: absent") from None
    except Unholdable as error:
        raise Unholdable(f"column {name} ({kind.sql}): {error}") from None
