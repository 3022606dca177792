"""The names under which readers find a captured table in a store, without a question to it."""

from collections.abc import Mapping

from cdc.config.store_shapes import CacheShape, SqlShape, shape_of
from cdc.config.stores import CacheConfig, SearchConfig, SqlConfig, StoreConfig, WarehouseConfig
from cdc.model.events import TableId


def reader_names(section: StoreConfig, prefix: str, table: TableId) -> Mapping[str, str]:
    """Returns kind → name, such as `alias` → `shop.public.orders`; nothing for a store of another package. `prefix`:
    the topic prefix. Raises RefusedError for a table that the store can't name."""
    match section:
        case SearchConfig():
            from sinks.search.names import SearchNames

            names = SearchNames(prefix if section.index_prefix is None else section.index_prefix, section.shapes)
            return {"alias": names.alias(table), "index": names.index(table)}
        case CacheConfig():
            from sinks.cache.keys import cache_keys

            shape = shape_of(section.shapes, table, CacheShape())
            versions = cache_keys(section, prefix).table(table)
            lookups = {"lookup keys": ", ".join(shape.lookups)} if shape.lookups else {}
            return {"key": shape.key or f"{versions}<row id>", "versions": versions, **lookups}
        case SqlConfig():
            from sinks.sql.dialects import dialect_of

            backend = section.url.get_secret_value().partition(":")[0].partition("+")[0]
            place = dialect_of(backend).place(shape_of(section.shapes, table, SqlShape()).table, table)
            return {"table": ".".join(filter(None, place))}
        case WarehouseConfig():
            from sinks.warehouse.catalog import catalog_place

            return {"table": ".".join(catalog_place(section, prefix).place(table).rows)}
    return {}
