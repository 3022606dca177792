"""The warehouse as a store of the conformance cases, in each catalog that a test can start."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import structs
from psycopg.conninfo import conninfo_to_dict

from cdc.config.stores import WarehouseConfig
from cdc.model.events import TableId
from sinks.contract import Change, Sink
from sinks.warehouse import direct
from sinks.warehouse.catalog import catalog_place
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.slots import in_slot
from sinks.warehouse.staging import FOLDER, own_folder
from spark_jobs.engine import SparkEngine
from tests.support.lake_servers import rest_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class WarehouseStore:
    nested_arrays = False
    exact_json = False
    tells_stale = False
    has_slots = True
    # A commit takes a second.
    history_count = 1
    writer_count = 2
    batch_rows = 5_000
    batch_memory_bytes_max: int | None = None

    def __init__(self, spark: "SparkSession", folder: Path, catalog: dict[str, str] | None = None) -> None:
        """`catalog`: as in the configuration; None: one on SQLite."""
        self._spark = spark
        self._folder = folder
        catalog = catalog or {"type": "jdbc", "uri": f"jdbc:sqlite:{folder}/catalog.db"}
        section = {"catalog": catalog, "location": (folder / "tables").as_uri()}
        self.place = catalog_place(WarehouseConfig.model_validate(section), "shop")

    def engine(self) -> SparkEngine:
        return SparkEngine(self._spark, self.place)

    def open(self, slot: str | None = None) -> Sink:
        place = in_slot(self.place, slot or "")
        engines = [SparkEngine(self._spark, place) for _ in range(2)]
        staging = own_folder(f"{place.location}/{FOLDER}/shop")
        return WarehouseSink(SparkEngine(self._spark, place), engines, WarehouseReader(place), staging)

    def delete_table(self, table: TableId) -> None:
        SparkEngine(self._spark, self.place).drop(self.place.place(table).rows)

    def rename(self, names: Mapping[str, str]) -> None:
        """No shape of a table names columns."""

    def delete_all(self) -> None:
        if self.place.catalog is None:
            shutil.rmtree(self._folder)
            return
        with self.place.opened() as catalog:
            for namespace in catalog.list_namespaces("shop"):
                for table in catalog.list_tables(namespace):
                    catalog.drop_table(table)
                catalog.drop_namespace(namespace)
            catalog.drop_namespace("shop")

    def unholdable(self, change: Change) -> tuple[Change, str] | None:
        assert change.row is not None
        return structs.replace(change, row=change.row | {"born": "infinity"}), "born"


@contextmanager
def warehouse(request: pytest.FixtureRequest, unique: str) -> Iterator[WarehouseStore]:
    with _folder(unique) as folder:
        yield WarehouseStore(request.getfixturevalue("spark"), folder)


@contextmanager
def warehouse_by_statements(request: pytest.FixtureRequest, unique: str) -> Iterator[WarehouseStore]:
    """As it merges rows that are too many for the direct way."""
    request.getfixturevalue("monkeypatch").setattr(direct, "ROWS_MAX", 0)
    with warehouse(request, unique) as store:
        yield store


@contextmanager
def warehouse_in_rest(request: pytest.FixtureRequest, unique: str) -> Iterator[WarehouseStore]:
    with _folder(unique) as folder, rest_catalog(folder, (folder / "tables").as_uri()) as uri:
        yield WarehouseStore(request.getfixturevalue("spark"), folder, {"type": "rest", "uri": uri})


@contextmanager
def warehouse_in_postgresql(request: pytest.FixtureRequest, unique: str) -> Iterator[WarehouseStore]:
    dsn = conninfo_to_dict(request.getfixturevalue("fresh_database"))
    catalog = {"type": "jdbc", "uri": f"jdbc:postgresql://{dsn['host']}:{dsn['port']}/{dsn['dbname']}"}
    login = {name: str(dsn[name]) for name in ("user", "password") if name in dsn}
    with _folder(unique) as folder:
        yield WarehouseStore(request.getfixturevalue("spark"), folder, catalog | login)


@contextmanager
def _folder(unique: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"watershed-{unique}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
