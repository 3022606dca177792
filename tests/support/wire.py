"""Builds pgoutput messages and frames as the server writes them, from the manual's tables."""

import struct
from collections.abc import Sequence

from cdc.model.events import Column, TableId, TableSchema
from cdc.pgoutput.messages import NULL, UNCHANGED, Absent, Relation, RelationColumn, TupleValue

POSTGRES_EPOCH_US = 946_684_800_000_000
CUSTOMERS = TableId("public", "customers")


def schema_and_relation(
    columns: Sequence[Column],
    key: Sequence[str],
    *,
    identity: str = "d",
    identity_columns: Sequence[str] | None = None,
    table: TableId = CUSTOMERS,
    oid: int = 16385,
    version: int = 1,
) -> tuple[TableSchema, Relation]:
    """A table's schema, and the relation message that the server sends for it."""
    in_identity = set(identity_columns if identity_columns is not None else key)
    schema = TableSchema(
        table=table, version=version, oid=oid, columns=tuple(columns), key=tuple(key), topic=f"shop.{table}"
    )
    relation = Relation(
        oid=oid,
        schema=table.schema,
        name=table.name,
        replica_identity=identity,
        columns=tuple(
            RelationColumn(identity == "f" or c.name in in_identity, c.name, c.type_oid, c.type_modifier)
            for c in columns
        ),
    )
    return schema, relation


def text(value: str | None) -> TupleValue:
    return NULL if value is None else value.encode()


def value_bytes(value: TupleValue) -> bytes:
    if value is NULL:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    assert not isinstance(value, Absent)
    return b"t" + struct.pack(">I", len(value)) + bytes(value)


def tuple_bytes(values: Sequence[TupleValue]) -> bytes:
    return struct.pack(">H", len(values)) + b"".join(map(value_bytes, values))


def insert(oid: int, new: Sequence[TupleValue]) -> bytes:
    return b"I" + struct.pack(">I", oid) + b"N" + tuple_bytes(new)


def update(
    oid: int, new: Sequence[TupleValue], old: Sequence[TupleValue] | None = None, old_kind: bytes = b"K"
) -> bytes:
    before = b"" if old is None else old_kind + tuple_bytes(old)
    return b"U" + struct.pack(">I", oid) + before + b"N" + tuple_bytes(new)


def delete(oid: int, old: Sequence[TupleValue], old_kind: bytes = b"K") -> bytes:
    return b"D" + struct.pack(">I", oid) + old_kind + tuple_bytes(old)


def begin(final_lsn: int, commit_ts_us: int, xid: int) -> bytes:
    return b"B" + struct.pack(">QqI", final_lsn, commit_ts_us - POSTGRES_EPOCH_US, xid)


def commit(commit_lsn: int, end_lsn: int, commit_ts_us: int, flags: int = 0) -> bytes:
    return b"C" + struct.pack(">BQQq", flags, commit_lsn, end_lsn, commit_ts_us - POSTGRES_EPOCH_US)


def relation_bytes(relation: Relation) -> bytes:
    schema = "" if relation.schema == "pg_catalog" else relation.schema
    columns = b"".join(
        bytes([c.is_key]) + c.name.encode() + b"\0" + struct.pack(">Ii", c.type_oid, c.type_modifier)
        for c in relation.columns
    )
    return (
        b"R"
        + struct.pack(">I", relation.oid)
        + schema.encode()
        + b"\0"
        + relation.name.encode()
        + b"\0"
        + relation.replica_identity.encode()
        + struct.pack(">H", len(relation.columns))
        + columns
    )


def truncate(oids: Sequence[int], options: int = 0) -> bytes:
    return b"T" + struct.pack(">IB", len(oids), options) + b"".join(struct.pack(">I", oid) for oid in oids)


def logical_message(prefix: str, content: bytes, *, lsn: int = 0, transactional: bool = True) -> bytes:
    return (
        b"M"
        + struct.pack(">BQ", transactional, lsn)
        + prefix.encode()
        + b"\0"
        + struct.pack(">I", len(content))
        + content
    )


def xlog_data(message: bytes, start_lsn: int, clock_us: int = POSTGRES_EPOCH_US) -> bytes:
    return b"w" + struct.pack(">QQq", start_lsn, start_lsn, clock_us - POSTGRES_EPOCH_US) + message


def keepalive(wal_end: int, clock_us: int = POSTGRES_EPOCH_US, *, reply_requested: bool = False) -> bytes:
    return b"k" + struct.pack(">QqB", wal_end, clock_us - POSTGRES_EPOCH_US, reply_requested)


_COPY_ESCAPES = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


def copy_line(values: Sequence[str | None]) -> bytes:
    """A line of COPY ... TO STDOUT in text format."""
    fields = ("\\N" if v is None else "".join(_COPY_ESCAPES.get(c, c) for c in v) for v in values)
    return ("\t".join(fields) + "\n").encode()
