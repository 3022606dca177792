"""Sections `sinks.search.shapes`, `sinks.cache.shapes` and `sinks.warehouse.shapes`: how a store keeps tables' rows."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from cdc.config.partitioning import parse_sort, parse_transform
from cdc.config.section import Section
from cdc.config.table_choice import matches
from cdc.config.warehouse_catalog import S3Config
from cdc.model.events import TableId

TOMBSTONE_TTL_S: Final = 14 * 86400
SNAPSHOT_DAYS: Final = 7.0
CacheValue = Literal["document", "json", "columns"]
WarehouseMode = Literal["current", "history", "changelog"]
JsonForm = Literal["flat_object", "object", "text"]
CachedJson = Literal["text", "object"]


class CacheShape(Section):
    """The keys of a table's rows in the cache, and what they hold."""

    key: str | None = None  # a template such as user:{id}; None: <prefix>:<schema>.<table>:<row id>
    value: CacheValue = "document"  # a hash with v and doc; a string of JSON; a hash with a field for each column
    # Columns of type json and jsonb in a document: their text, or the JSON value itself.
    json_as: CachedJson = Field(default="text", alias="json")
    ttl_s: Annotated[int, Field(ge=1)] | None = None
    # Templates of further keys, such as user:by_email:{email}. Each is a string that holds the row's primary key.
    lookups: tuple[str, ...] = ()
    mode: Literal["upsert", "invalidate"] = "upsert"
    publish: str | None = None  # invalidate: the channel to which the name of each deleted key is published
    stream: str | None = None  # invalidate: the stream to which an entry for each deleted key is added
    stream_length_max: Annotated[int, Field(ge=1)] = 100_000

    @model_validator(mode="after")
    def _mode_has_its_options(self) -> Self:
        if self.mode == "upsert" and (self.publish or self.stream):
            raise ValueError("publish and stream are for mode: invalidate")
        if self.mode == "invalidate" and self.key is None:
            raise ValueError("mode: invalidate requires key, the template of the keys that are deleted")
        if self.mode == "invalidate" and self.model_fields_set & {"value", "json_as", "ttl_s"}:
            raise ValueError("value, json and ttl_s are for mode: upsert; mode: invalidate stores nothing")
        if self.json_as == "object" and self.value == "columns":
            raise ValueError(
                "json: object is for value: document and value: json; with columns a field is a text anyway"
            )
        return self


class StoreTls(Section):
    """Files for an address with TLS (https://, rediss://), in PEM format. The certificate and its key are for servers
    that ask for them."""

    ca_file: str | None = None  # None: the system's certificate authorities
    certificate_file: str | None = None
    key_file: str | None = None

    @model_validator(mode="after")
    def _certificate_has_key(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file must be set together")
        return self


def _flat(settings: Mapping[str, Any], beginning: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the settings of an index with their full names, without `index.`, however they are nested."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{beginning}{name}.")
        else:
            yield f"{beginning}{name}".removeprefix("index."), value


class SearchShape(Section):
    """The index of a table's rows in the search index."""

    alias: str | None = None  # a template with {prefix}, {schema} and {table}; None: {prefix}.{schema}.{table}
    index: str | None = None  # None: the alias and .documents
    id: str | None = None  # the template of document ids, of all key columns; None: the key as text
    routing: str | None = None  # a template of key columns
    mapping: dict[str, dict[str, Any]] = Field(default_factory=dict)  # column: parameters of its field
    settings: dict[str, Any] = Field(default_factory=dict)  # of the index: analysis, number_of_shards, …
    # Columns of type json and jsonb. None: flat_object where the server has it, else text.
    json_as: JsonForm | None = Field(default=None, alias="json")

    @field_validator("alias", "index")
    @classmethod
    def _names_have_known_parts(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                value.format(prefix="", schema="", table="")
        except (KeyError, ValueError, IndexError, AttributeError):
            raise ValueError("a template may name {prefix}, {schema} and {table}") from None
        return value

    @field_validator("settings")
    @classmethod
    def _keeps_what_it_acknowledged(cls, value: dict[str, Any]) -> dict[str, Any]:
        if dict(_flat(value)).get("translog.durability") == "async":
            raise ValueError(
                "translog.durability: async lets a node that crashes lose rows that it has acknowledged, which nothing "
                "notices; leave it out, and set refresh_interval for speed"
            )
        return value

    @model_validator(mode="after")
    def _alias_is_not_index(self) -> Self:
        if self.alias is not None and self.alias == self.index:
            raise ValueError("alias and index must have different names")
        return self


class SqlShape(Section):
    """The table of a source table's rows in an SQL database. Columns have the names that the mapping gives them."""

    table: str | None = None  # a template with {schema} and {table}; None: {schema}.{table}, or {schema}_{table}
    types: dict[str, Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_ ,.()\[\]\"]*$")]] = Field(default_factory=dict)
    indexes: tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...] = ()  # each a list of columns

    @field_validator("table")
    @classmethod
    def _name_has_known_parts(cls, value: str | None) -> str | None:
        try:
            name = "t" if value is None else value.format(schema="s", table="t").rpartition(".")[2]
        except (KeyError, ValueError, IndexError, AttributeError):
            name = ""
        if not name:
            raise ValueError("a template may name {schema} and {table}, and ends with the table's name")
        return value


class WarehouseShape(Section):
    """The Iceberg table of a source table. Columns have the store's names, and those that the mode adds."""

    # The source's rows; each version of a row with its interval; one row for each change.
    mode: WarehouseMode = "current"
    partition_by: tuple[str, ...] = ()  # transforms, such as day(created_at), bucket(16, id), country
    sort_by: tuple[str, ...] = ()  # columns, each with desc behind it where wanted

    @field_validator("partition_by")
    @classmethod
    def _are_transforms(cls, transforms: tuple[str, ...]) -> tuple[str, ...]:
        for text in transforms:
            parse_transform(text)
        return transforms

    @field_validator("sort_by")
    @classmethod
    def _are_sorts(cls, sorts: tuple[str, ...]) -> tuple[str, ...]:
        for text in sorts:
            parse_sort(text)
        return sorts


class WarehouseOptions(Section):
    """Options of a warehouse that say how rows are kept."""

    # Pattern over schema.table, such as public.*: the shape of these tables. The first that matches counts.
    shapes: dict[str, WarehouseShape] = Field(default_factory=dict)
    # How long the version of a deleted row is remembered, in which time no older change may still be on its way.
    tombstone_ttl_s: Annotated[int, Field(ge=60)] = TOMBSTONE_TTL_S
    # How long readers can go back. Of snapshots that are older than an hour, one for each hour is kept.
    snapshot_days: Annotated[float, Field(gt=0, le=3650)] = SNAPSHOT_DAYS
    # Seconds between two tags of one position of the source on all tables, at least; null: none are set.
    tag_interval_s: Annotated[float, Field(ge=1)] | None = None
    tags_kept: Annotated[int, Field(ge=1, le=1_000)] = 24  # of these on each table
    # Whether the sink's job compacts tables that have too many small files; else `cdc warehouse maintain` alone does.
    compacts: bool = True
    s3: S3Config | None = None  # how a location s3://BUCKET/PATH is reached

    @property
    def is_flat(self) -> bool:
        """True for a catalog without namespaces in namespaces; see CatalogConfig.is_flat."""
        return False

    def shape(self, table: TableId) -> WarehouseShape:
        return shape_of(self.shapes, table, _DEFAULT_WAREHOUSE_SHAPE)


_DEFAULT_WAREHOUSE_SHAPE: Final = WarehouseShape()

Shape = TypeVar("Shape")


def shape_of(shapes: Mapping[str, Shape], table: TableId, default: Shape) -> Shape:
    """The shape of the first pattern that matches schema.table."""
    return next((shape for pattern, shape in shapes.items() if matches(pattern, table)), default)
