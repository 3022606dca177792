"""pgoutput, protocol version 1: bytes to messages, strictly (PostgreSQL manual, "Logical Replication Message Formats").

    Begin     B | final lsn 8 | commit time 8 | xid 4
    Commit    C | flags 1 | commit lsn 8 | end lsn 8 | commit time 8
    Origin    O | commit lsn 8 | name
    Relation  R | oid 4 | schema | name | replica identity 1 | columns 2 | column...
      column  flags 1 | name | type oid 4 | type modifier 4
    Type      Y | oid 4 | schema | name
    Insert    I | oid 4 | N tuple
    Update    U | oid 4 | [K tuple / O tuple] | N tuple
    Delete    D | oid 4 | K tuple / O tuple
    Truncate  T | relations 4 | options 1 | oid 4...
    Message   M | flags 1 | lsn 8 | prefix | length 4 | content
    Abort     A | xid 4 | subtransaction xid 4
      tuple   columns 2 | value...
      value   n (null) / u (unchanged) / t (text) length 4 bytes; b (binary) is sent only on request

Integers are big-endian, names end with a zero byte. This is the exact path: it checks everything, and decodes every
message except rows, which `codec` converts to JSON without an object for each value and refuses for the same reasons.
"""

from struct import Struct
from typing import Final

from cdc.model.errors import ProtocolError
from cdc.model.lsn import Lsn
from cdc.pgoutput.frames import POSTGRES_EPOCH_US
from cdc.pgoutput.messages import (
    NULL,
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldKind,
    Relation,
    RelationColumn,
    ReplicationOrigin,
    StreamAbort,
    Truncate,
    Tuple,
    TupleValue,
    Type,
    Update,
)

COLUMNS_MAX: Final = 1664  # MaxTupleAttributeNumber, the server's own limit
NAME_BYTES_MAX: Final = 63 * 4  # an identifier's 63 bytes, each at most 4 in UTF-8
ORIGIN_BYTES_MAX: Final = 512 * 4  # MAX_RONAME_LEN, the same
# The length of a commit record with page headers in between: XLogRecordMaxSize is 1020 MiB. An end beyond would be
# confirmed to the server, which accepts any number and discards the log before it.
COMMIT_BYTES_MAX: Final = 1 << 31
TRUNCATE_RELATIONS_MAX: Final = 100_000  # tables of one TRUNCATE; far above the capacity of a server's lock table

_BEGIN = Struct(">QqI")
_COMMIT = Struct(">BQQq")
_U16 = Struct(">H")
_U32 = Struct(">I")
_U64 = Struct(">Q")
_I32 = Struct(">i")

_HINT = "the stream is damaged, or not PostgreSQL's pgoutput in protocol version 1: nothing after it is published"


def decode(message: bytes | memoryview, position: str) -> Message:
    """Decodes one whole message. `position` is used in errors only.

    Raises ProtocolError, naming message type, offset and position, for an unknown type, a length beyond the remaining
    bytes, bytes after the end, a flag or a count that the manual does not allow, or a name that is not UTF-8.
    """
    reader = _Reader(message, position)
    result = _read_message(reader)
    if reader.at != len(reader.view):
        raise reader.refused(f"{len(reader.view) - reader.at} bytes too many")
    return result


class _Reader:
    """A position in a message. Every read checks the remaining bytes before it takes or allocates anything."""

    __slots__ = ("at", "kind", "position", "view")

    def __init__(self, message: bytes | memoryview, position: str) -> None:
        self.view = memoryview(message).cast("B")
        self.at = 0
        self.kind = "?"
        self.position = position

    def refused(self, what: str) -> ProtocolError:
        return ProtocolError(f"pgoutput message {self.kind!r} at {self.position}, byte {self.at}: {what}", _HINT)

    def need(self, count: int, what: str) -> None:
        left = len(self.view) - self.at
        if count > left:
            raise self.refused(f"{what} needs {count} bytes, {left} are left")

    def byte(self, what: str) -> int:
        self.need(1, what)
        value = self.view[self.at]
        self.at += 1
        return value

    def number(self, layout: Struct, what: str) -> int:
        self.need(layout.size, what)
        value: int = layout.unpack_from(self.view, self.at)[0]
        self.at += layout.size
        return value

    def raw(self, count: int, what: str) -> memoryview:
        self.need(count, what)
        value = self.view[self.at : self.at + count]
        self.at += count
        return value

    def name(self, what: str, bytes_max: int | None = NAME_BYTES_MAX) -> str:
        left = len(self.view) - self.at
        window = left if bytes_max is None else min(left, bytes_max + 1)
        head = bytes(self.view[self.at : self.at + window])
        end = head.find(0)
        if end < 0:
            raise self.refused(f"{what} has no end within {window} bytes")
        try:
            name = head[:end].decode()
        except UnicodeDecodeError:
            raise self.refused(f"{what} is not UTF-8") from None
        self.at += end + 1
        return name


def _read_message(reader: _Reader) -> Message:
    reader.kind = chr(reader.byte("a message type"))
    match reader.kind:
        case "I":
            oid = reader.number(_U32, "a relation")
            _expect_new(reader)
            return Insert(oid, _tuple(reader))
        case "U":
            return _update(reader)
        case "D":
            oid = reader.number(_U32, "a relation")
            return Delete(oid, _old_kind(reader, reader.byte("a tuple kind")), _tuple(reader))
        case "B":
            reader.need(_BEGIN.size, "Begin")
            final_lsn, ts, xid = _BEGIN.unpack_from(reader.view, reader.at)
            reader.at += _BEGIN.size
            return Begin(Lsn(final_lsn), ts + POSTGRES_EPOCH_US, xid)
        case "C":
            return _commit(reader)
        case "R":
            return _relation(reader)
        case "Y":
            oid = reader.number(_U32, "a type")
            return Type(oid, reader.name("the schema") or "pg_catalog", reader.name("the type's name"))
        case "T":
            return _truncate(reader)
        case "M":
            return _logical_message(reader)
        case "O":
            return ReplicationOrigin(
                Lsn(reader.number(_U64, "an LSN")), reader.name("the origin's name", ORIGIN_BYTES_MAX)
            )
        case "A":
            return StreamAbort(reader.number(_U32, "an xid"), reader.number(_U32, "an xid"))
        case _:
            raise reader.refused("not a message type of protocol version 1")


def _commit(reader: _Reader) -> Commit:
    reader.need(_COMMIT.size, "Commit")
    flags, commit_lsn, end_lsn, ts = _COMMIT.unpack_from(reader.view, reader.at)
    if flags:
        raise reader.refused(f"unknown flags {flags}")
    if not commit_lsn < end_lsn <= commit_lsn + COMMIT_BYTES_MAX:
        raise reader.refused("the commit record's end is not after its start")
    reader.at += _COMMIT.size
    return Commit(Lsn(commit_lsn), Lsn(end_lsn), ts + POSTGRES_EPOCH_US)


def _relation(reader: _Reader) -> Relation:
    oid = reader.number(_U32, "an oid")
    schema = reader.name("the schema") or "pg_catalog"  # sent as an empty string
    name = reader.name("the relation's name")
    identity = chr(reader.byte("the replica identity"))
    if identity not in "dnfi":
        raise reader.refused(f"unknown replica identity {identity!r}")
    columns = []
    for _ in range(_column_count(reader)):
        flags = reader.byte("a column's flags")
        if flags > 1:
            raise reader.refused(f"unknown column flags {flags}")
        columns.append(
            RelationColumn(
                is_key=flags == 1,
                name=reader.name("a column's name"),
                type_oid=reader.number(_U32, "a column's type"),
                type_modifier=reader.number(_I32, "a column's type modifier"),
            )
        )
    return Relation(oid, schema, name, identity, tuple(columns))


def _update(reader: _Reader) -> Update:
    oid = reader.number(_U32, "a relation")
    kind = reader.byte("a tuple kind")
    if kind == ord("N"):
        return Update(oid, None, None, _tuple(reader))
    old_kind = _old_kind(reader, kind)
    old = _tuple(reader)
    _expect_new(reader)
    return Update(oid, old_kind, old, _tuple(reader))


def _expect_new(reader: _Reader) -> None:
    kind = reader.byte("a tuple kind")
    if kind != ord("N"):
        raise reader.refused(f"tuple kind {chr(kind)!r}, expected 'N'")


def _old_kind(reader: _Reader, kind: int) -> OldKind:
    if kind == ord("K"):
        return "K"
    if kind == ord("O"):
        return "O"
    raise reader.refused(f"tuple kind {chr(kind)!r}, expected 'K' or 'O'")


def _column_count(reader: _Reader) -> int:
    count = reader.number(_U16, "a column count")
    if count > COLUMNS_MAX:
        raise reader.refused(f"{count} columns, at most {COLUMNS_MAX} are possible")
    return count


def _tuple(reader: _Reader) -> Tuple:
    values: list[TupleValue] = []
    for _ in range(_column_count(reader)):
        kind = reader.byte("a value")
        if kind == ord("t"):
            values.append(reader.raw(reader.number(_U32, "a length"), "a value"))
        elif kind == ord("n"):
            values.append(NULL)
        elif kind == ord("u"):
            values.append(UNCHANGED)
        else:
            raise reader.refused(f"value kind {chr(kind)!r}, expected 'n', 'u' or 't'")
    return tuple(values)


def _truncate(reader: _Reader) -> Truncate:
    count = reader.number(_U32, "a relation count")
    if count > TRUNCATE_RELATIONS_MAX:
        raise reader.refused(f"{count} relations, at most {TRUNCATE_RELATIONS_MAX} are accepted")
    options = reader.byte("the options")
    if options > 3:
        raise reader.refused(f"unknown options {options}")
    reader.need(4 * count, "the relations")
    return Truncate(options, tuple(reader.number(_U32, "a relation") for _ in range(count)))


def _logical_message(reader: _Reader) -> LogicalMessage:
    flags = reader.byte("the flags")
    if flags > 1:
        raise reader.refused(f"unknown flags {flags}")
    lsn = reader.number(_U64, "an LSN")
    prefix = reader.name("the prefix", bytes_max=None)  # any text: its writer chose it
    content = reader.raw(reader.number(_U32, "a length"), "the content")
    return LogicalMessage(flags == 1, Lsn(lsn), prefix, bytes(content))
