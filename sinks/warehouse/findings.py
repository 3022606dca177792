"""The finding of `cdc check` about a warehouse, also where its Python packages are not installed."""

from collections.abc import Iterator, Sequence

from cdc.config.stores import WarehouseConfig
from cdc.model.events import TableSchema
from cdc.model.findings import Finding
from sinks.errors import SinkError


def warehouse_findings(
    name: str, section: WarehouseConfig, prefix: str, schemas: Sequence[TableSchema]
) -> Iterator[Finding]:
    """Yields the warehouse's location. Raises SinkError if catalog or location can't be used."""
    del schemas
    try:
        from sinks.warehouse.catalog import catalog_place
        from sinks.warehouse.check import check_place
    except ModuleNotFoundError as error:
        raise SinkError(
            f"the warehouse needs the Python package {error.name}", "pip install 'watershed-cdc[warehouse,spark]'"
        ) from error
    yield Finding(f"store {name}", "ok", f"its tables will be in {check_place(catalog_place(section, prefix))}")
