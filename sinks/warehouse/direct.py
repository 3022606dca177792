"""The merge of rows without a statement: files are written here, and committed through the engine.

Spark plans, compiles and schedules a MERGE of ten rows as one of a million. Here the batch's keys are looked up in the
files that may contain them; rows of the table that lost are marked in deletion vectors, and rows of the batch that won
are written to a new file. The guard is that of the MERGE: versions are compared with those of the snapshot on which the
commit is based, and the commit fails if anything was added, changed or deleted since.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from cdc.config.warehouse_catalog import S3Config, is_s3
from sinks.contract import Json
from sinks.warehouse.engine import Conflict, DataFile, Engine, NewFiles, OpenTable, Snapshot, VectorPlace
from sinks.warehouse.key_numbers import KeyNumbers
from sinks.warehouse.naming import VERSION
from sinks.warehouse.object_store import file_system
from sinks.warehouse.staged_rows import ROW, StagedRows, staged_rows
from sinks.warehouse.staging import Staged, TableForm
from sinks.warehouse.statements import DELETED, DELETED_AT
from sinks.warehouse.vectors import from_blob, puffin_file

Name = tuple[str, ...]
Key = tuple[Json, ...]

# Larger batches are merged by a statement, whose tasks need no memory of the driver. Here it holds the keys of a batch,
# and a row group of its rows.
ROWS_MAX: Final = 1_000_000
BYTES_MAX: Final = 256 * 1024 * 1024
# More rows of the table than one of these are searched by a statement, with several tasks.
TABLE_ROWS_MAX: Final = 1_000_000
TABLE_ROWS_PER_ROW: Final = 10  # for each row of the batch
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024  # of all tables of a sink
_KEY_TYPES: Final = frozenset({"int", "bigint", "string"})  # which Arrow, Spark and Iceberg compare alike
_FIELD_ID: Final = b"PARQUET:field_id"
_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(\d+)\)")
_ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
}


class FileContents:
    """What was read of files, up to KEPT_BYTES_MAX: files of a table never change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, name: Any, read: Callable[[], tuple[Any, int]]) -> Any:
        """Returns a content, which `read` returns with its size in bytes."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name][0]
        content, size = read()
        with self._lock:
            if name not in self._kept:
                self._kept[name] = content, size
                self._bytes += size
            while self._bytes > KEPT_BYTES_MAX:
                self._bytes -= self._kept.popitem(last=False)[1][1]
        return content


class _OtherForm(Exception):  # noqa: N818
    """Raised for a file, or a column, of another form than ours. A statement can read and write it, or says why not."""


@contextmanager
def _our_form() -> Iterator[None]:
    """Raises _OtherForm for what Arrow can't read or convert. Errors of the file system pass."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError) as error:
        raise _OtherForm from error


@dataclass(frozen=True, slots=True)
class _Match:
    """A batch compared with its table."""

    winners: pa.Array  # numbers of the batch's rows that are written
    losers: dict[DataFile, BitMap64]  # positions of the table's rows that are deleted


@dataclass(frozen=True, slots=True)
class _Hits:
    """Rows of the table whose keys are among the batch's."""

    file: DataFile
    numbers: pa.Array  # of their keys
    versions: pa.Array
    positions: pa.Array  # in the file


class DirectMerge:
    """Merges the rows of batches for which `suits` returns true. Not thread-safe."""

    def __init__(self, engine: Engine, contents: FileContents, s3: S3Config | None = None) -> None:
        self._engine = engine
        self._contents = contents
        self._s3 = s3

    def suits(self, form: TableForm, staged: Sequence[Staged]) -> bool:
        """Returns whether these are whole rows of a table that this class can write, and no more than it takes."""
        return (
            form.mode == "current"
            and bool(form.key)
            and all(form.columns[name].sql in _KEY_TYPES for name in form.key)
            and not any(part.lacks for part in staged)
            and sum(part.row_count for part in staged) <= ROWS_MAX
            and sum(part.byte_count for part in staged) <= BYTES_MAX
        )

    def rows(self, form: TableForm, staged: Sequence[Staged]) -> StagedRows:
        """Returns the staged rows."""
        return staged_rows(staged, form.key, self._s3)

    def open(self, table: Name, form: TableForm, rows: StagedRows) -> OpenTable | None:
        """Opens the table with the files that may contain the rows' keys. Returns None if a statement must merge
        them."""
        keys = rows.keys.select(list(form.key))
        if any(column.null_count for column in keys.columns):
            return None
        opened = self._open(table, {name: _bounds(keys.column(name)) for name in form.key}, len(keys))
        if opened is None or {field["name"] for field in opened.fields} != {*form.columns, VERSION}:
            return None
        return opened

    def _open(self, table: Name, bounds: Mapping[str, tuple[Json, Json]], row_count: int) -> OpenTable | None:
        opened = self._engine.open_table(table, bounds)
        if opened is None or sum(file.row_count for file in opened.files) > max(
            TABLE_ROWS_MAX, TABLE_ROWS_PER_ROW * row_count
        ):
            return None
        return opened if all(_field(field) is not None for field in opened.fields) else None

    def merge(
        self, opened: OpenTable, form: TableForm, rows: StagedRows, properties: Mapping[str, str]
    ) -> Iterator[Snapshot] | None:
        """Commits the rows that win. Returns the table's commits, newest first; None if a statement must merge the
        rows. Raises Conflict."""
        try:
            match = self._match(opened, form.key, rows)
            winners = rows.whole(match.winners) if len(match.winners) else ()
            return self._commit(opened, winners, match.losers, properties, is_guarded=True)
        except _OtherForm:
            return None

    def open_deleted(self, table: Name, rows: StagedRows, lowest: int) -> OpenTable | None:
        """Opens a table of deleted keys with the files that may contain this version or later ones. Returns None if
        only a statement can read it."""
        return self._open(table, {VERSION: (lowest, None)}, len(rows.keys))

    def without_deleted(self, opened: OpenTable, form: TableForm, rows: StagedRows) -> StagedRows | None:
        """Returns the rows without those whose key was deleted at their version or later; None if a statement must
        find them."""
        numbers = KeyNumbers(_columns(rows.keys, form.key))
        deleted: dict[int, int] = {}  # number of a key → the version of its last deletion
        try:
            for hits in self._hits(opened, form.key, numbers):
                for number, version in zip(hits.numbers.to_pylist(), hits.versions.to_pylist(), strict=True):
                    deleted[number] = max(version, deleted.get(number, 0))
        except _OtherForm:
            return None
        if not deleted:
            return rows
        listed = zip(numbers.of_rows.to_pylist(), *_lists(rows.keys, (VERSION, DELETED)), strict=True)
        kept = [gone or deleted.get(number, -1) < version for number, version, gone in listed]
        return rows.filter(pa.array(kept, pa.bool_()))

    def add_deleted(self, opened: OpenTable, form: TableForm, rows: StagedRows) -> None:
        """Adds the keys of the deletes among the rows to the table of deleted keys."""
        keys = rows.keys.filter(rows.keys.column(DELETED)).select([*form.key, VERSION])
        at = pa.array([datetime.now(UTC)] * len(keys), pa.timestamp("us", tz="UTC"))
        self._commit(opened, [keys.append_column(DELETED_AT, at)], {}, {}, is_guarded=False)

    # ---- comparing

    def _match(self, opened: OpenTable, key: Sequence[str], rows: StagedRows) -> _Match:
        numbers = KeyNumbers(_columns(rows.keys, key))
        newest = rows.keys.take(numbers.newest(rows.keys.column(VERSION).combine_chunks()))
        versions = newest.column(VERSION)
        losers: dict[DataFile, BitMap64] = {}
        stale: list[pa.Array] = []
        for hits in self._hits(opened, key, numbers):
            is_lost = pc.greater(versions.take(hits.numbers), hits.versions).combine_chunks()
            lost = hits.positions.filter(is_lost).to_pylist()
            if lost:
                losers[hits.file] = BitMap64(lost)
            stale.append(hits.numbers.filter(pc.invert(is_lost)))
        is_written = pc.invert(newest.column(DELETED))
        if any(map(len, stale)):
            has_lost = pc.is_in(pa.array(range(len(newest)), pa.int32()), value_set=pa.concat_arrays(stale))
            is_written = pc.and_(is_written, pc.invert(has_lost))
        return _Match(newest.column(ROW).filter(is_written).combine_chunks(), losers)

    def _hits(self, opened: OpenTable, key: Sequence[str], numbers: KeyNumbers) -> Iterator[_Hits]:
        """Yields the table's rows that have a key of the batch, for each file that has one. Raises _OtherForm."""
        for files in _lumps(opened.files):
            tables = [self._keys(opened, file, key) for file in files]
            # At once, because each search begins with a table of all keys of the batch.
            columns = [[table.column(name).combine_chunks() for table in tables] for name in key]
            found = numbers.find(list(map(pa.chunked_array, columns)))
            begun = 0
            for file, table in zip(files, tables, strict=True):
                here = found.slice(begun, len(table)).combine_chunks()
                begun += len(table)
                at = pc.indices_nonzero(here.is_valid()).cast(pa.int64())
                if len(at) and len(gone := self._vector(file)):
                    at = at.filter(pa.array([position not in gone for position in at.to_pylist()], pa.bool_()))
                if len(at):
                    yield _Hits(file, here.take(at), table.column(VERSION).combine_chunks().take(at), at)

    def _keys(self, opened: OpenTable, file: DataFile, key: Sequence[str]) -> pa.Table:
        """Returns key columns and version of all of a file's rows. Raises _OtherForm."""
        fields = {field["name"]: (field["name"], field["id"], field["type"]) for field in opened.fields}
        kept = (file.path, *(fields[name] for name in key))
        found: pa.Table = self._contents.get(kept, lambda: self._read_keys(opened, file, key))
        return found

    # ---- files

    def _read_keys(self, opened: OpenTable, file: DataFile, key: Sequence[str]) -> tuple[pa.Table, int]:
        """Returns key columns and version of all of a file's rows, and their size. Raises _OtherForm."""
        system, path = file_system(file.path, self._s3)
        fields = {field["name"]: field for field in opened.fields}
        with _our_form(), system.open_input_file(path) as source:
            read = pq.ParquetFile(source)
            in_file = {(field.metadata or {}).get(_FIELD_ID): field.name for field in read.schema_arrow}
            names = {name: in_file.get(str(fields[name]["id"]).encode()) for name in (*key, VERSION)}
            if None in names.values():
                raise _OtherForm
            found = read.read(columns=list(names.values()))
            columns = {
                name: found.column(there).combine_chunks().cast(_ARROW_TYPES[fields[name]["type"]])
                for name, there in names.items()
            }
        table = pa.table(columns)
        return table, table.nbytes

    def _vector(self, file: DataFile) -> BitMap64:
        place = file.vector
        if place is None:
            return BitMap64()

        def read() -> tuple[BitMap64, int]:
            blob = self._get(place.path, place.offset, place.length)
            with _our_form():
                return from_blob(blob), len(blob)

        found: BitMap64 = self._contents.get((place.path, place.offset), read)
        return found

    def _commit(
        self,
        opened: OpenTable,
        rows: Iterable[pa.Table],
        losers: Mapping[DataFile, BitMap64],
        properties: Mapping[str, str],
        *,
        is_guarded: bool,
    ) -> Iterator[Snapshot]:
        """`rows`: of the new file; there is none without them."""
        new, vectors = self._write(opened, rows), {}
        if losers:
            gone = {file.path: self._vector(file) | positions for file, positions in losers.items()}
            content, places = puffin_file(gone)
            with self._created(opened.new_vectors_path) as file:
                file.write(content)
            for path, (offset, length) in places.items():
                place = VectorPlace(opened.new_vectors_path, len(content), offset, length, len(gone[path]))
                vectors[path] = place
        try:
            return self._engine.commit(opened, NewFiles(new, vectors), properties, is_guarded=is_guarded)
        except Conflict:
            for path in (opened.new_data_path, opened.new_vectors_path):
                self._delete(path)
            raise

    def _write(self, opened: OpenTable, rows: Iterable[pa.Table]) -> tuple[str, int] | None:
        """Writes a Parquet file in the form of the table's schema, a row group at a time, and returns path and size;
        None without rows. Raises _OtherForm."""
        tables = iter(rows)
        first = next(tables, None)
        if first is None:
            return None
        schema = pa.schema([_field(field) for field in opened.fields])
        try:
            with _our_form(), self._created(opened.new_data_path) as file:
                with pq.ParquetWriter(file, schema, compression="zstd", store_decimal_as_integer=True) as writer:
                    for table in chain([first], tables):
                        writer.write_table(table.select(schema.names).cast(schema))
                return opened.new_data_path, file.tell()
        except _OtherForm:
            self._delete(opened.new_data_path)
            raise

    def _get(self, uri: str, offset: int = 0, length: int | None = None) -> bytes:
        system, path = file_system(uri, self._s3)
        with system.open_input_file(path) as file:
            found: bytes = file.read_at(file.size() if length is None else length, offset)
        return found

    def _created(self, uri: str) -> pa.NativeFile:
        """Opens a new file, as a context."""
        system, path = file_system(uri, self._s3)
        if not is_s3(uri):  # an object store has no folders
            system.create_dir(path.rpartition("/")[0], recursive=True)
        return system.open_output_stream(path)

    def _delete(self, uri: str) -> None:
        system, path = file_system(uri, self._s3)
        try:
            system.delete_file(path)
        except FileNotFoundError:
            return


def _bounds(column: pa.ChunkedArray) -> tuple[Json, Json]:
    found = pc.min_max(column).as_py()
    return found["min"], found["max"]


def _lists(rows: pa.Table, columns: Sequence[str]) -> list[list[Any]]:
    return [rows.column(name).to_pylist() for name in columns]


def _columns(rows: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    return [rows.column(name).combine_chunks() for name in names]


def _lumps(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Yields the files in lists of at most TABLE_ROWS_MAX rows, or of one file."""
    lump: list[DataFile] = []
    for file in files:
        if lump and sum(one.row_count for one in lump) + file.row_count > TABLE_ROWS_MAX:
            yield lump
            lump = []
        lump.append(file)
    if lump:
        yield lump


def _field(field: Mapping[str, Any]) -> pa.Field | None:
    """Returns Arrow's field of one of Iceberg's; None for a type that the warehouse does not write."""
    kind: pa.DataType | None
    if isinstance(field["type"], Mapping):
        if field["type"]["type"] != "list":
            return None
        element = {"name": "element", "id": field["type"]["element-id"], "type": field["type"]["element"]}
        inner = _field(element)
        kind = None if inner is None else pa.list_(inner)
    elif decimal := _DECIMAL.fullmatch(field["type"]):
        kind = pa.decimal128(int(decimal[1]), int(decimal[2]))
    else:
        kind = _ARROW_TYPES.get(field["type"])
    return kind and pa.field(field["name"], kind, metadata={_FIELD_ID: str(field["id"])})
