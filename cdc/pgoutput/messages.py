"""Decoded pgoutput messages, protocol version 1. One frozen type for each, in the manual's words."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from cdc.model.lsn import Lsn


class Absent(Enum):
    """A tuple's entry that is not a value. A null and a value that was not sent are different things."""

    NULL = "n"
    UNCHANGED = "u"  # a large (TOAST) value that the update did not touch, hence not in the log


NULL: Literal[Absent.NULL] = Absent.NULL
UNCHANGED: Literal[Absent.UNCHANGED] = Absent.UNCHANGED


TupleValue = bytes | memoryview | Absent  # bytes, in a decoded message a view of its own: the text in client encoding
Tuple = tuple[TupleValue, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    final_lsn: Lsn  # of the commit record: the transaction's commit_lsn
    commit_ts_us: int  # µs since 1970
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    commit_lsn: Lsn
    end_lsn: Lsn  # the byte after the commit record: the LSN that may be confirmed
    commit_ts_us: int  # µs since 1970


@dataclass(frozen=True, slots=True)
class ReplicationOrigin:
    """Says that the transaction came to this server by replication from another one."""

    commit_lsn: Lsn  # on that server
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    is_key: bool  # part of the replica identity; every column is under REPLICA IDENTITY FULL
    name: str
    type_oid: int
    type_modifier: int
    is_captured: bool = True  # our choice, which the server does not know: see cdc.config.columns


@dataclass(frozen=True, slots=True)
class Relation:
    """Describes the rows of a table from here on."""

    oid: int
    schema: str
    name: str
    replica_identity: str  # pg_class.relreplident: d(efault), n(othing), f(ull), i(ndex)
    columns: tuple[RelationColumn, ...]  # all that rows are sent with


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that is not built in; for a domain its base type's."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    relation_oid: int
    new: Tuple


OldKind = Literal["K", "O"]  # K: only the replica identity's columns are real, the others NULL; O: the whole old row


@dataclass(frozen=True, slots=True)
class Update:
    relation_oid: int
    old_kind: OldKind | None  # None: no old tuple was sent
    old: Tuple | None
    new: Tuple


@dataclass(frozen=True, slots=True)
class Delete:
    relation_oid: int
    old_kind: OldKind
    old: Tuple


@dataclass(frozen=True, slots=True)
class Truncate:
    options: int  # 1 CASCADE, 2 RESTART IDENTITY
    relation_oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message that pg_logical_emit_message() wrote."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """A rolled-back subtransaction of a transaction in progress. Protocol 1 never streams such transactions, but
    servers of version 18 send this message nevertheless. It says nothing about received changes and is ignored."""

    xid: int
    subxid: int


Message = (
    Begin
    | Commit
    | ReplicationOrigin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamAbort
)
