"""The sections of section `sinks`, one class for each type of store. Those of other packages are in `store_types`."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, SecretStr, ValidationError, model_validator

from cdc.config.search_access import AwsConfig, search_addresses
from cdc.config.store_mapping import StoredTables
from cdc.config.store_shapes import TOMBSTONE_TTL_S, CacheShape, SearchShape, SqlShape, StoreTls, WarehouseOptions
from cdc.config.table_choice import TableChoice, is_pattern, matches
from cdc.config.warehouse_catalog import CatalogConfig, is_s3
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.model.suggestions import did_you_mean


class StoreConfig(StoredTables):
    """The settings that every store's section has."""

    has_slots: ClassVar[bool] = False  # the store can hold two generations at once, so that it can be rebuilt
    needs: ClassVar[tuple[str, str] | None] = None  # the client library, and our extra that installs it
    names_option: ClassVar[str]  # the option that keeps two sinks in one store apart

    type: str
    # A row that the store can never take: `stop` the sink before it, or publish a `dead_letter` and go on.
    on_rejected: Literal["stop", "dead_letter"] = "dead_letter"
    dead_letters_max: Annotated[int, Field(ge=1, le=100_000)] = 10_000  # open ones; at more of them the sink stops
    dead_letter_rows: bool = False  # whether letters have the row's values, where these are not large

    def store_names(self, topic_prefix: str) -> tuple[tuple[str, str], ...]:
        """Returns the places that the sink writes, each with the beginning of all names of the sink in it."""
        raise TypeError(f"{type(self).__name__} does not say where it writes, for {topic_prefix}")

    @property
    def has_bounded_batches(self) -> bool:
        """Says whether a batch ends where it was planned to, and its rows become visible together; otherwise rows flow
        while it lasts."""
        return False

    @property
    def is_at_cuts(self) -> bool:
        """Says whether batches end at positions of the source only (ProgressRecord.is_cut)."""
        return False

    @property
    def is_transactional(self) -> bool:
        """Says whether all tables are committed together, so that readers see them at one position. Then a new
        generation can't have tables of the one before, which are at another one than those that were built for it."""
        return False

    def drops_columns(self, table: TableId) -> bool:
        """Says whether preparing a table removes the values of a dropped column from rows that are there."""
        del table
        return False

    @property
    def fills_columns(self) -> bool:
        """Says whether preparing a table sets a column that was added with a constant (TableSchema.filled) in rows that
        are there."""
        return False

    def why_published_again(self, table: TableId, dropped: Collection[str], added: Collection[str]) -> str | None:
        """Returns why the store needs all rows of a table that it holds after these columns were dropped, and these
        were added with a constant, as the end of a sentence about the sink; None if it needs none."""
        _, mapping = self.mapped(table)
        if mapping.where is not None or mapping.computed or mapping.function is not None:
            return "has a mapping with a condition, computed columns or a function"
        if any(map(mapping.stores, dropped)) and not self.drops_columns(table):
            return "keeps a dropped column in each row until the row is written again"
        stored = [name for name in added if mapping.stores(name)]
        if stored and not self.fills_columns:
            return "lacks an added column in each row until the row is written again"
        if any(map(mapping.reshapes, stored)):
            return "has a mapping that changes the values of an added column"
        return None

    @property
    def no_rebuild(self) -> str | None:
        """Says why the store can't be built again while it serves, as the end of a sentence; None if it can."""
        return None if self.has_slots else "whose store can't hold two generations at once"


class SearchConfig(StoreConfig):
    """OpenSearch or Elasticsearch."""

    has_slots: ClassVar[bool] = True
    needs: ClassVar[tuple[str, str] | None] = ("opensearchpy", "search")
    names_option: ClassVar[str] = "index_prefix"

    type: Literal["search"] = "search"
    url: SecretStr  # several hosts of one cluster: their addresses, separated by commas
    user: str | None = None  # instead of user and password in the address
    password: SecretStr | None = None
    api_key: SecretStr | None = None  # Elasticsearch's, encoded or as id:key
    aws: AwsConfig | None = None  # sign requests for Amazon OpenSearch Service
    tls: StoreTls | None = None
    index_prefix: str | None = None  # default: the topic prefix
    # Pattern over schema.table, such as public.*: the shape of these tables' indexes. The first that matches counts.
    shapes: dict[str, SearchShape] = Field(default_factory=dict)
    # How long a deleted row's version is remembered, in which time no older change of the row may still be on its way.
    tombstone_ttl_s: Annotated[int, Field(ge=60)] = TOMBSTONE_TTL_S

    @model_validator(mode="after")
    def _has_one_credential(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password must be set together")
        in_url = any("@" in address.partition("://")[2].partition("/")[0] for address in self.addresses)
        ways = {"a user in url": in_url, "user": self.user, "api_key": self.api_key, "aws": self.aws}
        given = [name for name, value in ways.items() if value]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: a request has one credential")
        return self

    @property
    def addresses(self) -> list[str]:
        """The address of each host."""
        return search_addresses(self.url.get_secret_value())

    def store_names(self, topic_prefix: str) -> tuple[tuple[str, str], ...]:
        """Each host, and what all names of the sink in it begin with."""
        prefix = topic_prefix if self.index_prefix is None else self.index_prefix
        return tuple((_server(SecretStr(address), 9200), prefix.lower()) for address in self.addresses)


CLUSTER_SCHEMES: Final = ("redis+cluster", "rediss+cluster")
_HASH_TAG: Final = re.compile(r"[^{]*\{[^{}]+\}")


class CacheConfig(StoreConfig):
    """Redis or Valkey."""

    has_slots: ClassVar[bool] = True
    needs: ClassVar[tuple[str, str] | None] = ("redis", "cache")
    names_option: ClassVar[str] = "key_prefix"

    type: Literal["cache"] = "cache"
    url: SecretStr
    key_prefix: str | None = None  # default: the topic prefix
    tombstone_ttl_s: Annotated[int, Field(ge=60)] = TOMBSTONE_TTL_S
    # Pattern over schema.table, such as public.*: the shape of these tables' keys. The first that matches counts.
    shapes: dict[str, CacheShape] = Field(default_factory=dict)
    allow_eviction: bool = False  # take a server that removes keys when it is full
    tls: StoreTls | None = None

    @model_validator(mode="after")
    def _prefix_keeps_hash_slots(self) -> Self:
        if self.in_cluster and "{" in (prefix := self.key_prefix or "") and not _HASH_TAG.match(prefix):
            raise ValueError("key_prefix: in a cluster { begins a hash tag, which is written like {shop}")
        return self

    @property
    def in_cluster(self) -> bool:
        """Says whether the address is that of a Redis Cluster."""
        return self.url.get_secret_value().partition("://")[0] in CLUSTER_SCHEMES

    def store_names(self, topic_prefix: str) -> tuple[tuple[str, str], ...]:
        """The server, or each node that the address of a cluster names, and what all names of the sink in it begin
        with.
        """
        prefix = topic_prefix if self.key_prefix is None else self.key_prefix
        if not self.in_cluster:
            return ((_server(self.url, 6379), prefix),)
        hosts = self.url.get_secret_value().partition("://")[2].rpartition("@")[2].partition("/")[0]
        return tuple((_server(SecretStr(f"redis://{host}"), 6379), prefix) for host in hosts.split(","))


class WarehouseConfig(StoreConfig, WarehouseOptions):
    """Iceberg tables through Spark."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["catalog"]}, {"required": ["catalog_uri"]}]})

    needs: ClassVar[tuple[str, str] | None] = ("pyiceberg", "warehouse")
    names_option: ClassVar[str] = "namespace"

    type: Literal["warehouse"] = "warehouse"
    catalog: CatalogConfig | None = None
    catalog_uri: SecretStr | None = None  # instead of catalog: {type: jdbc, uri: …}
    location: Annotated[
        str, Field(min_length=1)
    ]  # folder or URI of the tables' files, and of those on their way into them
    namespace: str | None = None  # default: the topic prefix

    @model_validator(mode="after")
    def _has_one_catalog(self) -> Self:
        if (self.catalog is None) == (self.catalog_uri is None):
            raise ValueError("catalog or catalog_uri is needed")
        try:
            _ = self.iceberg_catalog
        except ValidationError as error:  # of catalog_uri alone
            raise ValueError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from None
        if self.s3 is not None and not is_s3(self.location):
            raise ValueError("s3 requires a location s3://BUCKET/PATH")
        return self

    @cached_property
    def iceberg_catalog(self) -> CatalogConfig:
        """The catalog, whichever key names it."""
        return self.catalog or CatalogConfig(type="jdbc", uri=self.catalog_uri)

    @property
    def has_bounded_batches(self) -> bool:
        return True

    @property
    def is_at_cuts(self) -> bool:
        return self.tag_interval_s is not None

    def drops_columns(self, table: TableId) -> bool:
        return self.shape(table).mode == "current"

    @property
    def is_flat(self) -> bool:
        return self.iceberg_catalog.is_flat

    @property
    def needs_aws(self) -> bool:
        """Says whether the job needs the jars of Amazon's clients."""
        return is_s3(self.location) or self.iceberg_catalog.type == "glue"

    @property
    def no_rebuild(self) -> str | None:
        if any(shape.mode != "current" for shape in self.shapes.values()):
            return (
                "with tables that keep every change (mode history or changelog): the compacted topics lack older "
                "changes"
            )
        if self.iceberg_catalog.type != "jdbc":
            return f"whose catalog (type {self.iceberg_catalog.type}) can't rename several tables in one step"
        return None

    def store_names(self, topic_prefix: str) -> tuple[tuple[str, str], ...]:
        """The catalog and the folder, and what all names of the sink in them begin with."""
        namespace, catalog = (self.namespace or topic_prefix).lower(), self.iceberg_catalog
        address = f"{catalog.type} {catalog.address.rstrip('/')} {catalog.warehouse or ''}"
        return (address, namespace), (self.location.rstrip("/"), namespace)

    def fingerprints(self, tables: Iterable[TableId]) -> dict[str, str]:
        """A table's mode is part of its rows' shape; its partitions and its order are not."""
        tables = list(tables)
        made = super().fingerprints(tables)
        modes = {str(table): self.shape(table).mode for table in tables}
        return made | {name: f"{mode}:{made.get(name, '')}" for name, mode in modes.items() if mode != "current"}


class SqlConfig(StoreConfig):
    """PostgreSQL or SQLite, through SQLAlchemy."""

    has_slots: ClassVar[bool] = True
    needs: ClassVar[tuple[str, str] | None] = ("sqlalchemy", "sql")
    names_option: ClassVar[str] = "own_schema"

    type: Literal["sql"] = "sql"
    url: SecretStr  # postgresql://user:password@host:5432/database, sqlite:////folder/file.db
    # `transactional`: rows of all tables are committed together, and only where a position of the source ends, so that
    # readers see none of its transactions in part; `eventual`: each row as soon as it was read.
    consistency: Literal["eventual", "transactional"] = "eventual"
    own_schema: str | None = None  # of the sink's own tables; default: watershed_<topic prefix>
    # Pattern over schema.table, such as public.*: the shape of these tables. The first that matches counts.
    shapes: dict[str, SqlShape] = Field(default_factory=dict)
    # How long a deleted row's version is remembered, in which time no older change of the row may still be on its way.
    tombstone_ttl_s: Annotated[int, Field(ge=60)] = TOMBSTONE_TTL_S

    @property
    def has_bounded_batches(self) -> bool:
        return self.is_transactional

    @property
    def is_at_cuts(self) -> bool:
        return self.is_transactional

    def drops_columns(self, table: TableId) -> bool:
        del table
        return True

    @property
    def fills_columns(self) -> bool:
        return True

    @property
    def is_transactional(self) -> bool:
        return self.consistency == "transactional"

    def beginning(self, topic_prefix: str) -> str:
        """The schema of the sink's own tables; where there are no schemas, what their names begin with."""
        return f"watershed_{topic_prefix}" if self.own_schema is None else self.own_schema

    def store_names(self, topic_prefix: str) -> tuple[tuple[str, str], ...]:
        """The database, and where the sink's own tables are in it."""
        return ((_server(self.url, 5432), self.beginning(topic_prefix)),)


def sink_config(sinks: Mapping[str, StoreConfig], name: str) -> StoreConfig:
    """The section of a sink. Raises ConfigError for one that is not configured."""
    section = sinks.get(name)
    if section is None:
        raise ConfigError(
            f"the configuration has no sink {name!r}{did_you_mean(name, sinks)}",
            f"sinks with a section are: {', '.join(sinks) or 'none'}",
        )
    return section


def shared_names(sinks: Mapping[str, StoreConfig], topic_prefix: str) -> str | None:
    """Returns two sinks that would write into the same index, keys or tables, with the next step; None if there are
    none.
    """
    owners: dict[tuple[str, tuple[str, str]], str] = {}
    for name, section in sinks.items():
        for place in section.store_names(topic_prefix):
            other = owners.setdefault((section.type, place), name)
            if other != name:
                return (
                    f"{other} and {name} would share one store: give one of them another {section.names_option}, or "
                    "another server"
                )
    return None


def unmatched_pattern(sinks: Mapping[str, StoreConfig], captured: Iterable[TableId], choice: TableChoice) -> str | None:
    """The first pattern that can match no captured table, with its place: it may be a mistyped name. `choice`: where it
    has patterns, tables are captured that nobody knows yet."""
    captured = list(captured)
    for name, section in sinks.items():
        shapes: Iterable[str] = getattr(section, "shapes", ())
        for option, patterns in (("tables", section.tables), ("mapping", section.mapping), ("shapes", shapes)):
            for pattern in patterns:
                if not may_match(pattern, captured, choice):
                    return f"{name}.{option}: {pattern} matches no table of source.tables"
    return None


def may_match(pattern: str, captured: Iterable[TableId], choice: TableChoice) -> bool:
    """Says whether the pattern matches a captured table, or one that the patterns of `choice` may yet take."""
    if any(matches(pattern, table) for table in captured):
        return True
    return bool(choice.patterns) and (is_pattern(pattern) or choice.takes(TableId.parse(pattern)))


def in_source(sinks: Mapping[str, StoreConfig], dsn: SecretStr) -> str | None:
    """Returns an SQL sink that is in the database of the source, as far as the addresses show; None if there is
    none."""
    text = dsn.get_secret_value()
    if "://" not in text:
        words = dict(word.partition("=")[::2] for word in text.split())
        text = f"//{words.get('host', '')}:{words.get('port', '5432')}/{words.get('dbname', '')}"
    place = _server(SecretStr(text), 5432)
    return next(
        (name for name, one in sinks.items() if isinstance(one, SqlConfig) and _server(one.url, 5432) == place), None
    )


def _server(url: SecretStr, default_port: int) -> str:
    """Host, port and path of an address; user and password are left out."""
    try:
        parts = urlsplit(url.get_secret_value())
        host, port = parts.hostname or "", parts.port or default_port
    except ValueError:  # said when the sink is opened
        return url.get_secret_value()
    return f"{host}:{port}{parts.path.rstrip('/')}"


@dataclass(frozen=True, slots=True)
class StoreType:
    """A type of store: its section, and its code. `sinks.registry` has ours; the entry point of another package names
    one of these. A part that is None: the store can't do this. What each part does is described in the module of
    `sinks` that is named here. The sink of a store with slots is also opened with `slot=…`.
    """

    section: type[StoreConfig]
    sink: Any = None  # contract: a class with open(section, topic_prefix, name=…); None: Spark's job opens it
    contents: Any = None  # contents: a class with open(section, topic_prefix, name)
    slots: Any = None  # slots: a class that is called with (section, topic_prefix)
    findings: Any = None  # registry.store_findings: a function of (name, section, topic_prefix, schemas)
    removal: Any = None  # registry.store_contents: a function of (section, topic_prefix, tables, removes=…)
