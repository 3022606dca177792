"""Replication frames, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.errors import ProtocolError
from cdc.model.lsn import Lsn
from cdc.pgoutput.frames import (
    XLOG_DATA_BYTES,
    Keepalive,
    XLogData,
    is_commit,
    parse_frame,
    standby_status,
    start_lsn,
)
from tests.support import wire

U64 = st.integers(0, 2**64 - 1)
CLOCK = st.integers(0, 2**62)

XLOG = bytes.fromhex("77 0000000001020304 0000000001020310 0000000000000001 42")
KEEPALIVE = bytes.fromhex("6b 0000000001020304 ffffffffffffffff 01")


def test_xlog_data_is_read_as_the_manual_lays_it_out() -> None:
    assert parse_frame(XLOG) == XLogData(946_684_800_000_001)
    assert start_lsn(XLOG) == 0x01020304
    assert XLOG[XLOG_DATA_BYTES:] == b"B"


def test_the_end_of_a_transaction_is_told_from_everything_else() -> None:
    assert is_commit(wire.xlog_data(wire.commit(5, 53, 0), 5))
    assert not any(is_commit(frame) for frame in (XLOG, KEEPALIVE, b"", b"w", b"k" * 25 + b"C"))


def test_a_keepalive_is_read_as_the_manual_lays_it_out() -> None:
    assert parse_frame(KEEPALIVE) == Keepalive(Lsn(0x01020304), 946_684_799_999_999, True)


def test_a_status_update_is_written_as_the_manual_lays_it_out() -> None:
    assert standby_status(3, 2, 946_684_800_000_005, reply_requested=True) == bytes.fromhex(
        "72 0000000000000003 0000000000000002 0000000000000002 0000000000000005 01"
    )
    assert standby_status(3, 2, 946_684_800_000_005)[-1:] == b"\0"


@given(U64, CLOCK, st.booleans())
def test_keepalives_round_trip(wal_end: int, clock_us: int, reply: bool) -> None:
    frame = wire.keepalive(wal_end, clock_us, reply_requested=reply)
    assert parse_frame(frame) == parse_frame(memoryview(frame)) == Keepalive(Lsn(wal_end), clock_us, reply)


@given(U64, CLOCK, st.binary(min_size=1))
def test_xlog_data_round_trips(lsn: int, clock_us: int, message: bytes) -> None:
    frame = wire.xlog_data(message, lsn, clock_us)
    assert parse_frame(frame) == XLogData(clock_us)
    assert start_lsn(frame) == lsn
    assert frame[XLOG_DATA_BYTES:] == message


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"", "not a frame"),
        (b"d", "not a frame"),
        (b"w", "1 bytes"),
        (XLOG[:-1], "25 bytes"),  # a frame without a message
        (KEEPALIVE[:-1], "17 bytes"),
        (KEEPALIVE + b"\0", "19 bytes"),
        (KEEPALIVE[:-1] + b"\2", "reply flag 2 at WAL end 0/1020304"),
    ],
)
def test_any_other_frame_is_refused(frame: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        parse_frame(frame)
