"""The CopyData payloads of streaming replication (PostgreSQL manual, "Streaming Replication Protocol").

    XLogData, from the server                     Primary keepalive, from the server
    +-----+-----------+---------+---------+-----  +-----+---------+---------+-------+
    | 'w' | start lsn | wal end | clock   | data  | 'k' | wal end | clock   | reply |
    |  1  |     8     |    8    |    8    |  n    |  1  |    8    |    8    |   1   |
    +-----+-----------+---------+---------+-----  +-----+---------+---------+-------+

    Standby status update, from us
    +-----+---------+---------+---------+-------+-------+
    | 'r' | written | flushed | applied | clock | reply |
    |  1  |    8    |    8    |    8    |   8   |   1   |
    +-----+---------+---------+---------+-------+-------+

All integers are big-endian. LSNs are the byte after the last one meant. On the wire a clock is µs since 2000-01-01;
here, as everywhere in Watershed, µs since 1970.
"""

from struct import Struct
from typing import NamedTuple

from cdc.model.errors import ProtocolError
from cdc.model.lsn import Lsn, format_lsn

POSTGRES_EPOCH_US = 946_684_800_000_000  # 2000-01-01, in µs since 1970
XLOG_DATA_BYTES = 25  # the pgoutput message of an XLogData frame starts here

_XLOG_DATA = Struct(">cQQq")
_KEEPALIVE = Struct(">cQqB")
_STATUS = Struct(">cQQQqB")
_LSN_AT_1 = Struct(">Q")


class XLogData(NamedTuple):
    """Header of a frame that carries one pgoutput message, at byte XLOG_DATA_BYTES of the payload. `start_lsn` reads
    its LSN; the WAL end that it names is the same for logical replication."""

    clock_us: int  # the server's, µs since 1970


class Keepalive(NamedTuple):
    """The server is alive and has read its log up to `wal_end`."""

    wal_end: Lsn
    clock_us: int  # the server's, µs since 1970
    reply_requested: bool  # answer at once, or the server hangs up


def parse_frame(payload: bytes | memoryview) -> XLogData | Keepalive:
    """Reads a keepalive or XLogData. Raises ProtocolError for anything else, and for XLogData without a message."""
    kind = bytes(payload[:1])
    if kind == b"w":
        if len(payload) <= XLOG_DATA_BYTES:
            raise _refused("w (XLogData)", f"{len(payload)} bytes, expected more than {XLOG_DATA_BYTES}")
        return XLogData(_XLOG_DATA.unpack_from(payload)[-1] + POSTGRES_EPOCH_US)
    if kind == b"k":
        if len(payload) != _KEEPALIVE.size:
            raise _refused("k (keepalive)", f"{len(payload)} bytes, expected {_KEEPALIVE.size}")
        _, end, clock, reply = _KEEPALIVE.unpack(payload)
        if reply > 1:
            raise _refused("k (keepalive)", f"reply flag {reply} at WAL end {format_lsn(end)}, expected 0 or 1")
        return Keepalive(Lsn(end), clock + POSTGRES_EPOCH_US, reply == 1)
    raise _refused(repr(kind)[1:], "not a frame of streaming replication (w or k)")


def start_lsn(payload: bytes) -> int:
    """The start LSN of an XLogData frame, for the hot path: the caller has seen that `payload[0]` is `w` and that the
    payload is longer than XLOG_DATA_BYTES."""
    lsn: int = _LSN_AT_1.unpack_from(payload, 1)[0]
    return lsn


def is_commit(payload: bytes) -> bool:
    return payload[XLOG_DATA_BYTES : XLOG_DATA_BYTES + 1] == b"C" and payload[:1] == b"w"


def standby_status(written: int, flushed: int, clock_us: int, reply_requested: bool = False) -> bytes:
    """Builds a standby status update. `flushed`: also what was applied; the server may discard the log before it, and
    accepts any number. `clock_us`: capture's clock, µs since 1970."""
    return _STATUS.pack(b"r", written, flushed, flushed, clock_us - POSTGRES_EPOCH_US, reply_requested)


def _refused(kind: str, what: str) -> ProtocolError:
    return ProtocolError(
        f"replication frame {kind}: {what}",
        "the connection does not lead to a PostgreSQL walsender (a proxy or pooler in between?): check the DSN",
    )
