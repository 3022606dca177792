"""The table of structures in docs/design/memory.md: what a message costs does not grow with the messages before it.

Each case receives n messages, and twice as many, of the kind that fills its structure. Twice as many may cost twice as
much. They are counted in Python instructions, so neither the machine nor its load matters.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import pytest

from cdc.capture.assembler import Assembler
from cdc.capture.kafka_transaction import PositionConstants, Publisher
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.capture.toast_batch import ToastBatch
from cdc.config.settings import CaptureConfig
from cdc.formats.unpublishable import Unpublishable
from cdc.model.control import SignalRecord, SourceIdentity, TopicState
from cdc.model.events import TableId
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.chunk_reader import BarrierPassed, TransactionBarrier
from cdc.ports.row_reader import FoundRows
from cdc.ports.stream import Signal
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots.change_memory import ChangeMemory
from cdc.snapshots.completion import CompletionJob
from cdc.snapshots.coordination import Snapshots
from cdc.snapshots.signal_answers import Answers
from tests.support import wire
from tests.support.holes import U, consumed, insert, sees, update
from tests.support.operations import operations
from tests.support.snapshot_ports import ScriptedReader, ScriptedSignals, UnfollowedTables, engine_of
from tests.unit.cdc.capture.loops import CONTEXT, SCHEMA, TOPIC, TS_US, transaction
from tests.unit.cdc.snapshots.loops import Beside, snapshot, wanted

GROWTH_MAX: Final = 2.3  # of the cost, for twice as many messages
NOW_US: Final = TS_US + 1_000_000
Case = Callable[[int], Callable[[], object]]
"""Prepares what receives so many messages; what it returns is counted."""


def sees_below(xid: int, *but: int) -> TransactionSnapshot:
    return TransactionSnapshot(min([xid, *but]), xid, frozenset(but))


# ---- keys that a chunk may not see


def receive(memory: ChangeMemory, xids: Iterable[int]) -> None:
    for xid in xids:
        if memory.begin(xid, xid):
            memory.touch(TOPIC, b"%d" % xid)
        memory.end()


def remembered_without_a_snapshot(n: int) -> Callable[[], object]:
    """Before the fence is passed everything is remembered, and does not fit."""
    memory = ChangeMemory(keys_max=n // 4, transactions_max=n // 8)
    return lambda: receive(memory, range(n))


def forgotten_at_each_mark(n: int) -> Callable[[], object]:
    """A mark comes after each ten transactions, and an old transaction runs all the time."""
    memory = ChangeMemory(keys_max=n)

    def call() -> None:
        for start in range(10, n, 10):
            receive(memory, range(start, start + 10))
            memory.forget_seen_by([sees_below(start, 5), sees_below(start + 5, 5)])
            memory.unseen(TOPIC, sees_below(start + 5, 5)).touches(b"%d" % start)

    return call


def held_back_by_an_open_chunk(n: int) -> Callable[[], object]:
    """One chunk waits behind a lock, others are merged."""
    memory = ChangeMemory(keys_max=n // 4, transactions_max=n // 8)

    def call() -> None:
        for start in range(10, n, 10):
            receive(memory, range(start, start + 10))
            memory.forget_seen_by([sees_below(5), sees_below(start + 5)])
            memory.unseen(TOPIC, sees_below(start + 5)).touches(b"%d" % start)

    return call


def truncates(n: int) -> Callable[[], object]:
    memory = ChangeMemory(transactions_max=n // 4)

    def call() -> None:
        for xid in range(n):
            memory.begin(xid, xid)
            memory.truncate(TOPIC)
            memory.end()
            memory.unseen(TOPIC, sees_below(xid, 3)).touches(b"1")

    return call


def one_hot_row(n: int) -> Callable[[], object]:
    memory = ChangeMemory(keys_max=100)

    def call() -> None:
        for xid in range(n):
            memory.begin(xid, xid)
            memory.touch(TOPIC, b"1")
            memory.end()
            memory.unseen(TOPIC, sees_below(xid, 3)).touches(b"1")

    return call


def a_backlog_behind_a_restart(n: int) -> Callable[[], object]:
    """The stall of issue 14 in the engine: its fence is passed in the middle of the backlog."""
    made = Beside(wanted(), keys_max=n // 4)
    barrier = made.ask()
    assert isinstance(barrier, TransactionBarrier)

    def call() -> None:
        for xid in range(100, 100 + n // 2):
            made.transaction(xid, xid)
        made.engine.take([BarrierPassed(barrier.nonce, snapshot(10_000_000))], made.now)
        for xid in range(100 + n // 2, 100 + n):
            made.transaction(xid, xid)
            made.asks(is_behind=True)

    return call


# ---- the assembler and what it feeds


def assembler() -> Assembler:
    start = StreamState(Lsn(1_000), None, 0, 0)
    return Assembler(
        CapturedTables([SCHEMA]),
        CONTEXT,
        start,
        engine_of([SCHEMA], CONTEXT),
        UnfollowedTables(),
    )


def rows_of_one_transaction(n: int) -> Callable[[], object]:
    made = assembler()
    frames = transaction(1_100, *range(n))
    return lambda: [made.consume([frame], NOW_US) for frame in frames]


def small_transactions(n: int) -> Callable[[], object]:
    made = assembler()
    batches = [transaction(1_100 + 100 * number, number) for number in range(n)]
    return lambda: [made.consume(frames, NOW_US) for frames in batches]


def relations_of_other_tables(n: int) -> Callable[[], object]:
    """Tables that are published and not captured are created and dropped again and again."""
    made = assembler()
    _, relation = wire.schema_and_relation([], [], table=TableId("public", "other"))
    messages = [wire.begin(1_100, TS_US, 7)]
    messages += [wire.relation_bytes(replace(relation, oid=100 + number)) for number in range(n)]
    frames = [wire.xlog_data(message, 0) for message in messages]
    return lambda: [made.consume([frame], NOW_US) for frame in frames]


def filled_from_the_batch(n: int) -> Callable[[], object]:
    batch = ToastBatch(consumed((7, [insert(1, "a", "B", None), *[update(1, f"v{i}", U, None) for i in range(n)]])))
    return batch.ready


def filled_by_reading(n: int) -> Callable[[], object]:
    batch = ToastBatch(consumed((7, [update(i, "a", U, None) for i in range(n)])))

    def call() -> None:
        for asked in batch.wanted(n):
            batch.take(asked, FoundRows(sees(1_000), tuple((b"B",) for _ in asked.rows)))
        assert len(batch.ready()) == n

    return call


def rows_that_go_out_with_holes(n: int) -> Callable[[], object]:
    job = CompletionJob(SCHEMA)

    def call() -> None:
        for number in range(n):
            job.note((str(number),), number)
            assert not job.is_too_long

    return call


def unpublishable_changes(n: int) -> Callable[[], object]:
    made = Unpublishable(Topics("shop"), "skip", {TOPIC: 500})
    engine = engine_of([SCHEMA], CONTEXT)
    start = StreamState(Lsn(1_000), None, 0, 0)
    taker = Assembler(CapturedTables([SCHEMA]), CONTEXT, start, engine, UnfollowedTables(), unpublishable=made)
    batches = [transaction(1_100 + 100 * number, number) for number in range(n)]
    return lambda: [taker.consume(frames, NOW_US) for frames in batches]


def produced_records(n: int) -> Callable[[], object]:
    source = SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed")
    publisher = Publisher(PositionConstants(1, source, "p", {TOPIC: TopicState(topic_id="id")}), CaptureConfig())

    def call() -> None:
        for number in range(n):
            publisher.on_produced([TopicRecord(TOPIC, b"%d" % number, b"x")], 0.0, is_begun=True)
            publisher.is_due(0.0, is_dry=False, is_begun=True)

    return call


# ---- signals


def signals(n: int) -> Callable[[], object]:
    """The same table is asked for again and again, while another table's snapshot keeps the memory."""
    made = Beside(wanted())
    made.pass_barrier(snapshot(100))
    port = ScriptedSignals()
    session = Snapshots(made.engine, ScriptedReader(), ScriptedReader(), port, Answers(Topics("shop"), {}))

    def call() -> None:
        for number in range(n):
            record = SignalRecord(action="snapshot", tables=("public.customers",), requested_us=NOW_US)
            port.coming = [Signal(f"s{number}", number, record, "")]
            session.advance(float(number), NOW_US, 0.0)

    return call


CASES: Final[dict[str, tuple[Case, int]]] = {
    case.__name__: (case, n)
    for case, n in (
        (remembered_without_a_snapshot, 1_000),
        (forgotten_at_each_mark, 4_000),
        (held_back_by_an_open_chunk, 2_000),
        (truncates, 1_000),
        (one_hot_row, 500),
        (a_backlog_behind_a_restart, 1_000),
        (rows_of_one_transaction, 300),
        (small_transactions, 100),
        (relations_of_other_tables, 200),
        (filled_from_the_batch, 200),
        (filled_by_reading, 200),
        (rows_that_go_out_with_holes, 200),
        (unpublishable_changes, 100),
        (produced_records, 300),
        (signals, 100),
    )
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.invariant(8)
def test_twice_as_many_messages_cost_twice_as_much(name: str) -> None:
    case, n = CASES[name]
    case(n)()  # what is made once for all, such as generated code
    once, twice = operations(case(n)), operations(case(2 * n))
    assert twice <= GROWTH_MAX * once, f"{n} messages cost {once} instructions, {2 * n} cost {twice}"


def test_a_cost_that_grows_is_found() -> None:
    def quadratic(n: int) -> None:
        seen: list[int] = []
        for number in range(n):
            seen.append(number)
            for _ in seen:
                pass

    assert operations(lambda: quadratic(200)) > GROWTH_MAX * operations(lambda: quadratic(100))
