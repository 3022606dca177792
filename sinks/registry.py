"""Sinks by name, from the configuration. A client library is imported only when its sink is opened."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from cdc.config.settings import SinksConfig
from cdc.model.errors import ConfigError, SinkError
from sinks.contract import Sink


def make_sink(name: str, sinks: SinksConfig, prefix: str) -> Sink:
    """Open the sink: connect to its store and check it.

    `prefix` is the topic prefix, with which the store's names begin unless the section has its own. Raises
    ConfigError when the configuration lacks the section, SinkError when the client library is not installed or the
    store can't be used. A sink that needs a Spark session is made by the job that has one.
    """
    open_sink = OPENERS.get(name)
    if open_sink is None:
        raise SinkError(f"there is no sink {name!r}", f"sinks are: {', '.join(OPENERS)}")
    return open_sink(sinks, prefix)


def _search(sinks: SinksConfig, prefix: str) -> Sink:
    if sinks.search is None:
        raise _not_configured("search")
    with _needs("opensearchpy", extra="search"):
        from sinks.search.sink import SearchSink
    return SearchSink.open(sinks.search, prefix)


def _cache(sinks: SinksConfig, prefix: str) -> Sink:
    if sinks.cache is None:
        raise _not_configured("cache")
    with _needs("redis", extra="cache"):
        from sinks.cache.sink import CacheSink
    return CacheSink.open(sinks.cache, prefix)


OPENERS: Final[dict[str, Callable[[SinksConfig, str], Sink]]] = {"search": _search, "cache": _cache}


def _not_configured(name: str) -> ConfigError:
    return ConfigError(f"the configuration has no section sinks.{name}", f"add sinks.{name} with its url")


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
