"""Rows on their way into the warehouse: tasks write them to files, and the statement that merges them reads the files.

So no row passes through the driver, and the statement reads its source where it runs. The files are below the tables'
location, which every executor can reach, in a folder of the process whose driver merges them. The driver deletes each
file after its merge. Files of a process that was killed are deleted when the next one starts.
"""

import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from cdc.config.store_shapes import WarehouseMode
from cdc.config.warehouse_catalog import S3Config, is_s3
from cdc.model.events import TableId, TableSchema
from sinks.contract import Change, Json, Outcome, Result, SourceOperation
from sinks.json_values import Unholdable
from sinks.record_columns import RowColumns
from sinks.reduction import reduce_changes
from sinks.row_errors import VALUE_ERRORS
from sinks.warehouse.columns import ColumnType, column_type
from sinks.warehouse.every_change import STAGED_COLUMNS
from sinks.warehouse.key_numbers import KeyNumbers, comparable
from sinks.warehouse.naming import UNCHANGED, VERSION
from sinks.warehouse.object_store import file_system
from sinks.warehouse.staged_files import files_of
from sinks.warehouse.statements import AT, DELETED, OPERATION

FOLDER: Final = ".staging"  # below the tables' location
# The keys of a file with at most this many rows are listed, so that the merge reads only these rows of its table.
KEYS_MAX: Final = 1000
KEY_CHARS_MAX: Final = 200
# Files of a process on another machine, which may be alive, are deleted at this age. A batch takes minutes at most.
LEFTOVER_S: Final = 3600.0
_WRITTEN: Final = Result(Outcome.WRITTEN)


class Staged(NamedTuple):
    """One file of rows for one table."""

    table: TableId
    path: str  # a URI
    row_count: int
    byte_count: int  # in memory
    lacks: bool  # its rows lack columns, whose names are in the column UNCHANGED
    keys: tuple[tuple[Json, ...], ...] | None  # of its rows; None if there are many
    lowest: int  # of its rows' versions
    highest: int
    delete_count: int = 0  # the number of rows that are deletes
    compares: bool = False  # True if the table keeps every change and a snapshot read some of the rows


@dataclass(frozen=True, slots=True)
class TableForm:
    """The conversion of a table's rows."""

    columns: dict[str, ColumnType]
    key: tuple[str, ...]
    mode: WarehouseMode
    has_float_key: bool  # Spark considers -0.0 and 0.0 equal in it, as PostgreSQL does
    _no_values: dict[str, Json]

    @classmethod
    def of(cls, schema: TableSchema, mode: WarehouseMode = "current") -> "TableForm":
        columns = {column.name: column_type(column) for column in schema.columns}
        has_float_key = any(_has_floats(columns[name].arrow) for name in schema.key)
        return cls(columns, schema.key, mode, has_float_key, dict.fromkeys(columns))

    @property
    def types(self) -> dict[str, str]:
        """The columns' types by Spark's names."""
        return {name: kind.sql for name, kind in self.columns.items()}

    def staged_columns(self, *, lacks: bool) -> Mapping[str, str]:
        """Returns the columns of a staged file beside the table's: name → Spark's type."""
        if self.mode != "current":
            return STAGED_COLUMNS
        ours = {VERSION: "bigint", DELETED: "boolean"}
        return ours | {UNCHANGED: "array<string>"} if lacks else ours

    def table(self, changes: Sequence[Change], *, lacks: bool = False) -> pa.Table:
        """Returns the rows that MERGE reads. `lacks`: with the names of the columns that each row lacks. Raises
        Unholdable."""
        rows = [self._row(change) for change in changes]
        try:
            columns = self._arrays({name: [row[name] for row in rows] for name in self.columns})
        except KeyError as error:
            raise Unholdable(f"column {error.args[0]}: absent") from None
        columns[VERSION] = pa.array([change.version for change in changes], pa.int64())
        if self.mode == "current":
            columns[DELETED] = pa.array([change.row is None for change in changes], pa.bool_())
            if lacks:
                columns[UNCHANGED] = pa.array([sorted(change.unchanged) for change in changes], pa.list_(pa.string()))
            return pa.table(columns)
        origins = [_origin(change) for change in changes]
        columns[OPERATION] = pa.array([origin.operation for origin in origins], pa.string())
        columns[AT] = pa.array([origin.at_us for origin in origins], pa.timestamp("us", tz="UTC"))
        columns[UNCHANGED] = pa.array([self._unchanged(change) for change in changes], pa.list_(pa.string()))
        return pa.table(columns)

    def whole_rows(self, rows: RowColumns) -> pa.Table:
        """Returns the rows as `table` does, for a table of mode `current`. Raises Unholdable."""
        columns = self._arrays(rows.columns)
        columns[VERSION] = pa.array(rows.versions, pa.int64())
        columns[DELETED] = pa.array([False] * len(rows.versions), pa.bool_())
        return pa.table(columns)

    def _arrays(self, columns: Mapping[str, Sequence[Json]]) -> dict[str, pa.Array]:
        arrays: dict[str, pa.Array] = {}
        for name, kind in self.columns.items():
            try:
                arrays[name] = kind.array(columns[name])
            except Unholdable as error:
                raise Unholdable(f"column {name} ({kind.sql}): {error}") from None
        return arrays

    def _unchanged(self, change: Change) -> list[str] | None:
        if is_unknown(change):
            return [name for name in self.columns if name not in self.key]
        return sorted(change.unchanged) or None

    def _row(self, change: Change) -> dict[str, Json]:
        row = change.row
        if row is None:
            return self._no_values | change.key
        if len(row) + len(change.unchanged) != len(self.columns):
            raise Unholdable("the row has other columns than the table")
        return dict.fromkeys(change.unchanged) | row if change.unchanged else row


def _origin(change: Change) -> SourceOperation:
    """Returns the change's origin; for a change without one, such as a tombstone, that of a delete or an update."""
    return change.origin or SourceOperation("d" if change.row is None else "u", None)


def is_unknown(change: Change) -> bool:
    """Returns whether the change is a row that moved to this key, of which not all columns are known yet."""
    return change.row is None and change.origin is not None and change.origin.operation == "c"


@dataclass(slots=True)
class _EveryChange:
    """The changes that a task has taken of a table that keeps every change."""

    pieces: list[pa.Table] = field(default_factory=list)
    versions: set[int] = field(default_factory=set)  # a delete and its tombstone have the same
    keys: set[Any] = field(default_factory=set)  # no more than KEYS_MAX + 1
    compares: bool = False
    lacks: bool = False

    def take(self, piece: pa.Table, changes: Sequence[Change]) -> None:
        """Adds changes. `piece`: the same changes, converted."""
        self.pieces.append(piece)
        self.versions.update(change.version for change in changes)
        for change in changes:
            if len(self.keys) <= KEYS_MAX:
                self.keys.add(_key(change))
            self.compares = self.compares or _origin(change).operation == "r"
            self.lacks = self.lacks or bool(change.unchanged)


@dataclass(slots=True)
class _StagedTable:
    """The changes that a task has taken of one table. Whole rows are converted at once, to save nine tenths of the
    memory.
    """

    pieces: list[pa.Table] = field(default_factory=list)
    lacking: list[Change] = field(default_factory=list)  # rows that lack columns

    def newest(self, key: Sequence[str]) -> "_NewestRows | None":
        """Returns the newest row of each key; None if there is none."""
        return _NewestRows(self.pieces, key) if any(map(len, self.pieces)) else None


class _NewestRows:
    """The newest of some whole rows of each key."""

    def __init__(self, pieces: Sequence[pa.Table], key: Sequence[str]) -> None:
        self._pieces = pieces
        listed = pa.concat_tables([piece.select([*key, VERSION]) for piece in pieces]).combine_chunks()
        self._keys = [listed.column(name).combine_chunks() for name in key]
        self._numbers = KeyNumbers([comparable(column) for column in self._keys])
        versions = listed.column(VERSION).combine_chunks()
        self._at = self._numbers.newest(versions)
        self._versions = versions.take(self._at)
        self._row_count = len(listed)

    def __len__(self) -> int:
        return len(self._at)

    def keys(self) -> list[Any]:
        return list(zip(*(column.take(self._at).to_pylist() for column in self._keys), strict=True))

    def tables(self) -> Iterator[pa.Table]:
        if len(self) == self._row_count:
            yield from self._pieces
            return
        is_newest = pc.is_in(pa.array(range(self._row_count), pa.int64()), value_set=self._at)
        begun = 0
        for piece in self._pieces:
            yield piece.filter(is_newest.slice(begun, len(piece)))
            begun += len(piece)

    def versions_of(self, rows: pa.Table, key: Sequence[str]) -> list[int | None]:
        """Returns for each of other rows the newest version of its key; None if there is none."""
        columns = [comparable(rows.column(name).combine_chunks()) for name in key]
        found: list[int | None] = self._versions.take(self._numbers.find(columns)).to_pylist()
        return found


class Stager:
    """Stages the changes of one task after the other. Rejects a row with a value that its column can't hold."""

    def __init__(
        self,
        location: str,
        schemas: Iterable[TableSchema],
        mode_of: Callable[[TableId], WarehouseMode] = lambda _: "current",
        s3: S3Config | None = None,
    ) -> None:
        """`location`: the URI of the folder for staged files; `s3`: how it is reached in an object store."""
        self._location = location
        self._s3 = s3
        self._mode_of = mode_of
        self._every: dict[TableId, _EveryChange] = {}
        self._schemas = {schema.table: schema for schema in schemas}
        self._forms: dict[TableId, TableForm] = {}
        self._held: dict[TableId, _StagedTable] = {}

    def reduced(self, changes: Sequence[Change]) -> list[Change]:
        """Returns the newest change of each key, and every change of tables that keep every change."""
        kept = {table for table in {change.table for change in changes} if self._keeps_every(table)}
        every = [change for change in changes if change.table in kept]
        return [*every, *reduce_changes(change for change in changes if change.table not in kept)]

    def _keeps_every(self, table: TableId) -> bool:
        return self._form(table).mode != "current"

    @property
    def held_bytes(self) -> int:
        """The size in memory of the whole rows that finish would write, those of mode `current`."""
        return sum(piece.nbytes for held in self._held.values() for piece in held.pieces)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        """Returns one result for each change. WRITTEN means that finish will write it to a file, unless there is a
        newer change of its key."""
        results = [_WRITTEN] * len(changes)
        whole: dict[TableId, list[int]] = {}
        seen: set[tuple[TableId, int]] = set()
        for number, change in enumerate(changes):
            if self._keeps_every(change.table):
                if not self._is_unstored(change) or (change.table, change.version) in seen:
                    continue
                seen.add((change.table, change.version))
                whole.setdefault(change.table, []).append(number)
            elif change.unchanged:
                self._apply_lacking(number, change, results)
            else:
                whole.setdefault(change.table, []).append(number)
        for table, numbers in whole.items():
            self._apply_whole(table, numbers, changes, results)
        return results

    def take(self, table: TableId, rows: RowColumns) -> bool:
        """Takes whole rows, of which there may be several of a key, as `apply` does. Returns False, and has taken none,
        if `apply` must: it says which row has a value that its column can't hold, and tables of other modes than
        `current` keep each change's origin."""
        form = self._form(table)
        if form.mode != "current":
            return False
        try:
            piece = form.whole_rows(rows)
        except (Unholdable, *VALUE_ERRORS):
            return False
        self._of(table).pieces.append(piece)
        return True

    def finish(self) -> tuple[Staged, ...]:
        """Writes and returns the files: for each table those with whole rows, and one with rows that lack columns."""
        tables, self._held = self._held, {}
        staged: list[Staged] = []
        for table, held in tables.items():
            form = self._form(table)
            newest = held.newest(form.key)
            if newest is not None:
                keys = newest.keys() if len(newest) <= KEYS_MAX else None
                staged += self._write(table, newest.tables(), keys, lacks=False)
            if lacking := _still_lacking(held.lacking, newest, form):
                staged += self._write(table, [form.table(lacking, lacks=True)], None, lacks=True)
        changed, self._every = self._every, {}
        for table, every in changed.items():
            keys = list(every.keys) if len(every.keys) <= KEYS_MAX else None
            written = self._write(table, every.pieces, keys, lacks=every.lacks)
            staged += [part._replace(compares=every.compares) for part in written]
        return tuple(staged)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""

    def _apply_lacking(self, number: int, change: Change, results: list[Result]) -> None:
        try:
            self._form(change.table).table([change], lacks=True)
        except Unholdable as error:
            results[number] = Result(Outcome.REJECTED, str(error))
        else:
            self._of(change.table).lacking.append(change)

    def _apply_whole(
        self, table: TableId, numbers: Sequence[int], changes: Sequence[Change], results: list[Result]
    ) -> None:
        form = self._form(table)
        taken = [changes[number] for number in numbers]
        try:
            piece = form.table(taken)
        except Unholdable:
            taken = []
            for number in numbers:
                try:
                    form.table([changes[number]])
                except Unholdable as error:
                    results[number] = Result(Outcome.REJECTED, str(error))
                else:
                    taken.append(changes[number])
            piece = form.table(taken)
        if form.mode == "current":
            self._of(table).pieces.append(piece)
        elif taken:
            self._every.setdefault(table, _EveryChange()).take(piece, taken)

    def _is_unstored(self, change: Change) -> bool:
        """Returns whether a table that keeps every change has yet to store this one. A history stores no version of a
        row that moved and is not known yet."""
        held = self._every.get(change.table)
        if held is not None and change.version in held.versions:
            return False
        return not is_unknown(change) or self._form(change.table).mode != "history"

    def _write(
        self, table: TableId, pieces: Iterable[pa.Table], keys: Sequence[Any] | None, *, lacks: bool
    ) -> Iterator[Staged]:
        """Yields the files that it writes: several if the rows are many or large. Keys are listed if it is one."""
        files = list(files_of(pieces))
        for groups in files:
            uri = f"{self._location}/{uuid.uuid4().hex}.parquet"
            system, path = file_system(uri, self._s3)
            if not is_s3(uri):  # an object store has no folders
                system.create_dir(path.rpartition("/")[0], recursive=True)
            # The file is read once and deleted, so statistics and dictionaries would cost more than they save.
            with pq.ParquetWriter(
                path,
                groups[0].schema,
                filesystem=system,
                compression="lz4",
                use_dictionary=False,
                write_statistics=False,
            ) as writer:
                for group in groups:
                    writer.write_table(group, row_group_size=len(group))
            rows, size = sum(map(len, groups)), sum(group.nbytes for group in groups)
            found = [pc.min_max(group.column(VERSION)).as_py() for group in groups]
            lowest, highest = min(one["min"] for one in found), max(one["max"] for one in found)
            deletes = sum(pc.sum(group.column(DELETED)).as_py() for group in groups if DELETED in group.column_names)
            listed = _listed(keys) if len(files) == 1 else None
            yield Staged(table, uri, rows, size, lacks, listed, lowest, highest, deletes)

    def _of(self, table: TableId) -> _StagedTable:
        return self._held.setdefault(table, _StagedTable())

    def _form(self, table: TableId) -> TableForm:
        form = self._forms.get(table)
        if form is None:
            form = self._forms[table] = TableForm.of(self._schemas[table], self._mode_of(table))
        return form


# ---- the folder


def own_folder(location: str) -> str:
    """Returns the URI of this process's folder for staged files. `location`: the URI of all processes' folders."""
    machine = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    return f"{location}/{machine}@{os.getpid()}"


def delete_staged(paths: Iterable[str], s3: S3Config | None = None) -> None:
    """Delete staged files. Those that are gone already are no error."""
    for uri in paths:
        system, path = file_system(uri, s3)
        try:
            system.delete_file(path)
        except FileNotFoundError:
            continue


def delete_leftovers(location: str, s3: S3Config | None = None) -> None:
    """Deletes folders of processes that have ended, and of an earlier session of this process: on this machine those
    whose process id does not run, on other machines those last written LEFTOVER_S ago.
    """
    system, folder = file_system(location, s3)
    own = own_folder(location).rpartition("/")[2]
    for found in system.get_file_info(pa_fs.FileSelector(folder, allow_not_found=True)):
        machine, _, number = found.base_name.rpartition("@")
        if found.base_name == own:
            is_left = True
        elif machine == own.rpartition("@")[0] and number.isdecimal():
            is_left = not _is_running(int(number))
        else:
            files = system.get_file_info(pa_fs.FileSelector(found.path)) or [found]
            newest_ns = max(file.mtime_ns or 0 for file in files)
            is_left = time.time_ns() - newest_ns > LEFTOVER_S * 1e9
        if is_left and found.type == pa_fs.FileType.Directory:
            system.delete_dir(found.path)
        elif is_left:
            system.delete_file(found.path)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # a process of another user
    return True


# ---- details


def _still_lacking(lacking: Sequence[Change], newest: _NewestRows | None, form: TableForm) -> list[Change]:
    """Returns the newest change of each key that lacks columns, where no whole row is newer. Its missing columns are
    not taken from whole rows, because those are merged first, so the table has them."""
    if newest is not None and lacking:
        versions = newest.versions_of(form.table(lacking, lacks=True), form.key)
        lacking = [
            change for change, whole in zip(lacking, versions, strict=True) if whole is None or change.version > whole
        ]
    return reduce_changes(lacking)


def _key(change: Change) -> Any:
    """Returns a hashable key, equal for keys that Spark considers equal. Python equates 0.0 and -0.0, but hashes no
    lists.
    """
    values = tuple(change.key.values())
    try:
        hash(values)
    except TypeError:
        return tuple(map(_hashable, values))
    return values


def _hashable(value: Json) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _listed(keys: Sequence[Any] | None) -> tuple[tuple[Json, ...], ...] | None:
    if keys is None or any(type(value) is str and len(value) > KEY_CHARS_MAX for key in keys for value in key):
        return None
    return tuple(keys)


def _has_floats(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind.value_type if pa.types.is_list(kind) else kind))
