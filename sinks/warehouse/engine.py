"""The interface of the engine that runs the warehouse's statements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

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
