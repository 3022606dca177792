"""Reads the warehouse without Spark, through the same catalog, like any other Iceberg reader."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import DataScan

from cdc.config.store_shapes import WarehouseMode
from cdc.model.events import TableId
from sinks.contract import StoredRow
from sinks.errors import SinkError
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.every_change import SWEPT
from sinks.warehouse.naming import OWN_COLUMNS, SEEN_VERSION, VERSION
from sinks.warehouse.properties import GENERATION, KEY, MODE, listed_tables, markers


class WarehouseReader:
    """Reads committed tables; each commit is visible at once. Not thread-safe."""

    def __init__(self, catalog: CatalogPlace) -> None:
        self._place = catalog

    @property
    def namespace(self) -> str:
        """The namespace that contains all tables."""
        return self._place.namespace

    def generation(self) -> int | None:
        """Returns the generation held, like `WarehouseSink.generation`; None if there is none, or if one of its tables
        does not exist.
        """
        if not self._place.is_there():
            return None
        try:
            with self._place.opened() as catalog:
                noted = catalog.load_namespace_properties((self._place.namespace,))
                marker = str(noted.get(GENERATION, ""))
                for table in listed_tables(noted):
                    found = catalog.load_table(self._place.place(table).rows)
                    if found.properties.get(GENERATION) not in markers(noted):
                        return None
        except (NoSuchTableError, NoSuchNamespaceError, FileNotFoundError):
            return None
        return int(marker) if marker.isdecimal() else None

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        """Yields every live row of the newest snapshot, one file's record batch at a time. Values are Python's for the
        column's type: int, float, bool, str, bytes, Decimal, date, datetime (aware for timestamps with time zone),
        lists of these. Of a history its current rows; of a change log the newest row of each key, for which the keys
        are held in memory. Raises SinkError for a table that is not there."""
        name = self._place.place(table).rows
        with reading(self._place, name) as catalog:
            found = catalog.load_table(name)
            mode = _mode(found.properties.get(MODE))
            key = json.loads(found.properties[KEY])
            scan = found.scan(row_filter="is_current = true") if mode == "history" else found.scan()
            newest = _newest(found.scan(), key) if mode == "changelog" else None
            for batch in scan.to_arrow_batch_reader():
                for row in batch.to_pylist():
                    version = row[VERSION]
                    if newest is not None and newest.get(_identity(row, key)) != version:
                        continue
                    version = row.get(SEEN_VERSION, version)
                    for own in OWN_COLUMNS[mode]:
                        del row[own]
                    yield StoredRow({column: row[column] for column in key}, row, version)


@contextmanager
def reading(where: CatalogPlace, name: tuple[str, ...]) -> Iterator[Catalog]:
    """The catalog, while a table is read. Raises SinkError, naming the table, where it is not there."""
    try:
        with where.opened() as catalog:
            yield catalog
    except (NoSuchTableError, NoSuchNamespaceError, FileNotFoundError) as error:
        raise SinkError(
            f"warehouse: table {'.'.join(name)} does not exist",
            "start its sink; it creates the table and fills it from the topics",
        ) from error


def _mode(mode: str | None) -> WarehouseMode:
    return "history" if mode == "history" else "changelog" if mode == "changelog" else "current"


def _newest(scan: DataScan, key: Sequence[str]) -> dict[str, int]:
    """Returns the version of the newest change of each live row in a change log, by key."""
    newest: dict[str, tuple[int, bool]] = {}
    floor = 0
    for batch in scan.select(*key, VERSION, "operation").to_arrow_batch_reader():
        for row in batch.to_pylist():
            version, operation = row[VERSION], row["operation"]
            if operation == SWEPT:
                floor = max(floor, version)
            elif version > newest.get(name := _identity(row, key), (0, False))[0]:
                newest[name] = (version, operation != "d")
    return {name: version for name, (version, is_there) in newest.items() if is_there and version >= floor}


def _identity(row: Mapping[str, Any], key: Sequence[str]) -> str:
    return repr([row[column] for column in key])
