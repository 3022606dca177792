"""The configuration: one YAML file, checked whole before anything is touched.

Capture's sections, and how the environment overrides them, are in `cdc.config.settings`.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Self

from pydantic import Field, field_validator, model_validator

from cdc.config.event_logs import EventLogConfig
from cdc.config.event_logs import problem as problem_of_logs
from cdc.config.http_settings import HttpConfig
from cdc.config.secret_files import secret_files
from cdc.config.section import DebeziumSection, OptionText, Section
from cdc.config.settings import ENV_PREFIX, PipelineConfig, describe, load
from cdc.config.store_types import SINK_TYPES, SinksConfig, section_class
from cdc.config.stores import in_source, may_match, shared_names, unmatched_pattern
from cdc.config.telemetry import TelemetryConfig
from cdc.config.views import MINUTES, ClockConfig, ViewConfig, view_topics
from cdc.config.views import problem as problem_of_views
from cdc.config.yaml_file import read_config_file
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.model.suggestions import did_you_mean
from cdc.model.topics import NAME_CHARS_MAX, Topics

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DURATION = re.compile(r"(\d{1,6})([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class SparkConfig(Section):
    """The Spark application that runs the sinks."""

    checkpoint_location: str = ".watershed/checkpoints"
    driver_memory: str = "1g"
    live_batch_s: Annotated[float, Field(ge=1, le=3600)] = 30.0  # of every store but the warehouse
    warehouse_trigger_ms: Annotated[int, Field(ge=0)] = 3_000
    bytes_per_write_max: Annotated[int, Field(ge=1)] = 64 * 1024 * 1024
    options: dict[str, OptionText] = Field(default_factory=dict)  # spark.* properties

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


class Config(PipelineConfig):
    """The whole file."""

    sinks: SinksConfig = Field(default_factory=dict)
    event_logs: dict[str, EventLogConfig] = Field(default_factory=dict)
    views: dict[str, ViewConfig] = Field(default_factory=dict)
    clock: ClockConfig = ClockConfig()
    spark: SparkConfig = SparkConfig()
    verify: VerifyConfig = VerifyConfig()
    http: HttpConfig = HttpConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @property
    def has_sinks_at_cuts(self) -> bool:
        return any(section.is_at_cuts for section in self.sinks.values())

    @property
    def sink_names(self) -> frozenset[str]:
        return frozenset(self.sinks)

    def why_published_again(self, table: TableId, dropped: Collection[str], added: Collection[str]) -> str | None:
        if self.snapshot.after_alter == "always":
            return "snapshot.after_alter is always"
        holding = {name: section for name, section in self.sinks.items() if section.holds(table)}
        if not holding:
            return super().why_published_again(table, dropped, added)
        reasons = ((name, section.why_published_again(table, dropped, added)) for name, section in holding.items())
        return next((f"sink {name} {why}" for name, why in reasons if why is not None), None)

    @model_validator(mode="after")
    def _sinks_can_read(self) -> Self:
        if self.sinks and not self.format_options.suits_sinks:
            raise ValueError(
                "sinks require records of format.profile readable, without schemas.enable, modes for values and "
                "cloudevents structured: configure sinks or another format, not both"
            )
        return self

    @model_validator(mode="after")
    def _sinks_are_apart(self) -> Self:
        message = shared_names(self.sinks, self.topics.prefix) or unmatched_pattern(
            self.sinks, self.source.table_ids, self.source.choice
        )
        if message:
            raise ValueError(f"sinks: {message}")
        return self

    @model_validator(mode="after")
    def _stores_are_not_captured(self) -> Self:
        if self.source.choice.patterns and (name := in_source(self.sinks, self.source.dsn)):
            raise ValueError(
                f"sinks: {name} is in the database that source.dsn names, where patterns of source.tables would take "
                "its tables, too: each write would be captured and written again. Keep it in another database, or "
                "list source.tables by name"
            )
        return self

    @model_validator(mode="after")
    def _verified_tables_are_stored(self) -> Self:
        stored = self.source.stored_table_ids
        for pattern in self.verify.tables:
            if pattern != "*" and not may_match(pattern, stored, self.source.choice):
                raise ValueError(f"verify.tables: {pattern} matches no table of source.tables that stores hold")
        return self

    @model_validator(mode="after")
    def _views_can_be_kept(self) -> Self:
        if message := problem_of_views(self.views, self.sinks, self.topics.prefix):
            raise ValueError(f"views: {message}")
        tables = self.source.table_ids
        if MINUTES in tables and self.views:
            raise ValueError(
                f"views: {MINUTES} is a captured table, and the name of the views' clock: rename the table"
            )
        if message := problem_of_logs(self.event_logs, self.views, self.sinks, self.outbox, tables, self.topics.prefix):
            raise ValueError(f"event_logs: {message}")
        return self

    @model_validator(mode="after")
    def _topics_differ(self) -> Self:
        topics_of_views = view_topics(self.views, self.topics.prefix)
        if message := problem_of_topics(Topics(self.topics.prefix), self.source.table_ids, self.sinks, topics_of_views):
            raise ValueError(message)
        return self


def load_config(path: Path) -> Config:
    """Read and check the file. Raises ConfigError that names the file and the key, never a value."""
    sections = read_config_file(path)
    _refuse_unknown_environment(path)
    return load(Config, path, sections, _describe)


_ONE_STORE: Final = (
    "a sink writes to one store: give each store a section of its own below sinks, with the tables, or the rows by "
    "`mapping.<table>.where`, that it holds"
)
_HOSTS: Final = "; several hosts of one search cluster are one text, separated by commas"


def _describe(error: Any) -> str:
    """Below a sink, pydantic's place also contains the type, which is not a key."""
    parts = error["loc"]
    if parts[:1] == ("sinks",):
        match error["type"], parts[-1]:
            case "string_type", "url":
                error = error | {"msg": f"one text is needed: {_ONE_STORE}{_HOSTS}"}
            case "extra_forbidden", "target" | "targets" | "urls" | "stores":
                error = error | {"type": "several", "msg": f"unknown key: {_ONE_STORE}"}
    types = [*SINK_TYPES, "topic"] if parts[:1] == ("views",) else SINK_TYPES
    if error["type"] == "union_tag_invalid":
        error = error | {"msg": f"type is one of {', '.join(types)}"}
    section = {"sinks": 2, "views": 3}.get(str(parts[0])) if parts else None  # views.<name>.target
    if section is not None and len(parts) > section and parts[section] in (*SINK_TYPES, "topic"):
        parts = (*parts[:section], *parts[section + 1 :])
    return describe(error | {"loc": parts})


def _refuse_unknown_environment(path: Path) -> None:
    """Raises ConfigError for a mistyped override, which would otherwise be silently ignored."""
    named = {name: "environment variable" for name in os.environ if name.startswith(ENV_PREFIX)}
    named |= dict.fromkeys(secret_files(os.environ, ENV_PREFIX), "secret file")
    for name, kind in sorted(named.items()):
        section, _, key = name.removeprefix(ENV_PREFIX).lower().partition("__")
        field = Config.model_fields.get(section)
        if field is None or not key:
            nearest = did_you_mean(section, Config.model_fields) if field is None else ""
            raise ConfigError(
                f"{kind} {name} names no section{nearest}", f"sections of {path}: {', '.join(Config.model_fields)}"
            )


def problem_of_topics(
    topics: Topics,
    tables: Iterable[TableId],
    sinks: Iterable[str] = (),
    views: Mapping[str, str] = MappingProxyType({}),
) -> str | None:
    """Returns the conflict between topics' names, with both names and the remedy; None if there is none.

    Characters that Kafka does not allow become `_`, so names can become the same. Kafka also treats names as the same
    that differ only in `.` and `_`: their metrics would collide, so the brokers refuse to create the second one.

    `views`: the topics of views by their names.
    """
    own = [*topics.own, *map(topics.sink_dead_letter, sinks)]
    owners = {_unified(topic): (topic, f"Watershed's own topic {topic}") for topic in own}
    for view, topic in views.items():
        other, owner = owners.setdefault(_unified(topic), (topic, f"view {view}"))
        if owner != f"view {view}":
            return f"{owner} and view {view} would share the topic {other}: set another name in the view's target"
    for table in tables:
        topic = topics.table(table)
        if len(topic) > NAME_CHARS_MAX:
            return f"topic name of {table} is longer than Kafka's {NAME_CHARS_MAX} characters: shorten topics.prefix"
        other, owner = owners.setdefault(_unified(topic), (topic, f"table {table}"))
        if owner == f"table {table}":
            continue
        clash = f"the topic {topic}" if other == topic else f"a topic: to Kafka {other} and {topic} are the same"
        return (
            f"{owner} and table {table} would share {clash}; capture one of them under another topics.prefix and slot"
        )
    return None


def _unified(topic: str) -> str:
    return topic.replace(".", "_")


def config_schema() -> dict[str, Any]:
    """Returns the JSON Schema of the file, for editors, as the loader reads it: Debezium's options may have dots, and a
    sink that is named like a type needs no type.
    """
    schema = Config.model_json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    for name in (kind.__name__ for kind in DebeziumSection.__subclasses__()):
        if (section := definitions.get(name)) is not None:
            properties = section["properties"]
            dotted = {option.replace("_", "."): value for option, value in properties.items() if "_" in option}
            section["properties"] = properties | dotted
    sections = {name: section_class(name).__name__ for name in SINK_TYPES}
    for definition in sections.values():
        definitions[f"Typed{definition}"] = definitions[definition] | {
            "required": ["type", *definitions[definition].get("required", ())]
        }
    typed = {"oneOf": [{"$ref": f"#/$defs/Typed{definition}"} for definition in sections.values()]}
    schema["properties"]["sinks"] = {
        "title": "Sinks",
        "type": "object",
        "properties": {name: {"anyOf": [{"$ref": f"#/$defs/{sections[name]}"}, typed]} for name in SINK_TYPES},
        "additionalProperties": typed,
    }
    return {"$schema": DIALECT, **schema, "title": "Watershed"}
