"""Routes a row of an outbox table, or a message in its place, to a record: Debezium's event router, byte for byte.

| part      | from                                                                                       |
|-----------|--------------------------------------------------------------------------------------------|
| topic     | the column `route.by.field`, through `route.topic.regex` and `route.topic.replacement`      |
| key       | the column `table.field.event.key`                                                         |
| value     | the payload; with columns placed in the envelope `{"payload":…,"alias":…}`                  |
| headers   | the context's, the old key if the id changed, `id` (or those of a CloudEvent), columns      |
|           | placed in headers, those of the message                                                    |
| partition | the key's murmur2, or a column's number                                                    |
| timestamp | the column `table.field.event.timestamp`, else our clock                                   |

An event that can't become a record becomes a dead letter with the reason, where Debezium would stop.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from cdc.config.outbox_routing import TopicRoute, Where, is_topic
from cdc.config.outbox_settings import OutboxMessages, OutboxTable
from cdc.formats.cloud_events import Header
from cdc.formats.connect import STRING, Node, dumps, required, struct_of
from cdc.formats.records import OLD_KEY_HEADER
from cdc.model.errors import SourceError
from cdc.model.topic_record import EventDestination, TopicRecord
from cdc.outbox.cloudevents import FORMATS, attributes_of
from cdc.outbox.column_readers import ColumnReader, EventValue
from cdc.outbox.dead_letters import DeadLetterFactory
from cdc.outbox.expansion import Expansion, json_text

ID_HEADER: Final = "id"
PARTITION_MAX: Final = (1 << 31) - 1

# Debezium's timestamps: units in a millisecond.
_UNITS: Final[Mapping[str, int]] = {
    "io.debezium.time.Timestamp": 1,
    "io.debezium.time.MicroTimestamp": 1_000,
    "io.debezium.time.NanoTimestamp": 1_000_000,
}

Contract = Callable[[str, str | None], str | None]
"""Returns why a payload does not match the contract of its event type, or None."""


class Router:
    """Routes the events of one schema of an outbox table, or of messages."""

    def __init__(
        self,
        where: str,
        routing: OutboxTable | OutboxMessages,
        readers: Mapping[str, ColumnReader],
        schema_name: str,
        prefix: str,
        context_headers: Sequence[Header],
        contract: Contract | None,
    ) -> None:
        """`where`: the table, or the messages' prefix. `readers`: by column. `schema_name`: such as
        `shop.public.outbox`. `prefix`: that of the topics. Raises SourceError for a column that is missing or has an
        unsuitable type."""
        self._where = where
        self._routing = routing
        self._route = TopicRoute(routing.route_topic_regex, routing.route_topic_replacement)
        self._id = _column(where, readers, "table.field.event.id", routing.table_field_event_id)
        self._key = _column(where, readers, "table.field.event.key", routing.table_field_event_key)
        payload = routing.table_field_event_payload
        self._payload = _column(where, readers, "table.field.event.payload", payload)
        self._by = _column(where, readers, "route.by.field", routing.route_by_field, kinds=("string",))
        # Debezium does not need a type; contracts and CloudEvents do.
        self._type = readers.get(routing.table_field_event_type)
        self._timestamp = None
        if (timestamp := routing.table_field_event_timestamp) is not None:
            self._timestamp = _column(where, readers, "table.field.event.timestamp", timestamp)
            if self._timestamp.node.get("name") not in _UNITS:
                raise SourceError(
                    f"column {timestamp} of {where} is not a timestamp without time zone",
                    "name another column in table.field.event.timestamp",
                )
        self._version = None
        if (version := routing.table_field_event_schema_version) is not None:
            self._version = _column(where, readers, "table.field.event.schema.version", version, kinds=("int32",))
        self._placed = self._place(readers)
        self._has_envelope = any(placement.where == "envelope" for placement in routing.placements)
        if routing.converter == "bytes" and self._payload.node["type"] != "bytes":
            raise SourceError(f"column {payload} of {where} is not bytea", "value.converter: string or json")
        if routing.converter == "string" and self._payload.node["type"] not in _STRINGLIKE:
            raise SourceError(
                f"column {payload} of {where} has no form as plain text", "value.converter: json, or bytes"
            )
        self._schema_name = schema_name
        self._prefix = prefix
        self._contract = contract
        self._form = FORMATS.get(routing.format)
        self._context_headers = tuple(context_headers)
        self._expansion = Expansion(
            keeps_nulls=routing.table_json_payload_null_behavior == "optional_bytes",
            keeps_empty_arrays=routing.table_json_payload_empty_array_behavior == "optional_string",
        )

    def _place(self, readers: Mapping[str, ColumnReader]) -> list[tuple[Where, str, ColumnReader]]:
        placed = []
        for placement in self._routing.placements:
            if placement.column not in readers and self._routing.table_field_additional_missing == "ignore":
                continue
            kinds = ("int32",) if placement.where == "partition" else ()
            name = "table.fields.additional.placement"
            reader = _column(self._where, readers, name, placement.column, kinds=kinds)
            placed.append((placement.where, placement.alias, reader))
        return placed

    def route(
        self,
        row: Sequence[str | None],
        dead_letters: DeadLetterFactory,
        commit_ts_us: int,
        more: Sequence[Header] = (),
        former: Sequence[str | None] | None = None,
    ) -> TopicRecord:
        """Returns the event's record, or its dead letter. `row`: the texts of all columns as PostgreSQL prints them.
        `more`: further headers, behind the others. `former`: the old row of an update of the event's id. Raises
        ProtocolError for a value that is not of its type."""
        identity = self._id(row)
        refused = partial(dead_letters.record, identity.plain)
        by, payload = self._by(row), self._payload(row)
        if by.plain is None:
            return refused(f"{self._routing.route_by_field} is null")
        topic = self._route(by.plain)
        if not is_topic(topic):
            return refused("the topic's name is not one that Kafka takes")
        event_type = self._type(row).plain if self._type is not None else None
        complaint = self._contract(event_type or "", payload.plain) if self._contract is not None else None
        if complaint is not None:
            return refused(f"contract of {event_type}: {complaint}")
        headers: list[Header] = [*self._context_headers]
        if former is not None:
            old_key = f"{{{json_text(self._id.name)}:{self._id(former).json}}}"
            headers.insert(0, (OLD_KEY_HEADER, old_key.encode()))
        own: tuple[Header, ...] = (_header(ID_HEADER, identity),)
        if self._form is None:
            value = self._value(row, by.plain, payload)
        else:
            if identity.plain is None or event_type is None:
                return refused("a CloudEvent needs an id and a type")
            key = self._key(row).plain
            named = attributes_of(self._prefix, self._where, identity.plain, event_type, key, commit_ts_us)
            value, own = self._form(named, payload.plain)
        headers += own
        partition = None
        for where, alias, reader in self._placed:
            if where == "header":
                headers.append(_header(alias, reader(row)))
            elif where == "partition":
                partition = _number(reader(row))
                if partition is not None and not 0 <= partition <= PARTITION_MAX:
                    return refused(f"partition {partition}")
        if self._routing.route_tombstone_on_empty_payload and not (payload.plain or "").strip():
            value = None
        timestamp_ms = self._timestamp_ms(row, dead_letters.now_us)
        if timestamp_ms <= 0:  # for 0 the Kafka client sends its own time
            return refused("its timestamp is not after the beginning of 1970")
        converted_key = self._converted_key(row)
        if topic.startswith(f"{self._prefix}."):
            return refused(f"topics that begin with {self._prefix}. are reserved for capture")
        destination = EventDestination(partition, timestamp_ms, has_key=converted_key is not None, refused=refused)
        return TopicRecord(topic, converted_key or b"", value, [*headers, *more], destination)

    def is_same_event(self, old: Sequence[object], new: Sequence[object]) -> bool:
        return old[self._id.place] == new[self._id.place]

    # ---- parts

    def _converted_key(self, row: Sequence[str | None]) -> bytes | None:
        key = self._key(row)
        if self._routing.key_converter == "json":
            return self._json(self._key.node, key.json)
        return None if key.plain is None else key.plain.encode()

    def _value(self, row: Sequence[str | None], routed_by: str, payload: EventValue) -> bytes | None:
        routing = self._routing
        node, text = self._payload.node, payload.json
        if routing.table_expand_json_payload and payload.plain is not None and node["type"] == "string":
            node, text = self._expansion.expand(payload.plain, self._payload.name) or (node, text)
        if self._has_envelope:
            return self._json(*self._enveloped(row, routed_by, node, text))
        match routing.converter:
            case "json":
                return self._json(node, text)
            case "bytes":
                return None if payload.text is None else bytes.fromhex(payload.text.removeprefix("\\x"))
            case "string":
                return None if payload.plain is None else payload.plain.encode()

    def _enveloped(self, row: Sequence[str | None], routed_by: str, node: Node, text: str) -> tuple[Node, str]:
        fields, members = [("payload", node)], [f'"payload":{text}']
        for where, alias, reader in self._placed:
            if where == "envelope":
                fields.append((alias, reader.node))
                members.append(f"{json_text(alias)}:{reader(row).json}")
        schema = {**required(struct_of(fields)), "name": f"{self._schema_name}.{routed_by}.Value"}
        version = _number(self._version(row)) if self._version is not None else None
        if version is not None:
            schema["version"] = version
        return schema, "{" + ",".join(members) + "}"

    def _json(self, node: Node, text: str) -> bytes:
        if not self._routing.schemas_enable:
            return text.encode()
        return f'{{"schema":{dumps(node).encode("latin-1").decode()},"payload":{text}}}'.encode()

    def _timestamp_ms(self, row: Sequence[str | None], now_us: int) -> int:
        number = _number(self._timestamp(row)) if self._timestamp is not None else None
        if number is None or self._timestamp is None:
            return now_us // 1000
        unit = _UNITS[self._timestamp.node["name"]]
        return number // unit if number >= 0 else -(-number // unit)  # as Java divides


_STRINGLIKE: Final = frozenset({STRING["type"], "boolean", "int16", "int32", "int64", "float", "double"})


def _column(
    where: str, readers: Mapping[str, ColumnReader], option: str, name: str, kinds: Sequence[str] = ()
) -> ColumnReader:
    reader = readers.get(name)
    if reader is None:
        raise SourceError(f"{where} has no column {name} that can be published", f"correct {option}")
    if kinds and reader.node["type"] not in kinds:
        raise SourceError(f"column {name} of {where} is not of a type that {option} needs", f"correct {option}")
    return reader


def _header(name: str, value: EventValue) -> Header:
    return name, None if value.plain is None else value.plain.encode()


def _number(value: EventValue) -> int | None:
    return None if value.plain is None else int(value.plain)
