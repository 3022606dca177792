"""The catalog's place from the configuration, and what Spark and PyIceberg are told of it."""

from pathlib import Path
from typing import Any

import pytest

from cdc.config.stores import WarehouseConfig
from cdc.model.events import TableId
from sinks.warehouse.catalog import CatalogPlace, catalog_place
from sinks.warehouse.naming import TableLocation


def config(catalog: Any, /, location: str = "/data/tables", **options: Any) -> WarehouseConfig:
    key = "catalog" if isinstance(catalog, dict) else "catalog_uri"
    return WarehouseConfig.model_validate({key: catalog, "location": location, **options})


def place(catalog: Any, location: str = "/data/tables", **options: Any) -> CatalogPlace:
    return catalog_place(config(catalog, location, **options), "shop")


def test_a_sqlite_file() -> None:
    found = place("jdbc:sqlite:/data/catalog.db")
    assert found == place({"type": "jdbc", "uri": "jdbc:sqlite:/data/catalog.db"})
    assert (found.database, found.location, found.namespace) == (
        Path("/data/catalog.db"),
        "file:///data/tables",
        "shop",
    )
    assert found.python_properties["uri"] == "sqlite:////data/catalog.db"
    assert found.spark_properties["uri"].startswith("jdbc:sqlite:/data/catalog.db?")


def test_relative_paths_start_at_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = place("jdbc:sqlite:x/catalog.db", "x/tables")
    assert found.database == tmp_path / "x/catalog.db"
    assert found.location == (tmp_path / "x/tables").as_uri()


def test_postgresql_has_its_login_in_keys_of_its_own() -> None:
    uri = "jdbc:postgresql://db.example:5433/lake?sslmode=require"
    found = place({"type": "jdbc", "uri": uri, "user": "me", "password": "s:e@c/ret"})
    java = found.spark_properties
    assert (java["type"], java["uri"], java["jdbc.user"], java["jdbc.password"]) == ("jdbc", uri, "me", "s:e@c/ret")
    python = found.python_properties
    assert python["uri"] == "postgresql+psycopg://me:s%3Ae%40c%2Fret@db.example:5433/lake?sslmode=require"
    assert (python["type"], python["init_catalog_tables"], found.database) == ("sql", "false", None)


def test_a_rest_catalog_is_told_its_warehouse_by_name_and_its_further_properties() -> None:
    catalog = {
        "type": "rest",
        "uri": "https://lake.example/api",
        "warehouse": "main",
        "credential": "id:secret",
        "properties": {"scope": "PRINCIPAL_ROLE:ALL", "header.X-Realm": "shop"},
    }
    found = place(catalog, "s3://bucket/staging")
    shared = {"uri": "https://lake.example/api", "warehouse": "main", "credential": "id:secret"}
    further = {"scope": "PRINCIPAL_ROLE:ALL", "header.X-Realm": "shop"}
    assert found.python_properties == {"type": "rest"} | shared | further
    io = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
    assert found.spark_properties == {"type": "rest"} | shared | further | io
    assert "warehouse" not in place({"type": "rest", "uri": "http://h"}).spark_properties


@pytest.mark.parametrize("catalog", [{"type": "glue"}, {"type": "hive", "uri": "thrift://a:9083,thrift://b:9083"}])
def test_databases_of_glue_and_hive_contain_tables_only(catalog: dict[str, Any]) -> None:
    found = place(catalog, "s3://bucket/tables", namespace="My-Shop")
    assert (found.namespace, found.spark_properties["type"]) == ("my_shop", catalog["type"])
    assert found.place(TableId("public", "Orders")) == TableLocation(
        ("my_shop_public", "orders"), ("my_shop_public__deleted", "orders")
    )
    assert found.spark_properties["warehouse"] == "s3://bucket/tables"
