"""What `cdc verify` sees of tables in each mode, from tables that were written without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from cdc.model.events import Column, TableId, TableSchema
from sinks.contents import StoredEntry
from sinks.errors import RefusedError, SinkError
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.contents import WarehouseContents
from sinks.warehouse.naming import table_location
from sinks.warehouse.statements import CATALOG

TABLE = TableId("public", "a")
COLUMNS = (Column("id", 20, -1, "bigint", False, "b", 20), Column("note", 25, -1, "text", True, "b", 25))
ROW = [("id", pa.int64()), ("note", pa.string()), ("ws_version", pa.int64())]
HISTORY = [
    *(("operation", pa.string()), ("valid_from", pa.timestamp("us", tz="UTC"))),
    *(("valid_to", pa.timestamp("us", tz="UTC")), ("is_current", pa.bool_())),
    *(("ws_next_version", pa.int64()), ("ws_seen_version", pa.int64())),
]


@pytest.fixture
def contents(tmp_path: Path) -> WarehouseContents:
    made = WarehouseContents(CatalogPlace(tmp_path / "catalog.db", (tmp_path / "tables").as_uri(), "shop"))
    made.attach(TableSchema(TABLE, 1, 1, COLUMNS, ("id",), "shop.public.a"))
    return made


def write(
    contents: WarehouseContents, name: tuple[str, ...], schema: pa.Schema, mode: str, *rows: dict[str, Any]
) -> None:
    catalog = SqlCatalog(CATALOG, **contents._place.python_properties)
    for depth in range(1, len(name)):
        catalog.create_namespace_if_not_exists(name[:depth])
    table = catalog.create_table(name, schema, properties={"watershed.key": '["id"]', "watershed.mode": mode})
    table.append(pa.Table.from_pylist(list(rows), schema))
    catalog.close()


def test_a_live_row_a_deleted_key_and_one_that_was_never_there(contents: WarehouseContents) -> None:
    where, deleted = table_location("shop", TABLE), pa.schema([("id", pa.int64()), ("ws_version", pa.int64())])
    write(contents, where.rows, pa.schema(ROW), "current", {"id": 1, "note": "x", "ws_version": 9})
    write(contents, where.deleted, deleted, "current", {"id": 2, "ws_version": 5}, {"id": 2, "ws_version": 7})
    live = StoredEntry(9, {"id": 1, "note": "x"})
    assert list(contents.rows(TABLE)) == [({"id": 1}, live)]
    assert contents.held(TABLE, [{"id": 1}, {"id": 2}, {"id": 3}]) == [live, StoredEntry(7, None), None]


def test_the_rows_of_a_history_are_its_current_ones(contents: WarehouseContents) -> None:
    ended = {"id": 1, "note": "x", "is_current": False, "operation": "c", "ws_version": 3, "ws_seen_version": 3}
    current = ended | {"note": "y", "is_current": True, "operation": "u", "ws_version": 4, "ws_seen_version": 8}
    write(contents, table_location("shop", TABLE).rows, pa.schema([*ROW, *HISTORY]), "history", ended, current)
    live = StoredEntry(8, {"id": 1, "note": "y"})
    assert list(contents.rows(TABLE)) == [({"id": 1}, live)]
    assert contents.held(TABLE, [{"id": 1}, {"id": 2}]) == [live, None]


def test_a_change_log_is_refused_as_a_table_and_a_table_that_is_not_there_as_a_store(
    contents: WarehouseContents,
) -> None:
    with pytest.raises(SinkError, match=r"shop\.public\.a does not exist") as missing:
        list(contents.rows(TABLE))
    assert not isinstance(missing.value, RefusedError)
    write(contents, table_location("shop", TABLE).rows, pa.schema(ROW), "changelog")
    with pytest.raises(RefusedError, match=r"public\.a is a change log"):
        list(contents.rows(TABLE))
