"""The sections of the configuration that capture reads. `cdc.config.config_file` adds those of stores and views.

`${NAME}` in the file is a variable of the environment (interpolation.py). `CDC__SECTION__KEY` environment variables
override the file (`CDC__KAFKA__BOOTSTRAP_SERVERS=...`), and so do files of these names in the folder CDC_SECRETS.
Unknown keys are refused. Secrets are `SecretStr`: they never appear in a
message, a log or a repr.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from cdc.config.columns import Chosen, ColumnChoice, Patterns
from cdc.config.format_options import FormatConfig, FormatOptions
from cdc.config.interpolation import interpolated
from cdc.config.masking import Mask, MaskOptions
from cdc.config.outbox_settings import OutboxConfig, with_outbox_tables
from cdc.config.schema_registry import SchemaRegistryConfig
from cdc.config.secret_files import secret_files
from cdc.config.section import SecretOption, Section
from cdc.config.table_choice import TableChoice, is_pattern, is_system, require_patterns
from cdc.config.topic_settings import TopicSettings
from cdc.config.yaml_file import read_config_file
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.model.suggestions import did_you_mean
from cdc.model.table_state import SelectionRecord

ENV_PREFIX = "CDC__"
_NAME = re.compile(r"[a-z0-9_]{1,63}")  # the characters that PostgreSQL allows for a slot
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,100}")  # no dot: `<prefix>.state` must not be another prefix's table


class SourceConfig(Section):
    """The PostgreSQL database that is read."""

    dsn: SecretStr  # a libpq connection string or URL; must reach the server directly, not through a pooler
    standby_dsn: SecretStr | None = None  # one standby of that server: it has the slot, and its log is read
    tables: tuple[str, ...] = Field(min_length=1)  # schema.table, and patterns: see cdc/config/table_choice.py
    exclude_tables: tuple[str, ...] = ()  # names and patterns: not captured, although a pattern of `tables` matches
    # What becomes of a table that begins to match a pattern later.
    new_tables: Literal["capture", "ignore", "stop"] = "capture"
    tables_max: Annotated[int, Field(ge=1, le=10_000)] = 1_000  # patterns take no more tables
    publication: str = "watershed"
    slot: str = "watershed"
    failover: bool = True  # PostgreSQL 17 and later: standbys that synchronise slots get this one too
    on_gap: Literal["stop", "heal"] = "stop"  # what capture does in state GAP
    # schema.table → columns of its record key, in key order, instead of the primary key's. NOT NULL, in the replica
    # identity, and no two rows may have the same at any moment. None at all: records without a key.
    key_columns: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    # Regular expressions over schema.table.column, from beginning to end: which columns leave the source at all.
    include_columns: Patterns = ()
    exclude_columns: Patterns = ()
    outbox: tuple[str, ...] = ()  # those of `tables` that section outbox names, which puts them into both
    matched: tuple[str, ...] = ()  # the tables that patterns of `tables` take, where they are known: not for files

    @field_validator("slot")
    @classmethod
    def _slot(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("a slot's name has lower-case letters, digits and underscores, at most 63")
        return value

    @field_validator("tables")
    @classmethod
    def _tables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        require_patterns(value)
        for name in value:
            if not is_pattern(name) and is_system(TableId.parse(name)):
                raise ValueError(f"{name} is a table of PostgreSQL itself, which can't be captured")
        if len(set(value)) != len(value):
            raise ValueError("a table is listed twice")
        return value

    @field_validator("exclude_tables")
    @classmethod
    def _exclude_tables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        require_patterns(value)
        return value

    @field_validator("standby_dsn")
    @classmethod
    def _standby(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None and value == info.data.get("dsn"):
            raise ValueError("this is source.dsn: name a standby of that server, or leave it out")
        return value

    @model_validator(mode="after")
    def _excluded(self) -> Self:
        for name in self.tables:
            if name in self.exclude_tables:
                raise ValueError(f"{name} is in tables and in exclude_tables: remove it from one of them")
        if self.exclude_tables and not self.choice.patterns:
            raise ValueError("exclude_tables is for patterns, and tables has none: remove it")
        return self

    @model_validator(mode="after")
    def _key_columns(self) -> Self:
        for table, columns in self.key_columns.items():
            if not self.choice.takes(TableId.parse(table)):
                raise ValueError(f"key_columns names {table}, which is not in tables")
            if len(set(columns)) != len(columns):
                raise ValueError(f"key_columns of {table} names a column twice")
        return self

    @property
    def log_server(self) -> Self:
        """The section with the server that has the slot in place of the one where rows are read and written."""
        return self if self.standby_dsn is None else self.model_copy(update={"dsn": self.standby_dsn})

    @property
    def may_be_standby(self) -> bool:
        """Says whether the server of `dsn` is the one that standby_dsn names."""
        return self.dsn == self.standby_dsn

    @property
    def columns(self) -> ColumnChoice:
        return ColumnChoice(self.include_columns, self.exclude_columns)

    def chosen(self, table: TableId) -> Chosen:
        is_outbox = self.is_outbox(table)
        return Chosen(() if is_outbox else self.key_columns.get(str(table)), self.columns, is_outbox)

    def is_outbox(self, table: TableId) -> bool:
        """Says whether the table's rows are events."""
        return str(table) in self.outbox

    @property
    def choice(self) -> TableChoice:
        return TableChoice(self.tables, self.exclude_tables)

    def with_matched(self, tables: Iterable[TableId]) -> Self:
        """Returns the section with these tables as those that its patterns take."""
        names = tuple(str(table) for table in sorted(tables) if str(table) not in self.tables)
        return self.model_copy(update={"matched": names})

    def is_named(self, table: TableId) -> bool:
        """Says whether the operator named the table, so that its trouble at a first start is a mistake."""
        return str(table) in self.tables or str(table) in self.key_columns

    @property
    def table_ids(self) -> tuple[TableId, ...]:
        """The tables that are named, and those that patterns are known to take."""
        return (*self.choice.names, *map(TableId.parse, self.matched))

    @property
    def keyless(self) -> frozenset[TableId]:
        """The tables whose records have no key, which exist or not."""
        return frozenset(t for t in map(TableId.parse, (*self.key_columns, *self.outbox)) if self.chosen(t).key == ())

    @property
    def stored_table_ids(self) -> tuple[TableId, ...]:
        """The tables that stores hold: neither outbox tables nor logs, whose records have no key."""
        return tuple(table for table in self.table_ids if self.chosen(table).key != ())


# The options of librdkafka on which exactly-once delivery and the order of a key depend, and the brokers, which have
# their own key.
_OPTIONS_OF_CAPTURE: Final = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",  # a reader of uncommitted records would use positions that were aborted
        "metadata.broker.list",
        "partitioner",  # another one separates keys from their earlier records
        "request.required.acks",
        "transactional.id",  # fences a second instance
    }
)


class TokenConfig(Section):
    """A plug-in that provides tokens for SASL OAUTHBEARER (`cdc/kafka/tokens.py`)."""

    plugin: str = Field(min_length=1)
    options: dict[str, SecretOption] = Field(default_factory=dict)


class KafkaConfig(Section):
    """The brokers. `options` go to librdkafka as they are (security.protocol, sasl.*, ssl.*)."""

    bootstrap_servers: str = Field(min_length=1)
    options: dict[str, SecretOption] = Field(default_factory=dict)
    token: TokenConfig | None = None
    schema_registry: SchemaRegistryConfig | None = None

    @field_validator("options")
    @classmethod
    def _options(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        if taken := sorted(_OPTIONS_OF_CAPTURE.intersection(value)):
            raise ValueError(
                f"{', '.join(taken)} can't be set: remove it; exactly-once delivery depends on the values that capture "
                "sets"
            )
        return value

    @model_validator(mode="after")
    def _one_mechanism(self) -> Self:
        if self.token is None:
            return self
        for name in ("sasl.mechanism", "sasl.mechanisms", "sasl.oauthbearer.method"):
            given = self.options.get(name)
            if given is not None and given.get_secret_value() not in ("OAUTHBEARER", "default"):
                raise ValueError(f"remove {name} from options, or section token: a token is for mechanism OAUTHBEARER")
        return self

    @property
    def given(self) -> dict[str, str]:
        """The options, in clear, with those that a token implies."""
        implied = {} if self.token is None else {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
        if "sasl.mechanisms" in self.options:
            implied.pop("sasl.mechanism", None)
        return implied | {name: secret.get_secret_value() for name, secret in self.options.items()}


class TopicConfig(Section):
    """Topics that capture creates."""

    prefix: str  # the topic of a table is {prefix}.{schema}.{table}
    partitions: Annotated[int, Field(ge=1, le=1000)] = 4
    replication_factor: Annotated[int, Field(ge=1, le=10)] | None = None  # None: the brokers' default
    config: TopicSettings = TopicSettings()

    @model_validator(mode="before")
    @classmethod
    def _names_are_fixed(cls, values: Any) -> Any:
        if isinstance(values, dict) and "name" in values:
            raise ValueError(
                "name is not supported: the topic of a table is {prefix}.{schema}.{table}, from which sinks, views and "
                "readers know its table; remove it"
            )
        return values

    @field_validator("prefix")
    @classmethod
    def _prefix(cls, value: str) -> str:
        if not _PREFIX.fullmatch(value):
            raise ValueError("letters, digits, _ and -, 100 at most")
        return value


OnUnpublishable = Literal["stop", "dead_letter", "skip"]


class CaptureConfig(Section):
    """Limits of the capture process. A Kafka transaction ends when the input runs dry, at least
    `transaction_time_ms_min` after the last one ended, or at one of the limits; inside a transaction of the source only
    at those of rows and bytes. Without `transaction_time_ms_min` it is 5 to 20 ms, by the load."""

    transaction_rows_max: Annotated[int, Field(ge=1)] = 50_000
    transaction_bytes_max: Annotated[int, Field(ge=1024)] = 32 * 1024 * 1024
    transaction_time_ms_min: Annotated[int, Field(ge=0, le=10_000)] | None = None  # None: by the load
    transaction_time_ms_max: Annotated[int, Field(ge=1)] = 500
    idle_position_s: Annotated[float, Field(gt=0)] = 1.0  # how often an idle source's position is recorded
    progress_interval_ms: Annotated[int, Field(ge=10)] = 250
    # For a change whose record is larger than its topic allows, or has a value that records have no form for.
    on_unpublishable: OnUnpublishable = "stop"


class SnapshotConfig(Section):
    """The reading of existing rows. docs/concepts/snapshots.md describes it."""

    mode: Literal["initial", "never", "when_needed", "always"] = "initial"
    method: Literal["chunked", "consistent"] = "chunked"
    workers: Annotated[int, Field(ge=1, le=16)] = 2  # connections that read chunks
    chunk_rows_max: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    chunk_bytes_max: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = 4 * 1024 * 1024
    rows_per_s_max: Annotated[float, Field(gt=0)] | None = None
    lag_s_max: Annotated[float, Field(gt=0)] = 1.0  # chunks pause while a backlog is older than this
    split_rows_min: Annotated[int, Field(ge=1)] = 1_000_000  # a table this large is read in several key ranges at once
    # Whether all rows are published again after DROP COLUMN, and ADD COLUMN with a constant default, also if no store
    # needs it
    after_alter: Literal["when_needed", "always"] = "when_needed"


class SweepConfig(Section):
    """The records that follow a sweep, which removes rows from stores by their version."""

    tombstones: bool = False  # also in the topics, for consumers that know nothing of sweeps


class MaskingConfig(MaskOptions):
    """Text that may not leave the source in clear. Columns are named schema.table.column."""

    def masks(self, source: SourceConfig) -> tuple[Mask, ...]:
        """Returns the masks of columns. Raises ValueError for a column of a table that is not captured."""
        return self.masks_of(lambda name: _column_of(name, source))


def _column_of(name: str, source: SourceConfig) -> tuple[TableId, str]:
    for table in sorted(source.table_ids, key=lambda table: len(str(table)), reverse=True):
        if name.startswith(f"{table}.") and len(name) > len(f"{table}."):
            return table, name.removeprefix(f"{table}.")
    # A table that a pattern may take later; with dots in names, the first reading that it takes.
    for dot in (place for place, letter in enumerate(name) if letter == "." and 0 < place < len(name) - 1):
        with suppress(ValueError):
            if source.choice.matches(table := TableId.parse(name[:dot])):
                return table, name[dot + 1 :]
    raise ValueError(f"masking names {name}, which is not a column of source.tables; write schema.table.column")


class PipelineConfig(BaseSettings):
    """These sections. Values from the environment go before those of secret files, and these before the file's."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter="__", hide_input_in_errors=True
    )

    source: SourceConfig
    kafka: KafkaConfig
    topics: TopicConfig
    capture: CaptureConfig = CaptureConfig()
    snapshot: SnapshotConfig = SnapshotConfig()
    sweep: SweepConfig = SweepConfig()
    format: FormatConfig = FormatConfig()
    masking: MaskingConfig = MaskingConfig()
    outbox: OutboxConfig = OutboxConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        secrets = EnvSettingsSource(settings_cls)
        secrets.env_vars = {name.lower(): value for name, value in secret_files(os.environ, ENV_PREFIX).items()}
        return env_settings, secrets, init_settings

    def in_force(self, record: SelectionRecord | None) -> Self:
        """Returns the configuration with the tables that capture has, for a process that does not read the catalog,
        beside those that the file names: capture will have them when it takes up the file."""
        if record is None:
            return self
        return self.model_copy(update={"source": self.source.with_matched(map(TableId.parse, record.tables))})

    @property
    def has_sinks_at_cuts(self) -> bool:
        """Whether a sink commits at cuts, which capture then makes also under a steady load."""
        return False

    @property
    def sink_names(self) -> frozenset[str]:
        """The sinks that capture knows of."""
        return frozenset()

    def why_published_again(self, table: TableId, dropped: Collection[str], added: Collection[str]) -> str | None:
        """Returns why all rows of a table have to be published again after these columns were dropped, and these were
        added with a constant default; None if every reader makes the same of the records that are there."""
        del table, dropped, added
        return "only other programs read its topic: no sink of the configuration holds the table"

    @property
    def heals_itself(self) -> bool:
        """Whether capture heals a gap without being asked to."""
        return self.source.on_gap == "heal" or self.snapshot.mode == "when_needed"

    @property
    def format_options(self) -> FormatOptions:
        """Sections `format` and `masking` together."""
        masks = self.masking.masks(self.source)
        return FormatOptions(**self.format.model_dump(), masks=masks, columns=self.source.columns)

    @model_validator(mode="before")
    @classmethod
    def _outbox_tables_are_captured(cls, values: Any) -> Any:
        """Captures outbox tables through the same publication and slot as the other tables."""
        return with_outbox_tables(values)

    @model_validator(mode="after")
    def _source_is_possible(self) -> Self:
        if set(self.source.outbox) != {table.table for table in self.outbox.tables}:
            raise ValueError("source.outbox is filled from section outbox: name tables in outbox.tables")
        if self.source.standby_dsn is not None and self.snapshot.method == "consistent":
            raise ValueError(
                "snapshot.method consistent reads rows where the slot is made: not with source.standby_dsn"
            )
        if self.source.matched:
            raise ValueError("source.matched is filled from the source: name tables in source.tables")
        return self

    @model_validator(mode="after")
    def _format_is_possible(self) -> Self:
        options = self.format_options  # raises ValueError for a mask of another table
        if unmasked := next((mask for mask in options.masks if self.source.is_outbox(mask.table)), None):
            raise ValueError(
                f"masking names {unmasked.table}.{unmasked.column}, but the events of an outbox table are not masked"
            )
        if options.encoding != "json" and self.kafka.schema_registry is None:
            raise ValueError(f"format.encoding {options.encoding} needs the section kafka.schema_registry, with url")
        if self.sweep.tombstones and not options.suits_sinks:
            raise ValueError(
                "sweep.tombstones requires keys of format.profile readable, without schemas.enable, modes and "
                "cloudevents structured"
            )
        return self


Sections = TypeVar("Sections", bound=BaseSettings)


def load_pipeline(path: Path) -> PipelineConfig:
    """Reads capture's sections of the file, and checks no other. Raises ConfigError as `load` does."""
    sections = read_config_file(path)
    own = PipelineConfig.model_fields
    return load(PipelineConfig, path, {name: sections[name] for name in own if name in sections}, describe)


def load(model: type[Sections], path: Path, sections: Mapping[str, Any], described: Callable[[Any], str]) -> Sections:
    """Returns the sections with their overrides. `described`: describes an error of pydantic. Raises ConfigError that
    names the file and the key, never a value."""
    values = interpolated(path, sections, os.environ)
    try:
        return model(**values)
    except SettingsError as error:
        raise ConfigError(
            f"an environment variable {ENV_PREFIX}… holds a list or section that is not JSON",
            f"""write it as JSON, for example {ENV_PREFIX}SOURCE__TABLES='["public.orders"]'""",
        ) from error
    except ValidationError as error:
        errors = error.errors(include_input=False, include_url=False)
        problems = "; ".join(described(one) + _nearest_key(model, one) for one in errors)
        raise ConfigError(f"{path}: {problems}", "correct these keys; `cdc config schema` lists all keys") from error


def describe(error: Any) -> str:
    """Returns the key and the problem of one of pydantic's errors."""
    return f"{'.'.join(map(str, error['loc'])) or 'file'}: {_message_of(error)}"


def _nearest_key(model: type[BaseModel], error: Any) -> str:
    """Returns the known key that an unknown one resembles, as the end of a sentence."""
    if error["type"] != "extra_forbidden":
        return ""
    *place, key = error["loc"]
    return did_you_mean(key, keys_at(model, place))


def keys_at(annotation: Any, place: Sequence[str | int]) -> frozenset[str]:
    """Returns the keys of the section at this place below a section, a list or a map of them. Where sections of several
    types may stand, the place has the type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        if not place:
            return frozenset(fields)
        found = fields.get(str(place[0]))
        return frozenset() if found is None else keys_at(found.annotation, place[1:])
    arguments = get_args(annotation)
    if get_origin(annotation) in (dict, tuple, list) and place:
        return keys_at(arguments[-1 if get_origin(annotation) is dict else 0], place[1:])
    if get_origin(annotation) is Annotated:
        return keys_at(arguments[0], place)
    typed = [one for one in arguments if place and _type_of(one) == place[0]]
    return frozenset().union(*(keys_at(one, place[1:] if typed else place) for one in typed or arguments))


def _type_of(annotation: Any) -> str | None:
    """Returns the type that a store's section has by default, or always."""
    field = getattr(annotation, "model_fields", {}).get("type")
    if field is None:
        return None
    choices = get_args(field.annotation)
    return str(choices[0]) if choices else str(field.default)


def _message_of(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "unknown key"
        case "missing":
            return "missing"
        case "tuple_type":
            return "a list is needed: [a, b], or one item per line, each after a -"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "a section is needed, with keys of its own; {} for an empty one"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")
