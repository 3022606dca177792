"""The catalog's place from the configuration."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from cdc.config.sink_settings import WarehouseConfig
from cdc.model.errors import ConfigError
from sinks.warehouse.catalog import catalog_place


def config(uri: str, location: str = "/data/tables", namespace: str | None = None) -> WarehouseConfig:
    return WarehouseConfig(catalog_uri=SecretStr(uri), location=location, namespace=namespace)


def test_a_sqlite_file() -> None:
    place = catalog_place(config("jdbc:sqlite:/data/catalog.db"), "shop")
    assert place.database == Path("/data/catalog.db")
    assert place.location == "file:///data/tables"
    assert place.namespace == "shop"
    assert place.sqlalchemy_uri == "sqlite:////data/catalog.db"
    assert place.jdbc_uri.startswith("jdbc:sqlite:/data/catalog.db?")


def test_relative_paths_start_at_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = catalog_place(config("jdbc:sqlite:x/catalog.db", "x/tables"), "shop")
    assert place.database == tmp_path / "x/catalog.db"
    assert place.location == (tmp_path / "x/tables").as_uri()


def test_a_location_may_be_a_uri_and_the_namespace_given() -> None:
    place = catalog_place(config("jdbc:sqlite:/c.db", "s3://bucket/tables", "lake"), "shop")
    assert (place.location, place.namespace) == ("s3://bucket/tables", "lake")


@pytest.mark.parametrize(
    "uri", ["jdbc:postgresql://u:secret@h/db", "sqlite:/x", "jdbc:sqlite:", "jdbc:sqlite::memory:", "jdbc:sqlite:x?y=z"]
)
def test_another_catalog_is_refused_without_telling_its_address(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"the sink's catalog_uri") as refused:
        catalog_place(config(uri), "shop")
    assert "secret" not in str(refused.value)
