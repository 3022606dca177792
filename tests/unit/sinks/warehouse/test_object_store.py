"""What each client of an object store is configured with. A real server: tests/integration/test_object_store.py."""

import pyarrow.fs as pa_fs

from cdc.config.stores import WarehouseConfig
from sinks.warehouse.catalog import catalog_place
from sinks.warehouse.object_store import file_system, hadoop_settings

S3 = {"endpoint": "http://s3:9000", "access_key_id": "id", "secret_access_key": "hidden", "path_style": True}


def test_an_object_store_is_configured_for_each_client_and_for_its_bucket_alone() -> None:
    section = {"catalog_uri": "jdbc:sqlite:/c.db", "location": "s3://bucket/tables", "s3": S3}
    found = catalog_place(WarehouseConfig.model_validate(section), "shop")
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


def test_a_path_behind_file_is_taken_as_it_is() -> None:
    system, path = file_system("file:///data/a%20[b]")
    assert (type(system), path) == (pa_fs.LocalFileSystem, "/data/a%20[b]")
