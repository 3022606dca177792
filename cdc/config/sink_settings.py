"""Section `sinks`: a map from a name of the user's choice to a store, and what is kept in it."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr

from cdc.config.store_mapping import Held, matches
from cdc.config.store_shapes import CacheOptions, SearchOptions, WarehouseOptions
from cdc.model.errors import ConfigError
from cdc.model.events import TableId

SINK_TYPES: Final = ("search", "cache", "warehouse")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")  # as a topic prefix: it is part of topics' and folders' names


class Store(Held):
    """What every store's section has."""

    # A row that the store can never take: `stop` the sink before it, or publish a `dead_letter` and go on.
    on_rejected: Literal["stop", "dead_letter"] = "dead_letter"
    dead_letters_max: Annotated[int, Field(ge=1, le=100_000)] = 10_000  # open ones; at more of them the sink stops
    dead_letter_rows: bool = False  # whether letters have the row's values, where these are not large


class SearchConfig(Store, SearchOptions):
    """OpenSearch, or what speaks its protocol."""

    type: Literal["search"] = "search"
    url: SecretStr
    index_prefix: str | None = None  # default: the topic prefix

    def store_names(self, topic_prefix: str) -> tuple[tuple[str, str], ...]:
        """The server, and what all names of the sink in it begin with."""
        prefix = topic_prefix if self.index_prefix is None else self.index_prefix
        return ((_server(self.url, 9200), prefix.lower()),)


class CacheConfig(Store, CacheOptions):
    """Redis or Valkey."""

    type: Literal["cache"] = "cache"
    url: SecretStr
    key_prefix: str | None = None  # default: the topic prefix
    tombstone_ttl_s: Annotated[int, Field(ge=60)] = 14 * 86400

    def store_names(self, topic_prefix: str) -> tuple[tuple[str, str], ...]:
        """The server, and what all names of the sink in it begin with."""
        return ((_server(self.url, 6379), topic_prefix if self.key_prefix is None else self.key_prefix),)


class WarehouseConfig(Store, WarehouseOptions):
    """Iceberg tables through Spark, with a JDBC catalog."""

    type: Literal["warehouse"] = "warehouse"
    catalog_uri: SecretStr  # jdbc:sqlite:/path or jdbc:postgresql://...
    location: str  # folder or URI of the tables' files
    namespace: str | None = None  # default: the topic prefix

    def store_names(self, topic_prefix: str) -> tuple[tuple[str, str], ...]:
        """The catalog and the folder, and what all names of the sink in them begin with."""
        namespace = (self.namespace or topic_prefix).lower()
        return (self.catalog_uri.get_secret_value(), namespace), (self.location.rstrip("/"), namespace)

    def fingerprints(self, tables: Iterable[TableId]) -> dict[str, str]:
        """A table's mode is part of its rows' shape; its partitions and its order are not."""
        tables = list(tables)
        made = super().fingerprints(tables)
        modes = {str(table): self.shape(table).mode for table in tables}
        return made | {name: f"{mode}:{made.get(name, '')}" for name, mode in modes.items() if mode != "current"}


StoreConfig = SearchConfig | CacheConfig | WarehouseConfig
_OPTION_OF_NAMES: Final[Mapping[str, str]] = {
    "search": "index_prefix",
    "cache": "key_prefix",
    "warehouse": "namespace",
}


def _with_types(sinks: Any) -> Any:
    """A sink that is named like a type has that type."""
    if not isinstance(sinks, dict):
        return sinks
    typed: dict[str, Any] = {}
    for name, section in sinks.items():
        if not _NAME.fullmatch(str(name)):
            raise ValueError(f"{name!r} can't be a sink's name: letters, digits, _ and -, 100 at most")
        if section is None and name in SINK_TYPES:
            continue
        if isinstance(section, dict) and "type" not in section:
            if name not in SINK_TYPES:
                raise ValueError(f"{name} needs a type: {', '.join(SINK_TYPES)}")
            section = {"type": name, **section}
        typed[str(name)] = section
    return typed


SinksConfig = Annotated[
    dict[str, Annotated[StoreConfig, Field(discriminator="type")]],
    BeforeValidator(_with_types),
]


def sink_config(sinks: Mapping[str, StoreConfig], name: str) -> StoreConfig:
    """The section of a sink. Raises ConfigError for one that is not configured."""
    section = sinks.get(name)
    if section is None:
        raise ConfigError(
            f"the configuration has no sink {name!r}", f"sinks with a section are: {', '.join(sinks) or 'none'}"
        )
    return section


def shared_names(sinks: Mapping[str, StoreConfig], topic_prefix: str) -> str | None:
    """Which two sinks would write into the same index, keys or tables, and what helps; None: none would."""
    owners: dict[tuple[str, tuple[str, str]], str] = {}
    for name, section in sinks.items():
        for place in section.store_names(topic_prefix):
            other = owners.setdefault((section.type, place), name)
            if other != name:
                option = _OPTION_OF_NAMES[section.type]
                return f"{other} and {name} would share one store: give one of them another {option}, or another server"
    return None


def unmatched_pattern(sinks: Mapping[str, StoreConfig], captured: Iterable[TableId]) -> str | None:
    """The first pattern that matches no captured table, with its place: it may be a mistyped name."""
    captured = list(captured)
    for name, section in sinks.items():
        named = (("tables", section.tables), ("mapping", section.mapping), ("shapes", section.shapes))
        for option, patterns in named:
            for pattern in patterns:
                if not any(matches(pattern, table) for table in captured):
                    return f"{name}.{option}: {pattern} matches no table of source.tables"
    return None


def _server(url: SecretStr, default_port: int) -> str:
    """Host, port and path of an address; user and password are left out."""
    try:
        parts = urlsplit(url.get_secret_value())
        host, port = parts.hostname or "", parts.port or default_port
    except ValueError:  # said when the sink is opened
        return url.get_secret_value()
    return f"{host}:{port}{parts.path.rstrip('/')}"
