"""What the warehouse needs of the engine that runs its statements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sinks.warehouse.evolution import Evolution


class Conflict(Exception):  # noqa: N818
    """Another writer committed to the table meanwhile; nothing of this statement was committed. Plan it again."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a table."""

    id: int
    parent_id: int | None
    summary: Mapping[str, str]  # Iceberg's counts, and the properties that its writer gave


class Engine(Protocol):
    """An SQL session on the catalog. Names are quoted by the caller. Every method raises SinkError when the engine or
    the catalog fails."""

    def run(
        self,
        statement: str,
        properties: Mapping[str, str] | None = None,
        *,
        by_row: bool = False,
        partitions: int | None = None,
    ) -> None:
        """Run one statement; what it commits carries `properties` in its snapshot's summary. `by_row`: the statement
        reads whole rows, of any size, so thousands of them must not be in memory at once. `partitions`: in how many
        parts it joins. Raises Conflict."""

    def query(self, statement: str) -> pa.Table:
        """Run one SELECT."""

    def staged_source(
        self, name: str, files: Sequence[str], columns: str, key: Sequence[str] | None, *, is_small: bool
    ) -> None:
        """Make the rows of these Parquet files readable in this session's statements under `name`, instead of what had
        this name before. `columns`: the files' schema, as Spark declares it; `key`: of rows whose values of these
        columns are equal only the newest counts; `is_small`: one task reads them all."""

    def history(self, table: tuple[str, ...]) -> Iterator[Snapshot]:
        """The table's commits, newest first, as far back as they are kept."""

    def state(self, table: tuple[str, ...]) -> str | None:
        """A text that is another one after each commit to the table; None for a table that is not there. Cheap."""

    def table_properties(self, table: tuple[str, ...]) -> Mapping[str, str] | None:
        """None for a table that is not there, or whose metadata is gone."""

    def table_columns(self, table: tuple[str, ...]) -> Mapping[str, str]:
        """Name → type in Spark's word, in order."""

    def evolve(
        self, table: tuple[str, ...], change: Evolution, found: Mapping[str, str], noted: Mapping[str, str]
    ) -> None:
        """Change columns and note properties, all in one commit. Raises Conflict where the table's properties are not
        `found` any more, or anything else is committed to it meanwhile."""

    def namespace_properties(self, namespace: tuple[str, ...]) -> Mapping[str, str] | None:
        """None for a namespace, or a catalog, that is not there."""

    def drop(self, name: tuple[str, ...]) -> None:
        """Forget a table or view of the catalog, also one whose metadata is gone. Its files stay. Idempotent."""

    def close(self) -> None:
        """Release the session. Idempotent."""
