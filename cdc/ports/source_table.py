"""A table of the source, as its catalog describes it."""

from dataclasses import dataclass

from cdc.model.errors import WatershedError
from cdc.model.events import Column, TableId
from cdc.model.table_state import TableFacts


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as the catalog describes it."""

    table: TableId
    oid: int
    is_partitioned: bool
    may_select: bool
    hides_rows: bool  # row-level security applies to our role
    is_owned: bool
    columns: tuple[Column, ...]
    key: tuple[str, ...]  # empty: no key is covered by the replica identity, or none is wanted
    is_chunkable: bool = True  # a unique index has exactly the key's columns, in this order
    left_out: tuple[str, ...] = ()  # columns that are published but not captured
    has_primary_key: bool = False  # not deferrable, whether the replica identity covers it or not


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A configured table, as the catalog describes it when the session begins."""

    found: SourceTable | None
    facts: TableFacts | None
    entry: str  # fingerprint of its row in the publication
    state: str  # changes with anything that decides whether the table may be captured
    error: WatershedError | None  # why a captured table's changes can't be captured any more
    barrier: WatershedError | None = None  # why the table can't be added

    @property
    def unchunkable(self) -> SourceTable | None:
        """The table, if it exists and its rows can't be read in chunks."""
        return None if self.found is None or self.found.is_chunkable else self.found
