"""The content of the warehouse, for comparison with the source: committed tables, read without Spark."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, In
from pyiceberg.table import Table

from cdc.config.stores import WarehouseConfig
from cdc.model.events import Column, TableId, TableSchema
from sinks.contents import Key, Removal, StoreContents, StoredEntry
from sinks.errors import RefusedError, SinkError
from sinks.json_values import Unholdable
from sinks.warehouse.catalog import CatalogPlace, catalog_place
from sinks.warehouse.columns import column_type
from sinks.warehouse.naming import OWN_COLUMNS, SEEN_VERSION, VERSION
from sinks.warehouse.properties import MODE
from sinks.warehouse.reader import reading

_NAMEABLE: Final = frozenset({"int", "bigint", "string"})  # types whose values Iceberg compares in files' bounds


class WarehouseContents(StoreContents):
    """Implements sinks.contents.StoreContents. Each method reads the newest snapshot of the table."""

    def __init__(self, catalog: CatalogPlace, removal: Removal | None = None) -> None:
        self._place = catalog
        self.removal = removal
        self._schemas: dict[TableId, TableSchema] = {}

    @classmethod
    def open(cls, section: WarehouseConfig, prefix: str, name: str) -> Self:
        """Opens the contents. Raises SinkError if there is no catalog."""
        del name
        found = catalog_place(section, prefix)
        if not found.is_there():
            raise SinkError(f"warehouse: there is no catalog {found.database}", "start its sink, which creates it")
        return cls(found)

    def attach(self, schema: TableSchema) -> None:
        self._schemas[schema.table] = schema

    def is_partial(self, table: TableId) -> bool:  # noqa: ARG002 - the same for every table
        return False

    def rows(self, table: TableId) -> Iterator[tuple[Key, StoredEntry]]:
        name = self._place.place(table).rows
        with reading(self._place, name) as catalog:
            for key, version, row in self._rows(catalog.load_table(name), table, AlwaysTrue()):
                yield key, StoredEntry(version, row)

    def held(self, table: TableId, keys: Sequence[Key]) -> list[StoredEntry | None]:
        columns, where = self._key_columns(table), self._place.place(table)
        wanted = [_values(columns, key) for key in keys]
        condition = _among(columns, [values for values in wanted if values])
        found: dict[tuple[Any, ...], StoredEntry] = {}
        with reading(self._place, where.rows) as catalog:
            rows = catalog.load_table(where.rows)
            if rows.properties.get(MODE, "current") == "current":
                for row in _scanned(catalog.load_table(where.deleted), condition):
                    values = self._identity(table, row)
                    found[values] = StoredEntry(
                        max(row[VERSION], found[values].version if values in found else 0), None
                    )
            for key, version, live in self._rows(rows, table, condition):
                values = self._identity(table, key)
                other = found.get(values)
                copies = 1 + (other.copies if other and other.row is not None else 0)
                found[values] = StoredEntry(max(version, other.version) if other else version, live, copies)
        return [found.get(values) if values else None for values in wanted]

    def remove(self, table: TableId, held: Sequence[tuple[Key, int]]) -> None:
        assert self.removal is not None, "who removes rows says how"
        self.removal(self._place, self._place.place(table), self._key_columns(table), held)

    def close(self) -> None:
        """Does nothing: each method opens and closes the catalog."""

    def _key_columns(self, table: TableId) -> list[Column]:
        schema = self._schemas[table]
        by_name = {column.name: column for column in schema.columns}
        return [by_name[name] for name in schema.key]

    def _identity(self, table: TableId, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(_hashable(row[name]) for name in self._schemas[table].key)

    def _rows(
        self, rows: Table, table: TableId, condition: BooleanExpression
    ) -> Iterator[tuple[Key, int, dict[str, Any]]]:
        """Yields key, version and row of the table for readers; of a history its current rows. Raises RefusedError for
        a change log.
        """
        mode = rows.properties.get(MODE)
        if mode == "changelog":
            raise RefusedError(
                f"warehouse: {table} is a change log, which can't be compared with the source's present rows",
                "name only other tables, with --table",
            )
        own = OWN_COLUMNS["history" if mode == "history" else "current"]
        if mode == "history":
            condition = And(condition, EqualTo(term="is_current", value=True))
        for row in _scanned(rows, condition):
            version = row.get(SEEN_VERSION, row[VERSION])
            for name in own:
                del row[name]
            yield {name: row[name] for name in self._schemas[table].key}, version, row


def _scanned(table: Table, condition: BooleanExpression) -> Iterator[dict[str, Any]]:
    for batch in table.scan(row_filter=condition).to_arrow_batch_reader():
        yield from batch.to_pylist()


def _values(columns: Sequence[Column], key: Key) -> tuple[Any, ...] | None:
    """Returns the key's values as the warehouse returns them; None for a key that it can't hold."""
    try:
        found = [column_type(column).array([key[column.name]]).to_pylist()[0] for column in columns]
    except Unholdable:
        return None
    return tuple(map(_hashable, found))


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _among(columns: Sequence[Column], keys: Sequence[tuple[Any, ...]]) -> BooleanExpression:
    """Returns a condition that is true of every row with one of the keys, and perhaps of others."""
    condition: BooleanExpression = AlwaysTrue()
    for at, column in enumerate(columns):
        if column_type(column).sql in _NAMEABLE:
            condition = And(condition, In(term=column.name, literals={key[at] for key in keys}))
    return condition
