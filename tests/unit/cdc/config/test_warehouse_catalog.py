"""Forms of catalogs and object stores that are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.config.stores import WarehouseConfig

S3 = {"endpoint": "http://s3:9000", "access_key_id": "id", "secret_access_key": "hidden", "path_style": True}


@pytest.mark.parametrize(
    ("catalog", "options", "expected"),
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
        ({"type": "rest", "uri": "http://h", "credential": "a:b", "token": "hidden"}, {}, "can't be combined"),
        ({"type": "rest", "uri": "http://h", "properties": {"token": "hidden"}}, {}, "properties may not name token"),
        ({"type": "rest", "uri": "http://h", "properties": {"a b": "hidden"}}, {}, "String should match pattern"),
        ({"type": "hive", "uri": "metastore:9083"}, {}, "uri of type hive is written like thrift://"),
        ({"type": "glue", "uri": "hidden"}, {}, "type glue takes no uri"),
        ({"type": "nessie", "uri": "hidden"}, {}, "'jdbc', 'rest', 'glue' or 'hive'"),
        ("jdbc:sqlite:x", {"catalog": {"type": "glue"}}, "catalog or catalog_uri is needed"),
        ("jdbc:sqlite:x", {"s3": S3}, "s3 requires a location s3://BUCKET/PATH"),
        ("jdbc:sqlite:x", {"location": "s3://b/p", "s3": {"access_key_id": "hidden"}}, "must be set together"),
        ("jdbc:sqlite:x", {"location": "s3://b/p", "s3": {"session_token": "hidden"}}, "session_token needs"),
        ("jdbc:sqlite:x", {"location": "s3://b/p", "s3": {"endpoint": "hidden:9000"}}, "String should match pattern"),
    ],
)
def test_a_form_that_does_not_fit_is_refused_without_naming_a_secret(
    catalog: Any, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        key = "catalog" if isinstance(catalog, dict) else "catalog_uri"
        WarehouseConfig.model_validate({key: catalog, "location": "/data"} | options)
    reported = "; ".join(error["msg"] for error in refused.value.errors(include_input=False, include_url=False))
    assert expected in reported and "hidden" not in reported and "\n" not in reported
