"""The warehouse read without Spark, through the same catalog: what any other Iceberg reader would see."""

import json
from collections.abc import Iterator

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from cdc.model.errors import SinkError
from cdc.model.events import TableId
from sinks.contract import StoredRow
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.naming import DELETED, VERSION, place
from sinks.warehouse.properties import GENERATION, KEY, listed_tables
from sinks.warehouse.statements import CATALOG


class WarehouseReader:
    """Reads committed tables; sees each commit at once. Not for use by two threads."""

    def __init__(self, catalog: CatalogPlace) -> None:
        self._place = catalog

    def generation(self) -> int | None:
        """As `WarehouseSink.generation`: None when there is none, or one of its tables is gone."""
        if not self._place.database.exists():  # opening it would make it
            return None
        catalog = SqlCatalog(CATALOG, uri=self._place.sqlalchemy_uri, warehouse=self._place.location)
        try:
            noted = catalog.load_namespace_properties((self._place.namespace,))
            marker = str(noted.get(GENERATION, ""))
            for table in listed_tables(noted):
                found = catalog.load_table(place(self._place.namespace, table).rows)
                if found.properties.get(GENERATION) != marker:
                    return None
        except (NoSuchTableError, NoSuchNamespaceError, FileNotFoundError):
            return None
        finally:
            catalog.close()
        return int(marker) if marker.isdecimal() else None

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        """Every live row of the newest snapshot, one file's record batch at a time. Values are Python's for the
        column's type: int, float, bool, str, bytes, Decimal, date, datetime (aware for timestamps with time zone),
        lists of these. Raises SinkError for a table that is not there."""
        name = place(self._place.namespace, table).rows
        catalog = SqlCatalog(CATALOG, uri=self._place.sqlalchemy_uri, warehouse=self._place.location)
        try:
            found = catalog.load_table(name)
            key = json.loads(found.properties[KEY])
            for batch in found.scan(row_filter=f"{DELETED} = false").to_arrow_batch_reader():
                for row in batch.to_pylist():
                    version = row.pop(VERSION)
                    del row[DELETED]
                    yield StoredRow({column: row[column] for column in key}, row, version)
        except (NoSuchTableError, NoSuchNamespaceError, FileNotFoundError) as error:
            raise SinkError(
                f"warehouse: table {'.'.join(name)} is not there",
                "start its sink; it creates the table and fills it from the topics",
            ) from error
        finally:
            catalog.close()
