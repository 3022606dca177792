"""What `cdc check` says of a warehouse's catalog and folder; real servers are in test_warehouse_catalogs.py."""

from pathlib import Path

import pytest

from cdc.config.stores import WarehouseConfig
from sinks.errors import SinkError
from sinks.warehouse.catalog import CatalogPlace, catalog_place
from sinks.warehouse.check import check_place


def place(catalog: str, location: str) -> CatalogPlace:
    return catalog_place(WarehouseConfig.model_validate({"catalog_uri": catalog, "location": location}), "shop")


def test_folders_that_can_be_made_are_not_made(tmp_path: Path) -> None:
    found = place(f"jdbc:sqlite:{tmp_path}/c/catalog.db", f"{tmp_path}/t")
    assert check_place(found) == (tmp_path / "t").as_uri()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_a_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match=r"/file/t can't be written: .*/file is not a folder"):
        check_place(place(f"jdbc:sqlite:{tmp_path}/catalog.db", f"{tmp_path}/file/t"))


def test_a_catalog_that_does_not_answer_is_told_without_its_password(tmp_path: Path) -> None:
    catalog = {"type": "jdbc", "uri": "jdbc:postgresql://127.0.0.1:1/lake", "user": "me", "password": "hidden"}
    section = WarehouseConfig.model_validate({"catalog": catalog, "location": str(tmp_path)})
    with pytest.raises(SinkError, match="the catalog or the store of its files does not answer") as refused:
        check_place(catalog_place(section, "shop"))
    assert "hidden" not in str(refused.value)
