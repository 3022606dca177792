"""The keys that a sink has made in a cache, and their removal."""

from collections.abc import Collection
from contextlib import closing

from cdc.config.stores import CacheConfig
from cdc.model.events import TableId
from sinks.cache.keys import KEY_COLUMNS, NOTE_COUNT, SHAPE, cache_keys
from sinks.cache.sink import CacheSink, tables_of


def cache_contents(section: CacheConfig, prefix: str, tables: Collection[TableId], *, removes: bool) -> list[str]:
    """Returns for each table how many rows the cache holds; with `removes`, their keys are deleted, with lookup keys,
    versions and the versions of deleted rows. `tables`: those that the sink was to hold, which the cache may still hold
    when its own list of tables is gone. Raises SinkError."""
    keys = cache_keys(section, prefix)
    evicting = section.model_copy(update={"allow_eviction": True})
    with closing(CacheSink.open(evicting, prefix)) as sink:
        fields = sink.server.run("HGETALL", keys.generation)
        found: list[str] = [f"{keys.generation}"] if fields else []
        for table in sorted({*tables_of(fields, keys), *tables}):
            versions = keys.table(table)
            count, *described = sink.server.run_all(
                [("HLEN", versions), *(("HEXISTS", versions, field) for field in (SHAPE, KEY_COLUMNS, NOTE_COUNT))]
            )
            if count:
                found.append(f"{count - sum(described):,} rows of {table}")
            if removes:
                sink.discard(table)
                sink.server.run("UNLINK", keys.met(table))
        if removes:
            sink.server.run("UNLINK", keys.generation)
    return found
