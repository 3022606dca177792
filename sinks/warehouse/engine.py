"""The interface of the engine that runs the warehouse's statements."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from sinks.contract import Json
from sinks.warehouse.evolution import Evolution


class Conflict(Exception):  # noqa: N818
    """Raised when another writer committed to the table meanwhile. Nothing of the statement was committed; the caller
    plans it again.
    """


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a table."""

    id: int
    parent_id: int | None

    summary: Mapping[str, str]  # Iceberg's counts, and the properties that its writer set
    sequence_number: int = 0  # greater than that of each earlier commit, also of those that were rolled back


@dataclass(frozen=True, slots=True)
class VectorPlace:
    """A deletion vector of a data file, in a Puffin file (see sinks/warehouse/vectors.py)."""

    path: str
    file_bytes: int
    offset: int
    length: int
    row_count: int  # of deleted rows


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table's rows."""

    path: str
    row_count: int  # with deleted ones
    vector: VectorPlace | None


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table as it was when it was opened, for a commit of files that the caller writes."""

    # Its commits, newest first, and the text of Engine.state; both with those that the caller made since.
    snapshots: Callable[[], Iterator[Snapshot]]
    state: Callable[[], str | None]
    fields: Sequence[Mapping[str, Any]]  # of its schema, as Iceberg's JSON has them
    files: Sequence[DataFile]  # all that may contain rows within the bounds for which the table was opened
    new_data_path: str  # where a new data file goes
    new_vectors_path: str  # where a new file of deletion vectors goes
    handle: Any  # the engine's own

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest of its commits."""
        return next(self.snapshots(), None)


@dataclass(frozen=True, slots=True)
class NewFiles:
    """The files of one commit."""

    rows: tuple[str, int] | None  # path and size in bytes of a Parquet file
    vectors: Mapping[str, VectorPlace]  # by the path of their data file; each replaces the file's former one


class Engine(Protocol):
    """An SQL session on the catalog. The caller quotes names. Every method raises SinkError when the engine or the
    catalog fails.
    """

    def run(
        self,
        statement: str,
        properties: Mapping[str, str] | None = None,
        *,
        by_row: bool = False,
        partitions: int | None = None,
    ) -> None:
        """Runs one statement; the summary of the snapshot that it commits contains `properties`. `by_row`: the
        statement reads whole rows, of any size, so thousands of them must not be in memory at once. `partitions`: the
        number of partitions of its join. Raises Conflict.
        """

    def query(self, statement: str) -> pa.Table:
        """Runs one SELECT."""

    def staged_source(
        self, name: str, files: Sequence[str], columns: str, key: Sequence[str] | None, *, is_small: bool
    ) -> None:
        """Makes the rows of these Parquet files readable in this session's statements under `name`, and replaces an
        earlier source of that name. `columns`: the files' schema, as Spark declares it; `key`: of rows with equal
        values in these columns only the newest is read; `is_small`: one task reads all files.
        """

    def open_table(self, table: tuple[str, ...], bounds: Mapping[str, tuple[Json, Json]]) -> OpenTable | None:
        """Opens a table for `commit`. `bounds`: column → the lowest and the highest of the values that the caller looks
        for, None: unbounded. Returns None for a table with partitions or an order of rows, or with files that are
        neither Parquet nor deletion vectors, and for one whose files are elsewhere than the catalog's location: only
        statements write such a table.
        """

    def commit(
        self, opened: OpenTable, files: NewFiles, properties: Mapping[str, str], *, is_guarded: bool
    ) -> Iterator[Snapshot]:
        """Commits files, as one snapshot with these properties. Returns the table's commits then, newest first.
        `is_guarded`: raises Conflict if another writer has added, changed or deleted rows since the table was opened,
        or has replaced a data file of `files.vectors`.
        """

    def history(self, table: tuple[str, ...]) -> Iterator[Snapshot]:
        """Yields the table's commits that are kept, newest first."""

    def tags(self, table: tuple[str, ...]) -> Mapping[str, int]:
        """Returns the table's tags: name → id of the snapshot."""

    def tag(self, table: tuple[str, ...], name: str, snapshot: int | None, removed: Sequence[str]) -> None:
        """Sets the tag on a snapshot, whatever it was on before, and removes others, in one commit. `snapshot`: None
        for a table that has none yet: it gets one without rows. Raises Conflict."""

    def state(self, table: tuple[str, ...]) -> str | None:
        """Returns a text that changes with each commit to the table; None if the table does not exist. Cheap."""

    def table_properties(self, table: tuple[str, ...]) -> Mapping[str, str] | None:
        """Returns the table's properties; None if the table or its metadata does not exist."""

    def table_columns(self, table: tuple[str, ...]) -> Mapping[str, str]:
        """Returns the table's columns in order: name → Spark's type."""

    def evolve(
        self, table: tuple[str, ...], change: Evolution, found: Mapping[str, str], noted: Mapping[str, str]
    ) -> None:
        """Changes columns and sets the properties `saved_position`, in one commit. Raises Conflict if the table's
        properties are not `found` any more, or another writer commits to it meanwhile."""

    def namespace_properties(self, namespace: tuple[str, ...]) -> Mapping[str, str] | None:
        """Returns the namespace's properties; None if the namespace or the catalog does not exist."""

    def drop(self, name: tuple[str, ...]) -> None:
        """Removes a table or view from the catalog, also one whose metadata is missing. Its files stay. Idempotent."""

    def close(self) -> None:
        """Releases the session. Idempotent."""
