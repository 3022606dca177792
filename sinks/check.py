"""Findings of `cdc check` about the stores: each answers, and can take the tables that its sink is to hold."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final

from cdc.model.errors import WatershedError
from cdc.model.events import TableSchema
from configuration.findings import Finding
from configuration.sink_settings import CacheConfig, SearchConfig, SqlConfig, StoreConfig, WarehouseConfig
from sinks.errors import RefusedError, SinkError
from sinks.lineage import Lineage
from sinks.registry import make_sink, needs
from sinks.retries import Retries
from sinks.shaping.table import TableShape

ONE_ATTEMPT: Final = Retries(attempt_count_max=2)  # the second for a connection that was closed meanwhile


def store_findings(name: str, section: StoreConfig, prefix: str, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
    """Yields the findings about the store of this sink; writes nothing to it. `schemas`: of the captured tables."""
    stored = _stored(name, section, schemas)
    try:
        with needs(section.needs):
            yield from _findings(name, section, prefix, stored)
    except WatershedError as error:
        yield Finding.failed(f"store {name}", error)


def _findings(name: str, section: StoreConfig, prefix: str, stored: Sequence[TableSchema]) -> Iterator[Finding]:
    match section:
        case SearchConfig():
            from sinks.search.check import search_findings

            yield from search_findings(name, section, prefix, stored)
        case CacheConfig():
            from sinks.cache.check import cache_findings

            yield from cache_findings(name, section, prefix, stored)
        case SqlConfig():
            from sinks.sql.check import sql_findings

            yield from sql_findings(name, section, prefix, stored)
        case WarehouseConfig():
            yield Finding(f"store {name}", "ok", f"its tables will be in {_warehouse(section, prefix)}")
        case _:
            with closing(make_sink(name, section, prefix)) as sink:
                yield Finding(f"store {name}", "ok", held(sink.generation))


def _warehouse(section: WarehouseConfig, prefix: str) -> str:
    """Returns the warehouse's location. Raises SinkError if catalog or location can't be used."""
    try:
        from sinks.warehouse.catalog import catalog_place
        from sinks.warehouse.check import check_place
    except ModuleNotFoundError as error:
        raise SinkError(
            f"the warehouse needs the Python package {error.name}", "pip install 'watershed-cdc[warehouse,spark]'"
        ) from error
    return check_place(catalog_place(section, prefix))


def held(generation: Callable[[], int | None]) -> str:
    """Returns what a store holds, as a finding says it."""
    number = generation()
    return "empty" if number is None else f"holds generation {number}"


def _stored(name: str, section: StoreConfig, schemas: Sequence[TableSchema]) -> list[TableSchema]:
    """Returns the tables as the store gets them. A mapping that does not fit its table is a finding of its own."""
    found = []
    for schema in schemas:
        if schema.key and section.holds(schema.table):
            try:
                found.append(TableShape(name, section, Lineage((schema,))).schema)
            except RefusedError:
                continue
    return found
