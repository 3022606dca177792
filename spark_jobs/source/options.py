"""The options of `format("watershed")`, checked before anything is read. Pure, except for the configuration file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from cdc.config.config_file import load_config
from cdc.config.schema_registry import SchemaRegistryConfig
from cdc.config.settings import KafkaConfig, describe
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.model.lsn import parse_lsn

Position = int | Literal["earliest", "latest"]
"""An LSN, or an end of what the topic has."""

# As users may write them; Spark passes them in lower case.
_NAMES: Final = (
    *("table", "prefix", "config", "bootstrap.servers", "columns", "textColumns"),
    *("startingPosition", "endingPosition", "compacted", "incomplete", "maxRecordsPerBatch"),
)
_NEXT: Final = "docs/how-to/spark-jobs.md lists the options"
_KAFKA: Final = "kafka."
_REGISTRY: Final = "schema.registry."
_LIST: Final = re.compile(r"\s*,\s*")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What is read, and from where."""

    kafka: KafkaConfig
    prefix: str
    table: TableId
    columns: tuple[str, ...] | None = None  # None: all
    text_columns: frozenset[str] = frozenset()  # read as the texts that records have
    starting: Position | None = None
    ending: Position | None = None
    may_be_compacted: bool = False
    may_be_incomplete: bool = False
    records_max: int | None = None  # of a micro-batch

    @property
    def wants_changes(self) -> bool:
        """Says whether a batch query is for changes; if not, for the table's present rows."""
        return self.starting is not None or self.ending is not None


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """Reads the options, whose names are in lower case. Raises ConfigError."""
    names = {name.lower(): name for name in _NAMES}
    for name in given:
        if name not in names and not name.startswith((_KAFKA, _REGISTRY)):
            raise ConfigError(
                f'format("watershed"): unknown option {name}',
                f"options are {', '.join(_NAMES)}, kafka.*, schema.registry.*",
            )
    kafka, prefix = _pipeline(given)
    records_max = given.get("maxrecordsperbatch")
    if records_max is not None and not (records_max.isdecimal() and int(records_max) > 0):
        raise _wrong("maxRecordsPerBatch", "a number from 1")
    return SourceOptions(
        kafka=kafka,
        prefix=prefix,
        table=_table(given),
        columns=_names(given, "columns"),
        text_columns=frozenset(_names(given, "textColumns") or ()),
        starting=_position(given, "startingPosition"),
        ending=_position(given, "endingPosition"),
        may_be_compacted=_choice(given, "compacted", ("fail", "allow")) == "allow",
        may_be_incomplete=_choice(given, "incomplete", ("fail", "allow")) == "allow",
        records_max=None if records_max is None else int(records_max),
    )


def _wrong(name: str, wanted: str) -> ConfigError:
    """The value is not shown: it may be a secret that was given to the wrong option."""
    return ConfigError(f'format("watershed"): the value of option {name} is not {wanted}', _NEXT)


def _pipeline(given: Mapping[str, str]) -> tuple[KafkaConfig, str]:
    """Returns the brokers and the prefix. Single options precede those of the configuration file."""
    kafka: dict[str, Any] = {"options": {}}
    prefix = given.get("prefix", "")
    if path := given.get("config"):
        loaded = load_config(Path(path))
        prefix = prefix or loaded.topics.prefix
        kafka = dict(loaded.kafka) | {"options": dict(loaded.kafka.options)}
    own = {name.removeprefix(_KAFKA): value for name, value in given.items() if name.startswith(_KAFKA)}
    servers = given.get("bootstrap.servers") or own.pop("bootstrap.servers", "") or kafka.get("bootstrap_servers", "")
    own.pop("bootstrap.servers", None)
    for name, value in (("bootstrap.servers", servers), ("prefix", prefix)):
        if not value:
            raise ConfigError(
                f'format("watershed"): option {name} is missing',
                "add it, or option config with the path of watershed.yml on the driver",
            )
    registry = _registry(given, kafka.get("schema_registry"))
    try:
        return KafkaConfig.model_validate(
            {
                **kafka,
                "bootstrap_servers": servers,
                "options": {**kafka["options"], **own},
                "schema_registry": registry,
            }
        ), prefix
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ConfigError(
            f'format("watershed"): option kafka.* or schema.registry.*: {describe(first)}', _NEXT
        ) from error


def _registry(given: Mapping[str, str], loaded: SchemaRegistryConfig | None) -> dict[str, Any] | None:
    """Returns the section of the schema registry; None if there is none."""
    own = {name.removeprefix(_REGISTRY): value for name, value in given.items() if name.startswith(_REGISTRY)}
    if not own and loaded is None:
        return None
    section: dict[str, Any] = {} if loaded is None else dict(loaded)
    if "url" in own:
        section["url"] = own.pop("url")
    return section | {"options": {**section.get("options", {}), **own}}


def _table(given: Mapping[str, str]) -> TableId:
    if not given.get("table"):
        raise ConfigError('format("watershed"): option table is missing', "add it: schema.table")
    try:
        return TableId.parse(given["table"])
    except ValueError:
        raise _wrong("table", "schema.table") from None


def _names(given: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    text = given.get(name.lower())
    if text is None:
        return None
    names = tuple(_LIST.split(text.strip()))
    if not all(names) or len(set(names)) < len(names):
        raise _wrong(name, "a list of different columns: a,b,c")
    return names


def _position(given: Mapping[str, str], name: str) -> Position | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return int(text)
    try:
        return parse_lsn(text)
    except ValueError:
        raise _wrong(name, "an LSN such as 0/16B3748, a number, earliest or latest") from None


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = given.get(name, choices[0])
    if text not in choices:
        raise _wrong(name, " or ".join(choices))
    return text
