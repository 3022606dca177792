"""Snapshots as pg_current_snapshot() prints them, and the stream's 32-bit transaction ids."""

import pytest

from cdc.ports.transaction_snapshot import TransactionSnapshot


def test_what_has_ended_is_seen_and_what_runs_or_begins_later_is_not() -> None:
    snapshot = TransactionSnapshot.parse("768:772:768,770")
    assert [xid for xid in range(765, 775) if snapshot.sees(xid)] == [765, 766, 767, 769, 771]


def test_none_in_progress() -> None:
    snapshot = TransactionSnapshot.parse("900:900:")
    assert snapshot.sees(899)
    assert not snapshot.sees(900)


@pytest.mark.parametrize("epoch", [1, 2, 700])
def test_ids_of_the_stream_wrap_around(epoch: int) -> None:
    """PostgreSQL counts 64 bits; the protocol sends the lower 32."""
    turn = epoch << 32
    snapshot = TransactionSnapshot(turn - 3, turn + 5, frozenset({turn - 3, turn + 2}))
    low = [(turn + offset) % (1 << 32) for offset in range(-6, 8)]
    assert [snapshot.sees(xid) for xid in low] == [offset < 5 and offset not in (-3, 2) for offset in range(-6, 8)]


@pytest.mark.parametrize("text", ["", "1:2", "a:b:", "1:2:3:4"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        TransactionSnapshot.parse(text)
