"""Kafka Connect's schemas, as its JsonConverter writes them: JSON nodes for keys, rows and envelopes."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

Node = Mapping[str, Any]

BOOLEAN: Final[Node] = {"type": "boolean"}
INT16: Final[Node] = {"type": "int16"}
INT32: Final[Node] = {"type": "int32"}
INT64: Final[Node] = {"type": "int64"}
FLOAT32: Final[Node] = {"type": "float"}
FLOAT64: Final[Node] = {"type": "double"}
STRING: Final[Node] = {"type": "string"}
BYTES: Final[Node] = {"type": "bytes"}


def named(
    node: Node, name: str, parameters: Mapping[str, str] | None = None, *, version: int = 1, doc: str = ""
) -> Node:
    """Returns a semantic type: the node with a name."""
    more = {"doc": doc, "parameters": parameters}
    return {**node, "name": name, "version": version} | {part: more[part] for part in more if more[part]}


def array_of(element: Node) -> Node:
    return {"type": "array", "items": optional(element)}


def vector_of(element: Node) -> Node:
    """Returns an array whose elements are never null."""
    return {"type": "array", "items": required(element)}


def map_of(keys: Node, values: Node) -> Node:
    return {"type": "map", "keys": required(keys), "values": values}


def struct_of(fields: Iterable[tuple[str, Node]]) -> Node:
    """Returns the schema of a struct from (name, node) pairs; each node says whether it is optional."""
    return {"type": "struct", "fields": [{**node, "field": name} for name, node in fields]}


def optional(node: Node) -> Node:
    return _with(node, is_optional=True)


def required(node: Node) -> Node:
    return _with(node, is_optional=False)


def _with(node: Node, *, is_optional: bool) -> Node:
    """Adds `optional`, after the type's own parts and before its name."""
    head = {part: node[part] for part in ("type", "items", "keys", "values", "fields") if part in node}
    return (
        head
        | {"optional": is_optional}
        | {part: node[part] for part in node if part not in head and part != "optional"}
    )


def has_floats(node: Node) -> bool:
    """Says whether values of this schema contain floating-point numbers."""
    parts = [*(node[part] for part in ("items", "values") if part in node), *node.get("fields", ())]
    return node["type"] in ("float", "double") or any(map(has_floats, parts))


def dumps(node: object) -> str:
    """Returns compact JSON, as latin-1 view of UTF-8."""
    return json.dumps(node, ensure_ascii=False, separators=(",", ":")).encode().decode("latin-1")


def payload_head(schema: Node) -> str:
    """Returns the text before a payload that its schema precedes; a brace follows the payload."""
    return f'{{"schema":{dumps(schema)},"payload":'


class Converter:
    """Makes records of one kind, with their schemas if these are wanted."""

    def __init__(self, key: Node, value: Node, *, schemas_enable: bool) -> None:
        self._key_head, self._value_head, self._end = "", "", ""
        if schemas_enable:
            self._key_head, self._value_head, self._end = payload_head(key), payload_head(value), "}"

    def record(self, key: str, value: str) -> tuple[bytes, bytes]:
        """Returns (key, value) of JSON texts, which are latin-1 views."""
        return (
            f"{self._key_head}{key}{self._end}".encode("latin-1"),
            f"{self._value_head}{value}{self._end}".encode("latin-1"),
        )


def key_schema(name: str, columns: Iterable[tuple[str, Node]]) -> Node:
    return {**required(struct_of((column, required(node)) for column, node in columns)), "name": f"{name}.Key"}


def envelope_schema(name: str, columns: Iterable[tuple[str, Node]]) -> Node:
    """`columns`: name and node, each optional or required as its column is."""
    row = {**optional(struct_of(columns)), "name": f"{name}.Value"}
    fields: list[tuple[str, Node]] = [
        ("before", row),
        ("after", row),
        ("source", _SOURCE),
        ("transaction", _TRANSACTION),
        ("op", required(STRING)),
        *((stamp, optional(INT64)) for stamp in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return {**required(struct_of(fields)), "name": f"{name}.Envelope", "version": 2}


def _record(name: str, *fields: tuple[str, Node]) -> Node:
    return named(required(struct_of(fields)), name)


_SNAPSHOT: Final = {
    **optional(named(STRING, "io.debezium.data.Enum")),
    "parameters": {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"},
    "default": "false",
}
_SOURCE: Final = _record(
    "io.debezium.connector.postgresql.Source",
    *((name, required(STRING)) for name in ("version", "connector", "name")),
    ("ts_ms", required(INT64)),
    ("snapshot", _SNAPSHOT),
    ("db", required(STRING)),
    ("sequence", optional(STRING)),
    *((name, optional(INT64)) for name in ("ts_us", "ts_ns")),
    *((name, required(STRING)) for name in ("schema", "table")),
    *((name, optional(INT64)) for name in ("txId", "lsn", "xmin")),
    ("origin", optional(STRING)),
    ("origin_lsn", optional(INT64)),
    # Watershed's own.
    *((name, optional(INT64)) for name in ("epoch", "seq", "commit_lsn", "tx_index", "schema_version")),
    *((name, optional(vector_of(STRING))) for name in ("unchanged", "filled")),
)
_TRANSACTION: Final = optional(
    _record(
        "event.block",
        ("id", required(STRING)),
        *((name, required(INT64)) for name in ("total_order", "data_collection_order")),
    )
)
TRANSACTION_KEY: Final = _record("io.debezium.connector.common.TransactionMetadataKey", ("id", required(STRING)))
_COLLECTION: Final = _record(
    "event.collection", ("data_collection", required(STRING)), ("event_count", required(INT64))
)
TRANSACTION_VALUE: Final = _record(
    "io.debezium.connector.common.TransactionMetadataValue",
    ("status", required(STRING)),
    ("id", required(STRING)),
    ("event_count", optional(INT64)),
    ("data_collections", optional(array_of(_COLLECTION))),
    ("ts_ms", required(INT64)),
)
HEARTBEAT_KEY: Final = _record("io.debezium.connector.common.ServerNameKey", ("serverName", required(STRING)))
HEARTBEAT_VALUE: Final = _record("io.debezium.connector.common.Heartbeat", ("ts_ms", required(INT64)))
MESSAGE_KEY: Final = _record("io.debezium.connector.postgresql.MessageKey", ("prefix", optional(STRING)))


def message_schema(content: Node) -> Node:
    """Returns the schema of a message event. `content`: the schema of the message's bytes."""
    inner = ("prefix", optional(STRING)), ("content", optional(content))
    return _record(
        "io.debezium.connector.postgresql.MessageValue",
        ("op", required(STRING)),
        ("ts_ms", optional(INT64)),
        ("source", _SOURCE),
        ("transaction", _TRANSACTION),
        ("message", _record("io.debezium.connector.postgresql.Message", *inner)),
    )
