"""How late the stream is, and that existing rows wait for it."""

from cdc.capture.assembler import Assembler
from cdc.capture.kafka_transaction import PositionConstants, Publisher
from cdc.capture.loop import Capture, LoopSchedule, Pipeline
from cdc.capture.stream_lag import QUIET_S, StreamLag
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.config.settings import CaptureConfig, SnapshotConfig
from cdc.model.control import SourceIdentity, TopicState
from cdc.model.lsn import Lsn
from cdc.model.topics import Topics
from cdc.pgoutput.frames import XLOG_DATA_BYTES
from cdc.ports.chunk_reader import BarrierPassed, Chunk, DescribeTable, TableDescribed, TransactionBarrier
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots.chunk_engine import RecordedSnapshots, SnapshotEngine
from cdc.snapshots.chunk_records import RowRecords
from cdc.snapshots.coordination import Snapshots
from cdc.snapshots.signal_answers import Answers
from cdc.snapshots.sweeps import Sweeps
from tests.support import wire
from tests.support.snapshot_ports import ScriptedReader, ScriptedSignals, UnfollowedTables, no_backfill
from tests.unit.cdc.capture.loops import CONTEXT, RELATION, SCHEMA, TOPIC, TS_US, Script
from tests.unit.cdc.snapshots.loops import wanted

NOW_US = TS_US + 3_000_000
SECOND_US = 1_000_000


def begin(sent_us: int) -> bytes:
    return wire.xlog_data(wire.begin(1_100, TS_US, 7), 0, sent_us)


def commit(sent_us: int) -> bytes:
    return wire.xlog_data(wire.commit(1_100, 1_148, TS_US), 0, sent_us)


class Lag:
    """A stream whose newest transaction was committed at TS_US."""

    def __init__(self) -> None:
        self.lag = StreamLag()

    def after(self, *frames: bytes, now: float = 0.0, is_begun: bool = False, is_full: bool = False) -> float:
        return self.lag.after(frames, now, NOW_US, TS_US, is_begun=is_begun, is_full=is_full)


def test_a_transaction_is_as_late_as_the_server_sends_it_whatever_our_clock_says() -> None:
    lag = Lag()
    assert lag.after(begin(TS_US + 60 * SECOND_US), is_begun=True) == 60.0
    assert lag.after(commit(TS_US + 61 * SECOND_US)) == 61.0
    assert lag.after() == 61.0, "a server that pauses has not caught up"
    assert Lag().after(commit(TS_US - SECOND_US)) == 0.0


def test_a_full_reading_counts_what_waits_in_our_buffers_too() -> None:
    assert Lag().after(commit(TS_US), is_full=True) == 3.0
    assert Lag().after(commit(TS_US), is_full=False) == 0.0


def test_a_keepalive_behind_the_last_transaction_says_that_all_was_sent() -> None:
    lag = Lag()
    lag.after(commit(TS_US + 60 * SECOND_US))
    assert lag.after(wire.keepalive(2_000, TS_US + 61 * SECOND_US)) == 0.0
    assert lag.after(begin(TS_US + 60 * SECOND_US), is_begun=True) == 60.0
    assert lag.after(wire.keepalive(2_000, TS_US + 61 * SECOND_US), is_begun=True) == 61.0


def test_a_message_outside_of_transactions_says_nothing() -> None:
    """It has no time of commit, and the last transaction may be of yesterday."""
    message = wire.logical_message("p", b"x", transactional=False)
    assert Lag().after(wire.xlog_data(message, 0, TS_US + 86_400 * SECOND_US)) == 0.0


def test_a_stream_that_is_quiet_for_long_has_caught_up_unless_a_transaction_is_open() -> None:
    lag = Lag()
    lag.after(commit(TS_US + 60 * SECOND_US), now=10.0)
    assert lag.after(now=10.0 + QUIET_S - 0.1) == 60.0
    assert lag.after(now=10.0 + QUIET_S) == 0.0
    lag.after(begin(TS_US + 60 * SECOND_US), now=20.0, is_begun=True)
    assert lag.after(now=90.0, is_begun=True) == 60.0


# ---- in the loop


def test_no_chunk_is_asked_for_while_a_slow_server_sends_a_backlog() -> None:
    """It sends a frame for each reading, a minute late; no reading is full."""
    reader = ScriptedReader()
    script = Script()
    transactions = 20
    for number in range(transactions):
        lsn = 1_100 + 100 * number
        messages = [
            wire.begin(lsn, TS_US, 100 + number),
            wire.relation_bytes(RELATION),
            wire.insert(10, [b"%d" % number, b"x"]),
            wire.commit(lsn, lsn + 48, TS_US),
        ]
        script.inputs += [[wire.xlog_data(message, 0, TS_US + 60 * SECOND_US)] for message in messages]
    asked_behind: list[int] = []
    seen = TransactionSnapshot(50, 50, frozenset())

    def answer() -> None:
        """The fence and the look are answered at once, and the look's mark comes back as a transaction of its own."""
        for request in reader.asked:
            if isinstance(request, TransactionBarrier):
                reader.coming.append(BarrierPassed(request.nonce, seen))
            elif isinstance(request, DescribeTable):
                reader.coming.append(TableDescribed(request.nonce, seen, "shape", 10, 20, (), "order"))
                mark = wire.logical_message("watershed", request.nonce.encode())
                messages = [wire.begin(1_050, TS_US, 99), mark, wire.commit(1_050, 1_098, TS_US)]
                starts = (i for i, frames in enumerate(script.inputs) if frames[0][XLOG_DATA_BYTES:][:1] == b"B")  # type: ignore[index]
                script.inputs.insert(next(starts), [wire.xlog_data(m, 0, TS_US + 60 * SECOND_US) for m in messages])
            elif isinstance(request, Chunk):
                asked_behind.append(len(script.inputs))
        reader.asked.clear()

    class Answered(Script):
        def read(self, messages_max: int, bytes_max: int) -> list[bytes]:
            answer()
            return script.read(messages_max, bytes_max)

    topics = Topics("shop")
    engine = SnapshotEngine(
        schemas=[SCHEMA],
        row_records=RowRecords(CONTEXT),
        sweeps=Sweeps(topics, CONTEXT.epoch, {}),
        limits=SnapshotConfig(),
        recorded=RecordedSnapshots(records=[wanted()]),
    )
    source = SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed")
    Capture(
        clock=script.clock,
        pipeline=Pipeline(
            stream=Answered(clock=script.clock),
            broker=script,
            assembler=Assembler(
                CapturedTables([SCHEMA]),
                CONTEXT,
                StreamState(Lsn(1_000), None, 0, 0),
                engine,
                UnfollowedTables(),
            ),
            backfill=no_backfill(script.clock),
            snapshots=Snapshots(engine, reader, ScriptedReader(), ScriptedSignals(), Answers(topics, {})),
            publisher=Publisher(PositionConstants(1, source, "p", {TOPIC: TopicState(topic_id="id")}), CaptureConfig()),
        ),
        topics=topics,
        schedule=LoopSchedule(limits=CaptureConfig()),
        should_stop=lambda: bool(asked_behind) or script.clock.now_s > 1_100.0,
    ).run()
    assert len([record for record in script.committed if record.topic == TOPIC]) == transactions
    assert asked_behind == [0], "the first chunk is asked for when the backlog is published"
