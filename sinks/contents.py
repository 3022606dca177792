"""The content of a store, for comparison with the source beside the sink's job. Contents write nothing except removals.

Each table must be attached with its schema in the store's shape (`sinks.shaping.table.TableShape.schema`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from cdc.model.events import TableId, TableSchema
from sinks.contract import Json

Key = Mapping[str, Json]
"""Column of the store → the record's JSON value, in key order."""


T = TypeVar("T")


Removal = Callable[..., None]
"""Removes rows from the warehouse, which only Spark writes: (catalog, table's place, key columns, rows)."""


class StoredEntry(NamedTuple):
    """The entry of one key in a store. Two entries with the same version are from the same write of a sink's job."""

    version: int
    row: Mapping[str, Json] | None  # None: readers see no row
    copies: int = 1  # live rows of the key: more than one is never right
    is_edited: bool = False  # the store itself says that no sink's job wrote it like this
    lookups: tuple[tuple[str, str], ...] = ()  # wrong lookup keys of the row: the key, and what is wrong with it


class StoreContents(Protocol):
    """Methods raise SinkError. A store without lookup keys inherits the methods for them."""

    removal: Removal | None = None  # for a warehouse from which rows are to be removed

    def attach(self, schema: TableSchema) -> None:
        """Sets the table's schema in the store."""

    def is_prepared(self, table: TableId) -> bool:  # noqa: ARG002 - the same for every table
        """Returns whether the store's table can be read with the attached schema."""
        return True

    def rows(self, table: TableId) -> Iterator[tuple[Key, StoredEntry]]:
        """Yields every live row that readers see, including those that no sink's job has written; possibly more than
        once.
        """

    def is_partial(self, table: TableId) -> bool:
        """Returns whether the store may lack rows of the table by configuration (they expire)."""

    def held(self, table: TableId, keys: Sequence[Key]) -> list[StoredEntry | None]:
        """Returns the present entry of each key; None if there is not even the version of a deleted row."""

    def remove(self, table: TableId, held: Sequence[tuple[Key, int]]) -> None:
        """Delete the version of a key, where it is this one: from then on any change is taken. The row may be deleted
        with it, so it must be published again."""

    def uncompared(self, table: TableId) -> frozenset[str]:  # noqa: ARG002 - the same for every table
        """The columns, by their names in the store, whose values the store may hold in another form. The table need not
        be attached."""
        return frozenset()

    def orphaned_lookups(self, table: TableId) -> Iterator[str]:  # noqa: ARG002 - the same for every table
        """The lookup keys that lead to no row, or to a row that has another value."""
        return iter(())

    def remove_lookups(self, table: TableId, names: Sequence[str]) -> None:
        """Delete these lookup keys where they are stray."""
        assert not names, f"the store has no lookup keys of {table}"

    def close(self) -> None:
        """Releases connections. Idempotent."""


def batched(items: Iterable[T], count: int) -> Iterator[tuple[T, ...]]:
    """Yields tuples of `count` items; the last one may be shorter."""
    left = iter(items)
    while part := tuple(islice(left, count)):
        yield part
