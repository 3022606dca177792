"""The location of the warehouse's catalog and files, which Spark, and readers without it, open alike."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from cdc.config.stores import WarehouseConfig
from cdc.config.warehouse_catalog import JDBC_SQLITE, CatalogConfig, S3Config
from cdc.model.events import TableId
from sinks.errors import SinkError
from sinks.warehouse.naming import TableLocation, flat_name, table_location
from sinks.warehouse.object_store import iceberg_properties, secret
from sinks.warehouse.statements import CATALOG

if TYPE_CHECKING:  # imported late: a job's tasks read this module and need no catalog
    from pyiceberg.catalog import Catalog

REASON_CHARS_MAX: Final = 300
_EXTRAS: Final = {"boto3": "pyiceberg[glue]", "thrift": "pyiceberg[hive]", "hive_metastore": "pyiceberg[hive]"}


@dataclass(frozen=True, slots=True)
class CatalogPlace:
    """An Iceberg catalog, and the files of its tables."""

    database: Path | None  # absolute, of a JDBC catalog on SQLite
    location: str  # URI of the folder of the tables' files
    namespace: str  # all tables are below it
    catalog: CatalogConfig | None = None  # of another catalog
    s3: S3Config | None = None

    @property
    def is_flat(self) -> bool:
        """True for a catalog without namespaces in namespaces; see CatalogConfig.is_flat."""
        return self.catalog is not None and self.catalog.is_flat

    def place(self, table: TableId) -> TableLocation:
        """The names of a table's rows and of its deleted keys."""
        return table_location(self.namespace, table, is_flat=self.is_flat)

    def is_there(self) -> bool:
        """False for a SQLite file that does not exist, which opening it would create."""
        return self.database is None or self.database.exists()

    @property
    def spark_properties(self) -> dict[str, str]:
        """The properties of Iceberg's catalog in Java."""
        files = iceberg_properties(self.location, self.s3)
        if self.catalog is None:
            # A writer waits for another's short transaction instead of failing (milliseconds).
            uri = f"{JDBC_SQLITE}{self.database}?busy_timeout=30000"
            return {"type": "jdbc", "uri": uri, "jdbc.schema-version": "V1", "warehouse": self.location} | files
        found = {"type": self.catalog.type, **files, **self._shared}
        if self.catalog.type == "jdbc":
            found["jdbc.schema-version"] = "V1"  # with views
            login = {"jdbc.user": self.catalog.user, "jdbc.password": secret(self.catalog.password)}
            found |= {name: value for name, value in login.items() if value}
        return found

    @property
    def python_properties(self) -> dict[str, str]:
        """The properties of PyIceberg's catalog."""
        files = {n: v for n, v in iceberg_properties(self.location, self.s3).items() if n != "io-impl"}
        if "client.region" in files:
            files["s3.region"] = files["client.region"]
        if self.catalog is None:
            return {"type": "sql", "uri": f"sqlite:///{self.database}", "warehouse": self.location} | files
        found = {"type": self.catalog.type, **files, **self._shared}
        if self.catalog.type == "jdbc":
            # Tables of the catalog that are missing are not made by a reader.
            found |= {"type": "sql", "uri": _sqlalchemy_uri(self.catalog), "init_catalog_tables": "false"}
        return found

    @property
    def _shared(self) -> dict[str, str]:
        """The properties that have the same names in Java and Python."""
        assert self.catalog is not None
        # To a REST server this is a name; the server decides where files are.
        warehouse = self.catalog.warehouse if self.catalog.type == "rest" else self.location
        given = {
            "uri": self.catalog.address,
            "warehouse": warehouse,
            "credential": secret(self.catalog.credential),
            "token": secret(self.catalog.token),
        }
        own = {name: value.get_secret_value() for name, value in self.catalog.properties.items()}
        return {name: value for name, value in given.items() if value} | own

    @contextmanager
    def opened(self) -> Iterator["Catalog"]:
        """PyIceberg's catalog. Raises SinkError where it, or the store of its files, does not answer; the exceptions
        for what is not there pass."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchNamespaceError, RESTError
        from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

        catalog = None
        try:
            catalog = load_catalog(CATALOG, **self.python_properties)
            yield catalog
        except ProgrammingError as error:
            raise NoSuchNamespaceError("the catalog has no tables of its own yet") from error
        except FileNotFoundError:
            raise
        except (RESTError, SQLAlchemyError, OSError) as error:  # requests' errors are OSErrors
            raise _unreachable(error) from error
        except ModuleNotFoundError as error:
            wanted = _EXTRAS.get((error.name or "").partition(".")[0], error.name)
            raise SinkError(
                f"warehouse: the catalog needs the Python package {error.name}", f"pip install '{wanted}'"
            ) from error
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("botocore", "thrift", "hive_metastore"):
                raise _unreachable(error) from error
            raise
        finally:
            if catalog is not None:
                catalog.close()


def catalog_place(config: WarehouseConfig, topic_prefix: str) -> CatalogPlace:
    """The catalog and the location of a sink. Relative paths start at the working folder."""
    catalog, location = config.iceberg_catalog, config.location
    if "://" not in location:
        location = Path(location).absolute().as_uri()
    namespace = config.namespace or topic_prefix
    if catalog.is_sqlite:
        path = Path(catalog.address.removeprefix(JDBC_SQLITE)).absolute()
        return CatalogPlace(path, location, namespace, s3=config.s3)
    return CatalogPlace(None, location, flat_name(namespace) if catalog.is_flat else namespace, catalog, config.s3)


def _sqlalchemy_uri(catalog: CatalogConfig) -> str:
    from sqlalchemy.engine import URL

    parts = urlsplit(catalog.address.removeprefix("jdbc:"))
    return URL.create(
        "postgresql+psycopg",
        catalog.user,
        secret(catalog.password),
        parts.hostname,
        parts.port,
        unquote(parts.path.lstrip("/")),
        dict(parse_qsl(parts.query)),
    ).render_as_string(hide_password=False)


def _unreachable(error: Exception) -> SinkError:
    """Only the error's class and first line: no statement."""
    reason = (str(error).splitlines() or [""])[0][:REASON_CHARS_MAX]
    return SinkError(
        f"warehouse: the catalog or the store of its files does not answer: {type(error).__name__}: {reason}",
        "check catalog, location and s3 in the sink's section, and whether these servers can be reached from here",
    )
