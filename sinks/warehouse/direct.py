"""The merge of a few rows without a statement: files are written here, and committed through the engine.

Spark plans, compiles and schedules a MERGE of ten rows as one of a million. Here the batch's keys are looked up in the
files that may contain them; rows of the table that lost are marked in deletion vectors, and rows of the batch that won
are written to a new file. The guard is that of the MERGE: versions are compared with those of the snapshot on which the
commit is based, and the commit fails if anything was added, changed or deleted since.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from cdc.config.warehouse_catalog import S3Config, is_s3
from sinks.contract import Json
from sinks.warehouse.engine import Conflict, DataFile, Engine, NewFiles, OpenTable, Snapshot, VectorPlace
from sinks.warehouse.naming import VERSION
from sinks.warehouse.object_store import file_system
from sinks.warehouse.staging import Staged, TableForm
from sinks.warehouse.statements import DELETED, DELETED_AT
from sinks.warehouse.vectors import from_blob, puffin_file

Name = tuple[str, ...]
Key = tuple[Json, ...]

# Larger batches are merged by a statement, whose tasks need no memory of the driver.
ROWS_MAX: Final = 5_000
BYTES_MAX: Final = 8 * 1024 * 1024
# More rows of the table are searched by a statement, with several tasks.
TABLE_ROWS_MAX: Final = 1_000_000
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


@dataclass(slots=True)
class _Match:
    """A batch compared with its table."""

    winners: list[int]  # rows of the batch that are written
    losers: dict[DataFile, BitMap64]  # positions of the table's rows that are deleted


class DirectMerge:
    """Merges the rows of batches for which `suits` returns true. Not thread-safe."""

    def __init__(self, engine: Engine, contents: FileContents, s3: S3Config | None = None) -> None:
        self._engine = engine
        self._contents = contents
        self._s3 = s3

    def suits(self, form: TableForm, staged: Sequence[Staged]) -> bool:
        """Returns whether the rows are few, and whole rows of a table that this class can write."""
        return (
            form.mode == "current"
            and bool(form.key)
            and all(form.columns[name].sql in _KEY_TYPES for name in form.key)
            and not any(part.lacks for part in staged)
            and sum(part.row_count for part in staged) <= ROWS_MAX
            and sum(part.byte_count for part in staged) <= BYTES_MAX
        )

    def rows(self, staged: Sequence[Staged]) -> pa.Table:
        """Returns the staged rows."""
        return pa.concat_tables([pq.read_table(pa.BufferReader(self._get(part.path))) for part in staged])

    def open(self, table: Name, form: TableForm, rows: pa.Table) -> OpenTable | None:
        """Opens the table with the files that may contain the rows' keys. Returns None if a statement must merge
        them."""
        bounds = {name: _bounds(rows.column(name)) for name in form.key}
        if any(column.null_count for column in rows.select(list(form.key)).columns):
            return None
        opened = self._open(table, bounds)
        if opened is None or {field["name"] for field in opened.fields} != {*form.columns, VERSION}:
            return None
        return opened

    def _open(self, table: Name, bounds: Mapping[str, tuple[Json, Json]]) -> OpenTable | None:
        opened = self._engine.open_table(table, bounds)
        if opened is None or sum(file.row_count for file in opened.files) > TABLE_ROWS_MAX:
            return None
        return opened if all(_field(field) is not None for field in opened.fields) else None

    def merge(
        self, opened: OpenTable, form: TableForm, rows: pa.Table, properties: Mapping[str, str]
    ) -> Iterator[Snapshot] | None:
        """Commits the rows that win. Returns the table's commits, newest first; None if a statement must merge the
        rows. Raises Conflict."""
        try:
            match = self._match(opened, form.key, rows)
            winners = rows.take(pa.array(match.winners, pa.int64()))
            return self._commit(opened, winners, match.losers, properties, is_guarded=True)
        except _OtherForm:
            return None

    def open_deleted(self, table: Name, lowest: int) -> OpenTable | None:
        """Opens a table of deleted keys with the files that may contain this version or later ones. Returns None if
        only a statement can read it."""
        return self._open(table, {VERSION: (lowest, None)})

    def without_deleted(self, opened: OpenTable, form: TableForm, rows: pa.Table) -> pa.Table | None:
        """Returns the rows without those whose key was deleted at their version or later; None if a statement must
        find them."""
        deleted: dict[Key, int] = {}
        try:
            for file in opened.files:
                for key, version, _ in self._found(opened, file, form.key, rows):
                    deleted[key] = max(version, deleted.get(key, 0))
        except _OtherForm:
            return None
        listed = zip(_keys(rows, form.key), *_lists(rows, (VERSION, DELETED)), strict=True)
        kept = [gone or deleted.get(key, -1) < version for key, version, gone in listed]
        return rows.filter(pa.array(kept, pa.bool_()))

    def add_deleted(self, opened: OpenTable, form: TableForm, rows: pa.Table) -> None:
        """Adds the keys of the deletes among the rows to the table of deleted keys."""
        keys = rows.filter(rows.column(DELETED)).select([*form.key, VERSION])
        at = pa.array([datetime.now(UTC)] * len(keys), pa.timestamp("us", tz="UTC"))
        self._commit(opened, keys.append_column(DELETED_AT, at), {}, {}, is_guarded=False)

    # ---- comparing

    def _match(self, opened: OpenTable, key: Sequence[str], rows: pa.Table) -> _Match:
        newest: dict[Key, tuple[int, int]] = {}  # key → version and number of its row
        for number, (name, version) in enumerate(zip(_keys(rows, key), *_lists(rows, (VERSION,)), strict=True)):
            if version > newest.get(name, (-1, 0))[0]:
                newest[name] = version, number
        losers: dict[DataFile, BitMap64] = {}
        stale: set[Key] = set()
        for file in opened.files:
            for name, version, position in self._found(opened, file, key, rows):
                ours = newest.get(name)
                if ours is None:
                    continue
                if ours[0] > version:
                    losers.setdefault(file, BitMap64()).add(position)
                else:
                    stale.add(name)
        is_delete = rows.column(DELETED).to_pylist()
        winners = [number for name, (_, number) in newest.items() if name not in stale and not is_delete[number]]
        return _Match(winners, losers)

    def _found(
        self, opened: OpenTable, file: DataFile, key: Sequence[str], rows: pa.Table
    ) -> Iterator[tuple[Key, int, int]]:
        """Yields key, version and position of the file's rows that may have a key of the batch: in each column of the
        key a value of the batch. Raises _OtherForm."""
        fields = {field["name"]: (field["name"], field["id"], field["type"]) for field in opened.fields}
        kept = (file.path, *(fields[name] for name in key))
        known = self._contents.get(kept, lambda: self._read_keys(opened, file, key))
        is_hit = None
        for name in key:
            column = known.column(name)
            found = pc.is_in(column, value_set=rows.column(name).combine_chunks().cast(column.type))
            is_hit = found if is_hit is None else pc.and_(is_hit, found)
        at = pc.indices_nonzero(is_hit)
        if not len(at):
            return
        hits, gone = known.take(at), self._vector(file)
        for name, version, position in zip(_keys(hits, key), *_lists(hits, (VERSION,)), at.to_pylist(), strict=True):
            if position not in gone:
                yield name, version, position

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
        rows: pa.Table,
        losers: Mapping[DataFile, BitMap64],
        properties: Mapping[str, str],
        *,
        is_guarded: bool,
    ) -> Iterator[Snapshot]:
        new, vectors = None, {}
        if len(rows):
            with _our_form():
                content = _parquet(rows, opened.fields)
            self._put(opened.new_data_path, content)
            new = opened.new_data_path, len(content)
        if losers:
            gone = {file.path: self._vector(file) | positions for file, positions in losers.items()}
            content, places = puffin_file(gone)
            self._put(opened.new_vectors_path, content)
            for path, (offset, length) in places.items():
                place = VectorPlace(opened.new_vectors_path, len(content), offset, length, len(gone[path]))
                vectors[path] = place
        try:
            return self._engine.commit(opened, NewFiles(new, vectors), properties, is_guarded=is_guarded)
        except Conflict:
            for path in (opened.new_data_path, opened.new_vectors_path):
                self._delete(path)
            raise

    def _get(self, uri: str, offset: int = 0, length: int | None = None) -> bytes:
        system, path = file_system(uri, self._s3)
        with system.open_input_file(path) as file:
            found: bytes = file.read_at(file.size() if length is None else length, offset)
        return found

    def _put(self, uri: str, content: pa.Buffer | bytes) -> None:
        system, path = file_system(uri, self._s3)
        if not is_s3(uri):  # an object store has no folders
            system.create_dir(path.rpartition("/")[0], recursive=True)
        with system.open_output_stream(path) as file:
            file.write(content)

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


def _keys(rows: pa.Table, key: Sequence[str]) -> list[Key]:
    return list(zip(*_lists(rows, key), strict=True))


def _parquet(rows: pa.Table, fields: Sequence[Mapping[str, Any]]) -> pa.Buffer:
    """Returns a Parquet file in the form of a table's schema."""
    schema = pa.schema([_field(field) for field in fields])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd", store_decimal_as_integer=True) as writer:
        writer.write_table(rows.select(schema.names).cast(schema))
    return sink.getvalue()


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
