"""The options of the records' form: a profile, and Debezium's options, with underscores for dots."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from cdc.config.columns import ALL_COLUMNS, ColumnChoice, Patterns
from cdc.config.masking import Mask
from cdc.config.section import DebeziumSection
from cdc.model.topics import Topics

Profile = Literal["readable", "debezium"]
DecimalMode = Literal["precise", "double", "string"]
TimeMode = Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"]
BinaryMode = Literal["bytes", "base64", "base64-url-safe", "hex"]

Encoding = Literal["json", "avro", "json_schema", "protobuf"]
NameAdjustment = Literal["none", "avro", "avro_unicode"]
CloudEventsMode = Literal["binary", "structured"]

PLACEHOLDER_DEFAULT: Final = "__debezium_unavailable_value"


class FormatConfig(DebeziumSection):
    """The form of records: Debezium's options with its names, in which a dot and an underscore are the same here."""

    # None is the profile's own choice, which for `debezium` is Debezium's default.
    profile: Profile = "readable"
    encoding: Encoding = "json"  # of keys and values of tables' records; others but json need kafka.schema_registry
    field_name_adjustment_mode: NameAdjustment = "none"  # of columns whose names Avro or Protobuf can't hold
    decimal_handling_mode: DecimalMode | None = None
    time_precision_mode: TimeMode | None = None
    binary_handling_mode: BinaryMode | None = None
    interval_handling_mode: Literal["numeric", "string"] | None = None
    hstore_handling_mode: Literal["json", "map"] | None = None
    money_fraction_digits: Annotated[int, Field(ge=0, le=10)] = 2
    include_unknown_datatypes: bool = False  # debezium: types that Debezium does not know are left out
    # debezium: a value that its column's form can't represent is null, with a warning or without, or stops capture.
    event_converting_failure_handling_mode: Literal["warn", "skip", "fail"] = "warn"
    # debezium: the placeholder for a large value that is not in the log and could not be read; "hex:" precedes bytes.
    unavailable_value_placeholder: str | None = None
    schemas_enable: bool = False
    # CloudEvents 1.0, of tables' records: attributes in headers, or around the value.
    cloudevents: CloudEventsMode | None = None
    tombstones_on_delete: bool = True
    extended_headers_enabled: bool | None = None
    provide_transaction_metadata: bool = False
    heartbeat_interval_ms: Annotated[int, Field(ge=0)] = 0  # 0: none
    skipped_operations: Literal["t", "none"] = "t"
    # Regular expressions over the whole prefix of logical messages.
    message_prefix_include_list: Patterns = ()
    message_prefix_exclude_list: Patterns = ()

    @model_validator(mode="after")
    def _placeholder_is_debeziums(self) -> Self:
        placeholder = self.unavailable_value_placeholder
        if placeholder is not None and self.profile != "debezium":
            raise ValueError(
                "unavailable.value.placeholder is for profile debezium: profile readable leaves such a column out"
            )
        if placeholder is not None and placeholder.startswith("hex:"):
            try:
                bytes.fromhex(placeholder.removeprefix("hex:"))
            except ValueError:
                raise ValueError("unavailable.value.placeholder: no hexadecimal digits follow hex:") from None
        return self

    @model_validator(mode="after")
    def _encoding_is_possible(self) -> Self:
        if self.encoding != "json" and self.schemas_enable:
            raise ValueError(f"schemas.enable is for encoding json: with {self.encoding} the registry has the schemas")
        if self.encoding not in ("avro", "protobuf") and self.field_name_adjustment_mode != "none":
            raise ValueError(
                f"field.name.adjustment.mode is for encodings avro and protobuf: {self.encoding} can hold every name"
            )
        return self

    @model_validator(mode="after")
    def _cloudevents_are_json(self) -> Self:
        if self.cloudevents is not None and self.is_described:
            raise ValueError("cloudevents is for encoding json without schemas.enable: choose one of them")
        return self

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if self.message_prefix_include_list and self.message_prefix_exclude_list:
            raise ValueError("message.prefix.include.list and message.prefix.exclude.list can't be combined")
        return self

    @property
    def is_described(self) -> bool:
        """Says whether a schema describes the records, which then have only what a schema can say."""
        return self.schemas_enable or self.encoding != "json"


class FormatOptions(FormatConfig):
    """The form of records, with the columns that they have."""

    masks: tuple[Mask, ...] = ()
    columns: ColumnChoice = ALL_COLUMNS

    @property
    def placeholder(self) -> bytes | None:
        """The placeholder for a large value that could not be read; None: its column is absent."""
        if self.profile == "readable":
            return None
        chosen = (
            PLACEHOLDER_DEFAULT if self.unavailable_value_placeholder is None else self.unavailable_value_placeholder
        )
        return bytes.fromhex(chosen.removeprefix("hex:")) if chosen.startswith("hex:") else chosen.encode()

    @property
    def suits_sinks(self) -> bool:
        """Says whether Watershed's own sinks can read the records."""
        modes = (
            self.decimal_handling_mode,
            self.time_precision_mode,
            self.binary_handling_mode,
            self.interval_handling_mode,
            self.hstore_handling_mode,
        )
        is_wrapped = self.schemas_enable or self.cloudevents == "structured"
        return self.profile == "readable" and not is_wrapped and not any(modes)

    @property
    def has_messages(self) -> bool:
        """Says whether logical messages are published: chosen ones, or all, as Debezium does."""
        is_chosen = bool(self.message_prefix_include_list or self.message_prefix_exclude_list)
        return is_chosen or self.profile == "debezium"

    def side_topics(self, topics: Topics) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the topics that the options require beside those of tables, of one partition each: compacted ones,
        and logs, whose records do not replace each other."""
        logs = (topics.transaction, self.provide_transaction_metadata), (topics.message, self.has_messages)
        compacted = (topics.heartbeat,) if self.heartbeat_interval_ms else ()
        return compacted, tuple(name for name, is_wanted in logs if is_wanted)

    @property
    def has_context_headers(self) -> bool:
        """Says whether each record names its connector in headers, as Debezium's do."""
        if self.extended_headers_enabled is None:
            return self.profile == "debezium"
        return self.extended_headers_enabled


READABLE = FormatOptions()
