"""The catalog's place from the configuration, and what Spark and PyIceberg are told of it."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cdc.config.sink_settings import WarehouseConfig
from cdc.model.events import TableId
from sinks.warehouse.catalog import CatalogPlace, catalog_place
from sinks.warehouse.naming import Place
from sinks.warehouse.object_store import hadoop_settings

S3 = {"endpoint": "http://s3:9000", "access_key_id": "id", "secret_access_key": "hidden", "path_style": True}


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
    assert found.place(TableId("public", "Orders")) == Place(
        ("my_shop_public", "orders"), ("my_shop_public__deleted", "orders")
    )
    assert found.spark_properties["warehouse"] == "s3://bucket/tables"


def test_an_object_store_is_configured_for_each_client_and_for_its_bucket_alone() -> None:
    found = place("jdbc:sqlite:/c.db", "s3://bucket/tables", s3=S3)
    keys = {"s3.access-key-id": "id", "s3.secret-access-key": "hidden", "s3.endpoint": "http://s3:9000"}
    assert keys.items() <= found.spark_properties.items() and keys.items() <= found.python_properties.items()
    assert (found.spark_properties["s3.path-style-access"], found.python_properties["s3.region"]) == (
        "true",
        "us-east-1",
    )
    settings = hadoop_settings(found.location, found.s3)
    assert settings["fs.s3a.bucket.bucket.endpoint"] == "http://s3:9000"
    assert all(name == "fs.s3.impl" or name.startswith("fs.s3a.bucket.bucket.") for name in settings)
    assert hadoop_settings("file:///x", None) == {}


@pytest.mark.parametrize(
    ("catalog", "options", "says"),
    [
        ("jdbc:mysql://u:hidden@h/db", {}, "the address of type jdbc is"),
        ("sqlite:/hidden", {}, "the address of type jdbc is"),
        ("jdbc:sqlite:", {}, "the address of SQLite is jdbc:sqlite:PATH"),
        ("jdbc:sqlite::memory:", {}, "the address of SQLite"),
        ("jdbc:sqlite:hidden?y=z", {}, "the address of SQLite"),
        ("jdbc:postgresql://u:hidden@h/db", {}, "user and password have keys of their own"),
        ("jdbc:postgresql://h/db?user=me&password=hidden", {}, "user and password have keys of their own"),
        ("jdbc:postgresql://h:port/hidden", {}, "the address of PostgreSQL is"),
        ("jdbc:postgresql:hidden", {}, "the address of PostgreSQL is"),
        ({"type": "jdbc"}, {}, "type jdbc needs uri"),
        ({"type": "jdbc", "uri": "jdbc:sqlite:x", "password": "hidden"}, {}, "SQLite has no user"),
        ({"type": "jdbc", "uri": "jdbc:sqlite:x", "token": "hidden"}, {}, "type jdbc takes no token"),
        ({"type": "rest", "uri": "hidden"}, {}, "uri of type rest is written like https://"),
        ({"type": "rest", "uri": "http://h", "credential": "hidden"}, {}, "credential is written client_id"),
        ({"type": "rest", "uri": "http://h", "credential": "a:b", "token": "hidden"}, {}, "exclude each other"),
        ({"type": "rest", "uri": "http://h", "properties": {"token": "hidden"}}, {}, "properties may not name token"),
        ({"type": "rest", "uri": "http://h", "properties": {"a b": "hidden"}}, {}, "String should match pattern"),
        ({"type": "hive", "uri": "metastore:9083"}, {}, "uri of type hive is written like thrift://"),
        ({"type": "glue", "uri": "hidden"}, {}, "type glue takes no uri"),
        ({"type": "nessie", "uri": "hidden"}, {}, "'jdbc', 'rest', 'glue' or 'hive'"),
        ("jdbc:sqlite:x", {"catalog": {"type": "glue"}}, "catalog is needed, or catalog_uri instead of it"),
        ("jdbc:sqlite:x", {"s3": S3}, "s3 is for a location s3://BUCKET/PATH"),
        ("jdbc:sqlite:x", {"location": "s3://b/p", "s3": {"access_key_id": "hidden"}}, "go together"),
        ("jdbc:sqlite:x", {"location": "s3://b/p", "s3": {"session_token": "hidden"}}, "session_token needs"),
        ("jdbc:sqlite:x", {"location": "s3://b/p", "s3": {"endpoint": "hidden:9000"}}, "String should match pattern"),
    ],
)
def test_a_form_that_does_not_fit_is_refused_without_naming_a_secret(
    catalog: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        config(catalog, **{"location": "/data", **options})
    told = "; ".join(error["msg"] for error in refused.value.errors(include_input=False, include_url=False))
    assert says in told and "hidden" not in told and "\n" not in told
