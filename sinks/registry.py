"""Sinks by the type of their section. A client library is imported only when a sink that needs it is opened."""

from collections.abc import Iterator
from contextlib import contextmanager

from cdc.config.sink_settings import CacheConfig, SearchConfig, StoreConfig
from cdc.model.errors import SinkError
from sinks.contract import Sink
from sinks.shaping.sink import shaped
from sinks.slots import generation_of


def make_sink(name: str, section: StoreConfig, prefix: str, slot: str | None = None) -> Sink:
    """Open the sink: connect to its store and check it. Rows are written in the shape of the section's mapping.

    `prefix` is the topic prefix, with which the store's names begin unless the section has its own. `slot`: of the
    generation to write, see sinks.slots; None: of the one that readers see. Raises SinkError when the client library is
    not installed or the store can't be used. A warehouse needs a Spark session, and is made by the job that has one.
    """
    match section:
        case SearchConfig():
            with _needs("opensearchpy", extra="search"):
                from sinks.search.sink import SearchSink
            return shaped(SearchSink.open(section, prefix, name=name, slot=slot), section)
        case CacheConfig():
            with _needs("redis", extra="cache"):
                from sinks.cache.sink import CacheSink
            return shaped(
                CacheSink.open(section, prefix, name=name, rebuilds=generation_of(slot) if slot else None), section
            )
        case _:
            raise SinkError(f"the warehouse {name} is written by Spark", f"cdc sink run {name}")


@contextmanager
def _needs(module: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:  # something of ours is missing: that advice would not help
            raise
        raise SinkError(
            f"the sink {extra} needs the Python package {module}", f"pip install 'watershed-cdc[{extra}]'"
        ) from error
