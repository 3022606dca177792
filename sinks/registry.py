"""The code of each type of store, and what commands do with it. A client library is imported only for a store of its
type.

`prefix` is the topic prefix, with which the store's names begin unless the section sets another.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

from cdc.config.store_types import PLUGINS
from cdc.config.stores import CacheConfig, SearchConfig, SqlConfig, StoreConfig, StoreType, WarehouseConfig
from cdc.model.errors import WatershedError
from cdc.model.events import TableId, TableSchema
from cdc.model.findings import Finding
from sinks.check import held
from sinks.contents import Removal, StoreContents
from sinks.contract import Sink
from sinks.errors import RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from sinks.shaping.sink import shaped
from sinks.shaping.table import TableShape
from sinks.slots import Slots


def _search() -> StoreType:
    from sinks.search.check import search_findings
    from sinks.search.contents import SearchContents
    from sinks.search.removal import search_contents
    from sinks.search.sink import SearchSink
    from sinks.search.slots import SearchSlots

    return StoreType(SearchConfig, SearchSink, SearchContents, SearchSlots, search_findings, search_contents)


def _cache() -> StoreType:
    from sinks.cache.check import cache_findings
    from sinks.cache.contents import CacheContents
    from sinks.cache.removal import cache_contents
    from sinks.cache.sink import CacheSink
    from sinks.cache.slots import CacheSlots

    return StoreType(CacheConfig, CacheSink, CacheContents, CacheSlots, cache_findings, cache_contents)


def _warehouse() -> StoreType:
    from sinks.warehouse.contents import WarehouseContents
    from sinks.warehouse.findings import warehouse_findings
    from sinks.warehouse.teardown import warehouse_contents

    return StoreType(
        WarehouseConfig, contents=WarehouseContents, findings=warehouse_findings, removal=warehouse_contents
    )


def _sql() -> StoreType:
    from sinks.sql.check import sql_findings
    from sinks.sql.contents import SqlContents
    from sinks.sql.removal import sql_contents
    from sinks.sql.sink import SqlSink
    from sinks.sql.slots import SqlSlots

    return StoreType(SqlConfig, SqlSink, SqlContents, SqlSlots, sql_findings, sql_contents)


OURS: Final[Mapping[str, Callable[[], StoreType]]] = {
    "search": _search,
    "cache": _cache,
    "warehouse": _warehouse,
    "sql": _sql,
}


def store_type(section: StoreConfig) -> StoreType:
    """Returns the code of a section's type. Raises SinkError if its client library is not installed."""
    if section.type not in OURS:
        return PLUGINS.get(section.type, StoreType(type(section)))
    try:
        return OURS[section.type]()
    except ModuleNotFoundError as error:
        # Where something else is missing, that advice would not help.
        if section.needs is None or (error.name or "").partition(".")[0] != section.needs[0]:
            raise
        library, extra = section.needs
        raise SinkError(
            f"the sink {extra} needs the Python package {library}", f"pip install 'watershed-cdc[{extra}]'"
        ) from error


def make_sink(name: str, section: StoreConfig, prefix: str, slot: str | None = None) -> Sink:
    """Opens the sink: connects to its store and checks it. Rows are written in the shape of the section's mapping.

    `slot`: of the generation to write, see sinks.slots; None: of the one that readers see. Raises SinkError if the
    client library is not installed or the store can't be used. A warehouse needs a Spark session, so the job that has
    one opens it.
    """
    if isinstance(section, WarehouseConfig) or (sink := store_type(section).sink) is None:
        raise SinkError(f"the {section.type} {name} is written by Spark", f"cdc sink run {name}")
    options = {} if slot is None else {"slot": slot}
    opened: Sink = sink.open(section, prefix, name=name, **options)
    return shaped(opened, section)


def open_contents(name: str, section: StoreConfig, prefix: str, removal: Removal | None = None) -> StoreContents:
    """Opens the contents. `removal`: for a warehouse from which rows are to be removed. Raises SinkError if the client
    library is not installed, or no server answers.
    """
    if (contents := store_type(section).contents) is None:
        raise SinkError(f"the store of sink {name} can't be compared", "name other sinks by --sink")
    opened: StoreContents = contents.open(section, prefix, name)
    opened.removal = removal
    return opened


def open_slots(section: StoreConfig, prefix: str) -> Slots | None:
    """Opens the slots of a store; None for a store that can hold only one generation, and for a warehouse, whose slots
    need a Spark session.
    """
    if not section.has_slots or (slots := store_type(section).slots) is None:
        return None
    opened: Slots = slots(section, prefix)
    return opened


def store_findings(name: str, section: StoreConfig, prefix: str, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
    """Yields the findings of `cdc check` about the store of this sink: whether it answers, and can take the tables that
    the sink is to hold. Writes nothing to it. `schemas`: of the captured tables."""
    try:
        if (findings := store_type(section).findings) is not None:
            yield from findings(name, section, prefix, _stored(name, section, schemas))
            return
        with closing(make_sink(name, section, prefix)) as sink:
            yield Finding(f"store {name}", "ok", held(sink.generation))
    except WatershedError as error:
        yield Finding.failed(f"store {name}", error)


def store_contents(
    name: str, section: StoreConfig, prefix: str, tables: Collection[TableId], *, removes: bool
) -> list[str]:
    """Returns the names of what the sink has made in its store; with `removes`, it is removed, all generations of it,
    and what others made stays. `tables`: those that the sink was to hold. Idempotent, and may be killed at any point.
    Raises SinkError."""
    if (removal := store_type(section).removal) is None:
        raise SinkError(
            f"teardown does not know what stores of type {section.type} hold",
            f"remove what the sink {name} created with that store's own tools",
        )
    if removes and (slots := open_slots(section, prefix)) is not None:
        with closing(slots):
            for slot in slots.others():
                slots.drop(slot)
    found: list[str] = removal(section, prefix, tables, removes=removes)
    return found


def _stored(name: str, section: StoreConfig, schemas: Sequence[TableSchema]) -> list[TableSchema]:
    """Returns the tables as the store gets them. A mapping that does not fit its table is a finding of its own."""
    found = []
    for schema in schemas:
        if schema.key and section.holds(schema.table):
            try:
                found.append(TableShape(name, section, SchemaHistory((schema,))).schema)
            except RefusedError:
                continue
    return found
