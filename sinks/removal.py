"""Lists and removes the objects that a sink has created in its store (`cdc teardown --stores`). Others stay."""

from collections.abc import Collection
from contextlib import closing

from cdc.model.events import TableId
from configuration.sink_settings import CacheConfig, SearchConfig, SqlConfig, StoreConfig, WarehouseConfig
from sinks.errors import SinkError
from sinks.registry import needs
from sinks.slots import open_slots


def store_contents(
    name: str, section: StoreConfig, prefix: str, tables: Collection[TableId], *, removes: bool
) -> list[str]:
    """Returns the names of what the sink has made in its store; with `removes`, it is removed, all generations of it.
    `tables`: those that the sink was to hold. Idempotent, and may be killed at any point. Raises SinkError."""
    with needs(section.needs):
        if removes:
            _drop_other_generations(section, prefix)
        match section:
            case SearchConfig():
                from sinks.search.removal import search_contents

                return search_contents(section, prefix, removes=removes)
            case CacheConfig():
                from sinks.cache.removal import cache_contents

                return cache_contents(name, section, prefix, tables, removes=removes)
            case SqlConfig():
                from sinks.sql.removal import sql_contents

                return sql_contents(section, prefix, removes=removes)
            case WarehouseConfig():
                from sinks.warehouse.teardown import warehouse_contents

                return warehouse_contents(section, prefix, removes=removes)
            case _:
                raise SinkError(
                    f"teardown does not know what stores of type {section.type} hold",
                    f"remove what the sink {name} created with that store's own tools",
                )


def _drop_other_generations(section: StoreConfig, prefix: str) -> None:
    """Removes what rebuilds have left."""
    slots = open_slots(section, prefix)
    if slots is None:
        return
    with closing(slots):
        for slot in slots.others():
            slots.drop(slot)
