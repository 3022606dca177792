"""Section `outbox` of the configuration: Debezium's options of its event router, with its names and defaults.

A dot and an underscore are the same in their names, as in section `format`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from cdc.config.outbox_routing import Placement, TopicRoute, parse_placements
from cdc.config.section import DebeziumSection
from cdc.model.events import TableId

MESSAGE_PREFIX: Final = "watershed.outbox"


class Routing(DebeziumSection):
    """The record of an event; the same options for rows and for messages."""

    table_fields_additional_placement: str = ""  # column:header|envelope|partition[:alias], separated by commas
    table_field_additional_missing: Literal["error", "ignore"] = "error"
    table_expand_json_payload: bool = False  # JSON text as a structure whose schema is inferred from it
    table_json_payload_null_behavior: Literal["ignore", "optional_bytes"] = "ignore"
    table_json_payload_empty_array_behavior: Literal["ignore", "optional_string"] = "ignore"
    route_by_field: str = "aggregatetype"
    route_topic_regex: str = "(?<routedByValue>.*)"
    route_topic_replacement: str = "outbox.event.${routedByValue}"
    route_tombstone_on_empty_payload: bool = False
    # Kafka Connect's converters. `string`: text as it is; null: `json` for a structure, else `string`.
    key_converter: Literal["string", "json"] = "string"
    value_converter: Literal["string", "json", "bytes"] | None = None
    schemas_enable: bool = False  # of converter json
    format: Literal["debezium", "cloudevents_binary", "cloudevents_structured"] = "debezium"

    @field_validator("table_fields_additional_placement", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        TopicRoute(self.route_topic_regex, self.route_topic_replacement)
        if self.is_structure and self.value_converter in ("string", "bytes"):
            raise ValueError("a payload that is expanded, or in an envelope, needs value.converter: json")
        if self.format != "debezium" and (self.is_structure or self.value_converter is not None or self.schemas_enable):
            raise ValueError(
                "format cloudevents can't be combined with value.converter, schemas.enable, expansion or envelope"
            )
        return self

    @property
    def placements(self) -> tuple[Placement, ...]:
        return parse_placements(self.table_fields_additional_placement)

    @property
    def is_structure(self) -> bool:
        """Says whether the record's value is a structure: the payload is expanded, or is in an envelope."""
        return self.table_expand_json_payload or any(place.where == "envelope" for place in self.placements)

    @property
    def converter(self) -> Literal["string", "json", "bytes"]:
        """The converter of the value: the chosen one, or that of the value's kind."""
        return self.value_converter or ("json" if self.is_structure else "string")


class OutboxTable(Routing):
    """A table whose inserted rows are events. Deletes are ignored; it is not captured as a table."""

    table: str  # schema.table
    table_op_invalid_behavior: Literal["warn", "error", "fatal"] = "warn"  # on UPDATE
    table_field_event_id: str = "id"
    table_field_event_key: str = "aggregateid"
    table_field_event_type: str = "type"  # for contracts and CloudEvents
    table_field_event_timestamp: str | None = None
    table_field_event_payload: str = "payload"
    table_field_event_schema_version: str | None = None
    # `cdc outbox prune` deletes published rows that are older, by this column. None: all published rows.
    retention_s: Annotated[float, Field(ge=0)] | None = None
    retention_column: str = "created_at"


class OutboxMessages(Routing):
    """Events without a table, written by the function that `cdc outbox migrate` creates."""

    prefix: str = Field(default=MESSAGE_PREFIX, min_length=1)  # of the logical messages
    function: str = "cdc.publish"  # schema.function; its key is in the same schema
    # No options: the columns of the row that a message holds (cdc/outbox/message_reader.py).
    table_field_event_id: ClassVar[str] = "id"
    table_field_event_key: ClassVar[str] = "aggregateid"
    table_field_event_type: ClassVar[str] = "type"
    table_field_event_timestamp: ClassVar[str | None] = None
    table_field_event_payload: ClassVar[str] = "payload"
    table_field_event_schema_version: ClassVar[str | None] = None

    @field_validator("function")
    @classmethod
    def _function(cls, value: str) -> str:
        TableId.parse(value)
        return value

    @model_validator(mode="after")
    def _columns(self) -> Self:
        for placement in self.placements:
            if placement.column not in ("type", "aggregatetype", "aggregateid"):
                raise ValueError(f"a message has no column {placement.column} to place")
        return self


class OutboxConfig(DebeziumSection):
    """The sources of events."""

    tables: tuple[OutboxTable, ...] = ()
    messages: OutboxMessages | None = None
    contracts: Mapping[str, str] = {}  # event type → file with the JSON Schema of its payload

    @property
    def is_used(self) -> bool:
        """Says whether events are published at all."""
        return bool(self.tables) or self.messages is not None

    @model_validator(mode="after")
    def _once(self) -> Self:
        names = [table.table for table in self.tables]
        if len(set(names)) != len(names):
            raise ValueError("an outbox table is listed twice")
        return self


def with_outbox_tables(sections: Any) -> Any:
    """Returns the sections of a configuration, with outbox tables among those of the source. Wrong values are left to
    the models to refuse. Raises ValueError for a table that is in both lists."""
    match sections:
        case {"outbox": {"tables": [*tables]}, "source": {**source}}:
            names = [
                table["table"] for table in tables if isinstance(table, dict) and isinstance(table.get("table"), str)
            ]
            captured = source.get("tables") or []
            if not isinstance(captured, list | tuple):
                return sections
            for name in names:
                if name in captured:
                    raise ValueError(f"{name} is an outbox table and in source.tables: remove it from one of them")
            return sections | {"source": source | {"tables": [*captured, *names], "outbox": names}}
        case _:
            return sections
