"""Reading without Spark, from a table that was written without Spark."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from cdc.model.events import TableId
from sinks.contract import StoredRow
from sinks.errors import SinkError
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.naming import table_location
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.statements import CATALOG

TABLE = TableId("public", "a")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("ws_version", pa.int64()),
    ]
)


@pytest.fixture
def where(tmp_path: Path) -> CatalogPlace:
    return CatalogPlace(tmp_path / "catalog.db", (tmp_path / "tables").as_uri(), "shop")


def mark(where: CatalogPlace, namespace: dict[str, str], tables: dict[TableId, dict[str, str]]) -> None:
    """What the sink notes: properties of the namespace, and tables with theirs."""
    catalog = SqlCatalog(CATALOG, **where.python_properties)
    catalog.create_namespace("shop", namespace)
    for table, properties in tables.items():
        name = table_location("shop", table).rows
        catalog.create_namespace_if_not_exists(name[:-1])
        catalog.create_table(name, SCHEMA, properties=properties)
    catalog.close()


def write(where: CatalogPlace, *batches: list[tuple[object, ...]]) -> None:
    catalog = SqlCatalog(CATALOG, **where.python_properties)
    name = table_location("shop", TABLE).rows
    catalog.create_namespace(name[:-1])
    table = catalog.create_table(name, SCHEMA, properties={"watershed.key": '["id", "part"]'})
    for batch in batches:
        table.append(pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in batch], SCHEMA))
    catalog.close()


def test_rows_of_every_file_come_typed(where: CatalogPlace) -> None:
    at = datetime(2024, 1, 31, 12, tzinfo=UTC)
    write(
        where,
        [(1, "x", Decimal("1.50"), at, 10), (2, "y", None, None, 11)],
        [(3, "z", None, None, 12)],
    )
    rows = sorted(WarehouseReader(where).rows(TABLE), key=lambda row: row.version)
    assert rows == [
        StoredRow({"id": 1, "part": "x"}, {"id": 1, "part": "x", "price": Decimal("1.50"), "at": at}, 10),
        StoredRow({"id": 2, "part": "y"}, {"id": 2, "part": "y", "price": None, "at": None}, 11),
        StoredRow({"id": 3, "part": "z"}, {"id": 3, "part": "z", "price": None, "at": None}, 12),
    ]


def test_an_empty_table_has_no_rows(where: CatalogPlace) -> None:
    write(where)
    assert list(WarehouseReader(where).rows(TABLE)) == []


def test_a_table_that_is_not_there_is_said(where: CatalogPlace) -> None:
    with pytest.raises(SinkError, match=r"shop\.public\.a does not exist"):
        list(WarehouseReader(where).rows(TABLE))
    write(where)
    with pytest.raises(SinkError, match=r"public\.b"):
        list(WarehouseReader(where).rows(TableId("public", "b")))


def test_a_table_whose_files_were_deleted_is_not_there(where: CatalogPlace, tmp_path: Path) -> None:
    write(where, [(1, "x", None, None, 10)])
    for path in sorted((tmp_path / "tables").rglob("*.json")):
        path.unlink()
    with pytest.raises(SinkError, match="does not exist"):
        list(WarehouseReader(where).rows(TABLE))


def test_the_generation_is_the_namespaces_if_every_table_bears_it(where: CatalogPlace) -> None:
    noted = {"watershed.generation": "3", "watershed.tables": '[["public","a"]]'}
    mark(where, noted, {TABLE: {"watershed.generation": "3"}})
    assert WarehouseReader(where).generation() == 3


@pytest.mark.parametrize("tables", [{}, {TABLE: {"watershed.generation": "2"}}])
def test_without_one_of_its_tables_there_is_no_generation(
    where: CatalogPlace, tables: dict[TableId, dict[str, str]]
) -> None:
    mark(where, {"watershed.generation": "3", "watershed.tables": '[["public","a"]]'}, tables)
    assert WarehouseReader(where).generation() is None


def test_nothing_holds_no_generation_and_is_not_made_by_looking(where: CatalogPlace) -> None:
    assert WarehouseReader(where).generation() is None
    assert not where.is_there()
    mark(where, {}, {})
    assert WarehouseReader(where).generation() is None
