"""The configuration: one YAML file, checked whole before anything is touched.

`CDC__SECTION__KEY` environment variables override the file (`CDC__KAFKA__BOOTSTRAP_SERVERS=...`), and so do files of
these names in the folder CDC_SECRETS. Unknown keys are refused. Secrets are `SecretStr`: they never appear in a
message, a log or a repr.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationError,
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

from cdc.config.clock_settings import MINUTES, ClockConfig
from cdc.config.columns import Chosen, ColumnChoice, Patterns
from cdc.config.event_log_settings import EventLogConfig
from cdc.config.event_log_settings import problem as problem_of_logs
from cdc.config.format_options import FormatConfig, FormatOptions
from cdc.config.kafka_options import without_ours
from cdc.config.masking import Mask, MaskOptions
from cdc.config.outbox_settings import OutboxConfig, with_outbox_tables
from cdc.config.secret_files import secret_files
from cdc.config.section import Section
from cdc.config.sink_settings import shared_names, unmatched_pattern
from cdc.config.store_mapping import matches
from cdc.config.store_types import SINK_TYPES, SinksConfig
from cdc.config.topic_names import problem
from cdc.config.view_settings import ViewConfig, view_topics
from cdc.config.view_settings import problem as problem_of_views
from cdc.config.yaml_file import read_config_file
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.model.topics import Topics

ENV_PREFIX = "CDC__"
_NAME = re.compile(r"[a-z0-9_]{1,63}")  # the characters that PostgreSQL allows for a slot
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,100}")  # no dot: `<prefix>.state` must not be another prefix's table
_DURATION = re.compile(r"(\d{1,6})([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class SourceConfig(Section):
    """The PostgreSQL database that is read."""

    dsn: SecretStr  # a libpq connection string or URL; must reach the server directly, not through a pooler
    tables: tuple[str, ...] = Field(min_length=1)  # schema.table
    publication: str = "watershed"
    slot: str = "watershed"
    # schema.table → columns of its record key, in key order, instead of the primary key's. NOT NULL, in the replica
    # identity, and no two rows may have the same at any moment. None at all: records without a key.
    key_columns: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    # Regular expressions over schema.table.column, from beginning to end: which columns leave the source at all.
    include_columns: Patterns = ()
    exclude_columns: Patterns = ()
    outbox: tuple[str, ...] = ()  # those of `tables` that section outbox names, which puts them into both

    @field_validator("slot")
    @classmethod
    def _slot(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("a slot's name has lower-case letters, digits and underscores, at most 63")
        return value

    @field_validator("tables")
    @classmethod
    def _tables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            TableId.parse(name)
        if len(set(value)) != len(value):
            raise ValueError("a table is listed twice")
        return value

    @model_validator(mode="after")
    def _key_columns(self) -> Self:
        for table, columns in self.key_columns.items():
            if table not in self.tables:
                raise ValueError(f"key_columns names {table}, which is not in tables")
            if len(set(columns)) != len(columns):
                raise ValueError(f"key_columns of {table} names a column twice")
        return self

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
    def table_ids(self) -> tuple[TableId, ...]:
        return tuple(TableId.parse(name) for name in self.tables)

    @property
    def stored_table_ids(self) -> tuple[TableId, ...]:
        """The tables that stores hold: neither outbox tables nor logs, whose records have no key."""
        return tuple(table for table in self.table_ids if self.chosen(table).key != ())


class KafkaConfig(Section):
    """The brokers. `options` go to librdkafka as they are (security.protocol, sasl.*, ssl.*)."""

    bootstrap_servers: str = Field(min_length=1)
    options: Annotated[dict[str, SecretStr], AfterValidator(without_ours)] = Field(default_factory=dict)


class TopicConfig(Section):
    """Topics that capture creates."""

    prefix: str
    partitions: Annotated[int, Field(ge=1, le=1000)] = 4
    replication_factor: Annotated[int, Field(ge=1, le=10)] = 1

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
    at those of rows and bytes."""

    transaction_rows_max: Annotated[int, Field(ge=1)] = 50_000
    transaction_bytes_max: Annotated[int, Field(ge=1024)] = 32 * 1024 * 1024
    transaction_time_ms_min: Annotated[int, Field(ge=0, le=10_000)] = 20
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


class SweepConfig(Section):
    """The records that follow a sweep, which removes rows from stores by their version."""

    tombstones: bool = False  # also in the topics, for consumers that know nothing of sweeps


class MaskingConfig(MaskOptions):
    """Text that may not leave the source in clear. Columns are named schema.table.column."""

    def masks(self, tables: Sequence[TableId]) -> tuple[Mask, ...]:
        """Returns the masks of columns. Raises ValueError for a column of a table that is not captured."""
        return self.masks_of(lambda name: _column_of(name, tables))


def _column_of(name: str, tables: Sequence[TableId]) -> tuple[TableId, str]:
    for table in sorted(tables, key=lambda table: len(str(table)), reverse=True):
        if name.startswith(f"{table}.") and len(name) > len(f"{table}."):
            return table, name.removeprefix(f"{table}.")
    raise ValueError(f"masking names {name}, which is not a column of source.tables; write schema.table.column")


class SparkConfig(Section):
    """The Spark application that runs the sinks."""

    checkpoint_location: str = ".watershed/checkpoints"
    driver_memory: str = "1g"
    trigger_ms: Annotated[int, Field(ge=0)] = 250  # search and cache
    warehouse_trigger_ms: Annotated[int, Field(ge=0)] = 10_000
    bytes_per_write_max: Annotated[int, Field(ge=1)] = 64 * 1024 * 1024
    options: dict[str, str] = Field(default_factory=dict)  # spark.* properties

    @field_validator("driver_memory")
    @classmethod
    def _is_size(cls, text: str) -> str:
        if re.fullmatch("[1-9][0-9]*[kmgt]", text, re.IGNORECASE) is None:
            raise ValueError(f"{text!r} is not a size as in Java's -Xmx: write a number with k, m, g or t, such as 1g")
        return text


class VerifyConfig(Section):
    """Comparisons of stores with the source that `cdc sink run` starts by itself."""

    every: str | None = None  # from the beginning of one to that of the next: 30m, 6h, 1d; null: none
    tables: tuple[str, ...] = ("*",)  # patterns over schema.table
    sample: Annotated[int, Field(ge=1)] | None = None  # number of random rows of each side; None: all
    source_share: Annotated[float, Field(ge=0.01, le=1.0)] = 0.1  # share of the time in which the source is read

    @field_validator("every")
    @classmethod
    def _every(cls, value: str | None) -> str | None:
        if value is not None and (_DURATION.fullmatch(value) is None or not _duration_s(value)):
            raise ValueError("write a number and a unit: 90s, 30m, 6h or 1d")
        return value

    @property
    def every_s(self) -> float | None:
        return None if self.every is None else _duration_s(self.every)


def _duration_s(text: str) -> float:
    found = _DURATION.fullmatch(text)
    assert found is not None, "the text was checked"
    return float(int(found[1]) * _UNIT_S[found[2]])


class HttpConfig(Section):
    """The read-only HTTP server of `cdc run`, `cdc sink run` and `cdc view run`: health, status, metrics."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] | None = 8480  # of `cdc run`; null: no server
    sink_port: Annotated[int, Field(ge=1, le=65535)] | None = 8481  # of `cdc sink run`
    view_port: Annotated[int, Field(ge=1, le=65535)] | None = 8482  # of `cdc view run`
    # How much WAL the disk can hold for the slot, if max_slot_wal_keep_size sets no limit or a greater one.
    wal_bytes_max: Annotated[int, Field(ge=1)] | None = None


class Config(BaseSettings):
    """The whole file. Values from the environment go before those of secret files, and these before the file's."""

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
    sinks: SinksConfig = Field(default_factory=dict)
    event_logs: dict[str, EventLogConfig] = Field(default_factory=dict)
    views: dict[str, ViewConfig] = Field(default_factory=dict)
    clock: ClockConfig = ClockConfig()
    spark: SparkConfig = SparkConfig()
    verify: VerifyConfig = VerifyConfig()
    http: HttpConfig = HttpConfig()

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

    @property
    def format_options(self) -> FormatOptions:
        """Sections `format` and `masking` together."""
        masks = self.masking.masks(self.source.table_ids)
        return FormatOptions(**self.format.model_dump(), masks=masks, columns=self.source.columns)

    @model_validator(mode="before")
    @classmethod
    def _outbox_tables_are_captured(cls, values: Any) -> Any:
        """Captures outbox tables through the same publication and slot as the other tables."""
        return with_outbox_tables(values)

    @model_validator(mode="after")
    def _outbox_is_configured(self) -> Self:
        if set(self.source.outbox) != {table.table for table in self.outbox.tables}:
            raise ValueError("source.outbox is filled from section outbox: name tables in outbox.tables")
        return self

    @model_validator(mode="after")
    def _sinks_can_read(self) -> Self:
        if self.format_options.suits_sinks:
            return self
        if self.sweep.tombstones:
            raise ValueError(
                "sweep.tombstones requires keys of format.profile readable, without schemas.enable and modes"
            )
        if self.sinks:
            raise ValueError(
                "sinks require records of format.profile readable, without schemas.enable and modes for values: "
                "configure sinks or another format, not both"
            )
        return self

    @model_validator(mode="after")
    def _sinks_are_apart(self) -> Self:
        said = shared_names(self.sinks, self.topics.prefix) or unmatched_pattern(self.sinks, self.source.table_ids)
        if said:
            raise ValueError(f"sinks: {said}")
        return self

    @model_validator(mode="after")
    def _verified_tables_are_stored(self) -> Self:
        stored = self.source.stored_table_ids
        for pattern in self.verify.tables:
            if pattern != "*" and not any(matches(pattern, table) for table in stored):
                raise ValueError(f"verify.tables: {pattern} matches no table of source.tables that stores hold")
        return self

    @model_validator(mode="after")
    def _views_can_be_kept(self) -> Self:
        if said := problem_of_views(self.views, self.sinks, self.topics.prefix):
            raise ValueError(f"views: {said}")
        tables = self.source.table_ids
        if MINUTES in tables and self.views:
            raise ValueError(
                f"views: {MINUTES} is a captured table, and the name of the views' clock: rename the table"
            )
        if said := problem_of_logs(self.event_logs, self.views, self.sinks, self.outbox, tables, self.topics.prefix):
            raise ValueError(f"event_logs: {said}")
        return self

    @model_validator(mode="after")
    def _topics_differ(self) -> Self:
        topics_of_views = view_topics(self.views, self.topics.prefix)
        if said := problem(Topics(self.topics.prefix), self.source.table_ids, self.sinks, topics_of_views):
            raise ValueError(said)
        return self


def load_config(path: Path) -> Config:
    """Read and check the file. Raises ConfigError that names the file and the key, never a value."""
    sections = read_config_file(path)
    _refuse_unknown_environment(path)
    try:
        return Config(**sections)
    except SettingsError as error:
        raise ConfigError(
            f"an environment variable {ENV_PREFIX}… holds a list or section that is not JSON",
            f"""write it as JSON, for example {ENV_PREFIX}SOURCE__TABLES='["public.orders"]'""",
        ) from error
    except ValidationError as error:
        problems = "; ".join(
            f"{_place(e['loc']) or 'file'}: {_say(e)}" for e in error.errors(include_input=False, include_url=False)
        )
        raise ConfigError(f"{path}: {problems}", "correct these keys; `cdc config schema` lists all keys") from error


def _place(parts: Sequence[int | str]) -> str:
    """Returns the path of keys. Below a sink, pydantic's path also contains the type, which is not a key."""
    section = {"sinks": 2, "views": 3}.get(str(parts[0])) if parts else None  # views.<name>.target
    if section is not None and len(parts) > section and parts[section] in (*SINK_TYPES, "topic"):
        parts = (*parts[:section], *parts[section + 1 :])
    return ".".join(map(str, parts))


def _say(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "unknown key"
        case "missing":
            return "missing"
        case "tuple_type":
            return "a list is needed: [a, b], or one item per line, each after a -"
        case "union_tag_invalid":
            types = [*SINK_TYPES, "topic"] if error["loc"][:1] == ("views",) else SINK_TYPES
            return f"type is one of {', '.join(types)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "a section is needed, with keys of its own; {} for an empty one"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")


def _refuse_unknown_environment(path: Path) -> None:
    """Raises ConfigError for a mistyped override, which would otherwise be silently ignored."""
    named = {name: "environment variable" for name in os.environ if name.startswith(ENV_PREFIX)}
    named |= dict.fromkeys(secret_files(os.environ, ENV_PREFIX), "secret file")
    for name, kind in sorted(named.items()):
        section, _, key = name.removeprefix(ENV_PREFIX).lower().partition("__")
        field = Config.model_fields.get(section)
        if field is None or not key:
            raise ConfigError(
                f"{kind} {name} names no section", f"sections of {path}: {', '.join(Config.model_fields)}"
            )
