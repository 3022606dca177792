"""The location of the warehouse's catalog and files: one SQLite file that Spark, and readers without it, open alike."""

from dataclasses import dataclass
from pathlib import Path

from cdc.config.sink_settings import WarehouseConfig
from cdc.model.errors import ConfigError

_JDBC_SQLITE = "jdbc:sqlite:"


@dataclass(frozen=True, slots=True)
class CatalogPlace:
    """An Iceberg JDBC catalog on SQLite."""

    database: Path  # absolute
    location: str  # URI of the folder of the tables' files
    namespace: str  # contains all tables

    @property
    def jdbc_uri(self) -> str:
        # A writer waits for another's short transaction instead of failing (milliseconds).
        return f"{_JDBC_SQLITE}{self.database}?busy_timeout=30000"

    @property
    def sqlalchemy_uri(self) -> str:
        return f"sqlite:///{self.database}"


def catalog_place(config: WarehouseConfig, topic_prefix: str) -> CatalogPlace:
    """Returns the catalog that the section names. Relative paths start at the working folder. Raises ConfigError for a
    catalog of another kind.
    """
    uri = config.catalog_uri.get_secret_value()
    path = uri.removeprefix(_JDBC_SQLITE)
    if path == uri or not path or path.startswith(":") or "?" in path:
        raise ConfigError(
            "the sink's catalog_uri is not jdbc:sqlite:PATH, the only catalog of this version",
            "name a file, for example jdbc:sqlite:.watershed/warehouse/catalog.db",
        )
    location = config.location
    if "://" not in location:
        location = Path(location).absolute().as_uri()
    return CatalogPlace(Path(path).absolute(), location, config.namespace or topic_prefix)
