"""Where keepalives move the assembler's position."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cdc.capture.assembler import Assembler
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.capture.toast_batch import BatchRecord
from cdc.model.control import PartialTransaction
from cdc.model.lsn import Lsn
from tests.support import wire
from tests.support.snapshot_ports import UnfollowedTables, engine_of
from tests.unit.cdc.capture.loops import CONTEXT, RELATION, SCHEMA, TS_US, transaction

NOW_US = 1_767_323_080_000_000
START = StreamState(Lsn(1_000), None, seq=0, commit_ts_us=0)


def assembler(resume: StreamState = START) -> Assembler:
    return Assembler(
        CapturedTables([SCHEMA]),
        CONTEXT,
        resume,
        engine_of([SCHEMA], CONTEXT),
        UnfollowedTables(),
    )


def consume(made: Assembler, payloads: Sequence[bytes]) -> list[BatchRecord]:
    records, failure = made.consume(payloads, NOW_US)
    assert failure is None
    return records


def test_a_keepalive_between_transactions_moves_the_position() -> None:
    made = assembler()
    assert consume(made, [wire.keepalive(1_500)]) == []
    assert made.needs_keepalive
    assert consume(made, [wire.keepalive(1_500)]) == []
    assert made.state.resume_lsn == made.received_lsn == 1_500
    assert not made.needs_keepalive
    assert not made.reply_requested


def test_a_damaged_keepalive_moves_the_position_nowhere() -> None:
    """It was recorded and confirmed; the server forgot what nobody had read, and the next start met a gap."""
    made = assembler()
    consume(made, [wire.keepalive(1_500), wire.keepalive(1 << 60), wire.keepalive(1_600), *transaction(1_700, 1)])
    assert made.state.resume_lsn == made.received_lsn == 1_748
    consume(made, [wire.keepalive(1 << 60)])
    assert made.state.resume_lsn == 1_748


def test_a_keepalive_never_moves_the_position_back() -> None:
    made = assembler()
    consume(made, [wire.keepalive(900)] * 2)
    assert made.state == START


def test_a_keepalive_inside_a_transaction_moves_nothing() -> None:
    made = assembler()
    begun = transaction(1_100, 1)[:-1]
    consume(made, [*begun, wire.keepalive(1_500), wire.keepalive(1_500)])
    assert made.state.resume_lsn == 1_000
    assert made.received_lsn == 1_500
    assert not made.needs_keepalive


def test_a_keepalive_before_the_half_published_transaction_comes_again_moves_nothing() -> None:
    partial = PartialTransaction(commit_lsn=1_100, xid=7, next_index=1)
    made = assembler(StreamState(Lsn(1_000), partial, seq=1, commit_ts_us=0))
    consume(made, [wire.keepalive(1_050)] * 2)
    assert made.state.resume_lsn == 1_000


def test_a_keepalive_that_asks_for_an_answer_is_remembered() -> None:
    made = assembler()
    consume(made, [wire.keepalive(1_500, reply_requested=True), wire.keepalive(1_500)])
    assert made.reply_requested


def test_a_position_that_a_keepalive_reported_is_not_asked_for_within_a_transaction() -> None:
    made = assembler()
    consume(made, [wire.keepalive(1_500)])
    assert made.needs_keepalive
    consume(made, transaction(1_600, 1)[:-1])
    assert not made.needs_keepalive
    half = assembler(StreamState(Lsn(1_000), PartialTransaction(commit_lsn=1_100, xid=7, next_index=1), 1, 0))
    consume(half, [wire.keepalive(1_050)])
    assert not half.needs_keepalive, "the position can't move"


def test_a_session_that_knows_too_many_relations_ends_between_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.capture.assembler.RELATIONS_MAX", 1)
    made = assembler()
    consume(made, transaction(1_100, 1))
    assert not made.has_too_many_relations, "it is as many as it may be"
    other = wire.relation_bytes(replace(RELATION, oid=77, name="other"))
    begun = [wire.xlog_data(message, 0) for message in (wire.begin(1_200, TS_US, 8), other)]
    consume(made, begun)
    assert not made.has_too_many_relations
    consume(made, [wire.xlog_data(wire.commit(1_200, 1_248, TS_US), 0)])
    assert made.has_too_many_relations
